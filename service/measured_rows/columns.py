"""The columns: which there are, and how a field of each is read."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import get_args

from service.spec.types import MAX_INTEGER, MAX_WORKERS
from trainers.config import Precision

_MAX_TEXT = 200
# Within these bounds no quotient or sum of a study is beyond what its numbers and whole numbers of 64 bits can hold.
_MIN_SECONDS, _MAX_SECONDS = 1e-9, 1e9
_MAX_LOSS = 1e30
_WHOLE = re.compile(r"[+-]?[0-9]{1,12}(\.0+)?")  # a column of whole numbers with gaps is written 64.0 by many programs
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_A_NUMBER = frozenset({"nan", "inf", "infinity", "na", "n/a", "null", "none", "-"})

Value = str | int | float


class FieldWrong(ValueError):
    """A field that cannot be read: what it must be, and a hint."""

    def __init__(self, detail: str, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail, self.hint = detail, hint


@dataclass(frozen=True)
class Column:
    """`of_run`: every row of a run has the same value. `parse` reads a field that is not empty."""

    name: str
    parse: Callable[[str], Value]
    of_run: bool = True
    needed: bool = False


def _text(field: str) -> str:
    if len(field) > _MAX_TEXT:
        raise FieldWrong(f"has {len(field)} characters; at most {_MAX_TEXT} are kept")
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in field):
        raise FieldWrong("holds a control character or a line break", "one line of text")
    return field


def _whole(smallest: int, largest: int = MAX_INTEGER, hint: str | None = None) -> Callable[[str], int]:
    def parse(field: str) -> int:
        if not _WHOLE.fullmatch(field):
            raise FieldWrong(f"must be a whole number, not {_shown(field)}", _empty_hint(field))
        value = int(field.partition(".")[0])
        if not smallest <= value <= largest:
            raise FieldWrong(f"must be {smallest} to {largest}, not {value}", hint)
        return value

    return parse


def _number(
    is_right: Callable[[float], bool], what: str, hint: Callable[[float], str | None] = lambda _value: None
) -> Callable[[str], float]:
    def parse(field: str) -> float:
        if not _NUMBER.fullmatch(field) or not isfinite(value := float(field)):
            raise FieldWrong(f"must be {what}, not {_shown(field)}", _empty_hint(field) or _comma_hint(field))
        if not is_right(value):
            raise FieldWrong(f"must be {what}, not {value:g}", hint(value))
        return value

    return parse


def _precision(field: str) -> str:
    known = get_args(Precision)
    if field.lower() not in known:
        others = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float": "fp32"}
        meant = others.get(field.lower())
        raise FieldWrong(
            f"must be {', '.join(known)}, not {_shown(field)}", f"did you mean {meant}?" if meant else None
        )
    return field.lower()


def _shown(field: str) -> str:
    return repr(field if len(field) <= 40 else f"{field[:40]}...")


def _empty_hint(field: str) -> str | None:
    return "leave the field empty where it is not known" if field.lower() in _NOT_A_NUMBER else None


def _comma_hint(field: str) -> str | None:
    return f"write {field.replace(',', '.')}" if "," in field and _NUMBER.fullmatch(field.replace(",", ".")) else None


def _share_hint(value: float) -> str | None:
    return f"{value:g} percent is {value / 100:g}" if 1 < value <= 100 else None


_seconds = _number(lambda value: _MIN_SECONDS <= value <= _MAX_SECONDS, "a number of seconds from 1e-9 to 1e9")
_part_seconds = _number(
    lambda value: value == 0 or _MIN_SECONDS <= value <= _MAX_SECONDS, "0 or a number of seconds from 1e-9 to 1e9"
)
_fraction = _number(lambda value: 0 < value <= 1, "above 0 and at most 1", _share_hint)

COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        column.name: column
        for column in (
            Column("run", _text, needed=True),
            Column("world_size", _whole(1, MAX_WORKERS), needed=True),
            Column("nodes", _whole(1, MAX_WORKERS)),
            Column("train_micro_batch_size_per_gpu", _whole(1)),
            Column("gradient_accumulation_steps", _whole(1)),
            Column("train_batch_size", _whole(1)),
            Column("zero_stage", _whole(0, 3)),
            Column("precision", _precision),
            Column("placement", _text),
            Column("model", _text),
            Column("dataset", _text),
            Column("dataset_fraction", _fraction),
            Column("device", str, of_run=False),
            Column("rank", _whole(0, MAX_WORKERS - 1), of_run=False),
            Column("epoch", _whole(1, hint="epochs count from 1"), of_run=False),
            Column("epoch_seconds", _seconds, of_run=False),
            Column("step_seconds", _seconds, of_run=False),
            Column("steps_per_epoch", _whole(1)),
            Column("compute_seconds", _part_seconds, of_run=False),
            Column("communication_seconds", _part_seconds, of_run=False),
            Column("loss", _number(lambda value: abs(value) <= _MAX_LOSS, "a number from -1e30 to 1e30"), of_run=False),
            Column("accuracy", _number(lambda value: 0 <= value <= 1, "0 to 1", _share_hint), of_run=False),
        )
    }
)
# A point's parameters among the columns, in the order of a results row.
PARAMETERS = (
    "model",
    "world_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "zero_stage",
    "precision",
    "placement",
    "dataset",
    "dataset_fraction",
)
# What a row may measure; a row without any of these says nothing.
TIMES = ("epoch_seconds", "step_seconds")
PARTS = ("compute_seconds", "communication_seconds")
