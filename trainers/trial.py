"""One trial from top to bottom: build, train whole epochs if asked, warm up, measure in windows, take a step apart if
asked, report.

Epochs come before the warm-up, on the freshly seeded model: what is learnt must depend on the seed and not on how many
timed steps the stop rule happened to take. The measurement then goes on with the trained model, whose steps cost the
same. Called once on every rank, by `trainers.ray_worker` under Ray and by `trainers.standalone` under torchrun.
"""

import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from trainers.config import TrialConfig
from trainers.data.feed import EvaluationFeed, TrainingFeed
from trainers.data.sampler import Sampler
from trainers.data.source import TrialData, open_data
from trainers.device import TrainingDevice, choose_device, set_matmul_precision, set_threads
from trainers.engine import TRAINING_TYPE, TrialEngine, forget_process_groups, import_deepspeed
from trainers.measure.assessment import assess
from trainers.measure.stop_rule import next_window_steps
from trainers.measure.windows import Window, images_per_second, step_seconds_mean, time_window, total_steps
from trainers.memory import TensorSizes
from trainers.model import build_model, flops_per_image, import_timm
from trainers.parts.blocks import TakenApart, take_apart
from trainers.parts.links import budget_seconds, measure_links
from trainers.parts.rows import LinkRow
from trainers.preflight import preflight
from trainers.report import Observations, OverheadSeconds, RankReport, build_result
from trainers.result import EpochRow, TrialResult
from trainers.telemetry.recorder import Recorder
from trainers.world import World, launch_environment

Phase = Literal["starting", "warmup", "measure", "parts", "train"]
LOSS_HISTORY_STEPS = 2000  # of a trial, from its first step on; the rest is not kept


class Progress(Protocol):
    """Told on rank 0, between windows only. `done` and `total` count steps, in "train" epochs, in "parts" pairs."""

    def __call__(
        self, phase: Phase, done: int = 0, total: int | None = None, images_per_second: float | None = None
    ) -> None: ...


def run_trial(config: TrialConfig, progress: Progress | None = None) -> TrialResult | None:
    """Run one trial in this process, one of `config.world_size`, and gather what all of them saw.

    Needs RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A process group that stands
    already is used and left standing; else one is made and ended. Nothing else is left behind: another trial may follow
    in the same process.

    Returns:
        The result on rank 0, None on the others.

    Raises:
        LaunchError: started wrongly.
        WorkersDidNotMeet, WorkersDisagree: the workers cannot work together (`trainers.preflight`).
        ValueError: the configuration does not fit the worker (DataError, SharingError, UnknownModel, OverridesInvalid,
            UnsupportedPrecision, CompilerMissing).
        torch.OutOfMemoryError: as it was raised.
    """
    entered = time.perf_counter()
    launch = launch_environment()
    set_threads(config.num_threads)
    set_matmul_precision(config.precision)
    torch_device = choose_device(launch.local_rank)
    import_deepspeed(torch_device)
    import_timm()
    device = TrainingDevice(torch_device)  # after the imports: memory counts from here
    with _joined(World.join(launch, torch_device, config.world_size)) as world:
        preflight(world, device)
        trial = _Trial(config, world, device, progress if world.rank == 0 else None, entered)
        try:
            result = trial.run()
        except BaseException:
            trial.let_go()
            raise
        trial.close()
        return result


@contextmanager
def _joined(world: World) -> Iterator[World]:
    try:
        yield world
    except BaseException:
        # Under gloo leaving ends the others' collectives at once; under NCCL it would wait for them.
        if world.backend == "gloo":
            world.leave()
        raise
    world.leave()


@dataclass
class _StepLog:
    """Losses and right answers of steps, on the device; read between windows."""

    losses: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)

    def take(self, world: World) -> tuple[Tensor, float]:
        """(loss of each step as mean over ranks [n], images classified right by all ranks); empties the log."""
        losses, right = torch.stack(self.losses).float(), torch.stack(self.right).sum()
        self.losses, self.right = [], []
        total = world.sums(torch.cat([losses, right.reshape(1).to(losses.dtype)]))
        return total[:-1] / world.size, float(total[-1])


@dataclass(frozen=True)
class _Apart:
    """What the pass that takes a step apart found (on rank 0), and its seconds; nothing where it was not asked for."""

    taken: TakenApart | None = None
    links: Sequence[LinkRow] = ()
    seconds: float | None = None


