"""Studies of rows that were measured elsewhere."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import CsvText
from api.limits import MAX_CSV_BYTES
from api.problems import RequestInvalid, body_errors, documented
from api.routes.parameters import IdempotencyKey, answer, known_query_only, studies_of
from service.errors import IdempotencyKeyReused
from service.views import StudyView

router = APIRouter(prefix="/studies", tags=["studies"], dependencies=[Depends(known_query_only)])

EXAMPLE_CSV = """\
run,world_size,train_micro_batch_size_per_gpu,dataset,device,steps_per_epoch,epoch,epoch_seconds
one-gpu,1,64,cifar10,Tesla T4,782,1,1817.7
two-gpus,2,64,cifar10,Tesla T4,391,1,941.9
"""
_CSV_BODY = {
    "requestBody": {
        "required": True,
        "description": (
            "A row per run, or per (run, epoch[, rank]), with a header. Needed are run, world_size, a batch size, and "
            f"epoch_seconds or step_seconds. At most {MAX_CSV_BYTES} bytes."
        ),
        "content": {"text/csv": {"schema": {"type": "string"}, "example": EXAMPLE_CSV}},
    }
}


@router.post(
    "/import",
    operation_id="importStudy",
    summary="A finished study from measured rows",
    status_code=201,
    response_model=StudyView,
    responses=documented(*body_errors(), RequestInvalid, IdempotencyKeyReused),
    openapi_extra=_CSV_BODY,
)
def import_study(
    request: Request,
    text: CsvText,
    name: Annotated[str, Query(min_length=1, max_length=100, description="The study's name")],
    mode: Annotated[
        Literal["none", "strong", "weak"],
        Query(description="strong: the data set is fixed. weak: dataset_fraction is per worker"),
    ] = "none",
    map: Annotated[
        list[str] | None,
        Query(max_length=100, description="theirs=ours renames a column, theirs= passes it over; may be repeated"),
    ] = None,
    description: Annotated[str, Query(max_length=10_000)] = "",
    tag: Annotated[list[str] | None, Query(max_length=20, description="May be repeated")] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """What is wrong with the rows is named by line and column (`/line/7/epoch_seconds`), all at once up to a bound,
    and then nothing is stored. Runs with the same parameters are repeats of one point."""
    from service.importing import RowsToImport  # the database's libraries are loaded when the server starts

    given = RowsToImport(text, name, mode, tuple(map or ()), description, tuple(tag or ()))
    study, _ = studies_of(request).import_rows(given, idempotency_key)
    return answer(study, status=201, headers={"Location": f"/studies/{study.id}"})
