"""More workers that train slower, and what is to blame: the worker, the link, or either, each with its number.

With the parts of a step of all workers the growth says it. With those of one rank only (as DeepSpeed logs them), its
exchange holds the wait for slower workers too, and there are two readings. Let a be the growth of the exchange:

    link:   the transfer itself takes a longer. A ring all-reduce moves 2 (p - 1) / p of the gradients over each link
            (P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69, 2009), so the slowest carries at most
            2 (p - 1) / p x bytes / a, and bytes / whole exchange if all of it is transfer
    worker: the slowest worker computes a longer than the rank that logged, which took c: at most images / (c + a)

The devices' known peak rates say which is likelier: whether a worker of that kind could be so slow.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from service.analysis.answer import AnalysisPoint, AnalysisSeries
from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import (
    Subject,
    exchange_of,
    knows_all_workers,
    rank_compute,
    step_seconds,
    trial_list,
)
from service.analysis.observation import Observation
from service.analysis.points import global_batch_of
from service.models import model_table
from trainers.device_peaks import dense_peak

CRITICAL_RATIO: Final = 0.5
"""Of the throughput before: beyond, the added workers cost more than half of what there was."""
PLAUSIBLE_FACTOR: Final = 2.0
"""Devices reach different shares of their peaks (an RTX 3070 36 %, a Tesla P4 45 % on one model of the paper's), within
a factor of 2. A worker that would have to be slower than that is not likely."""
_BYTES: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of one gradient on the wire
_SETTLES: Final = "measurement.communication: true at this point times each worker without the exchange"


@dataclass(frozen=True)
class _Parts:
    """Means over a point's runs, seconds of a step. `compute`: of the slowest worker if all are known, else of the one
    that logged."""

    step: float
    images_per_worker: float | None
    compute: float | None
    exchange: float | None
    exchange_is_apart: bool  # it holds no waiting for slower workers
    all_workers: bool


@dataclass(frozen=True)
class _Step:
    """From one world size to the next larger one, which is slower."""

    subject: Subject
    series: AnalysisSeries
    before: AnalysisPoint
    after: AnalysisPoint

    @property
    def earlier(self) -> list[Observation]:
        return self.subject.runs_of(self.before)

    @property
    def later(self) -> list[Observation]:
        return self.subject.runs_of(self.after)

    @property
    def parameters(self) -> Any:
        return self.later[0].parameters

    @property
    def added(self) -> list[str]:
        """The kinds of devices that came in: new kinds, or else the usual ones."""
        first, second = (Counter(runs[0].devices) for runs in (self.earlier, self.later))
        return sorted(second - first)


def slowdown(subject: Subject) -> Iterator[Finding]:
    """Each world size of a series whose throughput is less than the next smaller one's, beyond the noise."""
    for series in subject.analysis.series:
        points = {point.world_size: point for point in series.points if subject.runs_of(point)}
        for point in series.points:
            against = point.against_previous
            if against is None or against.verdict != "less" or against.world_size == point.world_size:
                continue
            yield _told(_Step(subject, series, points[against.world_size], point), against.ratio)


def _told(step: _Step, ratio: float) -> Finding:
    cause, evidence = _cause(step)
    before, after = step.before, step.after
    return Finding(
        code=FindingCode.SLOWDOWN,
        severity="critical" if ratio <= CRITICAL_RATIO else "warning",
        message=(
            f"{after.world_size} workers train slower than {before.world_size}"
            f"{step.subject.at(step.series.distinguished_by)}: {_how_much(before, after, ratio)}; {cause}."
        ),
        evidence={
            "world_size": after.world_size,
            "previous_world_size": before.world_size,
            "throughput_ratio": ratio,
            "epoch_seconds": [before.epoch_seconds, after.epoch_seconds],
            "added_devices": step.added,
            **evidence,
            "trials": sorted({*before.trials, *after.trials}),
        },
    )


def _how_much(before: AnalysisPoint, after: AnalysisPoint, ratio: float) -> str:
    trials = trial_list([*before.trials, *after.trials])
    if before.epoch_seconds is not None and after.epoch_seconds is not None:
        return f"{before.epoch_seconds:.4g} s an epoch became {after.epoch_seconds:.4g} s ({trials})"
    return f"{ratio:.2f} times the images per second ({trials})"


def _cause(step: _Step) -> tuple[str, dict[str, Any]]:
    """In words, and as evidence."""
    before, after = _parts(step.earlier), _parts(step.later)
    if after is None or after.compute is None or after.exchange is None:
        return f"whether a worker or a link is to blame cannot be told from whole steps: {_SETTLES}", {
            "cause": "unknown"
        }
    grown = _growth(before, after)
    seconds = {
        "compute_seconds": [None if before is None else before.compute, after.compute],
        "exchange_seconds": [None if before is None else before.exchange, after.exchange],
        "exchange_growth_seconds": grown.exchange,
    }
    if grown.compute is not None and max(grown.compute, grown.exchange) <= 0:
        return "of the parts that were logged none grew: what did is in neither", {"cause": "unknown", **seconds}
    if grown.compute is not None and grown.compute >= grown.exchange:
        return _slow_worker(step, after, grown.compute, seconds)
    if after.all_workers or after.exchange_is_apart:
        return _slow_link(step, after, grown.exchange, seconds)
    return _two_readings(step, before, after, grown.exchange, seconds)


@dataclass(frozen=True)
class _Growth:
    compute: float | None
    exchange: float


def _growth(before: _Parts | None, after: _Parts) -> _Growth:
    assert after.compute is not None
    assert after.exchange is not None
    if before is None:
        return _Growth(None, after.exchange)
    if before.compute is None or before.exchange is None:
        # The exchange of the smaller size is not known. It was no more than the whole step, and grew by this at least.
        return _Growth(None, max(after.exchange - before.step, 0.0))
    return _Growth(after.compute - before.compute, after.exchange - before.exchange)


def _slow_worker(step: _Step, after: _Parts, growth: float, seconds: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert after.compute is not None
    rate = None if after.images_per_worker is None else after.images_per_worker / after.compute
    at_rate = "" if rate is None else f", {rate:.3g} images/s"
    whose = "the slowest worker's" if after.all_workers else "the logging worker's"
    words = (
        f"a slower worker, not the link: {whose} compute grew by {growth:.3g} s to {after.compute:.3g} s a step"
        f"{at_rate}{_came_in(step)}"
    )
    return words, {"cause": "worker", **seconds, "worker_images_per_second": rate}


def _slow_link(step: _Step, after: _Parts, growth: float, seconds: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert after.exchange is not None
    link = _link(step, growth, after.exchange)
    at_rate = "" if link is None else f" (a link of at most {link['at_most']:.2g} GB/s)"
    words = (
        f"the link, not a slower worker: the exchange grew by {growth:.3g} s to {after.exchange:.3g} s a step"
        f"{at_rate}; look at the network of the worker that was added"
    )
    return words, {"cause": "link", **seconds, "link_gigabytes_per_second": link}


def _two_readings(
    step: _Step, before: _Parts | None, after: _Parts, growth: float, seconds: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    assert after.compute is not None
    assert after.exchange is not None
    link, worker = _link(step, growth, after.exchange), _worker(after, growth)
    expected = _expected_rate(step)
    likelier, why = _likelier(step, None if worker is None else worker["at_most"], expected)
    first = "a link that is slow" if link is None else f"a link of at most {link['at_most']:.2g} GB/s"
    second = "a worker that is slow" if worker is None else f"a worker of at most {worker['at_most']:.2g} images/s"
    was = "" if before is None or before.compute is None else f"{before.compute:.3g} -> "
    had = "" if before is None or before.exchange is None else f"{before.exchange:.3g} -> "
    words = (
        f"the logging worker computes for {was}{after.compute:.3g} s a step, and its exchange with the waiting takes "
        f"{had}{after.exchange:.3g} s: either {first}, or {second}; {why}; {_SETTLES}"
    )
    return words, {
        "cause": "link or worker",
        **seconds,
        "link_gigabytes_per_second": link,
        "worker_images_per_second": worker,
        "expected_worker_images_per_second": expected,
        "likelier": likelier,
        "settled_by": _SETTLES,
    }


def _parts(runs: Sequence[Observation]) -> _Parts | None:
    steps = [seconds for run in runs if (seconds := step_seconds(run)) is not None]
    if not steps:
        return None
    exchanges = [found for run in runs if (found := exchange_of(run)) is not None]
    apart = bool(exchanges) and not any(found.holds_waiting for found in exchanges)
    everyone = all(knows_all_workers(run) for run in runs)
    batch = global_batch_of(runs[0].parameters)
    computes = [seconds for run in runs if (seconds := _compute(run)) is not None]
    return _Parts(
        step=fmean(steps),
        images_per_worker=None if batch is None else batch / runs[0].world_size,
        compute=fmean(computes) if computes else None,
        exchange=fmean(found.seconds for found in exchanges) if exchanges else None,
        exchange_is_apart=apart,
        all_workers=everyone,
    )


def _compute(run: Observation) -> float | None:
    """Of the slowest worker that is known; the trial's own mean with the wait for the slowest is the slowest's."""
    ranks = rank_compute(run)
    if ranks:
        return max(ranks.values())
    if run.compute_seconds is None:
        return None
    return run.compute_seconds.value + (0.0 if run.straggler_wait_seconds is None else run.straggler_wait_seconds.value)


def _link(step: _Step, growth: float, whole: float) -> dict[str, float] | None:
    """GB/s of the slowest link, if the exchange grew by transfer; None where the model's size is not known."""
    bytes_each = gradient_bytes(step.parameters)
    if bytes_each is None or growth <= 0 or whole <= 0:
        return None
    size = step.after.world_size
    wire = 2 * (size - 1) / size * bytes_each
    return {"at_most": wire / growth / 1e9, "if_all_is_transfer": wire / whole / 1e9}


def _worker(after: _Parts, growth: float) -> dict[str, float] | None:
    if after.images_per_worker is None or after.compute is None or after.exchange is None or growth <= 0:
        return None
    return {
        "at_most": after.images_per_worker / (after.compute + growth),
        "if_all_is_waiting": after.images_per_worker / (after.compute + after.exchange),
    }


def gradient_bytes(parameters: Any) -> int | None:
    """Of one exchange of all gradients; None for a model or a precision that is not known."""
    facts = model_table().get(str(parameters.get("model")))
    each = _BYTES.get(str(parameters.get("precision")))
    if facts is None or each is None:
        return None
    sizes = [parameters.get(key) for key in ("image_size", "patch_size", "num_classes")]
    image, patch, classes = sizes
    if image is None and patch is None and classes is None:
        return facts.parameter_count * each
    count = facts.parameter_count_at(
        int(image or facts.image_size), int(patch or facts.patch_size), int(classes or _CLASSES)
    )
    return count * each


_CLASSES: Final = 1000  # of the models as they are published


def _expected_rate(step: _Step) -> float | None:
    """Images/s that the slowest of the added workers would reach at the share of its peak that a known worker of the
    series reached: the fastest per worker among points on one kind of device."""
    known = [
        (point.images_per_second / point.world_size, next(iter(kinds)))
        for point in step.series.points
        if point.images_per_second is not None
        and point.world_size < step.after.world_size
        and (kinds := {device for run in step.subject.runs_of(point) for device in run.devices})
        and len(kinds) == 1
    ]
    if not known or not step.added:
        return None
    rate, kind = max(known)
    factors = [_peak_ratio(device, kind, step.parameters.get("precision")) for device in step.added]
    present = [factor for factor in factors if factor is not None]
    return rate * min(present) if len(present) == len(factors) else None


def _peak_ratio(device: str, reference: str, precision: Any) -> float | None:
    if device == reference:
        return 1.0
    own, others = (dense_peak(name, precision) for name in (device, reference))
    return None if own is None or others is None else own.flops_per_second / others.flops_per_second


def _likelier(step: _Step, worker: float | None, expected: float | None) -> tuple[str | None, str]:
    names = " and ".join(step.added) or "the added worker"
    if worker is None or expected is None:
        return None, f"which is likelier cannot be told, as no peak rate is known for {names}"
    said = f"by its known peak rate a worker of {names} should reach about {expected:.2g} images/s"
    if worker * PLAUSIBLE_FACTOR < expected:
        return "link", f"{said}, so the link is likelier"
    return "worker", f"{said}, so the worker is likelier"


def _came_in(step: _Step) -> str:
    kinds = {device for run in step.earlier for device in run.devices}
    fresh = [device for device in step.added if device not in kinds]
    return f" ({' and '.join(fresh)} came in)" if fresh else ""
