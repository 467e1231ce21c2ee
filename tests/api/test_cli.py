"""The command line: what a person types, against a real server."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.served import TOKEN, Run, Served, finish, run_to_the_end, started_job, sweep
from tests.service.factories import error_cause, feed, trial_result
from tests.service.parts_samples import link_row, taken_apart_result
from trainers.result import Quality


def create(server: Served, spec: dict[str, Any] | None = None) -> str:
    with server.client() as client:
        return client.create_study(spec or sweep()).id


def spec_file(folder: Path, spec: dict[str, Any]) -> str:
    path = folder / "sweep.json"
    path.write_text(json.dumps(spec))
    return str(path)


@pytest.mark.usefixtures("nowhere")
class TestWithoutAServer:
    def test_no_arguments_show_the_help(self, vitscale: Run) -> None:
        code, out, _ = vitscale()
        assert code == 0
        assert "vitscale submit sweep.yaml --watch" in out
        assert out == vitscale("--help")[1]

    def test_every_command_has_help(self, vitscale: Run) -> None:
        commands = re.findall(r"^  (\w+)  ", vitscale()[1].partition("Commands:")[2], re.MULTILINE)
        assert {"serve", "demo", "plan", "submit", "results", "doctor", "dashboard"} <= set(commands)
        for command in commands:
            code, out, _ = vitscale(command, "--help")
            assert code == 0
            assert out.startswith(f"Usage: vitscale {command}")

    def test_the_version_is_printed(self, vitscale: Run) -> None:
        code, out, _ = vitscale("--version")
        assert code == 0
        assert re.fullmatch(r"vitscale \d+\.\d+\.\d+\n", out)

    @pytest.mark.parametrize("command", ["list", "show", "watch", "results", "logs", "dashboard"])
    def test_it_says_how_to_start_one(self, vitscale: Run, command: str) -> None:
        code, out, err = vitscale(command)
        assert (code, out) == (1, "")
        assert re.fullmatch(r"vitscale: no VitScale server runs from .*vitscale serve.*make serve.*\n", err)

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["frobnicate"], "frobnicate"),
            (["list", "--limit", "many"], "--limit"),
            (["submit"], "SPEC"),
            (["results", "--format", "xml"], "table, json, csv or parquet"),
            (["list", "--status", "done"], "succeeded"),
            (["results", "--state", "done"], "succeeded"),
            (["submit", "preset:demo", "--json", "--watch"], "--watch"),
        ],
    )
    def test_a_mistyped_command_line_is_one_line_and_exit_code_2(
        self, vitscale: Run, arguments: list[str], told: str
    ) -> None:
        code, out, err = vitscale(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("vitscale: ")
        assert err.count("\n") == 1
        assert told in err

    @pytest.mark.parametrize(
        ("name", "value"),
        [("PORT", "eighty"), ("MAX_RUNNING_STUDIES", "0"), ("DATA_ROOTS", "/data"), ("DATA_ROOTS", '{"a": 1}')],
    )
    def test_a_bad_setting_is_named(
        self, vitscale: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(f"VITSCALE_{name}", value)
        code, _, err = vitscale("list")
        assert code == 2
        assert err.startswith(f"vitscale: VITSCALE_{name}: ")
        assert err.count("\n") == 1

    def test_a_bad_address_is_named(self, vitscale: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VITSCALE_URL", "http://me:hidden@vit.example")
        code, _, err = vitscale("list")
        assert code == 2
        assert err.startswith("vitscale: VITSCALE_URL: ")
        assert "hidden" not in err

    def test_there_is_no_token_before_the_first_start(self, vitscale: Run) -> None:
        code, out, err = vitscale("token")
        assert (code, out) == (1, "")
        assert "vitscale serve" in err


@pytest.mark.usefixtures("nowhere")
class TestSpecifications:
    def test_a_plan_needs_no_server(self, vitscale: Run) -> None:
        code, out, _ = vitscale("plan", "preset:demo")
        assert code == 0
        lines = out.splitlines()
        headings = ["trial", "repeat", "micro", "batch", "world", "size", "global", "batch", "states", "GiB"]
        assert lines[0].split() == headings
        assert len(lines) == 9
        assert lines[-2].startswith("6 trials, at most ")
        assert lines[-1].startswith("model states: at most 0.08")  # 16 bytes x 5.4 million parameters
        assert "GiB per worker (trial 1); activations come on top" in lines[-1]

    def test_a_plan_for_programs_is_the_answer_of_the_http_interface(self, vitscale: Run) -> None:
        code, out, _ = vitscale("plan", "preset:demo", "--json")
        answer = json.loads(out)
        assert code == 0
        assert {"trials", "refused", "placement", "device_seconds_bound"} <= set(answer)
        assert [trial["trial"] for trial in answer["trials"]] == [1, 2, 3, 4, 5, 6]

    def test_points_that_cannot_be_are_all_named(self, vitscale: Run, tmp_path: Path) -> None:
        spec = sweep()
        spec["parameters"]["patch_size"] = {"values": [8, 5, 7]}
        code, out, err = vitscale("plan", spec_file(tmp_path, spec), "--json")
        assert code == 2
        assert len(json.loads(out)["refused"]) == 4
        first, second = err.splitlines()  # one line for each reason, however many points it refuses
        assert "patch" in first
        assert "5" in first
        assert "7" in second

    def test_a_misspelt_key_is_named_with_a_hint(self, vitscale: Run, tmp_path: Path) -> None:
        spec = sweep()
        spec["parameters"]["train_micro_batch_size"] = {"value": 4}
        path = spec_file(tmp_path, spec)
        code, _, err = vitscale("plan", path)
        assert code == 2
        assert err.startswith(f"vitscale: {path}#/parameters/train_micro_batch_size: ")
        assert "train_micro_batch_size_per_gpu" in err
        assert "Traceback" not in err

    def test_standard_input_is_read(self, vitscale: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for text in (
            json.dumps(sweep(), indent="\t"),
            "{name: flow, parameters: {model: {value: vit_tiny_patch16_224}}}",
        ):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            code, _, err = vitscale("plan", "-")
            assert "standard input" in err if code else err == ""

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"", "is empty"),
            (b"\xff\xfe", "is not UTF-8 at byte 0"),
            (b"name: [", "line"),
            (b"- 1", "mapping"),
            (b"x" * 1_000_001, "larger than 1,000,000 bytes"),
        ],
    )
    def test_a_file_that_is_no_specification(self, vitscale: Run, tmp_path: Path, content: bytes, told: str) -> None:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        code, _, err = vitscale("plan", str(path))
        assert code == 2
        assert str(path) in err
        assert told in err

    @pytest.mark.parametrize("given", ["missing.yaml", ".", "preset:missing", "nul\0.yaml"])
    def test_what_cannot_be_read_is_named(self, vitscale: Run, given: str) -> None:
        code, _, err = vitscale("plan", given)
        assert code == 2
        assert err.startswith("vitscale: ")
        assert err.count("\n") == 1

    def test_presets_are_listed_and_printed_as_they_can_be_submitted(self, vitscale: Run, tmp_path: Path) -> None:
        names = [one["name"] for one in json.loads(vitscale("presets", "--json")[1])]
        assert {"demo", "nebula-batch-sweep", "vector-strong", "vector-weak"} <= set(names)
        listed = vitscale("presets")[1]
        assert all(name in listed for name in names)
        (tmp_path / "mine.yaml").write_text(vitscale("presets", "demo")[1])
        assert vitscale("plan", "mine.yaml")[0] == 0


class TestStudies:
    @pytest.mark.usefixtures("here")
    def test_submit_and_show(self, vitscale: Run, tmp_path: Path) -> None:
        code, out, _ = vitscale("submit", spec_file(tmp_path, sweep("typed")), "--json")
        study = json.loads(out)
        assert code == 0
        assert (study["name"], study["status"]) == ("typed", "queued")
        code, out, _ = vitscale("show", study["id"][:8])
        assert code == 0
        assert f"id:           {study['id']}\n" in out
        assert json.loads(vitscale("show", "latest", "--json")[1])["id"] == study["id"]

    @pytest.mark.usefixtures("here")
    def test_submit_may_rename(self, vitscale: Run) -> None:
        code, out, _ = vitscale("submit", "preset:demo", "--name", "after-upgrade")
        assert code == 0
        assert "(after-upgrade): queued, 6 trials" in out
        assert "vitscale watch" in out

    @pytest.mark.usefixtures("here")
    def test_a_refused_submission_names_the_file_and_the_key(self, vitscale: Run, tmp_path: Path) -> None:
        path = spec_file(tmp_path, sweep(nonsense=1))
        code, out, err = vitscale("submit", path)
        assert (code, out) == (2, "")
        assert err.startswith(f"vitscale: {path}#/nonsense: ")

    def test_list_shows_the_newest_first(self, vitscale: Run, here: Served) -> None:
        ids = [create(here, sweep("in-the-list", tags=["listed"])) for _ in range(3)]
        code, out, _ = vitscale("list", "--tag", "listed", "--limit", "2")
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == ["id", ids[2], ids[1]]
        assert [one["id"] for one in json.loads(vitscale("list", "--json")[1])][:3] == ids[::-1]

    def test_an_ambiguous_beginning_lists_the_candidates(self, vitscale: Run, here: Served) -> None:
        ids: list[str] = []
        while len({one[0] for one in ids}) == len(ids):  # until two begin alike
            ids.append(create(here, sweep("many")))
        letter = ids[-1][0]
        code, out, err = vitscale("show", letter)
        assert (code, out) == (2, "")
        assert f"vitscale: {letter}: " in err
        assert sum(one in err for one in ids if one[0] == letter) >= 2

    @pytest.mark.usefixtures("here")
    @pytest.mark.parametrize("asked", ["../version", "aaaaaaaaaaaa", "zzzzzzzzzzz", "LATEST", ""])
    def test_a_study_that_is_not_there(self, vitscale: Run, asked: str) -> None:
        code, out, err = vitscale("show", asked)
        assert (code, out) == (2, "")
        assert err.startswith("vitscale: ")
        assert err.count("\n") == 1

    def test_cancel_resume_retry_delete(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        assert vitscale("cancel", study_id) == (0, f"study {study_id} (sweep): cancelled\n", "")
        assert vitscale("resume", study_id)[1].endswith(": queued\n")
        code, _, err = vitscale("retry", study_id)
        assert code == 1
        assert err.count("\n") == 1
        vitscale("cancel", study_id)
        code, _, err = vitscale("delete", study_id)
        assert code == 2
        assert "--yes" in err
        assert vitscale("delete", study_id, "--yes")[0] == 0
        assert vitscale("show", study_id)[0] == 2

    def test_show_tells_why_trials_failed(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        run_to_the_end(here, study_id, failing=[2])
        _, out, _ = vitscale("show", study_id)
        assert "status:       partial\n" in out
        assert "trial 2 (world size 2): ERROR, rank 1: ValueError: a bad value\n" in out

    def test_one_trial_with_its_parts_workers_and_links(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        job = started_job(here, study_id)
        links = [link_row("n1", "n2"), link_row("n1", "n2", kind="all", alpha_seconds=None, note="too few sizes")]
        feed(here.database, job.plan, [job.succeeded(2, result=taken_apart_result(links=links))])
        code, out, _ = vitscale("show", study_id, "--trial", "2")
        assert code == 0
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert lines[0] == "trial 2 (world size 2): succeeded, 1 attempt"
        assert lines[2].startswith("A step of 100.0 ±2.0 ms, by steps with and without the exchange, in turn (6 blocks")
        assert "always for the same 6.000 ±1.0 6.0%" in lines
        assert "communication, exposed 40.00 ±3.0 40.0%" in lines
        assert "Each worker sends 22.00 MB a step (by formula 22.00)." in lines
        assert "1 n2 Some CPU 0.466 56.00 2.000 2.000" in lines
        assert "n1 and n2 0.200 ±0.10 12.50 ±0.25" in lines
        assert "all 2 workers - 12.50 ±0.25" in lines
        assert "note: all 2 workers: too few sizes" in lines
        shown = json.loads(vitscale("show", study_id, "--trial", "2", "--json")[1])
        assert shown["attempts"][0]["links"][0]["nodes"] == ["n1", "n2"]

    def test_a_trial_without_parts_has_its_workers_and_one_that_is_not_there_is_named(
        self, vitscale: Run, here: Served
    ) -> None:
        study_id = create(here)
        run_to_the_end(here, study_id, failing=[2])
        assert "compute" not in vitscale("show", study_id, "--trial", "1")[1].split("note:")[0]
        assert "error on rank 1: ValueError: a bad value\n" in vitscale("show", study_id, "--trial", "2")[1]
        code, _, err = vitscale("show", study_id, "--trial", "9")
        assert (code, "has no trial 9" in err) == (2, True)

    def test_names_cannot_steer_the_terminal(self, vitscale: Run, here: Served) -> None:
        study_id = create(here, sweep("[red]plain[/red] :smile:"))
        assert "[red]plain[/red] :smile:" in vitscale("list")[1]
        job = started_job(here, study_id)
        cause = error_cause(message="\x1b[31mred\x1b]0;title\x07 \u009b31m")
        feed(here.database, job.plan, [job.started(1), job.failed(1, error=cause)])
        out = vitscale("show", study_id)[1]
        assert "ValueError: red" in out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)


class TestResults:
    @pytest.fixture
    def study_id(self, here: Served) -> str:
        study_id = create(here, sweep(micro_batches=(4, 64)))
        run_to_the_end(here, study_id, failing=[4])
        return study_id

    def test_the_table_has_what_varies_and_the_scaling(self, vitscale: Run, study_id: str) -> None:
        code, out, _ = vitscale("results", study_id)
        assert code == 0
        lines = out.splitlines()
        header = " ".join(lines[0].split())
        assert header.startswith("trial")
        for column in ("micro batch", "world size", "images/s", "step ms ±95 %", "epoch s", "speed-up", "state"):
            assert column in header
        assert "precision" not in header
        cells = {line.split()[0]: line.split() for line in lines[1:5]}
        two = next(row for row in cells.values() if row[2] == "2" and row[-1] == "succeeded")
        assert two[3:] == ["160.0", "100.0", "±1.0", "11.25", "1.60", "0.80", "succeeded"]
        failed = next(row for row in cells.values() if row[-1] == "ERROR")
        assert failed[3:] == ["-", "-", "-", "-", "-", "ERROR"]

    def test_the_table_fits_80_columns(self, vitscale: Run, study_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm-256color")
        out = vitscale("results", study_id)[1]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
        assert max(map(len, plain.splitlines())) <= 80
        assert "100.0 ±1.0" in plain
        assert "\x1b[" in out
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[3" not in vitscale("results", study_id)[1]

    def test_a_failed_baseline_leaves_the_speed_up_empty_and_says_so(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        run_to_the_end(here, study_id, failing=[1])
        out = vitscale("results", study_id)[1]
        two = next(line.split() for line in out.splitlines() if line.split()[0] == "2")
        assert two[1:] == ["2", "160.0", "100.0", "±1.0", "11.25", "-", "-", "succeeded"]
        assert "Without speed-up: the baseline, world size 1, has no result." in out

    def test_what_was_measured_too_short_is_pointed_out(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        job = started_job(here, study_id)
        hasty = trial_result(quality=Quality(state="unassessed", flags=["contended"]))
        lines = [job.started(1), job.succeeded(1), job.started(2), job.succeeded(2, result=hasty)]
        feed(here.database, job.plan, lines)
        out = vitscale("results", study_id)[1]
        assert "Flagged: trial 2: contended\n" in out
        assert "Not known to be steady (measured too short, or drifting): trial 2.\n" in out

    def test_json_is_one_page_with_all_rows(self, vitscale: Run, study_id: str) -> None:
        page = json.loads(vitscale("results", study_id, "--format", "json")[1])
        assert (page["count"], page["next_cursor"], page["status"]) == (4, None, "partial")
        assert page["results"][0]["metrics"]["images_per_second"] == 100.0
        failed = json.loads(vitscale("results", study_id, "--format", "json", "--state", "failed")[1])
        assert [row["trial"] for row in failed["results"]] == [4]

    def test_csv_is_what_a_csv_reader_reads(self, vitscale: Run, study_id: str) -> None:
        rows = list(csv.DictReader(io.StringIO(vitscale("results", study_id, "--format", "csv")[1], newline="")))
        assert [row["trial"] for row in rows] == ["1", "2", "3", "4"]
        assert rows[0]["images_per_second"] == "100.0"
        assert rows[3]["images_per_second"] == ""

    def test_logs_of_one_trial_and_of_all(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        job = started_job(here, study_id)
        lines = [job.started(1), "first \x1b[31mred\x1b[0m", job.succeeded(1), job.started(2), "second"]
        feed(here.database, job.plan, lines)
        assert vitscale("logs", study_id, "--trial", "1")[1] == "first red\n"
        assert vitscale("logs", study_id)[1] == "trial 1 | first red\ntrial 2 | second\n"
        assert vitscale("logs", study_id, "--trial", "9")[0] == 2

    def test_a_study_without_rows_yet(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        code, out, _ = vitscale("results", study_id)
        assert code == 0
        assert out.count("pending") == 2

    @pytest.mark.slow
    def test_a_closed_pipe_is_quiet(self, study_id: str) -> None:
        command = f"{sys.executable} -m api.cli.main results {study_id} --format json | head -c 10"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.startswith("{")
        assert done.stderr == ""


class TestExitCodes:
    @pytest.mark.parametrize(("failing", "code"), [([], 0), ([2], 3), ([1, 2], 1)])
    def test_watch_ends_with_the_studys_state(self, vitscale: Run, here: Served, failing: list[int], code: int) -> None:
        study_id = create(here)
        run_to_the_end(here, study_id, failing=failing)
        ended, out, _ = vitscale("watch", study_id)
        assert ended == code
        assert ("images/s" in out) == (code != 1)
        assert ("ValueError: a bad value" in out) == bool(failing)

    def test_a_cancelled_study_is_not_good(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        vitscale("cancel", study_id)
        assert vitscale("watch", study_id)[0] == 1

    def test_a_study_that_could_not_run_says_why(self, vitscale: Run, here: Served) -> None:
        study_id = create(here)
        started_job(here, study_id)
        finish(here, study_id, error="the job could not be started")
        code, out, _ = vitscale("watch", study_id)
        assert code == 1
        assert "failed" in out
        assert "the job could not be started" in out


class TestThisMachine:
    @pytest.mark.usefixtures("here")
    def test_token_prints_the_token_and_nothing_else_does(self, vitscale: Run) -> None:
        assert vitscale("token") == (0, f"{TOKEN}\n", "")
        for arguments in (["list"], ["doctor"], ["doctor", "--json"], ["show"]):
            _, out, err = vitscale(*arguments)
            assert TOKEN not in out + err

    def test_doctor_has_a_line_for_each_thing(self, vitscale: Run, here: Served) -> None:
        _, out, _ = vitscale("doctor", "--json")
        answer = json.loads(out)
        names = {check["name"] for check in answer["checks"]}
        assert {"Python", "torch", "ray", "deepspeed", "timm", "compiled DeepSpeed op", "disk", "token"} <= names
        assert {check["state"] for check in answer["checks"]} <= {"ok", "warn", "missing"}
        server = next(check for check in answer["checks"] if check["name"] == "server")
        assert here.url in server["detail"]
        assert server["hint"] == "The server was started without Ray"

    @pytest.mark.slow
    def test_doctor_names_what_is_missing_and_fails(
        self, vitscale: Run, nowhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VITSCALE_DATA_ROOTS", json.dumps([str(nowhere / "missing")]))
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(nowhere / "empty"))
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setenv("VITSCALE_URL", "http://127.0.0.1:9")
        (nowhere / "data").mkdir()
        (nowhere / "data" / "api_token").touch(mode=0o644)
        code, out, _ = vitscale("doctor", "--json")
        states = {check["name"]: check["state"] for check in json.loads(out)["checks"]}
        assert code == 1
        assert (states["data root"], states["server"], states["token"]) == ("missing", "missing", "warn")
        if states["compiled DeepSpeed op"] != "missing":
            assert any(Path("/dev").glob("nvidia[0-9]*"))
        assert vitscale("doctor")[1].splitlines()[-1] == "Something that is needed is missing."

    def test_help_is_quick_because_nothing_heavy_is_imported(self) -> None:
        code = "import sys; from api.cli.main import run; run(['--help']); print([m for m in "
        code += "('httpx', 'pydantic', 'fastapi', 'sqlalchemy', 'ray', 'torch') if m in sys.modules], file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr.strip() == "[]"
