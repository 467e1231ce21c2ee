"""fp32 on devices that compute faster in other formats."""

from collections.abc import Iterator
from typing import Final, get_args

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import Subject, device_kinds, step_seconds, trial_list
from service.analysis.noise import UNREPEATED_TOLERANCE
from service.analysis.observation import Observation
from service.analysis.points import Key, parameters_key
from trainers.config import Precision
from trainers.device_peaks import dense_peak

FASTER: Final = 1.5
"""Times the peak of fp32. A ViT reaches less of a higher peak; half as much again still leaves a gain to be had."""


def precision(subject: Subject) -> Iterator[Finding]:
    """For each kind of device (as the table of peaks knows it): its fp32 trials, unless another format was measured
    beside them and was not faster. Devices that the table does not know give no finding."""
    by_kind: dict[frozenset[str], list[Observation]] = {}
    for run in subject.succeeded:
        if run.parameters.get("precision") == "fp32" and device_kinds(run):
            by_kind.setdefault(device_kinds(run), []).append(run)
    for kinds, runs in by_kind.items():
        faster = _faster_formats(kinds)
        measured = _measured_gains(subject, runs)
        untried = [run for run in runs if run.trial not in measured]
        gains = [gain for gain in measured.values() if gain > 1 + UNREPEATED_TOLERANCE]
        if not faster or (not untried and not gains):
            continue
        best = max(faster, key=lambda name: faster[name])
        names = " and ".join(sorted(kinds))
        told = f"; measured beside them it is up to {max(gains):.2g} times as fast" if gains else ""
        trials = [run.trial for run in runs if run.trial not in measured or measured[run.trial] in gains]
        yield Finding(
            code=FindingCode.PRECISION,
            severity="info",
            message=(
                f"{trial_list(trials).capitalize()} use fp32 on {names}, whose peak in {best} is {faster[best]:.2g} "
                f"times as high{told}; measure precision: {{values: [fp32, {best}]}}."
            ),
            evidence={"devices": sorted(kinds), "peak_ratios": faster, "measured_gains": gains, "trials": trials},
        )


def _faster_formats(kinds: frozenset[str]) -> dict[str, float]:
    """Formats in which all these devices have a higher peak, and the least ratio to their fp32 peak."""
    found: dict[str, float] = {}
    for name in get_args(Precision):
        ratios = []
        for kind in kinds:
            usual, other = dense_peak(kind, "fp32"), dense_peak(kind, name)
            if usual is None or other is None:
                ratios.append(0.0)
            else:
                ratios.append(other.flops_per_second / usual.flops_per_second)
        if min(ratios) >= FASTER:
            found[name] = min(ratios)
    return found


def _measured_gains(subject: Subject, runs: list[Observation]) -> dict[int, float]:
    """For each fp32 trial with a twin in another format: how many times as fast the fastest one is."""
    twins: dict[Key, list[Observation]] = {}
    for run in subject.succeeded:
        if run.parameters.get("precision") not in {None, "fp32"}:
            twins.setdefault(parameters_key(run.parameters, {"precision"}), []).append(run)
    gains: dict[int, float] = {}
    for run in runs:
        own = step_seconds(run)
        others = [
            seconds
            for twin in twins.get(parameters_key(run.parameters, {"precision"}), [])
            if device_kinds(twin) == device_kinds(run) and (seconds := step_seconds(twin)) is not None
        ]
        if own is not None and others:
            gains[run.trial] = own / min(others)
    return gains
