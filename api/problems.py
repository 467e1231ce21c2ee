"""Every error of the HTTP API as RFC 9457 `application/problem+json`, made in one place.

Errors a person can act on are `VitScaleError`s raised beside the code that finds them; the errors of HTTP itself are
defined here. Answers never carry internals: what was not expected is logged and answered as INTERNAL.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from service.errors import BadRequest, ErrorItem, NotAvailable, NotFound, SpecInvalid, VitScaleError

MEDIA_TYPE = "application/problem+json"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class Unauthorized(VitScaleError):
    status, code, title = 401, "UNAUTHORIZED", "A bearer token is needed"


class CrossOrigin(VitScaleError):
    """A web page of another origin tries to change something on a server that asks for no token."""

    status, code, title = 403, "CROSS_ORIGIN", "Not from another web page"


class MethodNotAllowed(VitScaleError):
    status, code, title = 405, "METHOD_NOT_ALLOWED", "The method is not allowed here"


class RequestTimeout(VitScaleError):
    status, code, title = 408, "REQUEST_TIMEOUT", "The request took too long to arrive"


class BodyTooLarge(VitScaleError):
    status, code, title = 413, "BODY_TOO_LARGE", "The body is too large"


class UnsupportedMediaType(VitScaleError):
    status, code, title = 415, "UNSUPPORTED_MEDIA_TYPE", "The body is of a type that is not read here"
    accept = "application/json, application/yaml"


class NotCsv(UnsupportedMediaType):
    accept = "text/csv"


class HostNotAllowed(VitScaleError):
    """The Host header is not one of ours: a proxy that does not know us, or a DNS rebinding attempt."""

    status, code, title = 421, "HOST_NOT_ALLOWED", "The Host header names no host of this server"


class RequestInvalid(VitScaleError):
    """Parameters or a body that do not fit the documented schema (a study's spec has SPEC_INVALID)."""

    status, code, title = 422, "REQUEST_INVALID", "The request does not fit the schema"


class NotImplementedYet(NotAvailable):
    """A documented call that this version does not answer yet."""

    status = 501


class NotReady(VitScaleError):
    status, code, title = 503, "NOT_READY", "The server is not ready"


class ProblemItem(BaseModel):
    """One thing that is wrong. `pointer` is a JSON pointer into the body, or names a parameter (`/query/limit`)."""

    pointer: str
    detail: str
    hint: str | None = None


class Problem(BaseModel):
    """An error, as RFC 9457 has it, with a stable `code` for programs."""

    type: str = Field(examples=["urn:vitscale:problem:not-found"])
    title: str
    status: int
    detail: str
    code: str = Field(examples=["NOT_FOUND"])
    errors: list[ProblemItem] = Field(default_factory=list)


def problem_response(error: VitScaleError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to `error`. `headers` are added to it."""
    content = {
        "type": f"urn:vitscale:problem:{error.code.lower().replace('_', '-')}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "errors": [{"pointer": item.pointer, "detail": item.detail, "hint": item.hint} for item in error.errors],
    }
    # ASCII only: what was sent may hold half a surrogate pair, which UTF-8 cannot carry.
    body = json.dumps(content, ensure_ascii=True, allow_nan=False).encode()
    return Response(body, status_code=error.status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def documented(*errors: type[VitScaleError]) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route: its own errors and the ones that every call may answer.

    By reference: a model for each would cost a tenth of a second when the application is imported.
    """
    codes: dict[int, set[str]] = {}
    every: list[type[VitScaleError]] = [Unauthorized, HostNotAllowed, *errors]
    for error in every:
        codes.setdefault(error.status, set()).add(error.code)
    return {
        status: {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(sorted(names))}",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, names in sorted(codes.items())
    }


def body_errors() -> Sequence[type[VitScaleError]]:
    """The errors of a call that reads a body."""
    return (BadRequest, RequestTimeout, BodyTooLarge, UnsupportedMediaType, SpecInvalid)


def error_items(found: Sequence[Any], *, root: str = "") -> list[ErrorItem]:
    """pydantic's error dictionaries as items with JSON pointers below `root`. Input values are left out."""
    items = []
    for entry in found:
        steps = [str(step).replace("~", "~0").replace("/", "~1") for step in entry["loc"]]
        items.append(ErrorItem(pointer=root + "".join(f"/{step}" for step in steps), detail=str(entry["msg"])))
    return items


def install_handlers(app: FastAPI) -> None:
    """Turns every exception that a route may raise into a problem."""
    app.add_exception_handler(VitScaleError, _expected)
    app.add_exception_handler(RequestValidationError, _request_invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _expected(_request: Request, error: Exception) -> Response:
    assert isinstance(error, VitScaleError)
    return problem_response(error, _headers(error))


def _headers(error: VitScaleError) -> dict[str, str]:
    if isinstance(error, UnsupportedMediaType):
        return {"Accept": error.accept}  # RFC 9110, 15.5.16
    if isinstance(error, BodyTooLarge | RequestTimeout):
        return {"Connection": "close"}  # what is left of the body is not read
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": "5"}
    return {}


async def _request_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    items = error_items(error.errors())
    detail = f"{items[0].pointer}: {items[0].detail}" if len(items) == 1 else f"{len(items)} parameters do not fit"
    return problem_response(RequestInvalid(detail, items))


async def _http(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: an unknown path, a method that the path does not know."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem_response(NotFound(f"There is nothing at {request.url.path}"))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _allowed_methods(request)
        detail = f"{request.url.path} answers {', '.join(allowed)}, not {request.method}"
        return problem_response(MethodNotAllowed(detail), {"Allow": ", ".join(allowed)})
    refusal = BadRequest(str(error.detail))
    refusal.status, refusal.title = error.status_code, HTTPStatus(error.status_code).phrase
    return problem_response(refusal, error.headers)


def _allowed_methods(request: Request) -> list[str]:
    """All methods of the path: the framework itself names those of one route only."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """Answers without internals. The framework raises the error again, so that the server logs its traceback."""
    return problem_response(VitScaleError("Something went wrong in the server; its log has the cause"))
