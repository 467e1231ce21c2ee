"""What was measured: one row per trial, as JSON, CSV or Parquet."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from api.problems import RequestInvalid, documented
from api.routes.parameters import Cursor, Limit, StudyId, json_answer, known_query_only, studies_of
from service.errors import BadRequest, NotFound
from service.states import TrialState
from service.views import ResultsPage

router = APIRouter(prefix="/studies/{study_id}/results", tags=["results"], dependencies=[Depends(known_query_only)])

PAGE_ROWS = 500
_CSV = "text/csv; charset=utf-8; header=present"
_PARQUET = "application/vnd.apache.parquet"


@router.get(
    "",
    operation_id="getResults",
    summary="Results rows, one per trial whatever its state, in the order of the trials' numbers",
    response_model=ResultsPage,
    responses={
        200: {"content": {"text/csv": {"schema": {"type": "string"}}, _PARQUET: {"schema": {"format": "binary"}}}},
        **documented(NotFound, BadRequest, RequestInvalid),
    },
)
def get_results(
    request: Request,
    study_id: StudyId,
    format: Annotated[
        Literal["json", "csv", "parquet"], Query(description="parquet has the columns of csv, with types")
    ] = "json",
    state: Annotated[TrialState | None, Query(description="Only trials in this state")] = None,
    limit: Limit | None = None,
    cursor: Cursor = None,
) -> Response:
    """JSON comes in pages (500 rows unless `limit` says otherwise). CSV and Parquet hold all rows, or with `limit` or
    `cursor` a page, whose `Link` header (rel="next") has the next one."""
    studies = studies_of(request)
    if format == "json":
        return json_answer(studies.results_json(study_id, state=state, limit=limit or PAGE_ROWS, cursor=cursor))
    headers = {"Content-Disposition": f'attachment; filename="{study_id}.{format}"'}
    if limit is None and cursor is None:
        if format == "csv":
            return Response(studies.results_csv(study_id, state=state), headers=headers, media_type=_CSV)
        return Response(studies.results_parquet(study_id, state=state), headers=headers, media_type=_PARQUET)

    page = studies.results(study_id, state=state, limit=limit or PAGE_ROWS, cursor=cursor)
    if page.next_cursor is not None:
        following = request.url.include_query_params(cursor=page.next_cursor)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    if format == "csv":
        from service.results_csv import csv_text

        return Response(csv_text(page.results), headers=headers, media_type=_CSV)

    from service.results_parquet import parquet_bytes

    return Response(parquet_bytes(page.results), headers=headers, media_type=_PARQUET)
