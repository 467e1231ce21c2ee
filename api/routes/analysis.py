"""What a study's rows say together: `GET /studies/{id}/analysis`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from api.problems import RequestInvalid, documented
from api.routes.parameters import StudyId, answer, known_query_only, studies_of
from service.analysis.answer import AnalysisOptions, StudyAnalysis
from service.errors import ErrorItem, NotFound

MAX_FORECASTS = 32
MAX_WORLD_SIZE = 100_000

router = APIRouter(prefix="/studies/{study_id}/analysis", tags=["results"], dependencies=[Depends(known_query_only)])


@router.get(
    "",
    operation_id="getAnalysis",
    summary="Scaling of each series with forecasts, sweet spots of the batch size, memory frontiers, findings",
    response_model=StudyAnalysis,
    responses=documented(NotFound, RequestInvalid),
)
def get_analysis(
    request: Request,
    study_id: StudyId,
    forecast: Annotated[
        str | None,
        Query(
            max_length=400,
            description="World sizes to forecast, with commas between. Else: two and four times each series' largest.",
            examples=["16,32"],
        ),
    ] = None,
    sweet_spot_ratio: Annotated[
        float, Query(gt=0, le=1, description="The share of the best throughput that a batch size has to reach surely")
    ] = AnalysisOptions.model_fields["sweet_spot_ratio"].default,
    efficiency: Annotated[
        float, Query(gt=0, le=1, description="The efficiency that the largest useful world size has to keep")
    ] = AnalysisOptions.model_fields["efficiency_target"].default,
) -> Response:
    """Made anew with each call from the rows that are there: a study that runs is analysed as far as it is."""
    options = AnalysisOptions(
        sweet_spot_ratio=sweet_spot_ratio, efficiency_target=efficiency, forecast_sizes=forecast_sizes(forecast)
    )
    return answer(studies_of(request).analysis(study_id, options))


def forecast_sizes(text: str | None) -> list[int]:
    """ "16,32" as numbers, in order, each once. Raises RequestInvalid."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and 1 <= int(part) <= MAX_WORLD_SIZE)]
    if wrong or len(set(parts)) > MAX_FORECASTS:
        what = f"{wrong[0]!r} is no world size" if wrong else f"more than {MAX_FORECASTS} world sizes"
        hint = f"whole numbers from 1 to {MAX_WORLD_SIZE} with commas between, at most {MAX_FORECASTS}: 16,32"
        raise RequestInvalid(f"forecast: {what}; {hint}", [ErrorItem("/query/forecast", what, hint)])
    return sorted({int(part) for part in parts})
