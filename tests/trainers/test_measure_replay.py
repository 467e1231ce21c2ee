"""The rule on the step logs of other people's runs; `make bench` prints the table."""

from statistics import fmean

import pytest

from tests.benchmarks.replay import (
    LoggedRun,
    Replay,
    measure_series,
    read_runs,
    replay,
    replay_later_starts,
    summarise_replays,
)
from trainers.config import MeasurementConfig


@pytest.fixture(scope="module")
def runs() -> list[LoggedRun]:
    return read_runs()


@pytest.fixture(scope="module")
def replays(runs: list[LoggedRun]) -> list[Replay]:
    return [replay(run) for run in runs]


def test_the_reference_is_there_as_logged(runs: list[LoggedRun]) -> None:
    assert len(runs) == 27
    first = runs[0]
    assert (first.run_id, len(first.epochs)) == ("tesla-inter-c10-3070-g1-b16-p0.1", 10)
    assert [len(epoch) for epoch in first.epochs] == [311] * 10  # 313 steps less the first and the last
    assert first.epochs[0][:2] == [0.249, 0.228]
    assert first.logged_seconds == pytest.approx(713, abs=1)
    assert first.steady_step_seconds == pytest.approx(0.2279, abs=1e-4)


def test_the_runs_are_measured_within_the_bounds(replays: list[Replay]) -> None:
    failing = [outcome for outcome in summarise_replays(replays, replays) if not outcome.holds]
    assert failing == []


def test_both_clusters_are_covered(replays: list[Replay]) -> None:
    for cluster in ("tesla", "vector"):
        rows = [row for row in replays if row.run_id.startswith(cluster)]
        assert sum(row.is_covered for row in rows) >= 0.8 * len(rows)


def test_the_noise_alone_would_cover_less_than_half(replays: list[Replay]) -> None:
    assert sum(abs(row.error) <= row.noise_half_width for row in replays) < len(replays) / 2


def test_a_short_measurement_of_them_says_so(runs: list[LoggedRun]) -> None:
    """The demo's bounds: what is seen in 12 s is not the steady state of minutes, and T4s are still slowing."""
    demo = MeasurementConfig(min_warmup_steps=3, min_steps=20, max_steps=60, max_seconds=12, relative_ci=0.05)
    for run in runs:
        found = measure_series(run.steps_from(0), demo)
        assert found.state in ("steady", "unstable", "drifting", "unassessed")
        # Three steps of warm-up and one more are taken in any case.
        assert found.seconds_seen <= max(demo.max_seconds, 3 * 6.0) + 6.0


@pytest.mark.slow
def test_the_bounds_do_not_hang_on_the_step_a_run_begins_with(runs: list[LoggedRun]) -> None:
    """Begun 1 to 20 steps later, other windows end elsewhere: the summaries scatter around the bounds, not beyond."""
    begun_later = [[replay(run, first_step=step) for run in runs] for step in range(1, 21)]
    values = [[outcome.value for outcome in summarise_replays(rows, rows)] for rows in begun_later]
    median_error, worst_error, _, flagged, covered, half_width, times_fewer, _ = map(fmean, zip(*values, strict=True))
    assert median_error <= 0.72
    assert worst_error <= 2.5
    assert flagged <= 4
    assert covered >= 0.8
    assert half_width <= 1.2
    assert times_fewer >= 8


@pytest.mark.slow
def test_from_later_epochs_on_they_are_measured_within_the_bounds(runs: list[LoggedRun]) -> None:
    """A warm device, other stretches: nothing was chosen on these."""
    later = replay_later_starts(runs)
    assert len(later) > 100
    outcomes = {(outcome.name, outcome.unit): outcome.value for outcome in summarise_replays(later, later)}
    assert outcomes["replay: error", "%, median"] <= 0.7
    assert outcomes["replay: flagged", f"of {len(later)} runs"] <= 0.1 * len(later)
    for cluster in ("tesla", "vector"):
        rows = [row for row in later if row.run_id.startswith(cluster)]
        assert sum(row.is_covered for row in rows) >= 0.8 * len(rows)
