"""The other side of `trainers.trial_server`: a child process that runs trials, with a bound on every wait. No torch."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any, Final

from trainers.config import TrialConfig

_END_SECONDS: Final = 5.0
_ERROR_LINES: Final = 20  # of its standard error, to tell why it ended


class ChildGone(Exception):
    """The child has ended, or did not answer in time and has been ended; says which."""


class TrialChild:
    """A running child. `hello`: what it said of its device. Close it."""

    def __init__(self, *, on_cpu: bool, timeout_seconds: float) -> None:
        """Start it and wait for its first line.

        Raises:
            ChildGone: it has not come up.
        """
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainers.trial_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | hidden,
            start_new_session=True,  # so that torch.compile's workers can be ended with it
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        self.hello = self._answer(timeout_seconds)

    def run(self, config: TrialConfig, timeout_seconds: float) -> dict[str, Any]:
        """The trial's outcome, as `trainers.trial_server` tells it.

        Raises:
            ChildGone: none came.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(config.model_dump_json() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildGone(self._how_it_ended()) from error
        return self._answer(timeout_seconds)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it and whatever it has started."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()  # the end of its work
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()

    def _answer(self, timeout_seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(timeout_seconds, 0.0))
        except queue.Empty:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            raise ChildGone(f"no answer within {timeout_seconds:.0f} s") from None
        if line is None:
            raise ChildGone(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        last = next((line for line in reversed(self._errors) if line.strip()), "nothing on its standard error")
        return f"it ended with {code}: {last.strip()[:300]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors[:] = [*self._errors[-_ERROR_LINES:], line]
