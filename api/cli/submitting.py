"""The commands that take a specification: plan, submit, extend, presets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from api.cli.console import Grid, printable, write, write_json
from api.cli.outcome import BAD_INPUT, FAILED, GOOD, Complaint, bad_input, of_error, of_error_items
from api.cli.source import SpecSource, read_spec
from api.cli.studies import watch_to_end
from api.cli.tables import differing_keys, duration, gibibytes, label, shown_value
from api.cli.target import connect, find_study, settings_of
from api.client import ApiError, Client
from api.plan_answer import PlanAnswer, PlannedTrial
from service.errors import ErrorItem, VitScaleError
from service.presets import preset_names
from service.views import StudyView

_SHOWN_TRIALS = 50
_ABOUT_THE_SPEC = frozenset({400, 413, 415, 422})


def plan(spec: str, *, as_json: bool, show_all: bool) -> None:
    source = read_spec(spec)
    answer = _plan_offline(source, settings_of().data_roots)
    if as_json:
        write_json(answer)
    else:
        _write_plan(answer, show_all=show_all)
    if answer.refused:
        items = [ErrorItem(one.pointer, one.reason, one.hint) for one in answer.refused]
        raise of_error_items(BAD_INPUT, source.name, "refused", list(dict.fromkeys(items)))


def _plan_offline(source: SpecSource, data_roots: Sequence[Path]) -> PlanAnswer:
    from service.plan import plan as plan_study  # has the planner's tables; submit goes without
    from service.spec import parse_spec

    try:
        return PlanAnswer.of(plan_study(parse_spec(source.parsed()), data_roots=data_roots))
    except VitScaleError as error:
        raise of_error(source.name, error) from error


def _write_plan(answer: PlanAnswer, *, show_all: bool) -> None:
    keys = differing_keys([trial.parameters for trial in answer.trials])
    texts = {key for key in keys if any(isinstance(trial.parameters.get(key), str) for trial in answer.trials)}
    numeric = [True, True, *(key not in texts for key in keys), True, False]
    grid = Grid("trial", "repeat", *map(label, keys), "states\nGiB", "", numeric=numeric)
    shown = answer.trials if show_all else answer.trials[:_SHOWN_TRIALS]
    for trial in shown:
        skipped = f"skipped: {trial.skip_reason}" if trial.state == "skipped" else ""
        values = (shown_value(trial.parameters.get(key)) for key in keys)
        grid.add(str(trial.trial), str(trial.repeat), *values, _model_states(trial), skipped)
    if shown:
        grid.write()
    if len(answer.trials) > len(shown):
        write(f"... and {len(answer.trials) - len(shown)} more (--all shows them)")
    pending = sum(trial.state == "pending" for trial in answer.trials)
    skipped_count = len(answer.trials) - pending
    left_out = f", {skipped_count} skipped" if skipped_count else ""
    write(f"{pending} trials{left_out}, at most {duration(answer.device_seconds_bound)} of device time in all")
    if (most := answer.largest_memory) is not None:
        buffers = most.communication_buffer_bytes
        besides = f", and {gibibytes(buffers)} GiB of communication buffers" if buffers else ""
        write(
            f"model states: at most {gibibytes(most.model_state_bytes)} GiB per worker{besides} (trial {most.trial}); "
            "activations come on top"
        )
    for note in answer.notes:
        write(f"note: {note}")


def _model_states(trial: PlannedTrial) -> str:
    return "-" if trial.memory is None else gibibytes(trial.memory.model_state_bytes)


def submit(spec: str, *, follow: bool, name: str | None, as_json: bool) -> int:
    if as_json and follow:
        raise bad_input("--json", "cannot be had with --watch", "submit --json, then watch ID, then results ID")
    source = read_spec(spec)
    with connect() as client:
        study = submitted(client, source, name)
    if as_json:
        write_json(study)
        return GOOD
    write(f"study {study.id} ({printable(study.name)}): {study.status}, {study.progress.total} trials")
    for note in study.notes:
        write(f"note: {note}")
    if follow:
        return watch_to_end(study.id)
    write(f"follow it: vitscale watch {study.id}")
    return GOOD


def extend(asked: str, spec: str, *, follow: bool) -> int:
    source = read_spec(spec)
    with connect() as client:
        before = find_study(client, asked)
        with _complaints_about(source):
            study = client.extend_study(before.id, source.text, media=source.content_type)
    added = study.progress.total - before.progress.total
    write(
        f"study {study.id} ({printable(study.name)}): {study.status}, {added} trials added to {before.progress.total}"
    )
    if follow:
        return watch_to_end(study.id)
    write(f"follow it: vitscale watch {study.id}")
    return GOOD


def submitted(client: Client, source: SpecSource, name: str | None = None) -> StudyView:
    """The study, queued. Where it is refused, the Complaint names the specification it is about."""
    with _complaints_about(source):
        if name is not None:
            return client.create_study(source.named(name))
        return client.create_study(source.text, media=source.content_type)


@contextmanager
def _complaints_about(source: SpecSource) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status not in _ABOUT_THE_SPEC:
            raise Complaint(FAILED, error.detail) from error
        raise of_error_items(BAD_INPUT, source.name, error.detail, error.errors) from error


def presets(name: str | None, *, as_json: bool) -> None:
    if name is not None:
        source = read_spec(f"preset:{name}")
        if as_json:
            write_json(source.as_mapping())
        else:
            write(source.text.rstrip("\n"))
        return
    described = {one: read_spec(f"preset:{one}").as_mapping().get("description") or "" for one in preset_names()}
    if as_json:
        write_json([{"name": one, "description": text} for one, text in described.items()])
        return
    grid = Grid("preset", "what it is")
    for one, text in described.items():
        grid.add(one, " ".join(str(text).split()))
    grid.write()
