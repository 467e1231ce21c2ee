"""How far the numbers can be trusted: series that drift, and points that are too noisy to be ranked."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import Subject, grouped, half_width, level, step_seconds, trial_list
from service.analysis.noise import UNREPEATED_TOLERANCE
from service.analysis.observation import Observation

DRIFT_SHARE: Final = UNREPEATED_TOLERANCE
"""Of an epoch's time, from the first half of a run's epochs to the second: what runs must differ by to be ranked."""
FEWEST_EPOCHS: Final = 4
"""After the first one (its start-up is no drift), so that each half has two."""
NOISE_SHARE: Final = UNREPEATED_TOLERANCE
"""Half the 95 % interval of one run: beyond it, the run alone is less sure than what is ranked between any two."""
SPREAD_SHARE: Final = 0.078
"""Largest less smallest of a point's runs: identical jobs of the paper (arXiv 2602.21081) differ by up to 7.8 %."""
_CAUSES: Final = ("contended", "throttled", "shared_gpu", "clock_mismatch")


@dataclass(frozen=True)
class _Drift:
    run: Observation
    change: float | None  # of the epochs, as a share; None: the measurement itself was flagged


def drift(subject: Subject) -> Iterator[Finding]:
    """All trials that were still changing: flagged as they were measured, or by their epochs.

    By epochs: the mean of the later half differs from the earlier half's by 5 %, and every later epoch lies on the same
    side of every earlier one, which epochs that only scatter do in 1 of 3 (of 4) to 1 of 126 (of 9) cases.
    """
    found = [one for run in subject.succeeded if (one := _drifting(run)) is not None]
    if not found:
        return
    measured = [one for one in found if one.change is not None]
    if measured:
        worst = max(measured, key=lambda one: level(abs(one.change or 0.0)))
        how = f": epochs of trial {worst.run.trial} took {worst.change:+.0%} in its second half"
    else:
        how = " while it was measured" if len(found) == 1 else " while they were measured"
    trials = [one.run.trial for one in found]
    yield Finding(
        code=FindingCode.DRIFT,
        severity="warning",
        message=(
            f"The speed of {trial_list(trials)} was still changing{how}; measure longer (measurement.max_seconds, "
            "min_warmup_steps) until it is steady, and do not rank these."
        ),
        evidence={
            "changes": {str(one.run.trial): one.change for one in measured},
            "flagged": [one.run.trial for one in found if one.change is None],
            "trials": trials,
        },
    )


def _drifting(run: Observation) -> _Drift | None:
    seconds = [epoch.epoch_seconds for epoch in sorted(run.epochs, key=lambda epoch: epoch.epoch)][1:]
    if len(seconds) >= FEWEST_EPOCHS:
        early, late = seconds[: len(seconds) // 2], seconds[len(seconds) // 2 :]
        change = fmean(late) / fmean(early) - 1
        apart = max(early) < min(late) or max(late) < min(early)
        if apart and abs(change) >= DRIFT_SHARE:
            return _Drift(run, change)
    is_flagged = run.quality_state == "drifting" or "drifting" in run.quality_flags
    return _Drift(run, None) if is_flagged else None


def noise_too_high(subject: Subject) -> Iterator[Finding]:
    """All trials whose own interval is too wide, and all points whose runs lie too far apart."""
    wide = [(run, half) for run in subject.succeeded if (half := _own_noise(run)) is not None and half > NOISE_SHARE]
    is_wide = {run.trial for run, _ in wide}
    unstable = [run for run in subject.succeeded if _is_unstable(run) and run.trial not in is_wide]
    apart = [
        (runs, share) for runs in _points(subject) if (share := _spread(runs)) is not None and share > SPREAD_SHARE
    ]
    if not wide and not unstable and not apart:
        return
    said = []
    if wide:
        worst, half = max(wide, key=lambda one: level(one[1]))
        said.append(f"{trial_list(run.trial for run, _ in wide)} up to ±{half:.0%} (trial {worst.trial})")
    if unstable:
        said.append(f"{trial_list(run.trial for run in unstable)} unstable")
    if apart:
        runs, share = max(apart, key=lambda one: level(one[1]))
        said.append(f"runs of one point {share:.0%} apart ({trial_list(run.trial for run in runs)})")
    noisy = {run.trial: run for run in [run for run, _ in wide] + unstable + [run for runs, _ in apart for run in runs]}
    causes = sorted({flag for run in noisy.values() for flag in run.quality_flags if flag in _CAUSES})
    yield Finding(
        code=FindingCode.NOISE_TOO_HIGH,
        severity="warning",
        message=(
            f"Too noisy to be ranked: {'; '.join(said)}{_because(causes)}; use a quiet machine, measurement.repeats: 3 "
            "or more, and a larger measurement.max_seconds."
        ),
        evidence={
            "half_widths": {str(run.trial): half for run, half in wide},
            "unstable": [run.trial for run in unstable],
            "spreads": [{"trials": [run.trial for run in runs], "spread": share} for runs, share in apart],
            "causes": causes,
            "trials": sorted(noisy),
        },
    )


def _own_noise(run: Observation) -> float | None:
    for estimate in (run.step_seconds, run.images_per_second, run.epoch_seconds):
        if (half := half_width(estimate)) is not None:
            return half
    return None


def _is_unstable(run: Observation) -> bool:
    return run.quality_state == "unstable" or "unstable" in run.quality_flags


def _points(subject: Subject) -> list[list[Observation]]:
    """The runs of each point, as far as they ran on like hardware."""
    alike: dict[tuple[str, ...], list[Observation]] = {}
    for run in subject.succeeded:
        alike.setdefault(tuple(sorted(run.devices)), []).append(run)
    return [runs for same in alike.values() for runs in grouped(same, ())]


def _spread(runs: list[Observation]) -> float | None:
    values = [seconds for run in runs if (seconds := step_seconds(run)) is not None]
    if len(values) < 2:
        values = [run.epoch_seconds.value for run in runs if run.epoch_seconds is not None]
    return (max(values) - min(values)) / fmean(values) if len(values) > 1 else None


def _because(causes: list[str]) -> str:
    return f" (flagged: {', '.join(causes)})" if causes else ""
