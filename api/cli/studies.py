"""The commands about a study as a whole: list, show, watch, cancel, resume, retry, delete."""

import sys
from itertools import islice
from typing import Literal

import typer

from api.cli.console import printable, write, write_json
from api.cli.outcome import FAILED, GOOD, bad_input, exit_code_of
from api.cli.results import write_failed_trials, write_results_table
from api.cli.tables import varied_keys, write_studies, write_study
from api.cli.target import connect, find_study
from api.cli.trial import write_trial
from api.cli.watch import follow
from api.client import Client
from service.states import StudyState, TrialState
from service.views import StudyView


def list_studies(status: str | None, name: str | None, tag: str | None, limit: int, *, as_json: bool) -> None:
    wanted = _status(status)
    with connect() as client:
        studies = list(islice(client.iter_studies(status=wanted, name=name, tag=tag), limit))
    if as_json:
        write_json([study.model_dump(mode="json") for study in studies])
    else:
        write_studies(studies)


def show(asked: str, trial: int | None, *, as_json: bool) -> None:
    with connect() as client:
        study = find_study(client, asked)
        if trial is not None:
            _show_trial(client, study, trial, as_json=as_json)
            return
        if as_json:
            write_json(study)
            return
        write_study(study)
        write_failed_trials(client, study)


def _show_trial(client: Client, study: StudyView, number: int, *, as_json: bool) -> None:
    found = client.get_trial(study.id, number)
    if as_json:
        write_json(found)
    else:
        write_trial(found, varied_keys(study))


def watch(asked: str) -> int:
    with connect() as client:
        study = find_study(client, asked)
    return watch_to_end(study.id)


def watch_to_end(study_id: str) -> int:
    """Follows the study, prints its results, and gives the exit code that its final state means."""
    study = follow(connect, study_id)
    with connect() as client:
        if study.trial_counts.get(TrialState.SUCCEEDED):
            write()
            write_results_table(client, study)
        write_failed_trials(client, study)
    return exit_code_of(study.status)


def act(asked: str, verb: Literal["cancel", "resume", "retry"]) -> None:
    with connect() as client:
        study_id = find_study(client, asked).id
        actions = {"cancel": client.cancel_study, "resume": client.resume_study, "retry": client.retry_study}
        study = actions[verb](study_id)
    write(f"study {study.id} ({printable(study.name)}): {study.status}")


def delete(asked: str, *, is_sure: bool) -> int:
    with connect() as client:
        study = find_study(client, asked)
        if not is_sure:
            if not sys.stdin.isatty():
                raise bad_input("delete", "there is nobody to ask whether you are sure", "give --yes")
            question = f"Delete {study.id} ({printable(study.name)}) and its {study.progress.total} trials?"
            if not typer.confirm(question):
                return FAILED
        client.delete_study(study.id)
    write(f"study {study.id}: deleted")
    return GOOD


def _status(given: str | None) -> StudyState | None:
    known = [state.value for state in StudyState]
    if given is not None and given not in known:
        raise bad_input("--status", f"{given!r} is no status of a study", f"there is {', '.join(known)}")
    return None if given is None else StudyState(given)
