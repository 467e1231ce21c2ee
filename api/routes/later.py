"""Calls that the interface documents and this version does not answer yet: refused by name, not as unknown paths."""

from fastapi import APIRouter
from starlette.requests import Request

from api.problems import NotImplementedYet

NOT_YET: tuple[tuple[str, str], ...] = (
    ("GET", "/studies/{study_id}/report"),
    ("GET", "/studies/{study_id}/events"),
    ("GET", "/metrics"),
    ("GET", "/ui"),
    ("GET", "/ui/{rest:path}"),
)

router = APIRouter(include_in_schema=False)


async def _refuse(request: Request) -> None:
    raise NotImplementedYet(f"{request.method} {request.url.path} is documented, but not available in this version yet")


for _method, _path in NOT_YET:
    router.add_api_route(_path, _refuse, methods=[_method])
