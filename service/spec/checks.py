"""Contradictions within one specification, whatever its points are; and what is in the design but not done yet."""

from collections.abc import Iterator

from service.errors import ErrorItem
from service.spec.labels import label_errors
from service.spec.model import WORKLOAD_AXES, StudySpec
from service.spec.overrides import override_errors

_BATCH_RULE = (
    "under hold: micro_batch give train_micro_batch_size_per_gpu and gradient_accumulation_steps; "
    "under hold: global_batch give train_batch_size and one of the two"
)


def contradictions(spec: StudySpec) -> list[ErrorItem]:
    """Everything that cannot be meant, whatever the cluster and the points."""
    return [
        *_workload_axes(spec),
        *_batch(spec),
        *_datasets(spec),
        *_bounds(spec),
        *label_errors(spec),
        *override_errors(spec.deepspeed),
    ]


def _workload_axes(spec: StudySpec) -> Iterator[ErrorItem]:
    for key in WORKLOAD_AXES:
        is_axis, is_fixed = spec.parameters.axis(key) is not None, getattr(spec.workload, key) is not None
        if is_axis and is_fixed:
            detail = f"{key} is given under workload and as an axis under parameters"
            yield ErrorItem(f"/workload/{key}", detail, f"leave {key} out of workload, or out of parameters")
            yield ErrorItem(f"/parameters/{key}", detail, f"leave {key} out of workload, or out of parameters")
        elif not is_axis and not is_fixed:
            yield ErrorItem(
                f"/workload/{key}", f"{key} is null here and no axis under parameters", "leave it out for its default"
            )


def _batch(spec: StudySpec) -> Iterator[ErrorItem]:
    """Two of the three batch keys are given and the third follows; which two is what `scaling.hold` says."""
    parameters = spec.parameters
    has_micro = parameters.train_micro_batch_size_per_gpu is not None
    has_accumulation = parameters.gradient_accumulation_steps is not None
    has_global = parameters.train_batch_size is not None
    if spec.scaling.hold == "micro_batch":
        if has_global:
            yield ErrorItem(
                "/parameters/train_batch_size",
                "train_batch_size is derived under scaling.hold: micro_batch and must not be given",
                f"leave it out, or set scaling.hold: global_batch; {_BATCH_RULE}",
            )
        if not has_micro:
            yield ErrorItem(
                "/parameters/train_micro_batch_size_per_gpu",
                "train_micro_batch_size_per_gpu is required under scaling.hold: micro_batch",
                "train_micro_batch_size_per_gpu: {values: [16, 32, 64]}"
                + (" or scaling.hold: global_batch" if has_global else ""),
            )
        return
    if not has_global:
        yield ErrorItem(
            "/parameters/train_batch_size",
            "train_batch_size is required under scaling.hold: global_batch",
            f"train_batch_size: {{value: 256}}; {_BATCH_RULE}",
        )
    if has_micro and has_accumulation:
        yield ErrorItem(
            "/parameters/gradient_accumulation_steps",
            "one of train_micro_batch_size_per_gpu and gradient_accumulation_steps is derived under "
            "scaling.hold: global_batch; both are given",
            "leave one of the two out",
        )
    if not has_micro and not has_accumulation:
        yield ErrorItem(
            "/parameters/train_micro_batch_size_per_gpu",
            "one of train_micro_batch_size_per_gpu and gradient_accumulation_steps is required under "
            "scaling.hold: global_batch",
            "train_micro_batch_size_per_gpu: {value: 32}",
        )


def _datasets(spec: StudySpec) -> Iterator[ErrorItem]:
    axis = spec.parameters.dataset
    datasets: set[str | None] = set(axis.all) if axis is not None else {spec.workload.dataset}
    if datasets & {"cifar10", "cifar100", "image_folder", None}:
        return  # whether data_root is right is checked with the points
    names = " and ".join(sorted(str(name) for name in datasets))
    if spec.workload.data_root is not None:
        yield ErrorItem(
            "/workload/data_root",
            f"{names} {'needs' if len(datasets) == 1 else 'need'} no folder",
            "leave data_root out, or set dataset: cifar10",
        )
    if spec.workload.download:
        yield ErrorItem("/workload/download", f"there is nothing to download for {names}", "leave download out")


def _bounds(spec: StudySpec) -> Iterator[ErrorItem]:
    measurement, execution = spec.measurement, spec.execution
    if measurement.min_steps > measurement.max_steps:
        yield ErrorItem(
            "/measurement/min_steps",
            f"min_steps ({measurement.min_steps}) is more than max_steps ({measurement.max_steps})",
            "lower min_steps or raise max_steps",
        )
    if execution.isolation == "exclusive" and (execution.max_concurrent_trials or 1) > 1:
        yield ErrorItem(
            "/execution/max_concurrent_trials",
            f"isolation: exclusive runs one trial at a time, not {execution.max_concurrent_trials}",
            "set isolation: shared, or leave max_concurrent_trials out",
        )


def not_available(spec: StudySpec) -> list[ErrorItem]:
    """What is asked for, right in itself, and not done by this version: refused, never ignored."""
    items: list[ErrorItem] = []
    if spec.execution.isolation == "node":
        items.append(
            ErrorItem(
                "/execution/isolation",
                "isolation: node is not available in this version",
                "set it to exclusive (one trial at a time) or shared",
            )
        )
    items += _image_folder(spec)
    return items


def _image_folder(spec: StudySpec) -> Iterator[ErrorItem]:
    detail, hint = (
        "dataset: image_folder is not available in this version",
        "use synthetic, digits, cifar10 or cifar100",
    )
    if spec.workload.dataset == "image_folder":
        yield ErrorItem("/workload/dataset", detail, hint)
    axis = spec.parameters.dataset
    if axis is not None and "image_folder" in axis.all:
        yield ErrorItem("/parameters/dataset", detail, hint)
