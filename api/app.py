"""The FastAPI application. Making it starts nothing; its lifespan starts and stops the server's parts.

`create_app` is the factory (`uvicorn --factory api.app:create_app`); `api.server.serve` is how VitScale runs it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from api.auth import Access, Gate
from api.openapi import openapi_document
from api.problems import install_handlers
from api.routes import ROUTERS
from api.routes.probes import own_version
from api.runtime import STOP_SECONDS, Runtime
from api.server_record import ServerLock
from service.settings import Settings

log = logging.getLogger(__name__)


def create_app(
    settings: Settings | None = None, *, no_auth: bool = False, with_ray: bool = True, lock: ServerLock | None = None
) -> FastAPI:
    """The application of one server.

    Args:
        settings: from the environment by default.
        no_auth: asks for no token. For a server that is bound to loopback; who binds it sees to that.
        with_ray: False starts neither the queue nor a Ray head: studies are kept and shown, and none is run.
        lock: the data directory's lock, if it is held already.
    """
    settings = settings or Settings()
    access = Access.of(settings.allowed_hosts, settings.host, no_auth=no_auth)
    runtime = Runtime(settings, with_ray=with_ray, lock=lock)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        access.token = await asyncio.to_thread(runtime.start, no_auth=no_auth)
        try:
            yield
        finally:
            if not await asyncio.to_thread(runtime.stop_within, STOP_SECONDS):
                log.error("Not everything was stopped within %g s; what is left ends with this process", STOP_SECONDS)

    # No pages of the framework's own: /docs loads scripts from elsewhere, and a browser could not send the token.
    app = FastAPI(
        title="VitScale",
        version=own_version(),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.runtime = runtime
    app.add_middleware(Gate, access=access)
    install_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_api_route("/openapi.json", _openapi, include_in_schema=False)
    return app


def _openapi(request: Request) -> JSONResponse:
    return JSONResponse(openapi_document(request.app))
