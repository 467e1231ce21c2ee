"""`vitscale demo`: from nothing to a table of measured trainings on this machine."""

import subprocess
import sys
import time

from api.cli.child_server import child_server
from api.cli.console import write
from api.cli.outcome import FAILED, Complaint, exit_code_of
from api.cli.results import write_failed_trials, write_results_table
from api.cli.source import read_spec
from api.cli.submitting import submitted
from api.cli.target import settings_of
from api.cli.watch import Connect, Interrupted, Terminated, follow, sigterm_raises
from api.client import Client, ClientError
from api.discovery import ServerNotFound, find_server
from service.settings import Settings
from service.states import TrialState
from trainers.compiled_ops import COMPILE_TIMEOUT_SECONDS, missing_compiled_op

CANCEL_SECONDS = 25.0  # a job gets 20 s to end its trial


def demo() -> int:
    """Runs preset:demo on the server that runs, or on one of its own, and gives the exit code of the study's state."""
    settings = settings_of()
    if not _needs_server(settings):
        return _run(lambda: Client.discover(settings), is_own=False)
    with sigterm_raises():
        _compile_what_is_missing(settings)
        write(f"Starting a VitScale server in {settings.data_dir} ...")
        with child_server(settings, write) as connect:
            code = _run(connect, is_own=True)
            write()
            write("Stopping the server ...")
    return code


def _needs_server(settings: Settings) -> bool:
    try:
        target = find_server(settings)
    except ServerNotFound:
        return True
    write(f"Using the server at {target.url}.")
    return False


def _compile_what_is_missing(settings: Settings) -> None:
    """DeepSpeed's CPU collective is compiled here and not within the first trial. A cluster's nodes have their own."""
    if settings.ray_dashboard_url or missing_compiled_op() is None:
        return
    write("Compiling DeepSpeed's CPU collective (about half a minute, once) ...")
    command = [sys.executable, "-P", "-m", "trainers.compiled_ops"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS + 30, check=False)
    if done.returncode != 0:
        lines = [line.removeprefix("vitscale: ") for line in done.stderr.splitlines() if line.strip()]
        raise Complaint(FAILED, *(lines[-1:] or ["DeepSpeed's CPU collective did not compile"]))


def _run(connect: Connect, *, is_own: bool) -> int:
    with connect() as client:
        study = submitted(client, read_spec("preset:demo"))
    write(f"Study {study.id}: {study.progress.total} trainings of a tiny Vision Transformer on real images.")
    try:
        final = follow(connect, study.id)
    except Interrupted as interruption:
        if not is_own:
            raise
        write("Cancelling the study ...")
        raise Complaint(interruption.exit_code, _cancelled(connect, study.id, CANCEL_SECONDS)) from None
    except Terminated:
        if is_own:
            write(_cancelled(connect, study.id, 0.0))
        raise
    with connect() as client:
        if final.trial_counts.get(TrialState.SUCCEEDED):
            write()
            write_results_table(client, final)
        write_failed_trials(client, final)
    _say_what_next(final.id, is_own=is_own)
    return exit_code_of(final.status)


def _cancelled(connect: Connect, study_id: str, wait_seconds: float) -> str:
    """Cancels the study and says so. Left as it is, it would go on by itself when a server is started the next time."""
    deadline = time.monotonic() + wait_seconds
    try:
        with connect() as client:
            study = client.cancel_study(study_id)
            while not study.status.is_final and time.monotonic() < deadline:
                time.sleep(0.2)
                study = client.get_study(study_id)
    except (ClientError, ServerNotFound) as problem:
        return f"the study was not cancelled: {problem}"
    return f"interrupted; the study is {study.status}, and `vitscale resume {study_id}` runs the rest"


def _say_what_next(study_id: str, *, is_own: bool) -> None:
    write()
    write("images/s is of all workers together; a step is one optimizer step, an epoch one pass over the data.")
    write("Look at next:")
    commands = {
        "vitscale serve": "the server again, for all that follows (in another terminal)",
        f"vitscale results {study_id} --format csv": "every column of these rows",
        f"vitscale show {study_id}": "the study itself",
        "vitscale presets": "the paper's sweeps, and this one, to edit and submit",
        "vitscale doctor": "what this machine lacks for more",
    }
    for command, meaning in commands.items():
        if is_own or command != "vitscale serve":
            write(f"  {command:<44} {meaning}")