class _Trial:
    """The state of one trial on one rank."""

    def __init__(
        self, config: TrialConfig, world: World, device: TrainingDevice, progress: Progress | None, entered: float
    ) -> None:
        self.config, self.world, self.device, self.progress = config, world, device, progress
        self.entered = entered
        self.telemetry = Recorder.of_rank(
            rank=world.rank,
            local_rank=world.launch.local_rank,
            node=world.node,
            num_threads=config.num_threads,
            device_name=device.name,
            device_uuid=device.uuid,
        )
        self.log = _StepLog()
        self.loss_history: list[float] = []
        self.graphs_while_measured = 0
        self.feed: TrainingFeed | None = None
        self.engine: TrialEngine | None = None

    def run(self) -> TrialResult | None:
        """Build, train epochs, warm up, measure, report."""
        self.tell("starting")
        data = self.build()
        self.world.barrier()
        startup_seconds = time.perf_counter() - self.entered
        compile_seconds = self.compile()
        epochs = self.train_epochs(data)
        warmup_seconds, step_seconds_guess = self.warm_up()
        windows = self.measure(warmup_seconds, step_seconds_guess)
        own = self.own_report(windows, warmup_seconds)
        apart = self.take_apart(windows)
        seconds = OverheadSeconds(startup_seconds, compile_seconds, warmup_seconds, apart.seconds)
        return self.report(data, epochs, windows, seconds, own, apart)

    def build(self) -> TrialData:
        """Data, model, engine, and the stream of batches."""
        config, world = self.config, self.world
        data = open_data(config)
        model = build_model(config, world.device)
        self.flops_per_image = flops_per_image(model, config)
        # Before DeepSpeed takes the model apart.
        self.tensor_sizes: TensorSizes = tuple(Counter(parameter.numel() for parameter in model.parameters()).items())
        self.engine = TrialEngine(config, model, world)
        sampler = Sampler(
            sharing=data.sharing,
            num_images=len(data.training),
            rank=world.rank,
            world_size=world.size,
            micro_batch_size=config.train_micro_batch_size_per_gpu,
            accumulation=config.gradient_accumulation_steps,
            seed=config.seed,
        )
        self.feed = TrainingFeed(config, data.training, sampler, world.device, TRAINING_TYPE[config.precision])
        return data

    def compile(self) -> float | None:
        """Have torch.compile work before anything is timed. Returns the seconds it took, None where it is off."""
        if not self.config.compile:
            return None
        assert self.engine is not None
        assert self.feed is not None
        start = time.perf_counter()
        self.engine.compile_ahead(self.feed.blank())
        self.world.barrier()
        return time.perf_counter() - start

    def train_epochs(self, data: TrialData) -> list[EpochRow]:
        """The whole epochs asked for, each timed from barrier to barrier, and evaluated outside of that time."""
        if self.config.epochs is None:
            return []
        rows: list[EpochRow] = []
        for epoch in range(1, self.config.epochs + 1):
            self.tell("train", epoch - 1, self.config.epochs, self.images_per_second_of(rows))
            rows.append(self.train_epoch(epoch, data))
        self.tell("train", self.config.epochs, self.config.epochs, self.images_per_second_of(rows))
        return rows

    def train_epoch(self, epoch: int, data: TrialData) -> EpochRow:
        steps = data.sharing.steps_per_epoch
        images_seen = steps * self.config.train_batch_size
        self.world.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.world.barrier()
        epoch_seconds = time.perf_counter() - start
        losses, right = self.take_log()
        eval_loss, eval_accuracy = self.evaluate(data)
        return EpochRow(
            epoch=epoch,
            epoch_seconds=epoch_seconds,
            steps=steps,
            images_seen=images_seen,
            train_loss=finite(float(losses.mean())),
            train_accuracy=right / images_seen,
            eval_loss=eval_loss,
            eval_accuracy=eval_accuracy,
        )

    def evaluate(self, data: TrialData) -> tuple[float | None, float | None]:
        """(mean loss, accuracy) over all held-out images, or (None, None) where there are none."""
        if data.held_out is None:
            return None, None
        assert self.engine is not None
        config, world = self.config, self.world
        feed = EvaluationFeed(
            config, data.held_out, world.rank, world.size, world.device, TRAINING_TYPE[config.precision]
        )
        loss, right, images = world.sums(self.engine.evaluate(feed)).tolist()
        return finite(loss / images), right / images

    def warm_up(self) -> tuple[float, float | None]:
        """At least `min_warmup_steps`, within `max_seconds`. Returns (seconds it took, seconds of its last step)."""
        wanted, start, last = self.config.measurement.min_warmup_steps, time.perf_counter(), None
        for done in range(wanted):
            self.tell("warmup", done, wanted)
            step_start = time.perf_counter()
            self.step()
            self.world.barrier()
            now = time.perf_counter()
            last = now - step_start
            if self.world.from_rank_0(now - start) >= self.config.measurement.max_seconds:
                break
        if self.log.losses:
            self.take_log()
        return time.perf_counter() - start, last

    def measure(self, warmup_seconds: float, step_seconds_guess: float | None) -> list[Window]:
        """Windows until the stop rule ends it."""
        assert self.engine is not None
        self.telemetry.begin()
        config, windows, start = self.config, list[Window](), time.perf_counter()
        marks = self.device.stopwatch()
        graphs_before = self.engine.compiled_graphs
        while True:
            steps = next_window_steps(
                config.measurement,
                windows,
                warmup_seconds=warmup_seconds,
                seconds_used=warmup_seconds + time.perf_counter() - start,
                step_seconds_guess=step_seconds_guess,
            )
            steps = int(self.world.from_rank_0(steps))
            if steps == 0:
                self.graphs_while_measured = self.engine.compiled_graphs - graphs_before
                return windows
            rate = images_per_second(config.train_batch_size, windows) if windows else None
            self.tell("measure", total_steps(windows), config.measurement.max_steps, rate)
            skipped_before = self.engine.skipped_steps
            with self.telemetry.around_window():
                window = time_window(steps, self.step, barrier=self.world.barrier, clock=time.perf_counter, marks=marks)
            windows.append(replace(window, skipped_steps=self.engine.skipped_steps - skipped_before))
            self.take_log()
            self.device.sample_memory()

    def own_report(self, windows: list[Window], warmup_seconds: float) -> RankReport:
        """What this rank knows of the windows that count, and of the memory they took."""
        assert self.engine is not None
        assert self.feed is not None
        first_kept = assess(self.config.measurement, windows, warmup_seconds=warmup_seconds).steady.first_window
        kept = windows[int(self.world.from_rank_0(first_kept)) :]
        readings = self.telemetry.readings(len(kept))
        held = self.engine.weighing_step(self.feed.next)
        return RankReport.of(self.world, self.device, kept, readings, held)

    def take_apart(self, windows: list[Window]) -> "_Apart":
        """Where a step's time goes, and what the links carry: on rank 0, if asked for."""
        if not self.config.measurement.communication:
            return _Apart()
        assert self.engine is not None
        assert self.feed is not None
        start = time.perf_counter()
        taken_apart = take_apart(
            self.config,
            self.world,
            self.engine,
            self.feed,
            self.device,
            tensor_sizes=self.tensor_sizes,
            step_seconds=step_seconds_mean(windows),
            tell=lambda done, total: self.tell("parts", done, total),
        )
        element_bytes = TRAINING_TYPE[self.config.precision].itemsize
        gradient_bytes = sum(size * count for size, count in self.tensor_sizes) * element_bytes
        nodes = set(self.world.all_gather((self.world.node, self.world.node_ip)))
        budget = budget_seconds(len(nodes), self.config.measurement.max_seconds)
        links = measure_links(self.world, gradient_bytes, budget)
        return _Apart(taken_apart, links, time.perf_counter() - start)

    def report(
        self,
        data: TrialData,
        epochs: list[EpochRow],
        windows: list[Window],
        seconds: OverheadSeconds,
        own: RankReport,
        apart: "_Apart",
    ) -> TrialResult | None:
        """Gather what the ranks know on rank 0 and make the result of it there."""
        assert self.engine is not None
        ranks = self.world.gather(own)
        if ranks is None:
            return None
        return build_result(
            self.config,
            ranks,
            Observations(
                windows=windows,
                epochs=epochs,
                loss_history=self.loss_history,
                images_per_epoch=data.sharing.images_per_epoch,
                flops_per_image=self.flops_per_image,
                tensor_sizes=self.tensor_sizes,
                overhead=seconds,
                taken_apart=apart.taken,
                links=apart.links,
                graphs_while_measured=self.graphs_while_measured,
                backend=self.world.backend,
                deepspeed_config=self.engine.effective_config(),
            ),
        )

    def step(self) -> None:
        """One optimizer step on the next images."""
        assert self.engine is not None
        assert self.feed is not None
        loss, right = self.engine.train_step(self.feed.next)
        self.log.losses.append(loss)
        self.log.right.append(right)

    def take_log(self) -> tuple[Tensor, float]:
        """The steps since last time: (loss per step, right answers); the losses enter the history."""
        losses, right = self.log.take(self.world)
        room = LOSS_HISTORY_STEPS - len(self.loss_history)
        self.loss_history.extend(losses[:room].tolist())
        return losses, right

    def images_per_second_of(self, rows: list[EpochRow]) -> float | None:
        return rows[-1].images_seen / rows[-1].epoch_seconds if rows else None

    def tell(
        self, phase: Phase, done: int = 0, total: int | None = None, images_per_second: float | None = None
    ) -> None:
        if self.progress is not None:
            self.progress(phase, done, total, images_per_second)

    def close(self) -> None:
        """Take everything down after a trial that ended well, so that the memory is back."""
        if self.engine is not None:
            self.engine.close()
        self.let_go()

    def let_go(self) -> None:
        """End the loader's processes and drop what is held. Asks nothing of DeepSpeed, which may be what failed."""
        if self.feed is not None:
            self.feed.close()
        self.feed, self.engine, self.log = None, None, _StepLog()
        self.telemetry.close()
        if self.config.compile:
            torch._dynamo.reset()  # it compiles a function for so many shapes only in one process (8)
        forget_process_groups()
        gc.collect()
        if self.device.is_cuda:
            torch.cuda.empty_cache()


def finite(value: float) -> float | None:
    """The value, or None where it is no finite number (a training that diverged)."""
    return value if abs(value) < float("inf") else None
