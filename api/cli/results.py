"""The commands about a study's rows and logs: results, logs."""

import sys

from api.cli.console import printable, write, write_json
from api.cli.outcome import bad_input
from api.cli.tables import varied_keys, write_failures, write_results
from api.cli.target import connect, find_study
from api.client import Client
from service.states import TrialState
from service.views import ResultsPage, StudyView


def results(asked: str, form: str, state: str | None) -> None:
    if form not in {"table", "json", "csv"}:
        raise bad_input("--format", f"{form!r} is no format", "table, json or csv")
    wanted = _state(state)
    with connect() as client:
        study = find_study(client, asked)
        if form == "table":
            write_results_table(client, study, wanted)
        elif form == "json":
            rows = list(client.iter_results(study.id, state=wanted))
            page = ResultsPage(study_id=study.id, status=study.status, count=len(rows), results=rows, next_cursor=None)
            write_json(page)
        else:
            # CSV has its own line ends.
            sys.stdout.flush()
            sys.stdout.buffer.write(client.get_results_csv(study.id, state=wanted).encode())


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
