"""From a specification to a plan."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.canonical import point_hash
from service.errors import ErrorItem, SpecInvalid
from service.job_plan import Placement, WorkerGroup
from service.models import model_table
from service.plan.batch import Indivisible
from service.plan.checks import Checks
from service.plan.data import class_count
from service.plan.exclusion import Exclusions
from service.plan.model import PlacementNeed, Plan, PlannedPoint, Refusal
from service.plan.points import axis_values, candidates, count_candidates
from service.spec.model import StudySpec
from trainers.config import MeasurementConfig, TrialConfig
from trainers.memory import ModelStates, model_states

BASELINE_NOT_IN_STUDY = "BASELINE_NOT_IN_STUDY"
MAX_TRIALS = 10_000
# Before exclusions; bounds the time of planning.
MAX_CANDIDATES = 20_000


@dataclass(frozen=True)
class _Point:
    """A point that can be (`skip_reason` null) or that is listed only."""

    parameters: dict[str, Any]
    skip_reason: str | None


def plan(spec: StudySpec, *, data_roots: Sequence[Path] = ()) -> Plan:
    """All trials of the study, and every reason against it. Deterministic; looks at nothing but `data_roots`' links.

    Args:
        spec: a specification as `parse_spec` gives it.
        data_roots: folders that `workload.data_root` may lie in.

    Raises:
        SpecInvalid: more than MAX_TRIALS trials.
    """
    _bound_candidates(spec)
    checks, exclusions = Checks.of(spec, data_roots), Exclusions(spec)
    points: list[_Point] = []
    refused: list[Refusal] = []
    world_sizes: set[int] = set()
    for candidate in candidates(spec):
        if exclusions.exclude(candidate.parameters):
            continue
        world_sizes.add(candidate.parameters["world_size"])
        if candidate.indivisible is None:
            reasons = checks.refusals(candidate.parameters)
            refused += reasons
            if not reasons:
                points.append(_Point(candidate.parameters, None))
        elif spec.on_indivisible == "skip":
            points.append(_Point(candidate.parameters, candidate.indivisible.reason))
        else:
            refused.append(_indivisible(candidate.parameters, candidate.indivisible))
    refused += _nothing_to_run(points, refused)
    refused += _baseline(spec, world_sizes)
    _bound_trials(len(points) * spec.measurement.repeats)
    trials = _trials(spec, points, checks.placements)
    return Plan(
        trials=trials,
        refused=refused,
        order=_order(spec, trials),
        placement=_placement_needs(spec, trials),
        device_seconds_bound=_device_seconds_bound(spec, trials),
        notes=exclusions.notes(),
    )


# --- bounds ----------------------------------------------------------------------------------------------------------


def _bound_candidates(spec: StudySpec) -> None:
    count = count_candidates(spec)
    if count > MAX_CANDIDATES or (not spec.exclude and count > MAX_TRIALS):
        lengths = " x ".join(f"{len(values)} {name}" for name, values in axis_values(spec).items() if len(values) > 1)
        _refuse_size(f"the product of the axes is {count:,} points ({lengths})")
    if not spec.exclude:
        _bound_trials(count * spec.measurement.repeats)


def _bound_trials(count: int) -> None:
    if count > MAX_TRIALS:
        _refuse_size(f"the study has {count:,} trials")


def _refuse_size(what: str) -> None:
    item = ErrorItem(
        "/parameters", f"{what}: a study has at most {MAX_TRIALS:,} trials", "give fewer values, or split the study"
    )
    raise SpecInvalid(item.detail, [item])


# --- refusals of the study as a whole --------------------------------------------------------------------------------


def _indivisible(parameters: dict[str, Any], indivisible: Indivisible) -> Refusal:
    return Refusal(
        parameters=parameters,
        pointer=f"/parameters/{indivisible.key}",
        reason=indivisible.reason,
        hint=f"{indivisible.hint}; on_indivisible: skip leaves such points out",
        code="INDIVISIBLE_BATCH",
    )


def _nothing_to_run(points: list[_Point], refused: list[Refusal]) -> list[Refusal]:
    if refused or any(point.skip_reason is None for point in points):
        return []
    if points:
        where, what, hint = "/on_indivisible", "skipped", points[0].skip_reason
    else:
        where, what, hint = "/exclude", "excluded", "take an entry out of exclude"
    return [
        Refusal(
            parameters={},
            pointer=where,
            reason=f"every point is {what}: nothing is left to run",
            hint=hint,
            code="NOTHING_TO_RUN",
        )
    ]


def _baseline(spec: StudySpec, world_sizes: set[int]) -> list[Refusal]:
    baseline = spec.scaling.baseline_world_size
    if baseline is None or not world_sizes or baseline in world_sizes:
        return []
    return [
        Refusal(
            parameters={},
            pointer="/scaling/baseline_world_size",
            reason=f"the baseline world size {baseline} is not in the study",
            hint=f"one of {', '.join(str(size) for size in sorted(world_sizes))}, or null for the smallest",
            code=BASELINE_NOT_IN_STUDY,
        )
    ]


# --- trials ----------------------------------------------------------------------------------------------------------


def _trials(spec: StudySpec, points: list[_Point], placements: dict[str, Placement]) -> list[PlannedPoint]:
    measurement = MeasurementConfig(
        **spec.measurement.model_dump(
            include={"min_warmup_steps", "min_steps", "max_steps", "max_seconds", "relative_ci", "communication"}
        )
    )
    prepared = [
        (
            point,
            point_hash(point.parameters),
            None if point.skip_reason else _config(spec, point.parameters, measurement),
        )
        for point in points
    ]
    memory = {identity: _memory(config) for _, identity, config in prepared if config is not None}
    return [
        PlannedPoint(
            number=repeat * len(prepared) + position,
            repeat=repeat,
            parameters=point.parameters,
            placement_name=point.parameters["placement"],
            placement=placements.get(point.parameters["placement"], placements["default"]),
            config=config,
            memory=memory.get(identity),
            state="skipped" if point.skip_reason else "pending",
            skip_reason=point.skip_reason,
            point_hash=identity,
        )
        for repeat in range(spec.measurement.repeats)
        for position, (point, identity, config) in enumerate(prepared, start=1)
    ]


def _config(spec: StudySpec, parameters: dict[str, Any], measurement: MeasurementConfig) -> TrialConfig:
    workload = spec.workload
    needs_folder = parameters["dataset"] in {"cifar10", "cifar100"}
    return TrialConfig(
        **{key: value for key, value in parameters.items() if key != "placement"},
        num_classes=class_count(workload, parameters["dataset"]),
        data_root=workload.data_root if needs_folder else None,
        download=workload.download and needs_folder,
        scaling_mode=spec.scaling.mode,
        loader_workers=workload.loader_workers,
        epochs=workload.epochs,
        seed=workload.seed,
        deepspeed_overrides=spec.deepspeed,
        num_threads=spec.resources.num_cpus,
        measurement=measurement,
    )


def _memory(config: TrialConfig) -> ModelStates:
    facts = model_table()[config.model]
    return model_states(config, facts.tensor_sizes_at(config.image_size, config.patch_size, config.num_classes))


def _order(spec: StudySpec, trials: list[PlannedPoint]) -> list[int]:
    """Numbers of the pending trials. Random: one shuffle of the whole plan, repeats included, so that a drift of the
    machine over the study falls on no point, and on no repeat, in particular."""
    numbers = [trial.number for trial in trials if trial.state == "pending"]
    if spec.measurement.order == "random":
        random.Random(spec.workload.seed).shuffle(numbers)
    return numbers


def _placement_needs(spec: StudySpec, trials: list[PlannedPoint]) -> list[PlacementNeed]:
    counts: dict[tuple[str, int], list[PlannedPoint]] = {}
    for trial in trials:
        if trial.state == "pending":
            counts.setdefault((trial.placement_name, trial.parameters["world_size"]), []).append(trial)
    return [
        PlacementNeed(
            placement=name,
            world_size=world_size,
            strategy=group[0].placement.strategy,
            workers=_first_workers(group[0].placement, world_size),
            num_cpus_per_worker=spec.resources.num_cpus,
            num_gpus_per_worker=spec.resources.num_gpus,
            trials=len(group),
        )
        for (name, world_size), group in sorted(counts.items())
    ]


def _first_workers(placement: Placement, world_size: int) -> list[WorkerGroup]:
    groups: list[WorkerGroup] = []
    missing = world_size
    for group in placement.workers or [WorkerGroup(count=world_size)]:
        if missing == 0:
            break
        taken = min(missing, group.count)
        groups.append(WorkerGroup(label_selector=group.label_selector, count=taken))
        missing -= taken
    return groups


def _device_seconds_bound(spec: StudySpec, trials: list[PlannedPoint]) -> float:
    execution = spec.execution
    per_worker = execution.trial_timeout_seconds * (1 + execution.retries + execution.contended_retries)
    workers: int = sum(trial.parameters["world_size"] for trial in trials if trial.state == "pending")
    return workers * per_worker
