"""Takes a step apart on every rank: blocks of steps with and without the exchange between workers, interleaved.

Comes after the timed windows and leaves the training as it found it: the state is kept and put back, and so is the
place in the stream of images. Where the host's memory does not take the state, nothing is left out: the exchange is
then taken from profiled steps, which are steps of the training.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import fmean

from trainers.config import TrialConfig
from trainers.data.feed import Batch, TrainingFeed
from trainers.device import TrainingDevice
from trainers.engine import TrialEngine
from trainers.measure.windows import Marks
from trainers.memory import TensorSizes
from trainers.parts.engine_state import EngineState, fits_in_host_memory
from trainers.parts.estimate import MIN_PAIRS, AloneStep, Estimates, Pair, estimate, mean_with_interval
from trainers.parts.exchange import exchange_left_out
from trainers.parts.exposure import RankProfile, exposed_seconds, without_waiting
from trainers.parts.profile import profile_step
from trainers.parts.rows import Collective, CommunicationSource, Measured, StepParts
from trainers.parts.traffic import step_traffic, total_wire_bytes
from trainers.parts.traffic_count import counted_traffic
from trainers.world import World

MAX_PAIRS = 40
_BLOCK_SECONDS = 0.5  # at least, as far as the steps allow
_MIN_BLOCK_STEPS, _MAX_BLOCK_STEPS = 2, 50
_SHARE_OF_MAX_SECONDS, _MOST_SECONDS = 0.25, 60.0  # after which no more pairs than the least are begun
_PROFILES = 3  # of one step each: its size grows with accumulation


@dataclass(frozen=True)
class TakenApart:
    """What rank 0 makes of all ranks' blocks."""

    parts: StepParts
    estimates: Estimates
    notes: Sequence[str]


@dataclass(frozen=True)
class _Block:
    step_seconds: float  # between barriers
    steps: Sequence[AloneStep]  # of this rank


@dataclass(frozen=True)
class _OfRank:
    """What one rank brings to the profiled estimate, and of its input."""

    exposed: Sequence[Sequence[float]]  # of each profile, of each of its collectives
    collective_seconds: Sequence[Sequence[float]]
    decode_seconds: float | None
    copy_seconds: float | None


def take_apart(
    config: TrialConfig,
    world: World,
    engine: TrialEngine,
    feed: TrainingFeed,
    device: TrainingDevice,
    *,
    tensor_sizes: TensorSizes,
    step_seconds: float,
    tell: Callable[[int, int], None],
) -> TakenApart | None:
    """The parts of a step. Called on every rank, at the end of an optimizer step; the answer is on rank 0.

    Args:
        tensor_sizes: of the model, for the formula of what is exchanged.
        step_seconds: of one optimizer step, about, by which blocks get their length; rank 0's counts.
        tell: told (pairs done, pairs at most) between blocks.
    """
    passage = _Pass(config, world, engine, feed, device.stopwatch(), tensor_sizes, step_seconds, tell)
    keeps_state = world.all_agree(fits_in_host_memory(engine.engine, world.launch.local_world_size))
    with _left_as_it_was(engine, feed) if keeps_state else nullcontext():
        return passage.run("exchange_left_out" if keeps_state else "profiler")


@contextmanager
def _left_as_it_was(engine: TrialEngine, feed: TrainingFeed) -> Iterator[None]:
    state, position = EngineState(engine.engine), feed.position
    yield
    state.restore()
    feed.rewind(position)


