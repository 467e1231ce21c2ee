"""Following a study to its end: a live bar at a terminal, a line per change elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import NoReturn, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from api.cli.console import printable, screen, write
from api.cli.outcome import FAILED, INTERRUPTED, TERMINATED, Complaint
from api.cli.tables import duration, number, parameters_line, varied_keys
from api.client import ApiError, Client, ServerUnreachable
from api.discovery import ServerNotFound
from service.states import TrialState
from service.views import RunningTrial, StudyView, TrialView

POLL_SECONDS = 0.5
RECONNECT_SECONDS = 120.0  # a server that restarts, its Ray head included, takes under a minute on a slow machine
_RECONNECT_PAUSE_SECONDS = 1.0
_PASSING = frozenset({502, 503, 504})  # what a proxy, or a server that is starting, answers

Connect = Callable[[], Client]


class Terminated(SystemExit):
    """SIGTERM, as an exception: what was started is cleaned up, the cursor comes back."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Interrupted(Complaint):
    """Ctrl-C while watching."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM raises Terminated in the main thread."""

    def on_signal(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def follow(connect: Connect, study_id: str, *, pause: Callable[[float], None] = time.sleep) -> StudyView:
    """Shows the study's progress until it ends, and gives back its last state.

    Args:
        connect: a new client; called again after the server went away.
        pause: waits so many seconds between two looks.

    Raises:
        Interrupted: by Ctrl-C; the study goes on.
        Complaint: the server stayed away for RECONNECT_SECONDS.
    """
    connection = _Connection(connect, pause)
    try:
        with sigterm_raises(), _display(study_id) as display:
            while True:
                study = connection.read(lambda client: client.get_study(study_id), display.interrupted)
                display.show(study, connection)
                if study.status.is_final:
                    return study
                pause(POLL_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(
            INTERRUPTED,
            f"the study goes on without the watch: vitscale watch {study_id} (vitscale cancel {study_id} ends it)",
        ) from None
    finally:
        connection.close()


class _Connection:
    """A client that comes back: a restarted server may have another address, and a watch is no reason to fail."""

    def __init__(self, connect: Connect, pause: Callable[[float], None]) -> None:
        self._connect = connect
        self._pause = pause
        self._client: Client | None = None

    def read(self, ask: Callable[[Client], StudyView], on_loss: Callable[[str], None]) -> StudyView:
        """The answer to `ask`, after as many new connections as it takes within RECONNECT_SECONDS."""
        lost_at: float | None = None
        while True:
            try:
                self._client = self._client or self._connect()
                return ask(self._client)
            except (ServerUnreachable, ServerNotFound, ApiError) as problem:
                if isinstance(problem, ApiError) and problem.status not in _PASSING:
                    raise
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > RECONNECT_SECONDS:
                    raise Complaint(
                        FAILED, f"the server has been away for {RECONNECT_SECONDS:.0f} s: {problem}"
                    ) from problem
                on_loss(str(problem))
                self.close()
                self._pause(_RECONNECT_PAUSE_SECONDS)

    def trial(self, study_id: str, number: int) -> TrialView | None:
        """The trial, or None where it cannot be had just now: it only decorates what is shown."""
        try:
            return self._client.get_trial(study_id, number) if self._client else None
        except (ServerUnreachable, ApiError):
            return None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class _Display(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, study: StudyView, connection: _Connection) -> None: ...
    def interrupted(self, why: str) -> None: ...


def _display(study_id: str) -> _Display:
    console = screen()
    # A dumb terminal cannot move the cursor.
    return _Bar(console) if console.is_terminal and not console.is_dumb_terminal else _Lines(study_id)


class _Trials:
    """The parameters of running trials, asked for once each."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def describe(self, study: StudyView, number: int, connection: _Connection) -> str:
        if number not in self._known:
            trial = connection.trial(study.id, number)
            if trial is None:
                return f"trial {number}"
            self._known[number] = f"trial {number} ({parameters_line(trial.parameters, varied_keys(study))})"
        return self._known[number]


class _Lines:
    """A line per change, for logs and pipes."""

    def __init__(self, study_id: str) -> None:
        self._study_id = study_id
        self._trials = _Trials()
        self._last_status = ""
        self._running: dict[int, tuple[int, str | None]] = {}  # trial -> attempt, phase
        self._done = 0
        self._is_away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, study: StudyView, connection: _Connection) -> None:
        if self._is_away:
            write("connected again")
            self._is_away = False
        if study.status != self._last_status and not study.status.is_final:
            write(f"study {study.id} ({printable(study.name)}): {study.status}, {study.progress.total} trials")
        self._last_status = study.status
        now = {one.trial: (one.attempt, one.phase) for one in study.progress.running}
        for ended in sorted(set(self._running) - set(now)):
            self._write_end(study, ended, connection)
        if study.progress.done != self._done and not study.status.is_final:
            left = study.progress.seconds_left
            tail = f", about {duration(left)} left" if left is not None else ""
            write(f"{_counts(study)}{tail}")
        for one in study.progress.running:
            if self._running.get(one.trial) != now[one.trial] and one.phase is not None:
                write(f"{self._trials.describe(study, one.trial, connection)}: {one.phase}{_attempt(one)}")
        self._running, self._done = now, study.progress.done
        if study.status.is_final:
            write(_last_word(study))

    def interrupted(self, why: str) -> None:
        if not self._is_away:
            write(f"reconnecting: {why}")
        self._is_away = True

    def _write_end(self, study: StudyView, ended: int, connection: _Connection) -> None:
        trial = connection.trial(study.id, ended)
        if trial is None or not trial.state.is_final:
            return
        why = f": {trial.reason}" if trial.reason else ""
        if trial.error is not None and trial.error.message:
            why += f" ({printable(trial.error.message.splitlines()[0])[:200]})"
        write(f"{self._trials.describe(study, ended, connection)}: {trial.state}{why}")


class _Bar:
    """A bar for the study and a line for each running trial, drawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=True, refresh_per_second=4, transient=False)
        self._trials = _Trials()
        self._study: StudyView | None = None
        self._lines: list[Text] = []

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, study: StudyView, connection: _Connection) -> None:
        self._study = study
        self._lines = [
            Text(f"  {self._trials.describe(study, one.trial, connection)}  {_step_of(one)}")
            for one in study.progress.running[:5]
        ]
        if len(study.progress.running) > 5:
            self._lines.append(Text(f"  ... and {len(study.progress.running) - 5} more"))
        if study.status.is_final:
            self._lines = [Text(_last_word(study))]
        self._draw()

    def interrupted(self, why: str) -> None:
        self._lines = [Text(f"  reconnecting: {why}", style="yellow")]
        self._draw()

    def _draw(self) -> None:
        parts: list[Table | Text] = [] if self._study is None else [_bar_line(self._study)]
        for line in self._lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(*parts, *self._lines), refresh=True)


