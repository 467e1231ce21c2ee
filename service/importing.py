"""Rows that were measured elsewhere become a finished study in the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, ValidationError

from service.analysis.scaling import Mode
from service.canonical import canonical_json
from service.errors import ErrorItem, SpecInvalid
from service.idempotency import make_once
from service.measured_rows import read_measured_rows
from service.spec import Description, StudyName, StudyTags
from service.states import StudyState
from service.store import Database, study_rows
from service.store.imported import insert_imported
from service.views import StudyView


@dataclass(frozen=True)
class RowsToImport:
    """CSV `text` with a header (see `service.measured_rows`), what the study is called, and how its rows are meant."""

    text: str
    name: str
    mode: Mode = "none"
    renames: Sequence[str] = ()  # `theirs=ours` for each column that has another name, `theirs=` to pass one over
    description: str = ""
    tags: Sequence[str] = field(default=())

    @property
    def digest(self) -> str:
        given = [self.name, self.mode, list(self.renames), self.description, list(self.tags), self.text]
        return sha256(canonical_json(given).encode("utf-8", "surrogatepass")).hexdigest()


class _Head(BaseModel):
    """What a study is called, where there is no spec to say it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: StudyName
    description: Description
    tags: StudyTags


def import_rows(database: Database, given: RowsToImport, idempotency_key: str | None) -> tuple[StudyView, bool]:
    """The finished study of these rows, and whether it is new: with the same key it is there once.

    Raises:
        RowsInvalid: all that is wrong with the rows; nothing is stored then.
        SpecInvalid: the name, the description or a tag is not one.
        BadRequest: a rename or the key cannot be used.
        IdempotencyKeyReused: the key came with something else before.
    """
    head = _checked_head(given)

    def make(key: str | None) -> StudyView:
        rows = read_measured_rows(given.text, mode=given.mode, renames=given.renames)
        with database.session() as session:
            row = study_rows.insert_study(
                session,
                name=head.name,
                description=head.description,
                tags=head.tags,
                spec={**head.model_dump(mode="json"), **rows.spec()},
                status=StudyState.SUCCEEDED,
            )
            if key is not None:
                study_rows.remember(session, key, given.digest, row.id)
            insert_imported(session, row, rows.trials)
            return study_rows.study_view(session, row)

    return make_once(database, idempotency_key, given.digest, make)


_QUERY: Mapping[int | str, str] = {"tags": "tag"}  # parameters of the query that have another name than the field


def _checked_head(given: RowsToImport) -> _Head:
    try:
        return _Head.model_validate({"name": given.name, "description": given.description, "tags": list(given.tags)})
    except ValidationError as error:
        items = [
            ErrorItem("/query/" + "/".join(_QUERY.get(part, str(part)) for part in problem["loc"]), problem["msg"])
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise SpecInvalid(f"{items[0].pointer}: {items[0].detail}", items) from None