class _Pass:
    """The blocks of one trial, on one rank."""

    def __init__(
        self,
        config: TrialConfig,
        world: World,
        engine: TrialEngine,
        feed: TrainingFeed,
        marks: Marks,
        tensor_sizes: TensorSizes,
        step_seconds: float,
        tell: Callable[[int, int], None],
    ) -> None:
        self.config, self.world, self.engine, self.feed = config, world, engine, feed
        self.marks, self.tensor_sizes, self.tell = marks, tensor_sizes, tell
        wanted = min(max(math.ceil(_BLOCK_SECONDS / step_seconds), _MIN_BLOCK_STEPS), _MAX_BLOCK_STEPS)
        self.block_steps = int(world.from_rank_0(wanted))

    def run(self, source: CommunicationSource) -> TakenApart | None:
        started, skipped_before = time.perf_counter(), self.engine.skipped_steps
        collectives = self.count()
        self.feed.take_input_seconds()
        pairs: list[Pair] = []
        profiles: list[RankProfile] = []
        if source == "exchange_left_out":
            if self.world.size > 1:
                with exchange_left_out():
                    self.step()  # what happens only once is in no block
            while self.goes_on(pairs, started):
                self.tell(len(pairs), MAX_PAIRS)
                pairs.append(self.pair(exchange_first=len(pairs) % 2 == 0))
            if self.world.size > 1:
                profiles = [self.profile() for _ in range(_PROFILES)]
        else:
            while self.goes_on(pairs, started):
                self.tell(len(pairs), MAX_PAIRS)
                block, profile = self.block(), self.profile()
                profiles.append(profile)
                pairs.append(Pair(block.step_seconds, self.seconds_beside_exchange(block, profile)))
        skipped = self.engine.skipped_steps - skipped_before
        of_ranks = self.world.gather(self.of_rank(profiles))
        return None if of_ranks is None else self.put_together(source, pairs, of_ranks, collectives, skipped)

    def goes_on(self, pairs: Sequence[Pair], started: float) -> bool:
        """At least four pairs; then until communication is known well enough, or the time is up."""
        return bool(self.world.from_rank_0(float(self._wants_more(pairs, started))))

    def _wants_more(self, pairs: Sequence[Pair], started: float) -> bool:
        if self.world.rank != 0 or len(pairs) < MIN_PAIRS:
            return True
        most = min(_SHARE_OF_MAX_SECONDS * self.config.measurement.max_seconds, _MOST_SECONDS)
        if len(pairs) >= MAX_PAIRS or time.perf_counter() - started >= most:
            return False
        seen = estimate(pairs)
        part = seen.communication or seen.compute
        assert part.ci95_high is not None
        return part.ci95_high - part.value > self.config.measurement.relative_ci * seen.step.value / 2

    def pair(self, *, exchange_first: bool) -> Pair:
        """Neighbouring blocks; which comes first changes from pair to pair, so that a drift falls on both alike."""
        if self.world.size == 1:
            block = self.block()
            return Pair(block.step_seconds, [block.steps])
        if exchange_first:
            exchanging, alone = self.block(), self.block_alone()
        else:
            alone, exchanging = self.block_alone(), self.block()
        return Pair(exchanging.step_seconds, self.world.all_gather(alone.steps))

    def block_alone(self) -> _Block:
        with exchange_left_out():
            return self.block()

    def block(self) -> _Block:
        """`block_steps` steps between barriers; each rank's own step ends, and its waits for batches, by its device."""
        self.world.barrier()
        start = time.perf_counter()
        self.marks.mark()
        for _ in range(self.block_steps):
            self.step()
            self.marks.mark()
        self.world.barrier()
        seconds = time.perf_counter() - start
        return _Block(seconds / self.block_steps, self.own_steps(self.marks.seconds()))

    def step(self) -> None:
        self.engine.train_step(self.next_batch)

    def next_batch(self) -> Batch:
        self.marks.mark()
        batch = self.feed.next()
        self.marks.mark()
        return batch

    def own_steps(self, between_marks: Sequence[float]) -> list[AloneStep]:
        """A step has two marks around each batch and one at its end: every other stretch is a wait for a batch."""
        marks = 2 * self.config.gradient_accumulation_steps + 1
        steps = [between_marks[at : at + marks] for at in range(0, len(between_marks), marks)]
        return [AloneStep(sum(step), sum(step[1::2])) for step in steps]

    def count(self) -> list[Collective]:
        """One step of the training whose collectives are counted."""
        with counted_traffic() as traffic:
            self.step()
        self.marks.seconds()
        return traffic.collectives()

    def profile(self) -> RankProfile:
        self.world.barrier()
        profile = profile_step(self.step, self.world.device)
        self.marks.seconds()
        return profile

    def seconds_beside_exchange(self, block: _Block, profile: RankProfile) -> list[list[AloneStep]]:
        """Each rank's step less its exposed collectives, waiting for others among them."""
        exposed = sum(exposed_seconds(profile))
        wait = fmean(step.data_wait_seconds for step in block.steps)
        own = AloneStep(block.step_seconds - exposed, wait)
        return [[of_rank] for of_rank in self.world.all_gather(own)]

    def of_rank(self, profiles: Sequence[RankProfile]) -> _OfRank:
        seconds = self.feed.take_input_seconds()
        accumulation = self.config.gradient_accumulation_steps
        return _OfRank(
            exposed=[exposed_seconds(profile) for profile in profiles],
            collective_seconds=[[span.end - span.start for span in profile.collectives] for profile in profiles],
            decode_seconds=accumulation * fmean(seconds.decode) if seconds.decode else None,
            copy_seconds=accumulation * fmean(seconds.copy) if seconds.copy else None,
        )

    def put_together(
        self,
        source: CommunicationSource,
        pairs: Sequence[Pair],
        of_ranks: Sequence[_OfRank],
        collectives: list[Collective],
        skipped: int,
    ) -> TakenApart:
        estimates = estimate(pairs)
        exposed = _of_each_profile([rank.exposed for rank in of_ranks])
        whole = _of_each_profile([rank.collective_seconds for rank in of_ranks])
        notes = []
        if source == "profiler":
            notes.append(
                "the host's memory does not take a copy of the training's state: communication is from the profiler, "
                "not from steps without the exchange"
            )
        if skipped:
            notes.append(f"{skipped} steps were skipped for an overflow while the step was taken apart")
        if estimates.communication is None:
            notes.append("communication_seconds, communication_share: one worker exchanges nothing")
        parts = StepParts(
            source=source,
            pairs=len(pairs),
            steps_per_block=self.block_steps,
            step=estimates.step,
            compute=estimates.compute,
            data_wait=estimates.data_wait,
            straggler_wait=estimates.straggler_wait,
            straggler_persistent=estimates.straggler_persistent,
            straggler_jitter=estimates.straggler_jitter,
            communication=estimates.communication,
            communication_share=estimates.communication_share,
            slowest_rank=estimates.slowest_rank,
            profiled_communication=mean_with_interval(exposed) if exposed else None,
            profiled_collectives_seconds=fmean(whole) if whole else None,
            decode=_over_ranks([rank.decode_seconds for rank in of_ranks]),
            copy_to_device=_over_ranks([rank.copy_seconds for rank in of_ranks]),
            collectives=collectives,
            wire_bytes=total_wire_bytes(collectives),
            estimated_wire_bytes=total_wire_bytes(step_traffic(self.config, self.tensor_sizes)),
        )
        return TakenApart(parts, estimates, notes)


def _of_each_profile(of_ranks: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """The seconds without waiting; none where the ranks saw unlike collectives."""
    found = [without_waiting(profile) for profile in zip(*of_ranks, strict=True)]
    return [seconds for seconds in found if seconds is not None]


def _over_ranks(seconds: Sequence[float | None]) -> Measured | None:
    known = [value for value in seconds if value is not None]
    return Measured(value=fmean(known)) if known else None
