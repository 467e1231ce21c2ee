"""The trials of a study: states, attempts, ranks, epochs, logs."""

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from api.problems import RequestInvalid, documented
from api.routes.parameters import Cursor, Limit, StudyId, TrialNumber, answer, known_query_only, studies_of
from service.errors import BadRequest, NotFound
from service.views import LogLine, TrialsPage, TrialView

router = APIRouter(prefix="/studies/{study_id}/trials", tags=["trials"], dependencies=[Depends(known_query_only)])


class TrialLogs(BaseModel):
    """The lines that the trial's workers wrote, in order."""

    study_id: str
    trial: int
    lines: list[LogLine]


@router.get(
    "",
    operation_id="listTrials",
    summary="Trials in the order of their numbers",
    response_model=TrialsPage,
    responses=documented(NotFound, BadRequest, RequestInvalid),
)
def list_trials(request: Request, study_id: StudyId, limit: Limit = 500, cursor: Cursor = None) -> Response:
    return answer(studies_of(request).trials(study_id, limit=limit, cursor=cursor))


@router.get(
    "/{number}",
    operation_id="getTrial",
    summary="One trial: its attempts, error, per-rank and per-epoch tables",
    response_model=TrialView,
    responses=documented(NotFound, RequestInvalid),
)
def get_trial(request: Request, study_id: StudyId, number: TrialNumber) -> Response:
    return answer(studies_of(request).trial(study_id, number))


@router.get(
    "/{number}/logs",
    operation_id="getTrialLogs",
    summary="What the trial's workers wrote",
    response_model=TrialLogs,
    responses=documented(NotFound, RequestInvalid),
)
def get_trial_logs(request: Request, study_id: StudyId, number: TrialNumber) -> Response:
    lines = studies_of(request).trial_logs(study_id, number)
    return answer(TrialLogs(study_id=study_id, trial=number, lines=lines))
