"""Errors a person can act on. Each carries its HTTP status and a stable code; one handler turns them into answers."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ErrorItem:
    """One thing that is wrong: where (JSON pointer into the input), what, and what would be right."""

    pointer: str
    detail: str
    hint: str | None = None


@dataclass(eq=False)
class VitScaleError(Exception):
    """Base of all expected errors: `detail` is one sentence for a person."""

    detail: str
    errors: list[ErrorItem] = field(default_factory=list)

    status = 500
    code = "INTERNAL"
    title = "Internal error"

    def __str__(self) -> str:
        return self.detail


class SpecInvalid(VitScaleError):
    status, code, title = 422, "SPEC_INVALID", "The study specification is not valid"


class NotAvailable(VitScaleError):
    """A documented key that this version does not honour yet: refused, never ignored."""

    status, code, title = 422, "NOT_AVAILABLE", "Not available in this version"


class IdempotencyKeyReused(VitScaleError):
    status, code, title = 422, "IDEMPOTENCY_KEY_REUSED", "The idempotency key was used with another body"


class NotFound(VitScaleError):
    status, code, title = 404, "NOT_FOUND", "Not found"


class WrongState(VitScaleError):
    status, code, title = 409, "WRONG_STATE", "Not possible in the present state"


class BadRequest(VitScaleError):
    status, code, title = 400, "BAD_REQUEST", "The request is not valid"


class RayUnreachable(VitScaleError):
    status, code, title = 503, "RAY_UNREACHABLE", "The Ray cluster does not answer"


class RayRefused(VitScaleError):
    """Ray answered, and said no (authentication, or a request it does not accept)."""

    status, code, title = 502, "RAY_REFUSED", "The Ray cluster refused the request"
