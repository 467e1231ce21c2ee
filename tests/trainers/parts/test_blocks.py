"""Real engines whose steps are taken apart: the training goes on as if nothing had been. World sizes 1 and 2."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.trainers.small_trials import small_trial
from tests.trainers.torchrun import run_under_torchrun
from trainers.parts.rows import RankParts, StepParts

pytestmark = pytest.mark.slow

SMALL_BUCKETS = {"zero_optimization": {"reduce_bucket_size": 10_000_000}}
POINTS: list[dict[str, Any]] = [
    {"zero_stage": 0, "gradient_accumulation_steps": 2, "input_pipeline": "loader"},
    {"zero_stage": 0, "precision": "bf16"},
    {"zero_stage": 1, "precision": "bf16", "gradient_accumulation_steps": 2, "deepspeed_overrides": SMALL_BUCKETS},
    {"zero_stage": 2, "gradient_accumulation_steps": 2, "deepspeed_overrides": SMALL_BUCKETS},
    {"zero_stage": 3, "gradient_accumulation_steps": 2, "deepspeed_overrides": SMALL_BUCKETS},
]
OF_TWO, OF_ONE = range(len(POINTS)), 0


@cache
def taken_apart(world_size: int) -> list[dict[str, Any]]:
    points = POINTS if world_size == 2 else POINTS[:1]
    measurement = {"max_seconds": 1.0}  # four pairs of blocks, the least there are
    trials = [small_trial(world_size, dataset="digits", measurement=measurement, **point) for point in points]
    with TemporaryDirectory() as folder:
        given = Path(folder) / "trials.json"
        given.write_text(json.dumps([trial.model_dump() for trial in trials]), encoding="utf-8")
        run_under_torchrun(world_size, "tests.trainers.parts.taking_apart", str(given))
        rows: list[dict[str, Any]] = json.loads((Path(folder) / "apart.json").read_text("utf-8"))
    return rows


def parts_of(world_size: int, point: int) -> StepParts:
    return StepParts.model_validate(taken_apart(world_size)[point]["parts"])


@pytest.mark.parametrize("point", OF_TWO)
def test_losses_after_it_are_those_of_a_training_without_it(point: int) -> None:
    row = taken_apart(2)[point]
    assert row["losses"] == row["undisturbed"]
    assert len(set(row["losses"])) == len(row["losses"])


@pytest.mark.parametrize("point", OF_TWO)
def test_the_parts_add_up_and_the_exchange_is_left_out_on_the_engine_itself(point: int) -> None:
    parts = parts_of(2, point)
    assert parts.source == "exchange_left_out"
    assert parts.communication is not None
    assert parts.data_wait is not None
    whole = parts.compute.value + parts.data_wait.value + parts.straggler_wait.value + parts.communication.value
    assert whole == pytest.approx(parts.step.value)
    assert 0 < parts.compute.value < parts.step.value
    assert parts.data_wait.value > 0
    assert parts.pairs == 4


@pytest.mark.parametrize("point", OF_TWO)
def test_the_bytes_counted_are_those_of_the_formula(point: int) -> None:
    parts = parts_of(2, point)
    assert parts.wire_bytes == pytest.approx(parts.estimated_wire_bytes, rel=1e-3)
    assert parts.wire_bytes is not None
    assert parts.wire_bytes > 5_000_000


@pytest.mark.parametrize("point", OF_TWO)
def test_the_profiler_sees_collectives_of_which_a_part_is_exposed(point: int) -> None:
    parts = parts_of(2, point)
    assert parts.profiled_communication is not None
    assert parts.profiled_collectives_seconds is not None
    assert 0 < parts.profiled_communication.value <= parts.profiled_collectives_seconds


def test_ranks_have_their_own_compute_and_a_common_communication() -> None:
    ranks = [RankParts.model_validate(rank) for rank in taken_apart(2)[0]["ranks"]]
    assert len(ranks) == 2
    assert ranks[0].communication == ranks[1].communication
    assert ranks[0].compute != ranks[1].compute
    assert min(rank.straggler_wait.value for rank in ranks) >= 0


def test_a_loader_tells_its_decoding_and_copying() -> None:
    parts = parts_of(2, 0)
    assert parts.decode is not None
    assert parts.copy_to_device is not None
    assert parts.decode.value > 0
    assert parts_of(2, 1).decode is None


def test_what_an_engine_does_around_the_exchange_is_not_called_communication_with_one_worker() -> None:
    row, parts = taken_apart(1)[OF_ONE], parts_of(1, OF_ONE)
    assert row["losses"] == row["undisturbed"]
    assert (parts.communication, parts.communication_share, parts.profiled_communication) == (None, None, None)
    assert parts.data_wait is not None
    assert parts.compute.value + parts.data_wait.value == pytest.approx(parts.step.value, rel=0.05)
    assert parts.wire_bytes == 0
