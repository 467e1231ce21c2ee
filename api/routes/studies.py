"""Studies: post, plan, list, look, change, delete, and cancel, resume, retry, extend."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import RequestBody
from api.plan_answer import PlanAnswer
from api.problems import RequestInvalid, body_errors, documented, error_items
from api.routes.parameters import Cursor, IdempotencyKey, Limit, StudyId, answer, known_query_only, studies_of
from service.errors import BadRequest, IdempotencyKeyReused, NotAvailable, NotFound, WrongState
from service.states import StudyState
from service.views import LogLine, StudiesPage, StudyView

router = APIRouter(prefix="/studies", tags=["studies"], dependencies=[Depends(known_query_only)])


class StudyLogs(BaseModel):
    """The lines that belong to no one trial, in order."""

    study_id: str
    lines: list[LogLine]


EXAMPLE_SPEC: dict[str, Any] = {
    "name": "first-batch-sweep",
    "description": "How the batch size sets the speed of a small ViT on one and two workers",
    "workload": {"dataset": "digits", "image_size": 32},
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "patch_size": {"value": 8},
        "world_size": {"values": [1, 2]},
        "train_micro_batch_size_per_gpu": {"values": [4, 16, 64]},
    },
    "measurement": {"max_steps": 50, "max_seconds": 20},
}
EXAMPLE_YAML = """\
name: first-batch-sweep
workload: {dataset: digits, image_size: 32}
parameters:
  model: {value: vit_tiny_patch16_224}
  patch_size: {value: 8}
  world_size: {values: [1, 2]}
  train_micro_batch_size_per_gpu: {values: [4, 16, 64]}
measurement: {max_steps: 50, max_seconds: 20}
"""
_SPEC_SCHEMA = {"$ref": "#/components/schemas/StudySpec"}
_SPEC_BODY = {
    "requestBody": {
        "required": True,
        "description": "The study's specification",
        "content": {
            "application/json": {"schema": _SPEC_SCHEMA, "example": EXAMPLE_SPEC},
            "application/yaml": {"schema": _SPEC_SCHEMA, "example": EXAMPLE_YAML},
        },
    }
}


class StudyPatch(BaseModel):
    """What may be changed of a study. A key that is left out stays as it is; null removes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tags: list[str] | None = None
    description: str | None = None


_PATCH_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/StudyPatch"},
                "example": {"tags": ["baseline"], "description": "before the driver's upgrade"},
            }
        },
    }
}


@router.post(
    "",
    operation_id="createStudy",
    summary="Queue a study",
    status_code=202,
    response_model=StudyView,
    responses=documented(*body_errors(), NotAvailable, IdempotencyKeyReused),
    openapi_extra=_SPEC_BODY,
)
def create_study(request: Request, body: RequestBody, idempotency_key: IdempotencyKey = None) -> Response:
    study, _ = studies_of(request).create(body.parsed(), idempotency_key=idempotency_key, body_digest=body.digest)
    return _accepted(study)


@router.post(
    "/plan",
    operation_id="planStudy",
    summary="What a study would run; nothing is stored",
    response_model=PlanAnswer,
    responses=documented(*body_errors(), NotAvailable),
    openapi_extra=_SPEC_BODY,
)
def plan_study(request: Request, body: RequestBody) -> Response:
    return answer(PlanAnswer.of(studies_of(request).plan(body.parsed())))


@router.get(
    "",
    operation_id="listStudies",
    summary="Studies, newest first",
    response_model=StudiesPage,
    responses=documented(BadRequest, RequestInvalid),
)
def list_studies(
    request: Request,
    status: StudyState | None = None,
    name: Annotated[str | None, Query(max_length=100, description="Any part of the name, whatever its case")] = None,
    tag: Annotated[str | None, Query(max_length=100, description="One of the study's tags")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    found, next_cursor = studies_of(request).list(status=status, name=name, tag=tag, limit=limit, cursor=cursor)
    return answer(StudiesPage(studies=found, next_cursor=next_cursor))


@router.get(
    "/{study_id}",
    operation_id="getStudy",
    summary="One study: its state, counts, progress",
    response_model=StudyView,
    responses=documented(NotFound),
)
def get_study(request: Request, study_id: StudyId) -> Response:
    return answer(studies_of(request).get(study_id))


@router.patch(
    "/{study_id}",
    operation_id="updateStudy",
    summary="Change tags and description",
    response_model=StudyView,
    responses=documented(NotFound, *body_errors()),
    openapi_extra=_PATCH_BODY,
)
def update_study(request: Request, study_id: StudyId, body: RequestBody) -> Response:
    try:
        patch = StudyPatch.model_validate(body.parsed())
    except ValidationError as error:
        items = error_items(error.errors(include_url=False, include_input=False))
        raise RequestInvalid("Only tags (a list of text) and description (text) can be changed", items) from None
    return answer(studies_of(request).patch(study_id, **patch.model_dump(exclude_unset=True)))


@router.delete(
    "/{study_id}",
    operation_id="deleteStudy",
    summary="Delete a study in a final state, with all its rows",
    status_code=204,
    response_class=Response,
    responses=documented(NotFound, WrongState),
)
def delete_study(request: Request, study_id: StudyId) -> Response:
    studies_of(request).delete(study_id)
    return Response(status_code=204)


@router.get(
    "/{study_id}/logs",
    operation_id="getStudyLogs",
    summary="What the study's jobs wrote beside the trials' own lines",
    response_model=StudyLogs,
    responses=documented(NotFound),
)
def get_study_logs(request: Request, study_id: StudyId) -> Response:
    return answer(StudyLogs(study_id=study_id, lines=studies_of(request).study_logs(study_id)))


_ACTED = documented(NotFound, WrongState)


@router.post(
    "/{study_id}/cancel",
    operation_id="cancelStudy",
    summary="Cancel a study that is queued or running",
    status_code=202,
    response_model=StudyView,
    responses=_ACTED,
)
def cancel_study(request: Request, study_id: StudyId) -> Response:
    return _accepted(studies_of(request).cancel(study_id))


@router.post(
    "/{study_id}/resume",
    operation_id="resumeStudy",
    summary="Queue what never finished",
    status_code=202,
    response_model=StudyView,
    responses=_ACTED,
)
def resume_study(request: Request, study_id: StudyId) -> Response:
    return _accepted(studies_of(request).resume(study_id))


@router.post(
    "/{study_id}/retry",
    operation_id="retryStudy",
    summary="Queue what never finished, and what failed",
    status_code=202,
    response_model=StudyView,
    responses=_ACTED,
)
def retry_study(request: Request, study_id: StudyId) -> Response:
    return _accepted(studies_of(request).retry(study_id))


@router.post(
    "/{study_id}/extend",
    operation_id="extendStudy",
    summary="Queue the points of a specification that the study does not have yet",
    status_code=202,
    response_model=StudyView,
    responses=documented(NotFound, WrongState, *body_errors(), NotAvailable),
    openapi_extra=_SPEC_BODY,
)
def extend_study(request: Request, study_id: StudyId, body: RequestBody) -> Response:
    """For a study that is over. Points it has (the same parameters and repeat) are not run again, and none is taken
    away. What is no parameter but has a part in what is measured must be as it was; `GET` shows the specification
    among the study's `extensions`."""
    return _accepted(studies_of(request).extend(study_id, body.parsed()))


def _accepted(study: StudyView) -> Response:
    return answer(study, status=202, headers={"Location": f"/studies/{study.id}"})
