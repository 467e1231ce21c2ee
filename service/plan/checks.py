"""Why a point of the sweep cannot be. Each check yields every reason it finds; a study is refused for all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.job_plan import Placement, WorkerGroup
from service.models import did_you_mean_model, model_table
from service.plan.bounds import least_epoch_seconds
from service.plan.data import class_count_error, folder_error, share
from service.plan.model import Refusal
from service.spec.errors import pointer
from service.spec.model import StudySpec
from service.spelling import closest
from trainers.data.sharing import Sharing
from trainers.deepspeed_config import override_problems, why_not_compiled


@dataclass(frozen=True)
class Checks:
    """The checks of one study's points; what is the same for many points is looked up once."""

    spec: StudySpec
    data_roots: Sequence[Path]
    placements: dict[str, Placement]
    _folders: dict[str, Any]

    @staticmethod
    def of(spec: StudySpec, data_roots: Sequence[Path]) -> "Checks":
        return Checks(spec, data_roots, placements_by_name(spec), {})

    def refusals(self, parameters: dict[str, Any]) -> list[Refusal]:
        """All reasons against a point whose batch is resolved. Empty: it can be."""
        return [
            *self._model(parameters),
            *self._placement(parameters),
            *self._data(parameters),
            *self._sharing_and_time(parameters),
            *self._overrides(parameters),
            *self._compile(parameters),
        ]

    def _at(self, key: str) -> str:
        """The place of a parameter in the specification: under parameters where it is an axis, else under workload."""
        is_axis = self.spec.parameters.axis(key) is not None
        return f"/parameters/{key}" if is_axis or not hasattr(self.spec.workload, key) else f"/workload/{key}"

    def _model(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        name = parameters["model"]
        if name not in model_table():
            yield Refusal(
                parameters=parameters,
                pointer="/parameters/model",
                reason=f"the model {name} is not offered",
                hint=did_you_mean_model(name),
                code="UNKNOWN_MODEL",
            )
            return
        image_size, patch_size = parameters["image_size"], parameters["patch_size"]
        if image_size % patch_size:
            below = image_size // patch_size * patch_size
            near = f"{below} or {below + patch_size}" if below else str(patch_size)
            yield Refusal(
                parameters=parameters,
                pointer=self._at("image_size"),
                reason=f"image_size {image_size} is no multiple of the patch size {patch_size} of {name}",
                hint=f"an image_size of {near} fits, or a patch_size that divides {image_size}",
                code="IMAGE_SIZE",
            )

    def _placement(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        name, world_size = parameters["placement"], parameters["world_size"]
        placement = self.placements.get(name)
        if placement is None:
            matches = closest(name, self.placements)
            yield Refusal(
                parameters=parameters,
                pointer="/parameters/placement",
                reason=f"the placement {name} is not defined",
                hint=f"did you mean {matches[0]}?"
                if matches
                else f"define it under placements, or name one of {', '.join(self.placements)}",
                code="UNKNOWN_PLACEMENT",
            )
            return
        listed = sum(group.count for group in placement.workers)
        if placement.workers and world_size > listed:
            yield Refusal(
                parameters=parameters,
                pointer=pointer(("placements", name, "workers")),
                reason=f"the placement {name} lists {listed} workers, fewer than the world size {world_size}",
                hint=f"list {world_size} workers or more, or a world size of at most {listed}",
                code="TOO_FEW_WORKERS",
            )

    def _data(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        dataset = parameters["dataset"]
        if dataset not in self._folders:
            self._folders[dataset] = [
                (item, code)
                for item, code in (
                    (folder_error(self.spec.workload, dataset, self.data_roots), "DATA_ROOT"),
                    (class_count_error(self.spec.workload, dataset), "NUM_CLASSES"),
                )
                if item is not None
            ]
        for item, code in self._folders[dataset]:
            yield Refusal(parameters=parameters, pointer=item.pointer, reason=item.detail, hint=item.hint, code=code)

    def _sharing_and_time(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        shared = share(
            parameters["dataset"],
            self.spec.scaling.mode,
            parameters["dataset_fraction"],
            parameters["world_size"],
            parameters["train_batch_size"],
        )
        if isinstance(shared, Sharing):
            yield from self._time(parameters, shared)
            return
        reason, hint = shared
        yield Refusal(
            parameters=parameters,
            pointer=self._at("dataset_fraction"),
            reason=reason,
            hint=hint,
            code="DATASET_FRACTION",
        )

    def _time(self, parameters: dict[str, Any], shared: Sharing) -> Iterator[Refusal]:
        epochs, facts = self.spec.workload.epochs, model_table().get(parameters["model"])
        if epochs is None or facts is None:
            return
        timeout = self.spec.execution.trial_timeout_seconds
        least = epochs * least_epoch_seconds(
            facts,
            image_size=parameters["image_size"],
            patch_size=parameters["patch_size"],
            precision=parameters["precision"],
            micro_batch=parameters["train_micro_batch_size_per_gpu"],
            micro_steps_per_epoch=shared.steps_per_epoch * parameters["gradient_accumulation_steps"],
        )
        if least > timeout:
            yield Refusal(
                parameters=parameters,
                pointer="/workload/epochs",
                reason=f"{epochs} epochs of {shared.steps_per_epoch} steps take {least:.0f} s on the fastest device "
                f"imaginable, and trial_timeout_seconds is {timeout:.0f}",
                hint="raise execution.trial_timeout_seconds, or lower epochs or dataset_fraction",
                code="EPOCHS_EXCEED_TIMEOUT",
            )

    def _overrides(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        """DeepSpeed options that DeepSpeed would not read at this point: what was asked for would not happen."""
        for problem in override_problems(
            self.spec.deepspeed, zero_stage=parameters["zero_stage"], precision=parameters["precision"]
        ):
            yield Refusal(
                parameters=parameters,
                pointer=f"/deepspeed{problem.pointer}",
                reason=problem.reason,
                hint="leave the key out, or run these points in a study of their own",
                code="OVERRIDE_NOT_READ",
            )

    def _compile(self, parameters: dict[str, Any]) -> Iterator[Refusal]:
        reason = why_not_compiled(parameters["zero_stage"]) if parameters["compile"] else None
        if reason is not None:
            yield Refusal(
                parameters=parameters,
                pointer="/parameters/compile",
                reason=reason,
                hint="exclude {zero_stage: 3, compile: true}, or take ZeRO stage 0, 1 or 2",
                code="COMPILE_NOT_SUPPORTED",
            )


def placements_by_name(spec: StudySpec) -> dict[str, Placement]:
    """The placements that a point may name; `default` is there in any case."""
    placements = {"default": Placement()}
    for name, given in spec.placements.items():
        groups = [WorkerGroup(label_selector=dict(group.label_selector), count=group.count) for group in given.workers]
        placements[name] = Placement(strategy=given.strategy, workers=groups)
    return placements
