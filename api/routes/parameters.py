"""What the routes share: their parameters, the way to the running server's parts, and the writing of answers."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Header, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from api.problems import NotReady, RequestInvalid
from api.runtime import Runtime
from service.errors import ErrorItem, NotFound

if TYPE_CHECKING:  # the database's libraries are loaded when the server starts, not when it is imported
    from service.studies import Studies

_STUDY_ID = re.compile(r"[a-z2-7]{12}")


def _study_id(study_id: Annotated[str, Path(description="The study's id", examples=["k3v7q2xw5mzd"])]) -> str:
    return checked_study_id(study_id)


def checked_study_id(study_id: str) -> str:
    """Raises NotFound for what is no id at all."""
    if not _STUDY_ID.fullmatch(study_id):
        raise NotFound(f"There is no study {study_id!r}: an id has 12 lowercase letters and digits")
    return study_id


StudyId = Annotated[str, Depends(_study_id)]
TrialNumber = Annotated[int, Path(ge=1, le=1_000_000, description="The trial's number within its study, from 1")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Rows of one page, at most")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="Any text of your own. The same key with the same body is the same study; with another body 422",
    ),
]


def known_query_only(request: Request) -> None:
    """Refuses query parameters that the call does not know: a misspelt filter must not widen an answer."""
    route = request.scope.get("route")
    known = [field.alias for field in route.dependant.query_params] if route is not None else []
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        hint = f"known here: {', '.join(known)}" if known else "this call takes none"
        items = [ErrorItem(f"/query/{name}", "unknown query parameter", hint) for name in unknown]
        raise RequestInvalid(f"Unknown query parameter {', '.join(unknown)}; {hint}", items)


def runtime_of(request: Request) -> Runtime:
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime)
    return runtime


def studies_of(request: Request) -> "Studies":
    studies = runtime_of(request).studies
    if studies is None:
        raise NotReady("The server is starting or stopping: try again in a moment")
    return studies


def answer(view: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`view` as JSON. pydantic writes it in one go (and NaN as null), where the framework would validate it again."""
    return json_answer(view.model_dump_json().encode(), status=status, headers=headers)


def json_answer(content: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")
