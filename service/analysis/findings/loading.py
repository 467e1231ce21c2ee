"""Waiting for data: how much of a step, and whether decoding or copying is what holds it up."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.bound import (
    MOST_SHARE,
    Bound,
    alike_but_batch,
    bounded,
    listed,
    others,
    share_of,
    within,
)
from service.analysis.findings.subject import Subject, level, lower, step_of_parts, trial_list, upper
from service.analysis.noise import UNREPEATED_TOLERANCE
from service.analysis.observation import Estimate, Observation
from service.analysis.points import micro_batch_of
from service.analysis.scaling import ACCUMULATION
from service.states import TrialState

DATA_SHARE: Final = 0.10
"""Of the step. Waiting for data can be had for nothing, so it is told earlier than the exchange; and a tenth is beyond
the 7.8 % that identical runs differ by."""
GROWTH_SHARE: Final = UNREPEATED_TOLERANCE
"""Of the time that an image takes to load: nothing closer is ranked between two runs."""


def data_bound(subject: Subject) -> Iterator[Finding]:
    """One finding for all world sizes and batches of otherwise equal parameters: the worst, and the list."""
    for bound in bounded(subject, _waiting_for_data, DATA_SHARE):
        worst = max(bound, key=lambda one: level(one.share))
        growth = _loading_growth(subject, worst.run)
        yield Finding(
            code=FindingCode.DATA_BOUND,
            severity="warning",
            message=(
                f"Workers wait for data for {worst.share:.0%}{within(worst)} of a step"
                f"{subject.at(worst.run.parameters)} ({trial_list([worst.run.trial])}{others(bound)})"
                f"{'' if growth is None else growth.words}; {_advice(worst)}."
            ),
            evidence={
                "share": worst.share,
                "share_low": worst.low,
                "share_high": worst.high,
                "data_wait_seconds": worst.seconds,
                "step_seconds": worst.step,
                "input_pipeline": worst.run.parameters.get("input_pipeline"),
                "decode_seconds": None if worst.run.decode_seconds is None else worst.run.decode_seconds.value,
                "copy_to_device_seconds": _copying(worst.run),
                "loading_growth": None if growth is None else growth.evidence,
                "points": listed(bound),
                "trials": [one.run.trial for one in bound],
            },
        )


def _copying(run: Observation) -> float | None:
    return None if run.copy_to_device_seconds is None else run.copy_to_device_seconds.value


def _advice(worst: Bound) -> str:
    if worst.run.parameters.get("input_pipeline") == "device":
        return "the data is on the device already: look for what else holds up its copying"
    gain = worst.share / (1 - min(worst.share, MOST_SHARE))
    copying, decode = _copying(worst.run), worst.run.decode_seconds
    if copying is not None and 2 * copying > worst.seconds:
        return (
            f"{min(copying / worst.seconds, 1):.0%} of it is the copy to the device, not decoding: input_pipeline: "
            f"device, which copies once, would train up to {gain:.0%} faster"
        )
    decoding = (
        ""
        if decode is None
        else f"the loader decodes for {decode.value:.3g} s a step in its processes, and that is what holds it up: "
    )
    return f"{decoding}more workload.loader_workers, or input_pipeline: device, would train up to {gain:.0%} faster"


@dataclass(frozen=True)
class _Growth:
    words: str
    evidence: dict[str, Any]


def _loading_growth(subject: Subject, run: Observation) -> _Growth | None:
    """Whether an image takes longer to decode, or to copy, the larger the batch: from the smallest to the largest micro
    batch of otherwise equal parameters, where the intervals lie apart and by more than what is ranked at all."""
    alike = [
        one
        for one in alike_but_batch(subject, run)
        if one.state is TrialState.SUCCEEDED and micro_batch_of(one.parameters) is not None
    ]
    for what, name in (("decode", "decode_seconds"), ("copy to the device", "copy_to_device_seconds")):
        each = [(micro_batch_of(one.parameters) or 0, one, part) for one in alike if (part := _per_image(one, name))]
        if not each:
            continue
        small, large = min(each, key=lambda one: one[0]), max(each, key=lambda one: one[0])
        before, after = small[2], large[2]
        ratio = after.value / before.value
        if lower(after) <= upper(before) or ratio <= 1 + GROWTH_SHARE:
            continue
        words = (
            f"; a larger batch loads slower: an image takes {ratio:.2f} times as long to {what} at micro batch "
            f"{large[0]} as at {small[0]} ({trial_list([small[1].trial, large[1].trial])})"
        )
        return _Growth(
            words,
            {
                "what": name.removesuffix("_seconds"),
                "ratio": ratio,
                "train_micro_batch_size_per_gpu": [small[0], large[0]],
                "image_seconds": [before.value, after.value],
            },
        )
    return None


def _per_image(run: Observation, name: str) -> Estimate | None:
    """Of one worker's images of a step."""
    part: Estimate | None = getattr(run, name)
    batch = micro_batch_of(run.parameters)
    if part is None or batch is None or part.value <= 0:
        return None
    return share_of(part, batch * int(run.parameters.get(ACCUMULATION) or 1))


def _waiting_for_data(run: Observation) -> Bound | None:
    step = step_of_parts(run)
    known = [rank.data_wait_seconds for rank in run.ranks if rank.data_wait_seconds is not None]
    part = run.data_wait_seconds or (Estimate(fmean(known)) if known else None)
    share = None if step is None else share_of(part, step)
    if step is None or part is None or share is None or lower(share) < DATA_SHARE:
        return None
    return Bound(run, step, part.value, share.value, None, share.low, share.high)
