"""Two studies side by side."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from api.problems import RequestInvalid, documented
from api.routes.parameters import answer, checked_study_id, known_query_only, studies_of
from service.errors import ErrorItem, NotFound
from service.tolerance import HINT, parse_tolerance

router = APIRouter(prefix="/studies/compare", tags=["results"], dependencies=[Depends(known_query_only)])

_SCHEMA: dict[str, Any] = {"$ref": "#/components/schemas/StudyComparison"}


@router.get(
    "",
    operation_id="compareStudies",
    summary="The same points of two studies side by side: what became slower or faster beyond the noise",
    responses={
        200: {"description": "Study b against study a", "content": {"application/json": {"schema": _SCHEMA}}},
        **documented(NotFound, RequestInvalid),
    },
)
def compare_studies(
    request: Request,
    a: Annotated[str, Query(description="The study before", examples=["k3v7q2xw5mzd"])],
    b: Annotated[str, Query(description="The study after", examples=["m4w2q7xk5nzd"])],
    tolerance: Annotated[
        str, Query(max_length=40, description="Slower by no more than this is no regression: 5% or 0.05")
    ] = "5%",
) -> Response:
    """Ratios are b / a of a step's seconds (of an epoch's where there are no steps): above 1, b is slower. A point is
    called slower or faster beyond the noise of all points together (Holm) and beyond the tolerance. Without repeats
    nothing closer than 5 % is ranked. Studies that are not over are compared as far as they are; `missing` says so."""
    try:
        share = parse_tolerance(tolerance)
    except ValueError as error:
        raise RequestInvalid(f"tolerance: {error}", [ErrorItem("/query/tolerance", str(error), HINT)]) from None
    return answer(studies_of(request).compare(checked_study_id(a), checked_study_id(b), tolerance=share))
