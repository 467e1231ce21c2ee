"""Which worker holds up the others, and unlike workers in one series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Any, Final, Literal

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import (
    Subject,
    device_kinds,
    knows_all_workers,
    level,
    lower,
    rank_compute,
    rank_local,
    step_of_parts,
    step_seconds,
    trial_list,
)
from service.analysis.observation import Estimate, Observation, RankObservation

SLOWER_SHARE: Final = 0.10
"""A straggler computes for so much longer than the median worker: beyond the 7.8 % that identical jobs differ by."""
HELD_UP_SHARE: Final = 0.05
"""Of the step, that the others lose to it: less is within what is ranked at all. Where the step was taken apart: of the
step without the exchange, as a slow device is one however long the exchange takes besides."""
JITTER_SHARE: Final = 0.10
"""Of the step, that is lost to a slowest worker that changes from step to step: twice what one worker's delay is told
for, since no one worker can be acted on."""


@dataclass(frozen=True)
class _Slow:
    """A rank that takes `seconds` of a step for what the median rank does in `usual`, and so holds up a step by
    `excess`."""

    run: Observation
    rank: RankObservation
    kind: Literal["compute", "data", "link"]
    seconds: float
    usual: float
    excess: float
    step: float

    @property
    def who(self) -> tuple[str, int, str, str]:
        return self.kind, self.rank.rank, self.rank.node or "", self.rank.device or ""


def straggler(subject: Subject) -> Iterator[Finding]:
    """One finding for each slow worker, over all trials that show it; or that the data cannot tell.

    Of a step that was taken apart, each rank's own time (computing, waiting for data) is known without the exchange,
    and the persistent part of the waiting, lost to the same rank in every step, apart from its jitter: the former's
    lower end decides whether a rank is named, the latter names nobody. Of imported rows:

    Compute: a rank computes for longer than the median rank. Link: a rank's compute and exchange together take longer
    than the median's by more than its compute does; as all wait for the slowest, that shows only where the exchange is
    logged without the waiting. From a step's time alone, or from the parts of some ranks, nobody can tell: every
    worker's step takes as long as the slowest's.
    """
    runs = [run for run in subject.succeeded if run.world_size > 1]
    telling = [run for run in runs if knows_all_workers(run)]
    found: dict[tuple[str, int, str, str], list[_Slow]] = {}
    jittering: list[tuple[Observation, float]] = []
    for run in telling:
        slow_ranks = list(_slow_workers(run) if _is_taken_apart(run) else _slow_ranks(run))
        for slow in slow_ranks:
            found.setdefault(slow.who, []).append(slow)
        if not slow_ranks and (share := _jitter_share(run)) is not None and share >= JITTER_SHARE:
            jittering.append((run, share))
    for slows in found.values():
        yield _of_rank(subject, slows)
    if jittering:
        yield _of_chance(subject, jittering)
    waiting = [
        (run, share) for run in runs if not knows_all_workers(run) and (share := _waiting_share(run)) is not None
    ]
    held_up = [(run, share) for run, share in waiting if share >= SLOWER_SHARE]
    if held_up:
        yield _of_nobody(subject, held_up)
    if runs and not telling and not waiting:
        yield _cannot_tell(runs)


def _is_taken_apart(run: Observation) -> bool:
    return run.communication_source is not None


def _slow_workers(run: Observation) -> Iterator[_Slow]:
    """Of a step that was taken apart."""
    local, compute = rank_local(run), rank_compute(run)
    whole = max(local.values())  # the step without the exchange is no shorter
    step = step_of_parts(run) or whole
    persistent = run.straggler_persistent_seconds or Estimate(whole - fmean(local.values()))
    if whole <= 0 or lower(persistent) < HELD_UP_SHARE * whole:
        return
    usual, usual_compute = median_low(local.values()), median_low(compute.values())
    usual_wait = median_low(local[rank] - compute[rank] for rank in local)
    for rank in run.ranks:
        own, seconds = local[rank.rank], compute[rank.rank]
        surely = own if rank.compute_low_seconds is None else rank.compute_low_seconds + own - seconds
        if own <= usual * (1 + SLOWER_SHARE) or surely <= usual:
            continue
        if seconds - usual_compute >= own - seconds - usual_wait:
            yield _Slow(run, rank, "compute", seconds, usual_compute, own - usual, step)
        else:
            yield _Slow(run, rank, "data", own - seconds, usual_wait, own - usual, step)


def _jitter_share(run: Observation) -> float | None:
    step = step_of_parts(run)
    if step is None or run.straggler_jitter_seconds is None:
        return None
    return lower(run.straggler_jitter_seconds) / step


def _slow_ranks(run: Observation) -> Iterator[_Slow]:
    """Of rows that were measured elsewhere."""
    compute = rank_compute(run)
    exchange = {one.rank: one.communication_seconds for one in run.ranks if one.communication_seconds is not None}
    step = step_seconds(run) or max(seconds + exchange.get(rank, 0.0) for rank, seconds in compute.items())
    if step <= 0:
        return
    usual = median_low(compute.values())
    for rank in run.ranks:
        own = compute[rank.rank]
        if own > usual * (1 + SLOWER_SHARE) and own - usual >= HELD_UP_SHARE * step:
            yield _Slow(run, rank, "compute", own, usual, own - usual, step)
    if len(exchange) != run.world_size:
        return
    usual_exchange = median_low(exchange.values())
    usual_whole = median_low(compute[rank] + exchange[rank] for rank in exchange)
    for rank in run.ranks:
        own = exchange[rank.rank]
        # Beyond what a worker that computes faster than the others waits for them.
        excess = min(own - usual_exchange, compute[rank.rank] + own - usual_whole)
        if excess >= SLOWER_SHARE * step:
            yield _Slow(run, rank, "link", own, own - excess, excess, step)


def _of_rank(subject: Subject, slows: Sequence[_Slow]) -> Finding:
    worst = max(slows, key=lambda slow: level(slow.excess / slow.step))
    rank = worst.rank
    place = "".join([f" on node {rank.node}" if rank.node else "", f" ({rank.device})" if rank.device else ""])
    where = f"{subject.at(worst.run.parameters)} ({trial_list(slow.run.trial for slow in slows)})"
    if worst.kind == "compute":
        what = f"Rank {rank.rank}{place} computes {_times(worst)} as long as the median worker"
        advice = "look at its load, clocks and cooling, or leave it out"
    elif worst.kind == "data":
        what = f"Rank {rank.rank}{place} waits for its data {_times(worst)} as long as the median worker"
        advice = "look at that node's disk and its loader's cores"
    else:
        what = (
            f"Rank {rank.rank}{place}, which computes alike, exchanges for {_times(worst)} as long as the median worker"
        )
        advice = "look at its network card, cable and route"
    return Finding(
        code=FindingCode.STRAGGLER,
        severity="warning" if worst.excess >= HELD_UP_SHARE * worst.step else "info",
        message=f"{what}{where}, and {_lost(worst)}; {advice}.",
        evidence={
            "kind": worst.kind,
            "rank": rank.rank,
            "node": rank.node,
            "device": rank.device,
            f"{worst.kind}_seconds": worst.seconds,
            f"usual_{worst.kind}_seconds": worst.usual,
            "ratio": worst.seconds / worst.usual if worst.usual > 0 else None,
            "held_up_share": worst.excess / worst.step,
            **_told_apart(worst),
            "trials": [slow.run.trial for slow in slows],
        },
    )


def _lost(slow: _Slow) -> str:
    share = f"the others wait for {slow.excess / slow.step:.0%} of a step"
    persistent, jitter = slow.run.straggler_persistent_seconds, slow.run.straggler_jitter_seconds
    if not _is_taken_apart(slow.run) or persistent is None or jitter is None:
        return share
    return (
        f"{share} (the mean worker waits {persistent.value / slow.step:.1%} of it for the same one every time, and "
        f"{jitter.value / slow.step:.1%} for now this one, now that)"
    )


def _told_apart(slow: _Slow) -> dict[str, Any]:
    """The waiting of the mean worker, as shares of the step."""
    persistent, jitter = slow.run.straggler_persistent_seconds, slow.run.straggler_jitter_seconds
    if not _is_taken_apart(slow.run) or persistent is None:
        return {}
    return {
        "persistent_share": persistent.value / slow.step,
        "persistent_share_low": lower(persistent) / slow.step,
        "jitter_share": None if jitter is None else jitter.value / slow.step,
    }


def _of_chance(subject: Subject, jittering: Sequence[tuple[Observation, float]]) -> Finding:
    run, share = max(jittering, key=lambda one: level(one[1]))
    trials = [one.trial for one, _ in jittering]
    return Finding(
        code=FindingCode.STRAGGLER,
        severity="warning",
        message=(
            f"Workers wait for at least {share:.0%} of a step{subject.at(run.parameters)} ({trial_list(trials)}) for "
            "the slowest of that step, now this one and now that: no worker is slow in particular; look for what else "
            "runs on the nodes, or give each worker cores of its own."
        ),
        evidence={"kind": "jitter", "held_up_share": share, "trials": trials},
    )


def _times(slow: _Slow) -> str:
    return f"{slow.seconds / slow.usual:.2f} times" if slow.usual > 0 else "many times"


def _waiting_share(run: Observation) -> float | None:
    """What the trial as a whole says of waiting for its slowest worker, where it does not say which."""
    step = step_seconds(run)
    if step is None or run.straggler_wait_seconds is None:
        return None
    return lower(run.straggler_wait_seconds) / step


def _of_nobody(subject: Subject, held_up: Sequence[tuple[Observation, float]]) -> Finding:
    run, share = max(held_up, key=lambda one: level(one[1]))
    trials = [one.trial for one, _ in held_up]
    return Finding(
        code=FindingCode.STRAGGLER,
        severity="warning",
        message=(
            f"Workers wait for the slowest for {share:.0%} of a step{subject.at(run.parameters)} "
            f"({trial_list(trials)}), and these rows do not say which it is: compute seconds of each rank would."
        ),
        evidence={"kind": "unknown", "held_up_share": share, "trials": trials},
    )


def _cannot_tell(runs: Sequence[Observation]) -> Finding:
    parts = [run for run in runs if rank_compute(run)]
    known = (
        f"only some workers' parts are known ({trial_list(run.trial for run in parts)})"
        if parts
        else "only whole steps are known, and every worker's step takes as long as the slowest's"
    )
    return Finding(
        code=FindingCode.STRAGGLER,
        severity="info",
        message=(
            f"Whether one worker or link holds up the others cannot be told: {known}; measurement.communication: true "
            "times each worker without the exchange."
        ),
        evidence={
            "kind": "cannot_tell",
            "needed": "compute seconds of every rank, measured without the exchange of gradients",
            "trials": [run.trial for run in runs],
        },
    )


def mixed_hardware(subject: Subject) -> Iterator[Finding]:
    """Each series that ran on unlike devices: within a trial, or from point to point."""
    told: set[tuple[int, ...]] = set()
    for series in subject.analysis.series:
        runs = {run.trial: run for point in series.points for run in subject.runs_of(point)}
        kinds = {trial: device_kinds(run) for trial, run in runs.items()}
        names = sorted(frozenset[str]().union(*kinds.values()))
        trials = tuple(sorted(runs))
        if len(names) < 2 or trials in told:
            continue
        told.add(trials)
        within = sorted(trial for trial, found in kinds.items() if len(found) > 1)
        how = f"within {trial_list(within)}" if within else "from one world size to another"
        yield Finding(
            code=FindingCode.MIXED_HARDWARE,
            severity="warning",
            message=(
                f"Unlike devices in one series{subject.at(series.distinguished_by)} ({' and '.join(names)}, {how}): "
                "its efficiency tells the devices apart as much as the scaling; compare like with like by a placement."
            ),
            evidence={
                "devices": names,
                "mixed_within": within,
                "hardware": {str(point.world_size): point.hardware for point in series.points},
                "series_id": series.series_id,
                "trials": list(trials),
            },
        )
