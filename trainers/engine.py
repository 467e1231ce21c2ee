"""The DeepSpeed engine of a trial: built, stepped, read back, taken down."""

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers import compiled_ops
from trainers.config import SGD_MOMENTUM, TrialConfig
from trainers.data.feed import Batch
from trainers.deepspeed_config import deepspeed_config
from trainers.held_states import held_model_states, loss_scaler
from trainers.memory import ModelStates
from trainers.world import LaunchError, World

TRAINING_TYPE = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class UnsupportedPrecision(ValueError):
    """DeepSpeed does not train in this precision on this device."""


class CompilerMissing(ValueError):
    """torch.compile was asked for on a worker without a C++ compiler."""


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, told its accelerator: it would warn and probe for one on a machine without a GPU."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed

    # Of what DeepSpeed calls, over a hundred times in a step at stage 3: no news to whoever trains.
    warnings.filterwarnings("ignore", message="`torch.distributed", category=FutureWarning)
    _offer_compiled_op(deepspeed, is_used=device.type == "cpu" and compiled_ops.is_needed())
    return deepspeed


def _offer_compiled_op(deepspeed: Any, *, is_used: bool) -> None:
    """Hand DeepSpeed the CPU collective that was compiled at set-up, or have it go without (`compiled_ops` says why).

    Its table of what can be compiled is filled in here; making it would probe every op with a compiler.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder

    if is_used and compiled_ops.OP_NAME not in OpBuilder._loaded_ops:
        library = compiled_ops.library_path()
        if library.is_file():
            OpBuilder._loaded_ops[compiled_ops.OP_NAME] = compiled_ops.load_library(library)
    deepspeed.ops.__compatible_ops__ = {compiled_ops.OP_NAME: compiled_ops.OP_NAME in OpBuilder._loaded_ops}


def build_optimizer(config: TrialConfig, parameters: Iterable[nn.Parameter], device: torch.device) -> Any:
    """torch's own optimizer: AdamW (fused on CUDA) or SGD with momentum. DeepSpeed's would compile an op first.

    No fused update where DeepSpeed keeps the optimizer state in host memory.
    """
    if config.optimizer == "adamw":
        offload = config.deepspeed_overrides.get("zero_optimization", {}).get("offload_optimizer", {})
        return torch.optim.AdamW(
            parameters,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=device.type == "cuda" and offload.get("device", "none") == "none",
        )
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=SGD_MOMENTUM, weight_decay=config.weight_decay)


def place_in_deepspeed(world: World) -> tuple[int, int, int]:
    """Tell DeepSpeed of the process group, once; (rank, world size, local rank) as it sees them then."""
    from deepspeed import comm

    comm.init_distributed(dist_backend=world.backend, auto_mpi_discovery=False, verbose=False)
    return comm.get_rank(), comm.get_world_size(), comm.get_local_rank()


class TrialEngine:
    """One engine and the steps it takes. Results of steps stay on the device until they are asked for."""

    def __init__(self, config: TrialConfig, model: nn.Module, world: World) -> None:
        """Hand the model to DeepSpeed, in a process group that stands already.

        Raises:
            LaunchError: DeepSpeed uses other batch sizes or another device than the trial.
            UnsupportedPrecision: the device lacks what the precision needs.
            CompilerMissing: the trial is to be compiled and there is no C++ compiler.
        """
        if config.compile and (missing := compiled_ops.missing_compiler("torch.compile makes its kernels with one")):
            raise CompilerMissing(missing)
        deepspeed = import_deepspeed(world.device)
        _check_precision(config, world.device)
        # Before the configuration is read: without a process group DeepSpeed would take the world size to be 1.
        place_in_deepspeed(world)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=build_optimizer(config, trainable, world.device),
            config=deepspeed_config(config),
            dist_init_required=False,
        )
        self._config = config
        self._check(config, world)
        if config.compile:
            # After initialize and on the engine, as DeepSpeed wants it: it disables what would break the graph. All
            # micro batches have one shape.
            self.engine.compile(compile_kwargs={"dynamic": False})

    def _check(self, config: TrialConfig, world: World) -> None:
        batch = (
            self.engine.train_batch_size(),
            self.engine.train_micro_batch_size_per_gpu(),
            self.engine.gradient_accumulation_steps(),
        )
        wanted = (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps)
        if batch != wanted:
            raise LaunchError(f"DeepSpeed uses batch, micro batch and accumulation {batch}, the trial has {wanted}")
        if world.device.type == "cuda" and torch.device(self.engine.device) != world.device:
            raise LaunchError(f"DeepSpeed trains on {self.engine.device}, this rank was given {world.device}")

    @property
    def compiled_graphs(self) -> int:
        """Graphs that torch.compile has made in this process so far."""
        if not self._config.compile:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps left out so far because of an overflow (fp16; bf16 with its check)."""
        return int(self.engine.skipped_steps)

    def train_step(
        self, next_batch: Callable[[], Batch], after_backward: Callable[[], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """One whole optimizer step: accumulation x (forward, backward), and the update.

        Args:
            next_batch: gives the images and labels of a micro step.
            after_backward: called after each backward pass, before what follows it.

        Returns:
            (mean loss, number of images classified right) of this rank's images, on the device, not waited for.
        """
        losses, right = [], []
        for _ in range(self._config.gradient_accumulation_steps):
            images, labels = next_batch()
            logits = self.engine(images)
            loss = functional.cross_entropy(logits.float(), labels)
            self.engine.backward(loss)
            if after_backward is not None:
                after_backward()
            self.engine.step()
            losses.append(loss.detach())
            right.append((logits.detach().argmax(dim=-1) == labels).sum())
        return torch.stack(losses).mean(), torch.stack(right).sum()

    def weighing_step(self, next_batch: Callable[[], Batch]) -> ModelStates:
        """One more optimizer step, after whose backward passes the model states held are read; the most of them."""
        held: list[ModelStates] = []
        self.train_step(next_batch, lambda: held.append(held_model_states(self.engine)))
        return max(held, key=lambda states: states.total_bytes)

    def compile_ahead(self, blank: Batch) -> None:
        """Have torch.compile do its work now, in one optimizer step on `blank` images that leaves nothing behind.

        With a learning rate of 0 the weights stay as they are, the optimizer's state (moments, step counts) is zeroed
        after it, which is how it begins, and the loss scale is put back. The learning is that of a trial that is not
        compiled.
        """
        optimizer = self.engine.basic_optimizer
        scaler = loss_scaler(self.engine.optimizer)
        scale_before = None if scaler is None else dict(vars(scaler))
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        self.train_step(lambda: blank)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        if scaler is not None and scale_before is not None:
            vars(scaler).update(scale_before)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor, int]]) -> Tensor:
        """[sum of losses, number right, number of images] over this rank's share of the held-out images, float64."""
        totals = torch.zeros(3, dtype=torch.float64, device=self.engine.device)
        self.engine.eval()
        for images, labels, counted in batches:
            logits = self.engine(images)[:counted].float()
            totals[0] += functional.cross_entropy(logits, labels[:counted], reduction="sum")
            totals[1] += (logits.argmax(dim=-1) == labels[:counted]).sum()
            totals[2] += counted
        self.engine.train()
        return totals

    def effective_config(self) -> dict[str, Any]:
        """What DeepSpeed really uses, read back from the engine."""
        read = self.engine._config
        return {
            "train_batch_size": self.engine.train_batch_size(),
            "train_micro_batch_size_per_gpu": self.engine.train_micro_batch_size_per_gpu(),
            "gradient_accumulation_steps": self.engine.gradient_accumulation_steps(),
            "gradient_clipping": self.engine.gradient_clipping(),
            "zero_optimization": read.zero_config.model_dump(mode="json", exclude_defaults=True)
            | {"stage": int(read.zero_config.stage)},
            "fp16": read.float16_config.model_dump(mode="json", exclude_defaults=True),
            "bf16": read.bfloat16_config.model_dump(mode="json", exclude_defaults=True),
            "communication_data_type": _plain(self.engine.communication_data_type),
            "grad_accum_dtype": _plain(read.grad_accum_dtype),
            "prescale_gradients": read.prescale_gradients,
            "gradient_predivide_factor": read.gradient_predivide_factor,
            "timers_enabled": bool(read.timers_config.enabled),
            "comms_logger_enabled": bool(read.comms_config.comms_logger.enabled),
            "wall_clock_breakdown": bool(read.wall_clock_breakdown),
            "optimizer": type(self.engine.optimizer).__name__,
            "compiled": bool(self.engine.is_compiled),
            "client_optimizer": type(self.engine.basic_optimizer).__name__,
        }

    def close(self) -> None:
        """Have DeepSpeed take its hooks and buffers down."""
        self.engine.destroy()


def _check_precision(config: TrialConfig, device: torch.device) -> None:
    from deepspeed.accelerator import get_accelerator

    supported = {"fp16": get_accelerator().is_fp16_supported, "bf16": get_accelerator().is_bf16_supported}
    is_supported = supported.get(config.precision)
    if is_supported is not None and not is_supported():
        others = " or ".join(name for name in ("bf16", "fp32") if name != config.precision)
        raise UnsupportedPrecision(
            f"DeepSpeed does not train in {config.precision} on this {device.type.upper()}: take {others}"
        )


def forget_process_groups() -> None:
    """Have DeepSpeed forget the groups it has cached: they outlive the process group, and the next trial's is new."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    groups._release_process_group_references(group=None)
    comm.cdb = None


def _plain(value: Any) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")
