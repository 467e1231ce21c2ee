"""Reads pickles that hold nothing but arrays, bytes, numbers, text and plain containers.

A pickle may name any function and have it called; data sets from elsewhere are not to be trusted with that. No name in
the file is ever looked up: the few that numpy's arrays are written with are answered by stand-ins of this module, which
check what they are given and build the array themselves.
"""

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_BYTES: Final = 1 << 30  # CIFAR's largest file has 155 MB


class UnsafePickle(ValueError):
    """The file names something other than plain data, or is no whole pickle."""


_NDARRAY_CLASS: Final = object()  # what `numpy.ndarray` becomes: an argument of the makers below, callable by nobody


class _Dtype:
    """Stands in for numpy.dtype: a plain number type and its byte order."""

    def __init__(self, text: Any, *_flags: Any) -> None:
        if not isinstance(text, str) or not re.fullmatch(r"[biuf]\d{1,2}", text):
            raise UnsafePickle(f"an array of type {text!r}, which is no plain number")
        self._text, self._order = text, "="

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("|", "<", ">", "="):
            raise UnsafePickle("an array type that is not written the way numpy does")
        self._order = state[1]

    def resolve(self) -> np.dtype[Any]:
        return np.dtype(self._order + self._text)


class _Array:
    """Stands in for an array as protocols 0 to 4 write it: made empty, then given shape, type and bytes."""

    array: npt.NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise UnsafePickle("an array that is not written the way numpy does")
        _, shape, dtype, is_fortran, content = state
        raw = content.encode("latin1") if isinstance(content, str) else content  # Python 2's bytes come as text
        self.array = _build_array(raw, dtype, shape, "F" if is_fortran else "C")


def _build_array(content: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    """An array of its own from bytes; numpy checks that shape, type and number of bytes agree."""
    if not isinstance(content, (bytes, bytearray)) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise UnsafePickle("an array that is not written the way numpy does")
    return np.frombuffer(content, dtype=dtype.resolve()).reshape(shape, order=order).copy()


def _make_empty_array(kind: Any, _shape: Any, _typecode: Any) -> _Array:
    """numpy's `_reconstruct`."""
    if kind is not _NDARRAY_CLASS:
        raise UnsafePickle("an array of a class that is not numpy's own")
    return _Array()


def _latin1_bytes(text: Any, encoding: Any) -> bytes:
    """_codecs.encode: how Python 3 writes bytes with protocol 2 or below."""
    if not isinstance(text, str) or encoding != "latin1":
        raise UnsafePickle("text in an unexpected encoding")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """builtins.bytes() is how protocol 2 writes empty bytes."""
    return b""


_STAND_INS: Final[dict[tuple[str, str], Callable[..., Any] | object]] = {
    ("numpy", "ndarray"): _NDARRAY_CLASS,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _make_empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _make_empty_array,
    ("numpy.core.numeric", "_frombuffer"): _build_array,
    ("numpy._core.numeric", "_frombuffer"): _build_array,
    ("_codecs", "encode"): _latin1_bytes,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
}


# What unpickling and building arrays raise on malformed input.
_BROKEN: Final = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise UnsafePickle(f"names {module}.{name}, and only plain arrays and containers are read") from None

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle(f"refers to something outside of the file ({pid!r})")


def load_plain_pickle(path: Path) -> Any:
    """The data in the file at `path`; byte strings of Python 2 become text (latin1), as torchvision reads them.

    Raises:
        UnsafePickle: it names anything that is not plain data, is no pickle, or is larger than 1 GiB.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UnsafePickle(f"{path} is larger than {MAX_BYTES} bytes")
    try:
        return _plain(_RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load())
    except UnsafePickle as error:
        raise UnsafePickle(f"{path}: {error}") from None
    except _BROKEN as error:
        raise UnsafePickle(f"{path} is not a whole pickle of plain data: {error}") from error


def _plain(value: Any) -> Any:
    """The value with its arrays in place of their stand-ins.

    Raises:
        UnsafePickle: something in it is no plain data.
        RecursionError: it contains itself.
    """
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray, np.ndarray)):
        return value
    raise UnsafePickle(f"holds a {type(value).__name__}, and only plain arrays and containers are read")
