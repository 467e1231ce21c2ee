"""Findings follow from the data: other names, units and orders change them accordingly and no further."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.analysis.analyse import analyse
from service.analysis.finding import Finding, FindingCode
from service.analysis.observation import EpochObservation, Estimate, LinkObservation, Observation, RankObservation
from service.analysis.series import ScalingAsked
from service.states import Reason
from tests.service.analysis.observed import estimate, observed
from tests.service.analysis.paper import paper_runs

ALIASES = {
    "Tesla T4": "alpha",
    "Tesla P4": "beta",
    "NVIDIA GeForce RTX 3070": "gamma",
    "NVIDIA GeForce GTX 1070": "delta",
}
# Values that lie on no threshold, where rounding would decide.
times = st.integers(20, 400).map(lambda number: number * 0.0137 + 0.00071)
shares = st.integers(1, 60).map(lambda number: number * 0.0137 + 0.00071)


@st.composite
def trials(draw: st.DrawFn, number: int) -> Observation:
    """One trial with whatever parts it may have."""
    size, batch = draw(st.integers(1, 4)), draw(st.sampled_from([16, 64]))
    if draw(st.integers(0, 9)) == 0:
        return observed(number, None, world_size=size, micro_batch=batch, reason=Reason.OUT_OF_MEMORY)
    seconds = draw(times)
    devices = tuple(draw(st.sampled_from(["Tesla T4", "Tesla P4"])) for _ in range(size))
    known = draw(st.sampled_from([0, 1, size]))
    ranks = tuple(
        RankObservation(rank, f"n{rank}", devices[rank], None, seconds * draw(shares), None, seconds * draw(shares))
        for rank in range(known)
    )
    is_taken_apart = size > 1 and known == size and draw(st.booleans())
    return observed(
        number,
        seconds,
        repeat=number,
        world_size=size,
        micro_batch=batch,
        interval=draw(st.sampled_from([None, 0.0123, 0.0789])),
        devices=devices,
        ranks=ranks,
        communication_seconds=draw(st.none() | shares.map(lambda share: estimate(seconds * share))),
        data_wait_seconds=draw(st.none() | shares.map(lambda share: estimate(seconds * share / 3))),
        epochs=tuple(EpochObservation(n, draw(times)) for n in range(1, draw(st.sampled_from([1, 6])))),
        eval_accuracy=draw(st.none() | shares),
        **(_parts(draw, seconds, size) if is_taken_apart else {}),
        quality_flags=draw(st.sampled_from([(), ("contended",), ("drifting",)])),
    )


def _parts(draw: st.DrawFn, seconds: float, size: int) -> dict[str, Any]:
    """What a trial tells beside its row where it took its step apart, adding up or not."""
    nodes = [f"n{rank}" for rank in range(size)]
    betas = [(one, other, 1 / draw(times)) for place, one in enumerate(nodes) for other in nodes[:place]]
    return {
        "parts_step_seconds": estimate(seconds * 1.013, 0.0123),
        "straggler_persistent_seconds": estimate(seconds * draw(shares) / 3, 0.0789),
        "straggler_jitter_seconds": estimate(seconds * draw(shares) / 3, 0.0789),
        "communication_source": "exchange_left_out",
        "communication_wire_bytes": 1e6,
        "decode_seconds": estimate(seconds * draw(shares), 0.0123),
        "copy_to_device_seconds": estimate(seconds * draw(shares) / 3, 0.0123),
        "links": tuple(LinkObservation("pair", (a, b), None, estimate(beta, 0.0123)) for a, b, beta in betas),
    }


@st.composite
def studies(draw: st.DrawFn) -> list[Observation]:
    return [draw(trials(number)) for number in range(1, draw(st.integers(2, 6)) + 1)]


def found(runs: Sequence[Observation]) -> list[Finding]:
    return analyse(runs, ScalingAsked(mode="strong")).findings


def as_data(findings: Sequence[Finding]) -> list[Any]:
    return json.loads(json.dumps([finding.model_dump(mode="json") for finding in findings], allow_nan=False))


def scaled(run: Any, factor: float) -> Any:
    """The observation with all its times, and the rates against them, in another unit."""
    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(run)):
        value = getattr(run, name)
        by = factor if name.endswith("_seconds") else 1 / factor if name.endswith("_per_second") else None
        if name in {"ranks", "epochs", "links"}:
            changes[name] = tuple(scaled(one, factor) for one in value)
        elif by is not None and isinstance(value, Estimate):
            ends = [None if end is None else end * by for end in (value.low, value.high)]
            changes[name] = Estimate(value.value * by, *ends)
        elif by is not None and value is not None:
            changes[name] = value * by
    return replace(run, **changes)


def without_units(key: str, value: Any, factor: float) -> Any:
    """Evidence as it would have been in the first unit."""
    if isinstance(value, dict):
        return {name: without_units(_unit_key(key, name), one, factor) for name, one in value.items()}
    if isinstance(value, list):
        return [without_units(key, one, factor) for one in value]
    if isinstance(value, float):
        if key.endswith("_seconds"):
            return pytest.approx(value / factor)
        if key.endswith("_per_second"):
            return pytest.approx(value * factor)
        return pytest.approx(value)
    return value


def _unit_key(key: str, name: str) -> str:
    return key if key.endswith(("_seconds", "_per_second")) else name


@settings(max_examples=10, deadline=None)
@given(runs=studies(), seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(runs: list[Observation], seed: int) -> None:
    shuffled = list(runs)
    random.Random(seed).shuffle(shuffled)
    assert as_data(found(shuffled)) == as_data(found(runs))


@settings(max_examples=10, deadline=None)
@given(runs=studies())
def test_another_unit_of_time_changes_times_and_rates_only(runs: list[Observation]) -> None:
    assert_scaled(runs, 1.7)


@pytest.mark.parametrize("series", ["tesla-strong", "vector-cifar10-strong", "nebula-batch"])
def test_another_unit_of_time_on_the_papers_runs(series: str) -> None:
    assert_scaled(paper_runs(series), 1.7)


def assert_scaled(runs: Sequence[Observation], factor: float) -> None:
    before, after = found(runs), found([scaled(run, factor) for run in runs])
    assert [(one.code, one.severity) for one in after] == [(one.code, one.severity) for one in before]
    for one, other in zip(before, after, strict=True):
        assert one.evidence == without_units("", other.evidence, factor), one.code


@settings(max_examples=10, deadline=None)
@given(runs=studies(), seed=st.integers(0, 99))
def test_other_ranks_for_the_workers_change_the_ranks_that_are_named_only(runs: list[Observation], seed: int) -> None:
    generator = random.Random(seed)
    orders = [generator.sample(range(run.world_size), run.world_size) for run in runs]
    permuted = [_permuted(run, order) for run, order in zip(runs, orders, strict=True)]
    named = {
        (run.trial, order[rank]): rank for run, order in zip(runs, orders, strict=True) for rank in range(len(order))
    }

    def told(findings: Sequence[Finding], rank_of: Callable[[int, int], int]) -> list[str]:
        keys = []
        for one in findings:
            evidence = {key: value for key, value in one.evidence.items() if key not in {"hardware", "trials", "rank"}}
            ranks = [(trial, rank_of(trial, one.evidence["rank"])) for trial in one.evidence["trials"]
                     if "rank" in one.evidence]  # fmt: skip
            keys += [json.dumps([one.code, one.severity, evidence, pair], sort_keys=True) for pair in ranks or [None]]
        return sorted(keys)

    # A straggler of several trials is one finding only as long as it is the same rank: look at one trial at a time.
    for run, other in zip(runs, permuted, strict=True):
        assert told(found([other]), lambda trial, rank: named[trial, rank]) == told(found([run]), lambda _, rank: rank)
    codes = {one.code for one in found(runs)}
    assert {one.code for one in found(permuted)} == codes


def _permuted(run: Observation, order: Sequence[int]) -> Observation:
    devices = [""] * len(run.devices)
    for rank, device in enumerate(run.devices):
        devices[order[rank]] = device
    ranks = sorted((replace(one, rank=order[one.rank]) for one in run.ranks), key=lambda one: one.rank)
    return replace(run, devices=tuple(devices), ranks=tuple(ranks))


def renamed(runs: Sequence[Observation], names: dict[str, str]) -> list[Observation]:
    return [
        replace(
            run,
            devices=tuple(names[device] for device in run.devices),
            ranks=tuple(replace(rank, device=names[rank.device] if rank.device else None) for rank in run.ranks),
        )
        for run in runs
    ]


def assert_renamed(runs: Sequence[Observation]) -> None:
    """Names that no table of peaks knows: PRECISION has nothing to say, SLOWDOWN not which reading is likelier."""

    def told(findings: Sequence[Finding], names: dict[str, str]) -> list[str]:
        kept = []
        for one in findings:
            if one.code is FindingCode.PRECISION:
                continue
            evidence = {key: value for key, value in one.evidence.items() if not _knows_names(key)}
            text = json.dumps([one.code, one.severity, _sorted_lists(evidence, names)], sort_keys=True)
            kept.append(text)
        return kept

    after = found(renamed(runs, ALIASES))
    assert FindingCode.PRECISION not in {one.code for one in after}
    assert told(found(runs), ALIASES) == told(after, {name: name for name in ALIASES.values()})


def _knows_names(key: str) -> bool:
    return key in {"expected_worker_images_per_second", "likelier", "hardware"}


def _sorted_lists(evidence: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Names as they become, and lists of names (which are sorted) in one order."""
    shown: dict[str, Any] = {}
    for key, value in evidence.items():
        if isinstance(value, list) and value and isinstance(value[0], str):
            shown[key] = sorted(names.get(one, one) for one in value)
        else:
            shown[key] = names.get(value, value) if isinstance(value, str) else value
    return shown


@settings(max_examples=10, deadline=None)
@given(runs=studies())
def test_other_names_for_devices_change_the_names_only(runs: list[Observation]) -> None:
    assert_renamed(runs)


@pytest.mark.parametrize("series", ["tesla-strong", "vector-cifar10-strong"])
def test_other_names_for_devices_on_the_papers_runs(series: str) -> None:
    assert_renamed(paper_runs(series))
