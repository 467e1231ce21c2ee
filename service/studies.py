"""The studies, as routes and programs see them: plan, create, import, look, change, extend and start again.

Each method is one unit of work or one snapshot; all may be called from any thread. Errors: `service.errors`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.orm import Session

from service.analysis.answer import AnalysisOptions, StudyAnalysis
from service.analysis_input import observations, scaling_asked
from service.canonical import canonical_json
from service.errors import ErrorItem, NotAvailable, SpecInvalid, WrongState
from service.extension import incomparable, new_points, without_known_baseline
from service.idempotency import make_once
from service.importing import RowsToImport, import_rows
from service.plan import MAX_TRIALS, Plan, Refusal
from service.plan import plan as plan_spec
from service.results_csv import csv_text
from service.spec import Description, StudySpec, StudyTags, parse_spec
from service.states import StudyState, TrialState
from service.store import Database, observed_rows, study_rows, trial_rows
from service.store.cursors import MAX_LIMIT, checked_limit
from service.store.result_text import RowParts, row_text, rows_text
from service.store.tables import Study
from service.views import LogLine, ResultRow, ResultsPage, StudyView, TrialsPage, TrialView

if TYPE_CHECKING:
    from service.study_comparison import StoredStudy, StudyComparison

LogLines = list[LogLine]  # a name of its own: within the class, `list` is the method


class Unset(Enum):
    """The mark of an argument that was not given, where None means something."""

    UNSET = 0


UNSET: Final = Unset.UNSET


class _Patch(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tags: StudyTags = []
    description: Description = ""


class Studies:
    """All studies of one database.

    Args:
        data_roots: folders below which a spec's `data_root` must lie.
        wake: called after something came into the queue, or is to be stopped.
    """

    def __init__(self, database: Database, *, data_roots: Sequence[Path], wake: Callable[[], None]) -> None:
        self._database = database
        self._data_roots = tuple(data_roots)
        self._wake = wake

    def plan(self, data: object) -> Plan:
        """What a spec would run. Raises SpecInvalid and NotAvailable where it does not fit the schema."""
        return plan_spec(parse_spec(data), data_roots=self._data_roots)

    def create(
        self, data: object, idempotency_key: str | None = None, body_digest: str | None = None
    ) -> tuple[StudyView, bool]:
        """Queues a study. The same key with the same body gives the study of the first call, and False.

        Args:
            data: the spec, as parsed from JSON or YAML.
            body_digest: a hash of the request's body; of the data where None.

        Raises:
            SpecInvalid, NotAvailable: all that is wrong with the spec or with points of it.
            IdempotencyKeyReused: the key came with another body before.
            BadRequest: the key is empty or too long.
        """
        spec = parse_spec(data)
        digest = body_digest or sha256(canonical_json(data).encode()).hexdigest()
        return make_once(self._database, idempotency_key, digest, lambda key: self._create(spec, key, digest))

    def import_rows(self, given: RowsToImport, idempotency_key: str | None = None) -> tuple[StudyView, bool]:
        """A finished study of rows that were measured elsewhere; errors as `service.importing.import_rows`."""
        return import_rows(self._database, given, idempotency_key)

    def _create(self, spec: StudySpec, key: str | None, digest: str) -> StudyView:
        planned = plan_spec(spec, data_roots=self._data_roots)
        _refuse_what_cannot_run(planned)
        with self._database.session() as session:
            row = study_rows.insert_study(
                session,
                name=spec.name,
                description=spec.description,
                tags=spec.tags,
                spec=spec.model_dump(mode="json"),
            )
            if key is not None:
                study_rows.remember(session, key, digest, row.id)
            for note in planned.notes:
                study_rows.add_note(row, note)
            trial_rows.insert_trials(session, row.id, planned.trials, planned.order)
            view = study_rows.study_view(session, row)
        self._wake()
        return view

    def list(
        self,
        *,
        status: StudyState | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[StudyView], str | None]:
        """A page of studies, newest first, and the cursor of the next. `name`: any part of it, whatever its case."""
        with self._database.reading() as session:
            rows, next_cursor = study_rows.listed_studies(
                session, status=status, name=name, tag=tag, limit=checked_limit(limit), cursor=cursor
            )
            return study_rows.study_views(session, rows), next_cursor

    def get(self, study_id: str) -> StudyView:
        with self._reading(study_id) as (session, row):
            return study_rows.study_view(session, row)

    def patch(
        self,
        study_id: str,
        *,
        tags: Sequence[str] | Unset | None = UNSET,
        description: str | Unset | None = UNSET,
    ) -> StudyView:
        """Changes what is given; None removes. Raises SpecInvalid where it would not be valid in a spec."""
        given: dict[str, object] = {}
        if not isinstance(tags, Unset):
            given["tags"] = list(tags or ())
        if not isinstance(description, Unset):
            given["description"] = description or ""
        patch = _checked_patch(given)
        with self._writing(study_id) as (session, row):
            if "tags" in given:
                study_rows.set_tags(session, row, patch.tags)
            if "description" in given:
                row.description = patch.description
            session.flush()
            return study_rows.study_view(session, row)

    def delete(self, study_id: str) -> None:
        """Removes a study with all that belongs to it. Raises WrongState unless it is in a final state."""
        with self._writing(study_id) as (session, row):
            if not StudyState(row.status).is_final:
                raise _wrong_state(row, "it can be deleted when it is over; cancel it first")
            study_rows.delete_study(session, row)

    def trials(self, study_id: str, *, limit: int = 500, cursor: str | None = None) -> TrialsPage:
        """A page of trials in the order of their numbers."""
        with self._reading(study_id) as (session, row):
            shown, next_cursor = trial_rows.trials_page(
                session, row.id, state=None, limit=checked_limit(limit), cursor=cursor
            )
            return TrialsPage(
                study_id=row.id,
                status=StudyState(row.status),
                count=trial_rows.count_trials(session, row.id),
                trials=shown,
                next_cursor=next_cursor,
            )

    def trial(self, study_id: str, number: int) -> TrialView:
        with self._reading(study_id) as (session, row):
            return trial_rows.trial_view(session, trial_rows.trial(session, row.id, number))

    def analysis(self, study_id: str, options: AnalysisOptions) -> StudyAnalysis:
        """What the study's rows say together, as they are now."""
        from service.analysis.analyse import analyse  # with scipy: loaded with the first question

        with self._reading(study_id) as (session, row):
            parts = _all_rows(session, row, None, with_runs=False)  # repeats are pooled by the analysis itself
            rows = [ResultRow.model_validate_json(row_text(part)) for part in parts]
            ranks = observed_rows.rank_observations(session, row.id)
            epochs = observed_rows.epoch_observations(session, row.id)
            taken_apart = observed_rows.taken_apart(session, row.id)
            status, spec = StudyState(row.status), row.spec
        found = analyse(observations(rows, ranks, epochs, taken_apart), scaling_asked(spec), options)
        return StudyAnalysis(study_id=study_id, status=status, **dict(found))

    def trial_logs(self, study_id: str, number: int) -> LogLines:
        """The trial's kept log lines, over all its attempts."""
        with self._reading(study_id) as (session, row):
            return trial_rows.log_lines(session, row.id, trial_rows.trial(session, row.id, number).number)

    def study_logs(self, study_id: str) -> LogLines:
        """The kept log lines that belong to no one trial."""
        with self._reading(study_id) as (session, row):
            return trial_rows.log_lines(session, row.id, None)

    def results(
        self, study_id: str, *, state: TrialState | None = None, limit: int = 500, cursor: str | None = None
    ) -> ResultsPage:
        """A page of results rows, one per trial whatever its state, in the order of the trials' numbers."""
        text = self.results_json(study_id, state=state, limit=limit, cursor=cursor)
        return ResultsPage.model_validate_json(text)

    def results_json(
        self, study_id: str, *, state: TrialState | None = None, limit: int = 500, cursor: str | None = None
    ) -> bytes:
        """The page of `results` as JSON (UTF-8), put together from stored text: quick for many rows."""
        with self._reading(study_id) as (session, row):
            rows, next_cursor = trial_rows.results_page(
                session,
                row.id,
                has_repeats=_has_repeats(row),
                state=state,
                limit=checked_limit(limit),
                cursor=cursor,
            )
            count = trial_rows.count_trials(session, row.id, state)
            end = "null" if next_cursor is None else f'"{next_cursor}"'
            head = f'{{"study_id":"{row.id}","status":"{row.status}","count":{count},"results":'
        return f'{head}{rows_text(rows)},"next_cursor":{end}}}'.encode()

    def results_csv(self, study_id: str, *, state: TrialState | None = None) -> str:
        """All results rows as CSV (see `service.results_csv`)."""
        with self._reading(study_id) as (session, row):
            return csv_text(ResultRow.model_validate_json(row_text(part)) for part in _all_rows(session, row, state))

    def results_parquet(self, study_id: str, *, state: TrialState | None = None) -> bytes:
        """All results rows as a Parquet file (see `service.results_parquet`)."""
        from service.results_parquet import parquet_bytes  # pyarrow is large: loaded with the first question

        with self._reading(study_id) as (session, row):
            return parquet_bytes(
                ResultRow.model_validate_json(row_text(part)) for part in _all_rows(session, row, state)
            )

    def compare(self, a: str, b: str, *, tolerance: float) -> "StudyComparison":
        """Study `b` against study `a`, as both are now. Raises NotFound."""
        from service.study_comparison import compare_studies  # with scipy: loaded with the first question

        with self._database.reading() as session:
            before, after = (_stored_study(session, study_rows.study(session, study_id)) for study_id in (a, b))
        return compare_studies(before, after, tolerance)

    def cancel(self, study_id: str) -> StudyView:
        """A queued study is cancelled at once; a running one is stopped soon. Raises WrongState where it is over."""
        with self._writing(study_id) as (session, row):
            state = StudyState(row.status)
            if state.is_final:
                raise _wrong_state(row, "there is nothing to cancel")
            if state is StudyState.QUEUED:
                trial_rows.cancel_pending(session, row.id)
                study_rows.move(row, StudyState.CANCELLED)
            elif state is StudyState.RUNNING:
                study_rows.move(row, StudyState.CANCELLING)
            session.flush()
            view = study_rows.study_view(session, row)
        self._wake()
        return view

    def resume(self, study_id: str) -> StudyView:
        """Queues what never finished: pending and cancelled trials, and those whose job ended before they did.

        Raises:
            WrongState: the study is not over, or all its trials finished.
        """
        return self._again(study_id, failed_too=False)

    def retry(self, study_id: str) -> StudyView:
        """Queues what never finished and what failed. Raises WrongState: not over, or all its trials succeeded."""
        return self._again(study_id, failed_too=True)

    def extend(self, study_id: str, data: object) -> StudyView:
        """Queues the points of a spec that the study does not have yet (see `service.extension`).

        Raises:
            SpecInvalid, NotAvailable: as `create`; or what in the spec would make the rows incomparable.
            WrongState: the study is not over, was imported, or has all these points.
        """
        extra = parse_spec(data)
        with self._reading(study_id) as (_, row):
            _refuse_to_extend(row)
            before = [StudySpec.model_validate(spec) for spec in (row.spec, *row.extensions)]
        if items := incomparable(before, extra):
            raise SpecInvalid(f"The specification cannot extend study {study_id}", items)
        planned = without_known_baseline(plan_spec(extra, data_roots=self._data_roots), before)
        _refuse_what_cannot_run(planned)
        with self._writing(study_id) as (session, row):
            _refuse_to_extend(row)
            known = trial_rows.known_points(session, row.id)
            points, order = new_points(planned, known.keys(), max(known.values(), default=0))
            if not order:
                raise _wrong_state(row, "it has all points of this specification already: there is nothing to add")
            _bound_trials(len(known) + len(points))
            place = trial_rows.next_place(session, row.id)
            trial_rows.insert_trials(session, row.id, points, order, first_place=place)
            row.extensions = [*row.extensions, extra.model_dump(mode="json")]
            for note in planned.notes:
                study_rows.add_note(row, note)
            study_rows.move(row, StudyState.QUEUED)
            session.flush()
            view = study_rows.study_view(session, row)
        self._wake()
        return view

    def _again(self, study_id: str, *, failed_too: bool) -> StudyView:
        with self._writing(study_id) as (session, row):
            _refuse_imported(row)
            if not StudyState(row.status).is_final:
                raise _wrong_state(row, "it can be started again when it is over")
            if trial_rows.requeue(session, row.id, failed_too=failed_too) == 0:
                num_failed = trial_rows.count_trials(session, row.id, TrialState.FAILED)
                hint = f"retry runs the {num_failed} failed again" if num_failed else "all trials succeeded"
                raise _wrong_state(row, f"every trial of it has finished: {hint}")
            study_rows.move(row, StudyState.QUEUED)
            session.flush()
            view = study_rows.study_view(session, row)
        self._wake()
        return view

    @contextmanager
    def _reading(self, study_id: str) -> Iterator[tuple[Session, Study]]:
        with self._database.reading() as session:
            yield session, study_rows.study(session, study_id)

    @contextmanager
    def _writing(self, study_id: str) -> Iterator[tuple[Session, Study]]:
        with self._database.session() as session:
            yield session, study_rows.locked_study(session, study_id)


