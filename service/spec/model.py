"""The study specification: every key with its type, its meaning and its default. Unknown keys are refused everywhere.

What depends on points of the sweep (a batch that does not divide at one world size) is the planner's: `service.plan`.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from service.spec.types import (
    AnyDataset,
    Axis,
    Description,
    ExcludedValue,
    Fraction,
    ManyValues,
    ModelName,
    NonNegativeNumber,
    NumGpus,
    OneValue,
    OptimizerName,
    PipelineName,
    PlacementName,
    PositiveInteger,
    PositiveNumber,
    PrecisionName,
    Seconds,
    SpecModel,
    StudyName,
    StudyTags,
    Switch,
    WorkerCount,
    ZeroStage,
    fixed,
)

# Keys that stand under workload, or under parameters as an axis, never under both.
WORKLOAD_AXES = ("dataset", "dataset_fraction", "image_size", "input_pipeline")


class Scaling(SpecModel):
    """How the world size changes the work."""

    mode: Literal["none", "strong", "weak"] = Field(
        default="none",
        description="strong: the dataset is fixed. weak: `dataset_fraction` is per worker. none: a plain comparison.",
    )
    hold: Literal["micro_batch", "global_batch"] = Field(
        default="micro_batch",
        description=(
            "micro_batch: give micro batch and accumulation, the global batch grows with the world size. "
            "global_batch: give `train_batch_size` and one of the two, the other is derived at each world size."
        ),
    )
    baseline_world_size: WorkerCount | None = Field(
        default=None, description="The world size that speed-ups refer to. null: the smallest in the study."
    )


class Workload(SpecModel):
    """What is trained on. A key that is an axis under `parameters` is null here."""

    dataset: AnyDataset | None = Field(
        default="synthetic",
        description=(
            "synthetic: random images made on the device. digits: 1,797 real images that come with scikit-learn."
        ),
    )
    data_root: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description=(
            "Folder of the dataset on the workers, below one of the server's configured data roots. For cifar10, "
            "cifar100."
        ),
    )
    download: bool = Field(default=False, description="Fetch the dataset into `data_root` if it is not there.")
    dataset_fraction: Fraction | None = Field(
        default=1.0, description="Part of the dataset that is used: of the whole (strong, none) or per worker (weak)."
    )
    image_size: PositiveInteger | None = Field(
        default=224, description="Pixels of a square's side: images are resized to it and the model is built for it."
    )
    num_classes: PositiveInteger | None = Field(
        default=None, description="Width of the model's head. null: the dataset's number of classes."
    )
    input_pipeline: PipelineName | None = Field(
        default="device",
        description="device: the data sits on the training device. loader: DataLoader workers decode and copy.",
    )
    loader_workers: Annotated[int, Field(ge=0, le=256)] = Field(
        default=2, description="DataLoader worker processes per training worker, with `input_pipeline: loader`."
    )
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Whole epochs to train, with loss and accuracy each. null: only the steady state is measured.",
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        default=0, description="Of weights, data order and the random order of trials."
    )


class Parameters(SpecModel):
    """The axes of the sweep: each takes `value: x` or `values: [x, y]`. The study is their product."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"value": "vit_base_patch16_224"},
                    "world_size": {"values": [1, 2]},
                    "train_micro_batch_size_per_gpu": {"values": [16, 32, 64]},
                }
            ]
        }
    )

    model: Axis[ModelName] = Field(description="A Vision Transformer by its timm name.")
    world_size: Axis[WorkerCount] = Field(
        default=fixed(WorkerCount, 1), description="Number of workers, one device each."
    )
    train_micro_batch_size_per_gpu: Axis[PositiveInteger] | None = Field(
        default=None,
        description="Images per worker and forward pass (DeepSpeed's name). null: derived (`hold: global_batch`).",
    )
    gradient_accumulation_steps: Axis[PositiveInteger] | None = Field(
        default=None,
        description=(
            "Forward and backward passes per optimizer step. null: 1 (`hold: micro_batch`), derived (`hold: "
            "global_batch`)."
        ),
    )
    train_batch_size: Axis[PositiveInteger] | None = Field(
        default=None,
        description=(
            "Images per optimizer step over all workers = micro batch x accumulation x world size. null: derived "
            "(`hold: micro_batch`)."
        ),
    )
    zero_stage: Axis[ZeroStage] = Field(default=fixed(ZeroStage, 0), description="DeepSpeed's ZeRO stage, 0 to 3.")
    precision: Axis[PrecisionName] = Field(
        default=fixed(PrecisionName, "fp32"), description="fp32 (TF32 off), tf32, bf16 or fp16."
    )
    optimizer: Axis[OptimizerName] = fixed(OptimizerName, "adamw")
    learning_rate: Axis[PositiveNumber] = fixed(PositiveNumber, 1e-4)
    weight_decay: Axis[NonNegativeNumber] = fixed(NonNegativeNumber, 0.01)
    gradient_clipping: Axis[NonNegativeNumber] = Field(
        default=fixed(NonNegativeNumber, 0.0), description="Largest norm of the gradient. 0: off."
    )
    patch_size: Axis[PositiveInteger] | None = Field(
        default=None, description="Pixels of a patch's side. null: the model's."
    )
    activation_checkpointing: Axis[Switch] = Field(
        default=fixed(Switch, False), description="Recompute activations in the backward pass to save memory."
    )
    compile: Axis[Switch] = Field(
        default=fixed(Switch, False), description="Compile the model with torch.compile, before anything is timed."
    )
    placement: Axis[PlacementName] = Field(
        default=fixed(PlacementName, "default"), description="A name under `placements`, or default (strategy PACK)."
    )
    dataset: Axis[AnyDataset] | None = Field(default=None, description="As under `workload`, as an axis.")
    dataset_fraction: Axis[Fraction] | None = Field(default=None, description="As under `workload`, as an axis.")
    image_size: Axis[PositiveInteger] | None = Field(default=None, description="As under `workload`, as an axis.")
    input_pipeline: Axis[PipelineName] | None = Field(default=None, description="As under `workload`, as an axis.")

    def axis(self, key: str) -> OneValue[Any] | ManyValues[Any] | None:
        """The axis of this name; None where it is not given."""
        axis: OneValue[Any] | ManyValues[Any] | None = getattr(self, key)
        return axis


