"""The local head: it comes up, keeps to itself, and goes without a trace."""

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from service.cluster import describe
from service.errors import RayUnreachable
from service.job_log import JobLog
from service.ray_head import LocalHead
from service.ray_head_keeper import marked_processes
from service.ray_jobs import JobStatus, RayJobs
from tests.integration.foreign_head import foreign_head

JOB_SECONDS = 60.0


def run_job(jobs: RayJobs, name: str, code: str, until_over: bool = True) -> None:
    jobs.submit(name, {"job.py": code.encode()}, "exec python job.py", {"RAY_JOB_STOP_WAIT_TIME_S": "20"})
    deadline = time.monotonic() + JOB_SECONDS
    while until_over:
        info = jobs.info(name)
        assert info is not None
        if info.status.is_terminal:
            return
        assert time.monotonic() < deadline
        time.sleep(0.2)


def read_log(head: LocalHead, name: str) -> list[tuple[int, str]]:
    """The whole log of a job that is over."""
    with JobLog(head.connection, name) as log:
        return [line for batch in log.batches() for line in batch] + log.rest()


def listening(head: LocalHead) -> set[str]:
    """Addresses on which the head's processes listen."""
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in marked_processes(str(head._temp_dir))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


class TestRunning:
    def test_it_wants_its_token(self, local_head: LocalHead) -> None:
        url = f"{local_head.connection.dashboard_url}/api/jobs/"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 403
        assert httpx.get(url, headers=local_head.connection.headers).status_code == 200

    def test_its_files_are_the_users_alone(self, local_head: LocalHead) -> None:
        assert local_head._temp_dir is not None
        assert stat.S_IMODE(local_head.token_path.stat().st_mode) == 0o600
        assert stat.S_IMODE(local_head.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(local_head._temp_dir.stat().st_mode) == 0o700
        assert local_head.token_path.read_text() == local_head.connection.token

    def test_it_listens_on_the_loopback_interface_only(self, local_head: LocalHead) -> None:
        assert listening(local_head) == {"127.0.0.1"}

    def test_a_second_start_changes_nothing(self, local_head: LocalHead) -> None:
        before = local_head.connection
        local_head.start()
        assert local_head.connection == before

    def test_another_head_in_the_same_directory_is_refused(self, local_head: LocalHead) -> None:
        with pytest.raises(RayUnreachable, match="Another VitScale server"):
            LocalHead(local_head.directory.parent).start()
        assert local_head.is_alive()

    def test_its_nodes_and_resources_are_told(self, local_head: LocalHead) -> None:
        cluster = describe(local_head.connection)
        assert cluster.ray_version == "2.60.0"
        assert [(node.is_head, node.state, node.ip) for node in cluster.nodes] == [(True, "ALIVE", "127.0.0.1")]
        assert cluster.nodes[0].hostname == socket.gethostname()
        assert cluster.nodes[0].labels["ray.io/node-id"] == cluster.nodes[0].id
        assert cluster.resources["CPU"] == cluster.nodes[0].resources["CPU"] >= 1


class TestJobs:
    def test_a_job_runs_this_interpreter_with_no_secret_in_its_environment(self, local_head: LocalHead) -> None:
        code = """
            import os, sys
            print(sys.executable)
            print(sorted(key for key in os.environ if key.startswith("VITSCALE_") and key != "VITSCALE_RAY_HEAD"))
        """
        with RayJobs(local_head.connection) as jobs:
            run_job(jobs, "interpreter", "\n".join(line.strip() for line in code.splitlines()))
            info = jobs.info("interpreter")
            assert info is not None
            assert (info.status, info.driver_exit_code) == (JobStatus.SUCCEEDED, 0)
        lines = [text for _, text in read_log(local_head, "interpreter")]
        assert Path(sys.executable).parent in {Path(line).parent for line in lines}
        assert lines[-1] == "[]"

    def test_submitting_twice_runs_once(self, local_head: LocalHead) -> None:
        with RayJobs(local_head.connection) as jobs:
            run_job(jobs, "twice", "print('once')", until_over=False)
            run_job(jobs, "twice", "print('once')")
        assert [text for _, text in read_log(local_head, "twice")].count("once") == 1

    def test_a_log_followed_live_is_the_log_replayed(self, local_head: LocalHead) -> None:
        code = """
import sys, time
def out(text):
    sys.stdout.write(text); sys.stdout.flush(); time.sleep(2.2)
out("long " + "x" * 60000 + "\\n"); out("half a "); out("line\\nprogress\\r"); out("\\nevent\\n"); out("no end")
"""
        live: list[tuple[int, str]] = []
        with RayJobs(local_head.connection) as jobs:
            run_job(jobs, "live", code, until_over=False)
            with JobLog(local_head.connection, "live") as log:
                for batch in log.batches():
                    live += batch
                live += log.rest()
        assert live == read_log(local_head, "live")
        own = [text for _, text in live if "Running entrypoint" not in text and "Runtime env" not in text]
        assert own == ["long " + "x" * 60000, "half a line", "progress", "event", "no end"]
        assert [position for position, _ in live] == list(range(len(live)))

    def test_a_stopped_job_may_end_in_order(self, local_head: LocalHead) -> None:
        code = """
import signal, sys, time
def stop(*_):
    time.sleep(5); print("in order", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, stop); print("ready", flush=True); time.sleep(600)
"""
        with RayJobs(local_head.connection) as jobs:
            run_job(jobs, "stopped", code, until_over=False)
            with JobLog(local_head.connection, "stopped") as log:
                for batch in log.batches():
                    if any(text == "ready" for _, text in batch):
                        jobs.stop("stopped")
            info = jobs.info("stopped")
            assert info is not None
            assert info.status is JobStatus.STOPPED
            jobs.stop("stopped")  # once more is no error, nor is an unknown one
            jobs.stop("unknown")

    def test_the_log_of_an_unknown_job_is_refused(self, local_head: LocalHead) -> None:
        with pytest.raises(RayUnreachable, match="404"), JobLog(local_head.connection, "never"):
            pass


class TestEnding:
    def test_it_goes_without_a_trace_and_leaves_another_ray_alone(self, tmp_path: Path) -> None:
        with foreign_head() as other:
            head = LocalHead(tmp_path, num_cpus=1)
            head.start()
            temp_dir = str(head._temp_dir)
            with RayJobs(head.connection) as jobs:
                run_job(jobs, "left", "import time; time.sleep(600)", until_over=False)
            assert len(marked_processes(temp_dir)) > 5
            head.stop()
            assert marked_processes(temp_dir) == []
            assert not Path(temp_dir).exists()
            assert not head.is_alive()
            with pytest.raises(RayUnreachable):
                _ = head.connection
            assert other.answers()
            assert other.process.poll() is None

    def test_a_start_in_progress_is_given_up(self, tmp_path: Path) -> None:
        head = LocalHead(tmp_path)
        problems: list[Exception] = []

        def start() -> None:
            try:
                head.start()
            except RayUnreachable as problem:
                problems.append(problem)

        thread = threading.Thread(target=start)
        thread.start()
        deadline = time.monotonic() + 30
        while head._temp_dir is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        head.stop()
        thread.join(20)
        assert [str(problem) for problem in problems] == ["The local Ray head was stopped while it started."]
        assert marked_processes(str(head._temp_dir)) == []

    @pytest.mark.parametrize("with_keeper", [False, True])
    def test_it_dies_with_a_server_that_is_killed(self, tmp_path: Path, with_keeper: bool) -> None:
        """Even where the keeper was killed at the same moment nothing is left after the next start."""
        code = "import sys; from pathlib import Path; from service.ray_head import LocalHead; "
        code += "head = LocalHead(Path(sys.argv[1]), num_cpus=1); head.start(); "
        code += "print(head._temp_dir, head._keeper.pid, flush=True); sys.stdin.read()"
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        temp_dir, keeper_pid = owner.stdout.readline().split()
        if with_keeper:
            os.kill(int(keeper_pid), 9)
        owner.kill()
        owner.communicate()
        if not with_keeper:
            deadline = time.monotonic() + 25
            while marked_processes(temp_dir):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        head = LocalHead(tmp_path, num_cpus=1)
        head.start()
        try:
            assert marked_processes(temp_dir) == []
            assert not Path(temp_dir).exists()
            assert head.is_alive()
        finally:
            head.stop()