def _stored_study(session: Session, study: Study) -> "StoredStudy":
    from service.study_comparison import ComparedStudy, StoredStudy

    return StoredStudy(
        study=ComparedStudy(id=study.id, name=study.name, status=StudyState(study.status)),
        rows=[ResultRow.model_validate_json(row_text(part)) for part in _all_rows(session, study, None)],
        versions=trial_rows.versions_of(session, study.id),
    )


def _has_repeats(study: Study) -> bool:
    return any(spec["measurement"]["repeats"] > 1 for spec in (study.spec, *study.extensions))


def _refuse_imported(study: Study) -> None:
    if study.spec.get("imported"):
        raise WrongState(
            f"Study {study.id} was imported: its rows were measured elsewhere, and nothing of it can be run"
        )


def _refuse_to_extend(study: Study) -> None:
    _refuse_imported(study)
    if not StudyState(study.status).is_final:
        raise _wrong_state(study, "it can be extended when it is over")


def _bound_trials(count: int) -> None:
    if count > MAX_TRIALS:
        item = ErrorItem(
            "/parameters", f"the study would have {count:,} trials; at most {MAX_TRIALS:,}", "post a study of its own"
        )
        raise SpecInvalid(item.detail, [item])


def _all_rows(
    session: Session, study: Study, state: TrialState | None, *, with_runs: bool = True
) -> Iterator[RowParts]:
    cursor, has_repeats = None, with_runs and _has_repeats(study)
    while True:
        rows, cursor = trial_rows.results_page(
            session, study.id, has_repeats=has_repeats, state=state, limit=MAX_LIMIT, cursor=cursor
        )
        yield from rows
        if cursor is None:
            return


def _refuse_what_cannot_run(planned: Plan) -> None:
    if planned.refused:
        items = [ErrorItem(refusal.pointer, _detail(refusal), refusal.hint) for refusal in planned.refused]
        sentence = "1 point cannot be run" if len(items) == 1 else f"{len(items)} points cannot be run"
        if all(refusal.code == NotAvailable.code for refusal in planned.refused):
            raise NotAvailable(f"{sentence} with this version", items)
        raise SpecInvalid(f"{sentence}; no study was made", items)


def _detail(refusal: Refusal) -> str:
    point = ", ".join(f"{key}={value}" for key, value in refusal.parameters.items() if value is not None)
    return f"{refusal.reason} (at {point})" if point else refusal.reason


def _checked_patch(given: dict[str, object]) -> _Patch:
    try:
        return _Patch.model_validate(given)
    except ValidationError as error:
        items = [
            ErrorItem("/" + "/".join(str(part) for part in problem["loc"]), problem["msg"])
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise SpecInvalid("The change is not valid", items) from None


def _wrong_state(row: Study, what: str) -> WrongState:
    return WrongState(f"Study {row.id} is {row.status}: {what}")
