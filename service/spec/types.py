"""The building blocks of the study specification: value types, and the axis that every parameter is.

Types are strict: a boolean is no number, text is no number, and nothing is NaN or infinite.
"""

import unicodedata
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from service.canonical import canonical_json
from trainers.config import InputPipeline, Optimizer, Precision

MAX_INTEGER = 2**31 - 1
MAX_AXIS_VALUES = 1_000
MAX_WORKERS = 100_000
VALUE_TAG, VALUES_TAG = "<value>", "<values>"  # pydantic puts them into the places of errors; no key looks like them


class SpecModel(BaseModel):
    """Base of everything in a specification."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def refusal(kind: str, message: str, hint: str | None = None) -> PydanticCustomError:
    """An error whose sentence is meant for people and is kept as it is."""
    # The message goes through as context: pydantic treats braces in a message template as its own.
    return PydanticCustomError("vitscale", "{message}", {"kind": kind, "message": message, "hint": hint})


# --- text ------------------------------------------------------------------------------------------------------------


def _without_control_characters(text: str, allowed: str) -> str:
    for character in text:
        if character not in allowed and unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            raise refusal("text", f"must not hold the control character U+{ord(character):04X}")
    return text


def _one_line(text: str) -> str:
    if text != text.strip():
        raise refusal("text", "must not begin or end with a space", f'write "{text.strip()}"' if text.strip() else None)
    return _without_control_characters(text, allowed="")


StudyName = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
Description = Annotated[
    str, Field(max_length=10_000), AfterValidator(lambda text: _without_control_characters(text, allowed="\n\t"))
]
StudyTag = Annotated[str, Field(min_length=1, max_length=50), AfterValidator(_one_line)]


def _unique(values: list[Any]) -> list[Any]:
    seen: set[str] = set()
    for value in values:
        text = canonical_json(value)
        if text in seen:
            raise refusal(
                "duplicate", f"{text} is given twice", "name each value once; repeats are measurement.repeats"
            )
        seen.add(text)
    return values


StudyTags = Annotated[list[StudyTag], Field(max_length=20), AfterValidator(_unique)]
PlacementName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", title="PlacementName")]

# --- numbers and choices; the title names the axis' schema -----------------------------------------------------------

PositiveInteger = Annotated[int, Field(ge=1, le=MAX_INTEGER, title="PositiveInteger")]
WorkerCount = Annotated[int, Field(ge=1, le=MAX_WORKERS, title="WorkerCount")]
ZeroStage = Annotated[int, Field(ge=0, le=3, title="ZeroStage")]
Fraction = Annotated[float, Field(gt=0, le=1, title="Fraction")]
PositiveNumber = Annotated[float, Field(gt=0, title="PositiveNumber")]
NonNegativeNumber = Annotated[float, Field(ge=0, title="NonNegativeNumber")]
Seconds = Annotated[float, Field(gt=0, le=30 * 24 * 3600.0, title="Seconds")]
ModelName = Annotated[str, Field(min_length=1, max_length=200, title="ModelName")]
AnyDataset = Annotated[Literal["synthetic", "digits", "cifar10", "cifar100", "image_folder"], Field(title="Dataset")]
PrecisionName = Annotated[Precision, Field(title="Precision")]
OptimizerName = Annotated[Optimizer, Field(title="Optimizer")]
PipelineName = Annotated[InputPipeline, Field(title="InputPipeline")]
Switch = Annotated[bool, Field(title="Switch")]


def _whole_gpus(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, float):
        raise refusal(
            "gpus",
            f"must be auto or a whole number, not {value:g}: workers that share a GPU would measure each other",
            "write 1, or auto",
        )
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WORKERS:
        raise refusal("gpus", "must be auto or a whole number from 0 up", "write auto, 0 or 1")
    return value


NumGpus = Annotated[
    int | Literal["auto"],
    BeforeValidator(_whole_gpus),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_WORKERS}, {"const": "auto", "type": "string"}]}
    ),
]


def _excluded_value(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise refusal("exclude", "must be one value", "write one entry of exclude per combination")
    if value is None:
        raise refusal("exclude", "must be a value, not null", "name the value that the points to leave out have")
    return value


ExcludedValue = Annotated[
    Any, BeforeValidator(_excluded_value), WithJsonSchema({"type": ["string", "number", "boolean"]})
]

# --- axes ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class OneValue(SpecModel, Generic[T]):
    """The parameter has one value in the whole study."""

    value: T

    @property
    def all(self) -> list[T]:
        return [self.value]


class ManyValues(SpecModel, Generic[T]):
    """The parameter takes each of these values in turn."""

    values: Annotated[list[T], Field(min_length=1, max_length=MAX_AXIS_VALUES), AfterValidator(_unique)]

    @property
    def all(self) -> list[T]:
        return self.values


def _axis_kind(data: Any) -> str | None:
    if isinstance(data, OneValue):
        return VALUE_TAG
    if isinstance(data, ManyValues):
        return VALUES_TAG
    if isinstance(data, dict):
        if "values" in data:
            return VALUES_TAG
        if "value" in data:
            return VALUE_TAG
    return None


def _named(name: str, model: type[SpecModel]) -> Any:
    return create_model(name, __base__=model, __doc__=model.__doc__)


_AXIS_MODELS: dict[str, tuple[type[OneValue[Any]], type[ManyValues[Any]]]] = {}


def _axis_models(item: Any) -> tuple[type[OneValue[Any]], type[ManyValues[Any]]]:
    """The two models of an axis of `item`, named in the OpenAPI document after the type's title."""
    title = next(part.title for part in item.__metadata__ if isinstance(part, FieldInfo) and part.title)
    if title not in _AXIS_MODELS:
        _AXIS_MODELS[title] = (
            _named(f"One{title}", OneValue[item]),
            _named(f"Many{title}", ManyValues[item]),
        )
    return _AXIS_MODELS[title]


if TYPE_CHECKING:
    Axis = OneValue[T] | ManyValues[T]
else:

    class Axis:
        """`Axis[T]`: one value or many. The given keys choose between the two, so that errors speak of one only.

        (A pydantic model's own parameters cannot be filled in through an `Annotated` alias.)
        """

        def __class_getitem__(cls, item: Any) -> Any:
            one, many = _axis_models(item)
            return Annotated[
                Annotated[one, Tag(VALUE_TAG)] | Annotated[many, Tag(VALUES_TAG)], Discriminator(_axis_kind)
            ]


def fixed(item: Any, value: object) -> Any:
    """The axis of `item` (one of the titled types above) with one value."""
    return _axis_models(item)[0](value=value)
