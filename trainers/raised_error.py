"""What went wrong on a rank, in words that travel: an exception may not survive pickling, its description does.

Pure: neither torch nor Ray.
"""

import time
import traceback
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

TRACEBACK_TAIL_LINES = 40
MESSAGE_CHARACTERS = 4000  # CUDA's out-of-memory text has about 1,000; a pydantic one may list hundreds of fields


class RaisedError(BaseModel):
    """An exception as it was raised, on the rank that raised it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str  # class name, as a person knows it
    message: str
    own_types: list[str] = Field(default_factory=list)  # qualified names: its class, then the bases
    cause_types: list[str] = Field(default_factory=list)  # the same of everything in its chain of causes
    rank: int | None = None
    node: str | None = None
    traceback_tail: list[str] = Field(default_factory=list)
    raised_at: float = 0.0  # seconds since the epoch, on the raising node's clock


def describe(error: BaseException, *, rank: int | None = None, node: str | None = None) -> RaisedError:
    """The description of an exception that has just been caught."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return RaisedError(
        type=type(error).__name__,
        message=_shortened(str(error)),
        own_types=_qualified_names(type(error)),
        cause_types=[name for cause in _causes(error) for name in _qualified_names(type(cause))],
        rank=rank,
        node=node,
        traceback_tail=[line[:500] for line in lines[-TRACEBACK_TAIL_LINES:]],
        raised_at=time.time(),
    )


def _qualified_names(kind: type[BaseException]) -> list[str]:
    plain = (object, BaseException, Exception)
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base not in plain]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = _cause(error)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = _cause(cause)


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _shortened(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " ..."
