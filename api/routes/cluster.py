"""The cluster as Ray sees it now."""

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from api.problems import documented
from api.routes.parameters import answer, known_query_only, runtime_of
from service.errors import RayRefused, RayUnreachable

router = APIRouter(tags=["cluster"], dependencies=[Depends(known_query_only)])


@router.get(
    "/cluster",
    operation_id="getCluster",
    summary="Nodes, devices, labels, and where Ray's dashboard is",
    responses=documented(RayUnreachable, RayRefused),
)
async def get_cluster(request: Request) -> Response:
    """Answers within Ray's timeout (VITSCALE_RAY_TIMEOUT_SECONDS), with RAY_UNREACHABLE if Ray does not."""
    return answer(await runtime_of(request).describe_cluster())
