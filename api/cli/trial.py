"""One trial: what became of it, where its steps' time goes, its workers, and what the links between them carry."""

from collections.abc import Sequence

from api.cli.console import Grid, printable, write
from api.cli.tables import gibibytes, number, parameters_line, with_interval
from service.views import AttemptView, RankView, TrialView
from trainers.parts.rows import LinkRow, Measured, StepParts

_NONE = "-"
_PARTS = {
    "compute": "compute",
    "data_wait": "data: waiting for the next batch",
    "straggler_wait": "wait: for the slowest worker",
    "straggler_persistent": "  always for the same",
    "straggler_jitter": "  now this one, now that",
    "communication": "communication, exposed",
}
_SOURCES = {
    "exchange_left_out": "steps with and without the exchange, in turn",
    "profiler": "a profile of its steps",
}


def write_trial(trial: TrialView, keys: Sequence[str]) -> None:
    """The trial and the attempt whose result stands, or else the last one. `keys`: what varies in the study."""
    outcome = trial.state if trial.reason is None else f"{trial.state} ({trial.reason})"
    write(f"trial {trial.trial} ({parameters_line(trial.parameters, keys)}): {outcome}, {_times(trial.attempt)}")
    if trial.skip_reason is not None:
        write(f"skipped: {printable(trial.skip_reason)}")
    if trial.error is not None:
        where = "" if trial.error.rank is None else f" on rank {trial.error.rank}"
        write(f"error{where}: {printable(' '.join(f'{trial.error.type}: {trial.error.message}'.split()))}")
    attempt = _shown(trial.attempts)
    if attempt is None:
        return
    if attempt.parts is not None:
        write()
        _write_parts(attempt.parts)
    if trial.ranks:
        write()
        _write_ranks(trial.ranks)
    if attempt.links:
        write()
        _write_links(attempt.links)
    for note in attempt.quality.notes if attempt.quality is not None else ():
        write(f"note: {printable(note)}")


def _times(attempts: int) -> str:
    return {0: "not run yet", 1: "1 attempt"}.get(attempts, f"{attempts} attempts")


def _shown(attempts: Sequence[AttemptView]) -> AttemptView | None:
    with_result = [attempt for attempt in attempts if attempt.metrics is not None]
    candidates = with_result or attempts
    return candidates[-1] if candidates else None


def _write_parts(parts: StepParts) -> None:
    step = parts.step
    source = f"{_SOURCES[parts.source]} ({parts.pairs} blocks of {parts.steps_per_block} each)"
    write(f"A step of {_measured(step, 1e3)} ms, by {source}:")
    grid = Grid("part", "ms ±95 %", "of it", numeric=[False, True, True])
    for name, words in _PARTS.items():
        part: Measured | None = getattr(parts, name)
        share = None if part is None or step.value <= 0 else part.value / step.value
        grid.add(words, _measured(part, 1e3), _NONE if share is None else f"{share:.1%}")
    grid.write()
    if parts.profiled_communication is not None and parts.source != "profiler":
        write(f"By a profile, communication is {_measured(parts.profiled_communication, 1e3)} ms.")
    for part, words in (
        (parts.decode, "The loader decodes for"),
        (parts.copy_to_device, "The copy to the device takes"),
    ):
        if part is not None:
            write(f"{words} {_measured(part, 1e3)} ms a step.")
    if parts.wire_bytes is not None:
        formula = (
            "" if parts.estimated_wire_bytes is None else f" (by formula {number(parts.estimated_wire_bytes / 1e6)})"
        )
        write(f"Each worker sends {number(parts.wire_bytes / 1e6)} MB a step{formula}.")


def _write_ranks(ranks: Sequence[RankView]) -> None:
    are_apart = any(rank.compute_seconds is not None for rank in ranks)
    headers = ["rank", "node", "device", "peak\nGiB"]
    parts = ["compute\nms", "data\nms", "wait\nms"] if are_apart else []
    grid = Grid(*headers, *parts, numeric=[True, False, False, True, *[True] * len(parts)])
    for rank in ranks:
        seconds = (rank.compute_seconds, rank.data_wait_seconds, rank.straggler_wait_seconds)
        grid.add(
            str(rank.rank),
            rank.node or _NONE,
            rank.device or _NONE,
            _NONE if rank.peak_memory_bytes is None else gibibytes(rank.peak_memory_bytes),
            *(([_NONE if one is None else number(one * 1e3) for one in seconds]) if are_apart else []),
        )
    grid.write()


def _write_links(links: Sequence[LinkRow]) -> None:
    write("Links, by all-reduces of several sizes (each takes latency + bytes sent / bandwidth):")
    grid = Grid("between", "latency\nms ±95 %", "bandwidth\nMB/s ±95 %", numeric=[False, True, True])
    for link in links:
        latency, bandwidth = _measured(link.alpha_seconds, 1e3), _measured(link.beta_bytes_per_second, 1e-6)
        grid.add(_between(link), latency, bandwidth)
    grid.write()
    for link in links:
        if link.note is not None:
            write(f"note: {_between(link)}: {printable(link.note)}")


def _between(link: LinkRow) -> str:
    return printable(" and ".join(link.nodes)) if link.kind == "pair" else f"all {len(link.ranks)} workers"


def _measured(part: Measured | None, times: float) -> str:
    """The mean in another unit, with its interval."""
    return _NONE if part is None else with_interval(part.value, part.ci95_low, part.ci95_high, times=times)