# A point's parameters, in the order of the product (the last varies fastest) and of a results row.
ParameterName = Literal[
    "model",
    "world_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "zero_stage",
    "precision",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "gradient_clipping",
    "image_size",
    "patch_size",
    "activation_checkpointing",
    "compile",
    "placement",
    "dataset",
    "dataset_fraction",
    "input_pipeline",
]
PARAMETER_NAMES: tuple[ParameterName, ...] = get_args(ParameterName)


class SpecWorkerGroup(SpecModel):
    """`count` workers that need a node with these labels."""

    label_selector: dict[str, str] = Field(
        default_factory=dict,
        max_length=16,
        description="Ray node labels by name; a value may be `!x`, `in(x, y)` or `!in(x, y)`.",
    )
    count: WorkerCount = 1


class SpecPlacement(SpecModel):
    """Where the workers of a trial go."""

    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="Ray's placement strategy."
    )
    workers: list[SpecWorkerGroup] = Field(
        default_factory=list,
        max_length=100,
        description="A world size of W takes the first W workers of the list. Empty: any node.",
    )


class SpecResources(SpecModel):
    """Per worker, the same at every world size."""

    num_cpus: WorkerCount = Field(default=1, description="Also the number of torch threads of a worker.")
    num_gpus: NumGpus = Field(
        default="auto",
        description="auto: 1 where the cluster has GPUs, else 0; resolved when the study starts, and recorded.",
    )


