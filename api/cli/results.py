"""The commands about a study's rows and logs: results, logs."""

import sys
from pathlib import Path

from api.cli.console import json_text, printable, write
from api.cli.outcome import bad_input
from api.cli.tables import varied_keys, write_failures, write_results
from api.cli.target import connect, find_study
from api.client import Client
from service.states import TrialState
from service.views import ResultsPage, StudyView


def results(asked: str, form: str, state: str | None, output: Path | None) -> None:
    if form not in {"table", "json", "csv", "parquet"}:
        raise bad_input("--format", f"{form!r} is no format", "table, json, csv or parquet")
    if form == "table" and output is not None:
        raise bad_input("--output", "is for json, csv and parquet", f"--format csv --output {output}")
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise bad_input("--format", "parquet is no text to look at", "--output rows.parquet")
    wanted = _state(state)
    with connect() as client:
        study = find_study(client, asked)
        if form == "table":
            write_results_table(client, study, wanted)
        else:
            _deliver(_content(client, study, form, wanted), output)


def _content(client: Client, study: StudyView, form: str, state: TrialState | None) -> bytes:
    if form == "csv":
        return client.get_results_csv(study.id, state=state).encode()
    if form == "parquet":
        return client.get_results_parquet(study.id, state=state)
    rows = list(client.iter_results(study.id, state=state))
    page = ResultsPage(study_id=study.id, status=study.status, count=len(rows), results=rows, next_cursor=None)
    return f"{json_text(page)}\n".encode()


def _deliver(content: bytes, output: Path | None) -> None:
    """As it is: CSV has its own line ends, and Parquet is no text."""
    if output is not None:
        output.write_bytes(content)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def logs(asked: str, trial: int | None) -> None:
    with connect() as client:
        study = find_study(client, asked)
        if trial is None:
            for line in client.get_study_logs(study.id):
                write("job | " + printable(line.text))
        numbers = [trial] if trial is not None else [one.trial for one in client.iter_trials(study.id) if one.attempt]
        for number in numbers:
            prefix = "" if trial is not None else f"trial {number} | "
            for line in client.get_trial_logs(study.id, number):
                write(prefix + printable(line.text))


def write_results_table(client: Client, study: StudyView, state: TrialState | None = None) -> None:
    """The table of rows. Speed-ups are taken from all rows, whichever are shown."""
    write_results(study, list(client.iter_results(study.id)), shown_state=state)


def write_failed_trials(client: Client, study: StudyView) -> None:
    """Why trials failed, where any did."""
    if study.trial_counts.get(TrialState.FAILED):
        write_failures(list(client.iter_trials(study.id)), varied_keys(study))


def _state(given: str | None) -> TrialState | None:
    known = [state.value for state in TrialState]
    if given is not None and given not in known:
        raise bad_input("--state", f"{given!r} is no state of a trial", f"there is {', '.join(known)}")
    return None if given is None else TrialState(given)
