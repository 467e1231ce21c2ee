"""Page cursors: opaque to the caller, the last key of the page before to us."""

import base64
import binascii
import json
from datetime import datetime

from service.errors import BadRequest, ErrorItem

MAX_LIMIT = 1_000
_HINT = "use next_cursor of the page before as it is, with the same filters"


def checked_limit(limit: int) -> int:
    """Raises BadRequest unless 1 <= limit <= MAX_LIMIT."""
    if not 1 <= limit <= MAX_LIMIT:
        item = ErrorItem("/limit", f"{limit} is not between 1 and {MAX_LIMIT}")
        raise BadRequest(f"limit must be between 1 and {MAX_LIMIT}", [item])
    return limit


def trial_cursor(number: int) -> str:
    return _encoded(["trial", number])


def trial_after(cursor: str | None) -> int:
    """The trial number after which the page starts; 0 for the first page. Raises BadRequest."""
    if cursor is None:
        return 0
    match _decoded(cursor):
        case ["trial", int(number)] if 0 <= number < 2**31:
            return number
    raise _bad()


def study_cursor(created_at: datetime, study_id: str) -> str:
    return _encoded(["study", created_at.isoformat(), study_id])


def study_after(cursor: str | None) -> tuple[datetime, str] | None:
    """Time and id of the study after which the page starts. Raises BadRequest."""
    if cursor is None:
        return None
    match _decoded(cursor):
        case ["study", str(moment), str(study_id)] if study_id.isascii() and study_id.isalnum():
            try:
                created_at = datetime.fromisoformat(moment)
            except ValueError:
                raise _bad() from None
            if created_at.tzinfo is not None and 2000 <= created_at.year <= 9000:
                return created_at, study_id
    raise _bad()


def _encoded(key: list[str | int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def _decoded(cursor: str) -> object:
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return json.loads(raw)
    except (binascii.Error, UnicodeError, ValueError, RecursionError):
        raise _bad() from None


def _bad() -> BadRequest:
    return BadRequest("The cursor is not one of ours", [ErrorItem("/cursor", "not a cursor of this list", _HINT)])