class SpecMeasurement(SpecModel):
    """How long each trial is measured. Steps are optimizer steps."""

    min_warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    min_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 400
    max_seconds: Seconds = Field(default=300.0, description="Bounds warm-up and measurement together.")
    relative_ci: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.02,
        description="Measuring ends when the 95 % interval of the step time is this narrow, relative to its mean.",
    )
    repeats: Annotated[int, Field(ge=1, le=1_000)] = Field(default=1, description="How often each point is run.")
    order: Literal["random", "given"] = Field(
        default="random",
        description="random: a shuffle of all trials, repeats included, that `workload.seed` fixes. "
        "given: as the product counts.",
    )
    communication: bool = Field(
        default=False,
        description="Take a step apart after the timed windows (compute, data, waiting, communication), and measure "
        "what the links between the workers carry.",
    )


class SpecExecution(SpecModel):
    """How the trials are run."""

    isolation: Literal["exclusive", "node", "shared"] = Field(
        default="exclusive", description="exclusive: one trial at a time. shared: as many as fit, side by side."
    )
    max_concurrent_trials: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="null: as many as fit (with `isolation: shared`)."
    )
    trial_timeout_seconds: Seconds = Field(
        default=900.0, description="A trial that runs longer is ended and fails with TIMEOUT."
    )
    queue_timeout_seconds: Seconds = Field(
        default=600.0, description="A trial that waits longer for its workers fails with QUEUE_TIMEOUT."
    )
    retries: Annotated[int, Field(ge=0, le=100)] = Field(
        default=1, description="How often a trial is run again after WORKER_LOST or INIT_TIMEOUT."
    )
    contended_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=1,
        description="How often a trial is measured once more because others used its cores or device meanwhile. "
        "What was measured last stands, flagged if it was contended too.",
    )
    max_failed_trials: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        default=None, description="The study stops when more trials than this have failed. null: it goes on."
    )


_EXAMPLE: dict[str, Any] = {
    "name": "batch-sweep",
    "scaling": {"mode": "strong"},
    "workload": {"dataset": "digits", "image_size": 32},
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "world_size": {"values": [1, 2]},
        "train_micro_batch_size_per_gpu": {"values": [4, 16, 64]},
        "patch_size": {"value": 4},
    },
}


class StudySpec(SpecModel):
    """One study: a sweep of Vision Transformer trainings, and how to run and measure it."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: StudyName
    description: Description = ""
    tags: StudyTags = Field(default_factory=list)
    scaling: Scaling = Scaling()
    workload: Workload = Workload()
    parameters: Parameters
    placements: dict[PlacementName, SpecPlacement] = Field(
        default_factory=dict,
        max_length=100,
        description="Named placements for the axis `placement`. `default` is {strategy: PACK} unless given here.",
    )
    exclude: list[Annotated[dict[ParameterName, ExcludedValue], Field(min_length=1)]] = Field(
        default_factory=list,
        max_length=200,
        description="Points to leave out: a point that equals one entry in all its keys is not run.",
    )
    on_indivisible: Literal["error", "skip"] = Field(
        default="error",
        description="A batch that does not divide: refuse the study, or skip the point and list it with the reason.",
    )
    resources: SpecResources = SpecResources()
    measurement: SpecMeasurement = SpecMeasurement()
    execution: SpecExecution = SpecExecution()
    deepspeed: dict[str, Any] = Field(
        default_factory=dict, description="Checked overrides of the DeepSpeed configuration: an allow-list of keys."
    )

    @model_validator(mode="before")
    @classmethod
    def _null_the_workload_keys_that_are_axes(cls, data: Any) -> Any:
        # The default of a workload key must not contradict the axis, in what is stored and parsed again either.
        if not isinstance(data, dict) or not isinstance(data.get("parameters"), dict):
            return data
        workload = data.get("workload", {})
        axes = [key for key in WORKLOAD_AXES if data["parameters"].get(key) is not None]
        if not axes or not isinstance(workload, dict):
            return data
        return {**data, "workload": {**dict.fromkeys(axes), **workload}}
