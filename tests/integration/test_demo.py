"""`vitscale demo` as a person runs it: a real server, a real Ray, real trainings; and nothing of it is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from api.data_dir import TOKEN_FILE
from api.server_record import running_server

VITSCALE = [sys.executable, "-P", "-m", "api.cli.main"]
MARK = "DEMO_TEST_MARK"  # every process that comes of a command inherits it
DEMO_SECONDS = 900.0  # under 3 minutes on two idle cores
START_SECONDS = 180.0
END_SECONDS = 90.0


@dataclass(frozen=True)
class Machine:
    """Somewhere to run commands: a data directory of its own, and a mark on all processes."""

    data_dir: Path
    environment: dict[str, str]

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*VITSCALE, *arguments],
            env=self.environment | more,
            cwd=self.data_dir.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, seconds: float = 60.0, **more: str) -> tuple[int, str]:
        child = self.start(*arguments, **more)
        try:
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            raise
        return child.returncode, output

    def left_over(self) -> list[str]:
        """The processes that came of our commands and still live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.environment[MARK] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VITSCALE_", "RAY_"))}
    data_dir = tmp_path / "data"
    machine = Machine(data_dir, {**clean, "VITSCALE_DATA_DIR": str(data_dir), MARK: uuid.uuid4().hex})
    yield machine
    assert wait_until(lambda: not machine.left_over(), END_SECONDS), machine.left_over()


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.1)
    return False


@contextmanager
def ended(child: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever the test found, the command does not stay."""
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
        child.communicate(timeout=END_SECONDS)


@pytest.mark.timeout(1500)
def test_the_demo_measures_six_trials_leaves_nothing_running_and_its_study_for_later(machine: Machine) -> None:
    code, output = machine.run("demo", seconds=DEMO_SECONDS)
    assert code == 0, output
    assert machine.left_over() == []

    table = [line for line in output.splitlines() if re.match(r"\s+\d .* % .* \d\.\d\d\s*$", line)]
    # A busy machine may leave too few steps for an interval: the ± is not in every row.
    rows = [[cell for cell in line.split() if cell != "%" and not cell.startswith("±")] for line in table]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    points = [(micro, size) for micro in ("16", "4", "64") for size in ("1", "2")]
    assert sorted((row[1], row[2]) for row in rows) == points
    for row in rows:
        images_per_second, step_ms, *shares = map(float, row[3:8])
        assert min(images_per_second, step_ms) > 0
        communication = 0.0 if row[8] == "-" else float(row[8])
        assert sum(shares) + communication == pytest.approx(100, abs=2)  # each is rounded
        if row[2] == "1":
            assert row[8:] == ["-", "1.00"]
    assert "vitscale serve" in output

    with ended(machine.start("serve", "--port", "0")) as server:
        assert wait_until(lambda: running_server(machine.data_dir) is not None, START_SECONDS)
        code, output = machine.run("results", "latest", "--format", "json")
        assert code == 0, output
        page = json.loads(output)
        assert (page["status"], page["count"]) == ("succeeded", 6)
        assert all(row["metrics"]["images_per_second"] > 0 for row in page["results"])

        assert wait_until(lambda: machine.run("dashboard", "--no-open")[0] == 0, START_SECONDS)
        _, output = machine.run("dashboard", "--no-open")
        token_path = machine.data_dir / "ray" / "auth_token"
        assert "http://127.0.0.1:" in output
        assert str(token_path) in output
        assert token_path.read_text().strip() not in output

        server.send_signal(signal.SIGTERM)
        assert server.wait(END_SECONDS) == 0
    assert machine.left_over() == []


class TestWithoutATrial:
    """What can go wrong before the first trial; each ends with nothing left (the fixture looks)."""

    def test_a_server_that_does_not_start_shows_the_end_of_its_log(self, machine: Machine) -> None:
        code, output = machine.run("demo", seconds=START_SECONDS, VITSCALE_DATABASE_URL="nonsense://here")
        assert code == 1
        assert "vitscale: the server ended while it started (exit code 2); the end of" in output
        assert "VITSCALE_DATABASE_URL" in output
        assert "Traceback" not in output

    def test_ctrl_c_while_it_starts_takes_the_server_down(self, machine: Machine) -> None:
        with ended(machine.start("demo")) as demo:
            assert wait_until(lambda: (machine.data_dir / TOKEN_FILE).exists(), START_SECONDS)
            demo.send_signal(signal.SIGINT)
            output, _ = demo.communicate(timeout=END_SECONDS)
        assert demo.returncode == 130
        assert "Traceback" not in output
        assert machine.left_over() == []

    def test_a_killed_demo_takes_its_server_with_it(self, machine: Machine) -> None:
        with ended(machine.start("demo")) as demo:
            assert wait_until(lambda: running_server(machine.data_dir) is not None, START_SECONDS)
            demo.kill()
            demo.wait(END_SECONDS)
        assert wait_until(lambda: not machine.left_over(), END_SECONDS), machine.left_over()
