"""How numbers and columns are written."""

from typing import Any

import pytest
from rich.text import Text

from api.cli.tables import differing_keys, duration, number, write_results
from service.analysis.repeats import between_runs
from service.views import ResultRow, RowMetrics, StudyView


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00012345, "0.000123"),
        (0.5, "0.500"),
        (1.23456, "1.235"),
        (98.7654, "98.77"),
        (1234.567, "1235"),
        (123456.7, "123457"),
    ],
)
def test_numbers_have_four_digits_and_no_powers_of_ten(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (8.4, "8 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")]
)
def test_durations_are_what_a_person_says(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_only_what_differs_is_a_column_and_the_sweeps_own_keys_come_first() -> None:
    rows = [{"a": 1, "world_size": 1, "model": "m"}, {"a": 2, "world_size": 2, "model": "m"}]
    assert differing_keys(rows) == ["world_size", "a"]
    assert differing_keys(rows, frozenset({"a"})) == ["world_size"]
    assert differing_keys([{"a": True}, {"a": 1}]) == ["a"]


def study(**scaling: Any) -> StudyView:
    axes = {
        "world_size": {"values": [1, 2]},
        "train_batch_size": {"value": 64},
        "gradient_accumulation_steps": {"value": 1},
    }
    return StudyView.model_validate(
        {
            **dict.fromkeys(["started_at", "finished_at", "error"]),
            "description": "",
            "id": "a" * 12,
            "name": "s",
            "tags": [],
            "status": "succeeded",
            "spec": {"scaling": scaling, "parameters": axes},
            "trial_counts": {},
            "progress": {"done": 2, "total": 2, "running": [], "seconds_left": None},
            "created_at": "2026-01-01T00:00:00Z",
            "ray": {"job_id": None, "dashboard_url": None},
        }
    )


def row(trial: int, world_size: int, images_per_second: float, epoch_seconds: float | None) -> ResultRow:
    return ResultRow.model_validate(
        {
            "trial": trial,
            "repeat": 0,
            "attempt": 1,
            "state": "succeeded",
            "reason": None,
            "parameters": {
                "world_size": world_size,
                "train_micro_batch_size_per_gpu": 64 // world_size,
                "gradient_accumulation_steps": 1,
                "train_batch_size": 64,
            },
            "metrics": {"images_per_second": images_per_second, "epoch_seconds": epoch_seconds},
            "quality": {"state": "steady"},
            "overhead": {},
            "hardware": {},
            "between_runs": None,
        }
    )


def test_repeats_are_shown_together_below(capsys: pytest.CaptureFixture[str]) -> None:
    runs = between_runs([0.40, 0.42], 64)
    rows = [
        row(number, 1, 160.0, None).model_copy(update={"repeat": number - 1, "between_runs": runs}) for number in (1, 2)
    ]
    write_results(study(mode="none", hold="global_batch"), rows)
    out = capsys.readouterr().out.splitlines()
    assert out[3] == ""
    assert out[4].startswith("Runs of one point together")
    assert out[5].split() == ["runs", "images/s", "step", "ms", "±95", "%", "spread"]
    # t(0.975, 1) = 12.706; s / sqrt(2) = 10 ms
    assert out[6].split() == ["2", "156.1", "410.0", "±127", "4.9%"]
    assert len(out) == 7 or "Runs of one" not in "".join(out[7:])


def cells(capsys: pytest.CaptureFixture[str], line: int) -> list[str]:
    return [cell.strip() for cell in capsys.readouterr().out.splitlines()[line].split("  ") if cell.strip()]


def test_with_the_global_batch_held_the_derived_micro_batch_is_shown_and_the_series_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_results(study(mode="strong", hold="global_batch"), [row(1, 1, 100.0, 18.0), row(2, 2, 160.0, 11.25)])
    assert cells(capsys, 2) == ["2", "32", "2", "160.0", "-", "11.25", "1.60", "0.80", "succeeded"]


def test_a_plain_comparison_has_the_throughput_form_only(capsys: pytest.CaptureFixture[str]) -> None:
    write_results(study(mode="none", hold="global_batch"), [row(1, 1, 100.0, None), row(2, 2, 160.0, None)])
    out = capsys.readouterr().out.splitlines()
    assert "images/s per worker vs. baseline" in out[0]
    assert "speed-up" not in out[0]
    assert out[2].split() == ["2", "32", "2", "160.0", "-", "0.80", "succeeded"]


def test_weak_scaling_has_the_scaled_speed_up(capsys: pytest.CaptureFixture[str]) -> None:
    write_results(study(mode="weak", hold="global_batch"), [row(1, 1, 100.0, 18.0), row(2, 2, 160.0, 22.5)])
    out = capsys.readouterr().out.splitlines()
    assert "scaled speed-up" in out[0]
    assert out[2].split()[-3:] == ["1.60", "0.80", "succeeded"]


def taken_apart(trial: int, world_size: int, **metrics: Any) -> ResultRow:
    """A step of 90 ms in the pass, beside one of 100 ms in the windows: shares are of the former."""
    parts = {
        "step_seconds_mean": 0.1,
        "compute_seconds": 0.045,
        "data_wait_seconds": 0.0,
        "straggler_wait_seconds": 0.009,
        "communication_seconds": 0.036,
        "communication_share": 0.4,
        "communication_share_ci95_low": 0.374,
        "communication_share_ci95_high": 0.42,
        "communication_source": "exchange_left_out",
    }
    plain = row(trial, world_size, 160.0, 11.25)
    return plain.model_copy(update={"metrics": plain.metrics.model_copy(update={**parts, **metrics})})


ALONE = {
    "compute_seconds": 0.09,
    "straggler_wait_seconds": 0.0,
    **dict.fromkeys(("communication_seconds", "communication_share", "communication_share_ci95_low")),
}


def test_a_step_taken_apart_is_shown_as_shares_of_itself_with_the_interval_of_the_exchange(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [taken_apart(1, 1, **ALONE), taken_apart(2, 2)]
    write_results(study(mode="strong", hold="global_batch"), rows)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[-6:] == ["%", "compute", "data", "wait", "comm.", "efficiency"]
    assert " ".join(out[1].split()) == "1 64 1 160.0 100.0 100 % 0 % 0 % - 1.00"
    assert " ".join(out[2].split()) == "2 32 2 160.0 100.0 50 % 0 % 10 % 40 ±3 % 0.50"
    assert out[3].startswith("Shares of a step: ")


def test_with_parts_the_demos_table_fits_100_columns_piped_and_at_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"step_seconds_ci95_low": 0.001, "step_seconds_ci95_high": 0.884, "communication_share_ci95_low": 0.1}
    rows = [taken_apart(1, 1, **ALONE), taken_apart(2, 2, **wide)]
    write_results(study(mode="strong", hold="global_batch"), rows)
    piped = capsys.readouterr().out.splitlines()
    assert max(map(len, piped)) <= 100
    for name, value in {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    write_results(study(mode="strong", hold="global_batch"), rows)
    lines = [Text.from_ansi(line).plain.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.endswith("ciency") for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_state_stays_where_a_trial_failed(capsys: pytest.CaptureFixture[str]) -> None:
    failed = row(2, 2, 0.0, None).model_copy(update={"state": "failed", "metrics": RowMetrics()})
    write_results(study(mode="strong", hold="global_batch"), [taken_apart(1, 1, **ALONE), failed])
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[-1] == "state"
    assert out[2].split()[-1] == "failed"


def test_imported_parts_are_shares_of_their_own_step_and_what_noise_made_negative_is_shown_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    imported = row(1, 2, 160.0, None)
    known = {"step_seconds_mean": 0.1, "compute_seconds": 0.06, "communication_seconds": 0.03}
    imported = imported.model_copy(update={"metrics": RowMetrics(**known)})
    write_results(study(mode="none"), [imported])
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[-2:] == ["compute", "comm."]
    assert out[1].split()[-4:] == ["60", "%", "30", "%"]
    write_results(study(mode="none"), [taken_apart(1, 2, communication_seconds=-0.0018)])
    assert "-3 ±3 %" in capsys.readouterr().out
