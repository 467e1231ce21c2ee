"""`vitscale compare` against a real server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.cli.main import run
from tests.api.served import TOKEN, Served, finish, run_to_the_end, served, started_job, sweep
from tests.service.factories import feed, trial_result

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("compare")) as running:
        yield running


@pytest.fixture
def vitscale(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITSCALE_URL", raising=False)
    monkeypatch.setenv("VITSCALE_DATA_DIR", str(server.settings.data_dir))
    monkeypatch.setenv("VITSCALE_API_TOKEN", TOKEN)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["compare", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def study(server: Served, step_seconds: float | None, name: str = "sweep") -> str:
    """Two trials of so many seconds per step; None: it is not run."""
    with server.client() as client:
        made = client.create_study(sweep(name)).id
    if step_seconds is not None:
        job = started_job(server, made)
        metrics = {f"step_seconds_{key}": step_seconds for key in ("mean", "ci95_low", "ci95_high")}
        result = trial_result(world_size=1, metrics=metrics)
        feed(server.database, job.plan, [job.succeeded(trial.number, result=result) for trial in job.plan.trials])
        finish(server, made)
    return made


def test_no_regression_is_exit_code_0(server: Served, vitscale: Run) -> None:
    a, b = study(server, 0.1, "before"), study(server, 0.102, "after")
    code, out, err = vitscale(a, b, "--tolerance", "5%")
    assert (code, err) == (0, "")
    assert "before" in out
    assert "1.020" in out
    assert "without repeats nothing closer than 5% is ranked" in out
    assert "No regression: 0 slower, 0 faster of 2 points" in out


def test_a_regression_is_exit_code_1_and_named(server: Served, vitscale: Run) -> None:
    a, b = study(server, 0.1), study(server, 0.13)
    code, out, _ = vitscale(a, b)
    assert code == 1
    assert out.count("slower") >= 2
    assert "REGRESSION: 2 slower, 0 faster of 2 points" in out
    assert vitscale(b, a)[0] == 0


def test_the_answer_comes_as_json(server: Served, vitscale: Run) -> None:
    a, b = study(server, 0.1), study(server, 0.13)
    code, out, _ = vitscale(a, b, "--json", "--tolerance", "0.4")
    found = json.loads(out)
    assert (code, found["tolerance"], found["is_regression"]) == (0, 0.4, False)
    assert [point["ratio"] for point in found["points"]] == pytest.approx([1.3, 1.3])


def test_what_failed_only_after_is_a_regression(server: Served, vitscale: Run) -> None:
    a, b = study(server, 0.1), study(server, None)
    run_to_the_end(server, b, failing=(1,))
    code, out, _ = vitscale(a, b)
    assert code == 1
    assert "no result in B: world size 1" in out
    assert "1 failed in B that ran in A" in out


def test_a_study_that_is_not_over_is_exit_code_2_and_says_what_is_missing(server: Served, vitscale: Run) -> None:
    a, b = study(server, 0.1), study(server, None)
    code, _, err = vitscale(a, b)
    assert code == 2
    assert f"study {b} is queued: 2 of 2 trials are not over" in err


@pytest.mark.parametrize("tolerance", ["5", "much", "200%"])
def test_a_tolerance_that_is_none_is_exit_code_2_and_one_line(server: Served, vitscale: Run, tolerance: str) -> None:
    a = study(server, 0.1)
    code, out, err = vitscale(a, a, "--tolerance", tolerance)
    assert (code, out) == (2, "")
    assert err.startswith("vitscale: --tolerance: ")
    assert "write 5% or 0.05" in err
    assert err.count("\n") == 1


def test_without_a_point_in_common_nothing_is_called_good(server: Served, vitscale: Run) -> None:
    with server.client() as client:
        other = client.import_study("run,world_size,train_batch_size,step_seconds\na,3,6,1\n", "elsewhere").id
    code, out, err = vitscale(study(server, 0.1), other)
    assert code == 2
    assert "no measured point in common" in err
    assert "Nothing was compared" in out
    assert "No regression" not in out


def test_an_unknown_study_is_exit_code_2(server: Served, vitscale: Run) -> None:
    assert vitscale(study(server, 0.1), "aaaaaaaaaaaa")[0] == 2
