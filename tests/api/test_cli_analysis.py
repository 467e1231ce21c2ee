"""`vitscale analyse`, at a terminal and piped, and the client's call behind it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.analysis import write_analysis
from api.cli.drawing import bar, sparkline
from api.cli.main import run
from service.analysis.analyse import analyse
from service.analysis.answer import AnalysisOptions, StudyAnalysis
from service.analysis.series import ScalingAsked
from service.states import Reason, StudyState
from tests.api.served import TOKEN, Served, run_to_the_end, served, sweep
from tests.service.analysis_samples import observed


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with served(tmp_path) as running:
        monkeypatch.setenv("VITSCALE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("VITSCALE_API_TOKEN", TOKEN)
        monkeypatch.delenv("VITSCALE_URL", raising=False)
        yield running


def answer() -> StudyAnalysis:
    """Two micro batches on four world sizes; a third one ran out of memory."""
    runs = [
        observed(
            n, size, 1000 / (size * (100 + 20 * batch / 4)) * (1 + 0.03 * (size - 1)), micro=batch, dataset="digits"
        )
        for n, (batch, size) in enumerate([(b, p) for b in (4, 8) for p in (1, 2, 4, 8)], 1)
    ]
    runs.append(observed(9, 1, None, micro=16, dataset="digits", reason=Reason.OUT_OF_MEMORY))
    found = analyse(runs, ScalingAsked(mode="strong"), AnalysisOptions(forecast_sizes=[16, 32]))
    return StudyAnalysis(study_id="a" * 12, status=StudyState.PARTIAL, **dict(found))


def test_piped_it_is_plain_and_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    write_analysis(answer())
    out = capsys.readouterr().out
    assert "Series a1 (micro batch 4): strong scaling against 1" in out
    assert "8 x Tesla T4" in out
    assert "Forecasts average all fits" in out
    assert "Efficiency of at least 80%: to world size " in out
    assert "Sweet spot: micro batch 8 is the fastest" in out
    assert "Memory ends at 16; 8 ran." in out
    assert "Series a3" not in out  # one world size is no scaling
    assert "Throughput by micro batch, against the best" in out
    assert "Fastest epoch (dataset digits)" in out
    assert not set(out) & set("█▏▁▇\x1b")


def test_at_a_terminal_it_draws(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "100", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    write_analysis(answer())
    out = capsys.readouterr().out
    assert "█" * 9 in out
    assert "▇█·" in out  # 120, 140 images/s, and none


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "    "), (1.0, "████"), (2.0, "████"), (0.5, "██  "), (0.28125, "█▏  "), (None, "    ")],
)
def test_a_bar_is_drawn_to_an_eighth_of_a_character(share: float | None, text: str) -> None:
    assert bar(share, 4) == text


def test_a_sparkline_begins_at_nought() -> None:
    assert sparkline([0.0, 50.0, None, 100.0]) == "▁▅·█"
    assert sparkline([None, 0.0]) == "··"


def test_from_the_command_line(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with server.client() as client:
        study_id = client.create_study(sweep(micro_batches=(4, 16))).id
        run_to_the_end(server, study_id)
        found = client.get_analysis(study_id, forecast=[4], efficiency=0.5)
    assert found.series[0].points[1].speedup == 1.6
    assert found.options.forecast_sizes == [4]
    assert run(["analyse", "latest"]) == 0
    assert "2 different world sizes have a result, at least 4 are needed" in capsys.readouterr().out
    assert run(["analyse", study_id, "--json", "--forecast", "4", "--efficiency", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out) == found.model_dump(mode="json")
    assert run(["analyse", study_id, "--forecast", "4,x"]) == 2
    assert "--forecast: 'x' is no world size" in capsys.readouterr().err
