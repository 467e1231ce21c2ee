"""What scaling does to what is learnt: accuracy that falls as the global batch grows."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Final

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import BATCH_KEYS, Subject, grouped, trial_list
from service.analysis.observation import Observation
from service.analysis.points import global_batch_of

DROP: Final = 0.02
"""Of accuracy (a share of the images): two points in a hundred. Seeds alone move CIFAR accuracies by about half a point
to one."""


def accuracy_drop(subject: Subject) -> Iterator[Finding]:
    """Each set of trials alike but for world size and batch, learning rate included, in which the largest global batch
    learnt less than a smaller one in the same number of epochs. With repeats, all runs of one lie below all of the
    other's.

    The gradient's noise falls as the batch grows while the steps of an epoch become fewer, so the learning rate has to
    grow with it (P. Goyal et al., arXiv 1706.02677, 2017: linearly). Where the data grows with the world size (weak
    scaling) accuracies say nothing of this.
    """
    if any(series.mode == "weak" for series in subject.analysis.series):
        return
    for group in grouped(subject.succeeded, BATCH_KEYS | {"world_size"}):
        for name in ("eval_accuracy", "train_accuracy"):
            by_batch = _by_batch(group, name)
            if len(by_batch) < 2:
                continue
            largest = max(by_batch)
            means = {batch: fmean(runs.values()) for batch, runs in by_batch.items()}
            best = max((batch for batch in by_batch if batch != largest), key=lambda batch: (means[batch], -batch))
            drop = means[best] - means[largest]
            if drop >= DROP and max(by_batch[largest].values()) < min(by_batch[best].values()):
                yield _dropped(subject, group, name, by_batch, best, drop)
            break


def _by_batch(group: list[Observation], name: str) -> dict[int, dict[int, float]]:
    """Accuracies by trial, by global batch, of the trials with the most common number of epochs."""
    counts = [len(run.epochs) for run in group]
    usual = max(sorted(set(counts)), key=counts.count)
    found: dict[int, dict[int, float]] = {}
    for run in group:
        value, batch = getattr(run, name), global_batch_of(run.parameters)
        if value is not None and batch is not None and len(run.epochs) == usual:
            found.setdefault(batch, {})[run.trial] = value
    return dict(sorted(found.items()))


def _dropped(
    subject: Subject,
    group: list[Observation],
    name: str,
    by_batch: Mapping[int, Mapping[int, float]],
    best: int,
    drop: float,
) -> Finding:
    largest = max(by_batch)
    means = {batch: fmean(runs.values()) for batch, runs in by_batch.items()}
    rate = group[0].parameters.get("learning_rate")
    fixed = "the learning rate" if rate is None else f"learning rate {rate:g}"
    advice = f"about {rate * largest / best:.2g}" if rate is not None else f"{largest / best:.3g} times as large"
    shared = {key: value for key, value in group[0].parameters.items() if key not in BATCH_KEYS | {"world_size"}}
    trials = [*by_batch[best], *by_batch[largest]]
    kind = name.replace("_", " ").replace("eval", "evaluation").replace("train ", "training ")
    return Finding(
        code=FindingCode.ACCURACY_DROP,
        severity="warning",
        message=(
            f"The {kind} fell from {means[best]:.1%} to {means[largest]:.1%} as the global batch grew from {best} to "
            f"{largest}{subject.at(shared)} ({trial_list(trials)}) with {fixed} unchanged; try {advice} (linear "
            "scaling), with warm-up, before more workers are used."
        ),
        evidence={
            "accuracy": name,
            "drop": drop,
            "by_train_batch_size": {str(batch): value for batch, value in means.items()},
            "learning_rate": rate,
            "trials": [trial for runs in by_batch.values() for trial in runs],
        },
    )
