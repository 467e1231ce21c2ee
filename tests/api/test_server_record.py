"""One server per data directory, and telling a running one from what a killed one left."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api.data_dir import StartRefused
from api.server_record import ServerLock, record_path, remove_record, running_server, write_record


def rewrite(data_dir: Path, **changes: object) -> None:
    record = json.loads(record_path(data_dir).read_text())
    record_path(data_dir).write_text(json.dumps({**record, **changes}, default=str))


class TestRecord:
    def test_says_where_this_process_answers(self, tmp_path: Path) -> None:
        write_record(tmp_path, "http://127.0.0.1:1234", "0.1.0")
        found = running_server(tmp_path)
        assert found is not None
        assert (found.url, found.pid, found.version) == ("http://127.0.0.1:1234", os.getpid(), "0.1.0")
        assert record_path(tmp_path).stat().st_mode & 0o777 == 0o600

    def test_of_a_process_that_is_gone_counts_for_nothing(self, tmp_path: Path) -> None:
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            ended.wait()
        write_record(tmp_path, "http://127.0.0.1:1234", "0.1.0")
        rewrite(tmp_path, pid=ended.pid)
        assert running_server(tmp_path) is None

    def test_older_than_the_process_with_its_pid_counts_for_nothing(self, tmp_path: Path) -> None:
        write_record(tmp_path, "http://127.0.0.1:1234", "0.1.0")
        rewrite(tmp_path, started_at=datetime.now(UTC) - timedelta(days=400))
        assert running_server(tmp_path) is None

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "x"}', "\x00"])
    def test_that_cannot_be_read_counts_for_nothing(self, tmp_path: Path, content: str) -> None:
        record_path(tmp_path).write_text(content)
        assert running_server(tmp_path) is None

    def test_without_one_there_is_none(self, tmp_path: Path) -> None:
        assert running_server(tmp_path) is None

    def test_only_its_own_process_removes_it(self, tmp_path: Path) -> None:
        write_record(tmp_path, "http://127.0.0.1:1234", "0.1.0")
        rewrite(tmp_path, pid=os.getppid())
        remove_record(tmp_path)
        assert record_path(tmp_path).exists()
        rewrite(tmp_path, pid=os.getpid())
        remove_record(tmp_path)
        assert not record_path(tmp_path).exists()
        remove_record(tmp_path)


class TestLock:
    def test_is_held_by_one_and_names_it(self, tmp_path: Path) -> None:
        with ServerLock(tmp_path):
            write_record(tmp_path, "http://127.0.0.1:1234", "0.1.0")
            with pytest.raises(StartRefused, match=rf"at http://127.0.0.1:1234 \(pid {os.getpid()}\)"):
                ServerLock(tmp_path).acquire()

    def test_names_the_process_of_one_that_is_not_ready_yet(self, tmp_path: Path) -> None:
        with ServerLock(tmp_path), pytest.raises(StartRefused, match=rf"pid {os.getpid()}, not ready yet"):
            ServerLock(tmp_path).acquire()

    def test_is_free_after_release(self, tmp_path: Path) -> None:
        first = ServerLock(tmp_path)
        first.acquire()
        first.acquire()  # held already: nothing to do
        assert first.is_held
        first.release()
        first.release()
        assert not first.is_held
        with ServerLock(tmp_path) as second:
            assert second.is_held

    @pytest.mark.slow
    def test_ends_with_its_process_and_not_with_that_ones_children(self, tmp_path: Path) -> None:
        code = (
            "import subprocess, sys\n"
            "from pathlib import Path\n"
            "from api.server_record import ServerLock\n"
            "lock = ServerLock(Path(sys.argv[1]))\n"
            "lock.acquire()\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=sys.stdin)\n"
            "print('held', flush=True)\n"
            "child.wait()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StartRefused):
                ServerLock(tmp_path).acquire()
            holder.kill()
            holder.wait()
            with ServerLock(tmp_path) as taken:  # the child still lives, and reads from our pipe
                assert taken.is_held
