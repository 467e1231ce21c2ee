"""One point of a sweep, with everything a worker needs to run it, and the DeepSpeed configuration made from it.

Pure: neither torch nor Ray nor DeepSpeed is imported here, so that planning and the job driver may use it.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

Dataset = Literal["synthetic", "digits", "cifar10", "cifar100"]
InputPipeline = Literal["device", "loader"]
ScalingMode = Literal["none", "strong", "weak"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Optimizer = Literal["adamw", "sgd"]

SGD_MOMENTUM: Final[float] = 0.9


class MeasurementConfig(BaseModel):
    """How long a trial is measured, in optimizer steps; `max_seconds` bounds warm-up and measurement together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_warmup_steps: int = Field(default=5, ge=0)
    min_steps: int = Field(default=20, ge=1)
    max_steps: int = Field(default=400, ge=1)
    max_seconds: float = Field(default=300.0, gt=0)
    relative_ci: float = Field(default=0.02, gt=0, lt=1)
    communication: bool = False  # take a step apart after the timed windows, and measure the links


class TrialConfig(BaseModel):
    """One trial: a point of the sweep, fully resolved. Null means "not applicable" only where the type says so.

    `train_batch_size` is the global batch B = micro batch x accumulation x world size, in images per optimizer step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # model
    model: str  # a timm name
    image_size: int = Field(ge=1)  # pixels, square
    patch_size: int = Field(ge=1)  # pixels, square; resolved
    num_classes: int = Field(ge=1)
    activation_checkpointing: bool = False
    compile: bool = False  # torch.compile

    # data
    dataset: Dataset
    data_root: str | None = None
    download: bool = False
    dataset_fraction: float = Field(default=1.0, gt=0)  # of the whole set (strong, none) or per worker (weak)
    scaling_mode: ScalingMode = "none"
    input_pipeline: InputPipeline = "device"
    loader_workers: int = Field(default=2, ge=0)
    epochs: int | None = Field(default=None, ge=1)  # null: steady state only
    seed: int = 0

    # parallelism and batch
    world_size: int = Field(ge=1)
    train_micro_batch_size_per_gpu: int = Field(ge=1)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    train_batch_size: int = Field(ge=1)
    zero_stage: Literal[0, 1, 2, 3] = 0
    precision: Precision = "fp32"

    # optimisation
    optimizer: Optimizer = "adamw"
    learning_rate: float = Field(default=1e-4, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    gradient_clipping: float = Field(default=0.0, ge=0)  # 0: off

    deepspeed_overrides: dict[str, Any] = Field(default_factory=dict)  # checked by the planner against an allow-list

    # placement of threads and devices
    num_threads: int = Field(default=1, ge=1)  # torch's threads per worker = resources.num_cpus, at every world size

    measurement: MeasurementConfig = MeasurementConfig()
