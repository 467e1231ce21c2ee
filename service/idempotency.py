"""Making a study once per idempotency key: a call repeated after a lost answer gives the study of the first."""

from collections.abc import Callable

from sqlalchemy.exc import IntegrityError

from service.errors import BadRequest, ErrorItem, IdempotencyKeyReused
from service.store import Database, study_rows
from service.views import StudyView

MAX_KEY_CHARACTERS = 255


def make_once(
    database: Database, idempotency_key: str | None, digest: str, make: Callable[[str | None], StudyView]
) -> tuple[StudyView, bool]:
    """The study that `make` makes, or the one that it made before with this key and body, and whether it is new.

    Args:
        digest: a hash of all that says which study it is to be.
        make: given the key, it stores the study and remembers the key for it in one unit of work.

    Raises:
        IdempotencyKeyReused: the key came with another body before.
        BadRequest: the key is empty or too long.
    """
    if idempotency_key is None:
        return make(None), True
    key = _checked_key(idempotency_key)
    if (known := _known(database, key, digest)) is not None:
        return known, False
    try:
        return make(key), True
    except IntegrityError:  # the same key, at the same moment, was first
        if (known := _known(database, key, digest)) is None:
            raise
        return known, False


def _known(database: Database, key: str, digest: str) -> StudyView | None:
    with database.reading() as session:
        remembered = study_rows.remembered_study(session, key)
        if remembered is None:
            return None
        if remembered.body_digest != digest:
            raise IdempotencyKeyReused(
                f"This Idempotency-Key was used with another body, for study {remembered.study_id}; take a new key"
            )
        return study_rows.study_view(session, study_rows.study(session, remembered.study_id))


def _checked_key(key: str) -> str:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        detail = f"must be 1 to {MAX_KEY_CHARACTERS} printable characters"
        raise BadRequest("The Idempotency-Key cannot be used", [ErrorItem("/headers/Idempotency-Key", detail)])
    return key
