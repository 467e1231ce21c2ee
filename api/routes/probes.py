"""Probes (the only calls without a token) and the version."""

import platform
from importlib import metadata
from typing import Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from api.problems import documented
from api.routes.parameters import answer, known_query_only, runtime_of

router = APIRouter(tags=["server"], dependencies=[Depends(known_query_only)])

NO_TOKEN: dict[str, Any] = {"security": []}


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Part(BaseModel):
    """One thing the server needs; `reason` says why it is not ready."""

    ready: bool
    reason: str | None = None


class Readiness(BaseModel):
    ready: bool
    database: Part
    ray: Part


class Version(BaseModel):
    version: str
    python: str
    ray: str


@router.get("/healthz", operation_id="getHealth", summary="The process is up", openapi_extra=NO_TOKEN)
async def get_health() -> Health:
    return Health()


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="The server can run studies now",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Not ready, with the reasons"}},
    openapi_extra=NO_TOKEN,
)
def get_readiness(request: Request) -> Response:
    """Asks the database; of Ray it tells what the last check in the background saw, so it never waits for Ray."""
    runtime = runtime_of(request)
    database = Part(ready=True)
    problem = runtime.database_problem()
    if problem is not None:
        database = Part(ready=False, reason=problem)
    ray = Part(ready=runtime.ray_problem is None, reason=runtime.ray_problem)
    readiness = Readiness(ready=database.ready and ray.ready, database=database, ray=ray)
    return answer(readiness, status=200 if readiness.ready else 503)


@router.get("/version", operation_id="getVersion", summary="What runs here", responses=documented())
def get_version() -> Version:
    return Version(version=own_version(), python=platform.python_version(), ray=metadata.version("ray"))


def own_version() -> str:
    return metadata.version("vitscale")