def _bar_line(study: StudyView) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    line.add_column(no_wrap=True)
    line.add_column(width=16)
    line.add_column(no_wrap=True)
    done, total = study.progress.done, max(1, study.progress.total)
    left = study.progress.seconds_left
    tail = _counts(study) + (f", {duration(left)} left" if left is not None and not study.status.is_final else "")
    line.add_row(Text(printable(study.name)), Text(study.status), ProgressBar(total, done, width=16), Text(tail))
    return line


def _counts(study: StudyView) -> str:
    failed = study.trial_counts.get(TrialState.FAILED, 0)
    return f"{study.progress.done}/{study.progress.total} done" + (f", {failed} failed" if failed else "")


def _step_of(one: RunningTrial) -> str:
    total = "" if one.total is None else f"/{one.total}"
    rate = "" if one.images_per_second is None else f"  {number(one.images_per_second)} images/s"
    return f"{one.phase or 'starting'} {one.done}{total}{rate}{_attempt(one)}"


def _attempt(one: RunningTrial) -> str:
    return f" (attempt {one.attempt})" if one.attempt > 1 else ""


def _last_word(study: StudyView) -> str:
    took = ""
    if study.started_at and study.finished_at:
        took = f" after {duration((study.finished_at - study.started_at).total_seconds())}"
    counts = ", ".join(f"{count} {state}" for state, count in study.trial_counts.items() if count)
    why = f": {printable(study.error)}" if study.error else ""
    return f"study {study.id}: {study.status}{took} ({counts}){why}"
