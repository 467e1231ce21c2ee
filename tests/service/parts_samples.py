"""A step taken apart, for tests: valid, adding up, and easy to bend."""

from typing import Any

from tests.service.factories import rank_row, trial_result
from trainers.parts.rows import Collective, LinkPoint, LinkRow, Measured, RankParts, StepParts
from trainers.result import TrialResult


def measured(value: float, half_width: float | None = None) -> Measured:
    if half_width is None:
        return Measured(value=value)
    return Measured(value=value, ci95_low=value - half_width, ci95_high=value + half_width)


def step_parts(**fields: Any) -> StepParts:
    """A step of 100 ms among two: 50 ms computing, 2 ms waiting for data, 8 ms for the slower one, 40 ms exchanging."""
    defaults: dict[str, Any] = {
        "source": "exchange_left_out",
        "pairs": 6,
        "steps_per_block": 10,
        "step": measured(0.100, 0.002),
        "compute": measured(0.050, 0.001),
        "data_wait": measured(0.002, 0.0005),
        "straggler_wait": measured(0.008, 0.001),
        "straggler_persistent": measured(0.006, 0.001),
        "straggler_jitter": measured(0.002, 0.001),
        "communication": measured(0.040, 0.003),
        "communication_share": measured(0.40, 0.03),
        "slowest_rank": 1,
        "collectives": [Collective(operation="all_reduce", calls=2, payload_bytes=22_000_000, wire_bytes=22_000_000.0)],
        "wire_bytes": 22_000_000.0,
        "estimated_wire_bytes": 22_000_000.0,
    }
    return StepParts(**{**defaults, **fields})


def part_metrics(parts: StepParts) -> dict[str, Any]:
    """The keys of a results row that say the same."""
    shown: dict[str, Any] = {}
    for name in ("compute", "data_wait", "straggler_wait", "communication", "communication_share"):
        key = name if name.endswith("share") else f"{name}_seconds"
        part: Measured | None = getattr(parts, name)
        for suffix, field in (("", "value"), ("_ci95_low", "ci95_low"), ("_ci95_high", "ci95_high")):
            shown[key + suffix] = None if part is None else getattr(part, field)
    return shown | {
        "straggler_persistent_seconds": parts.straggler_persistent.value,
        "straggler_jitter_seconds": parts.straggler_jitter.value,
        "communication_source": parts.source,
        "communication_wire_bytes": parts.wire_bytes,
    }


def rank_parts(compute: float, straggler_wait: float, communication: float = 0.040) -> dict[str, Any]:
    """Of a rank row, with 2 ms of waiting for data."""
    return {
        "compute_seconds": compute,
        "data_wait_seconds": 0.002,
        "straggler_wait_seconds": straggler_wait,
        "communication_seconds": communication,
        "parts": RankParts(
            compute=measured(compute, 0.001),
            data_wait=measured(0.002, 0.0005),
            straggler_wait=measured(straggler_wait, 0.001),
            communication=measured(communication, 0.003),
        ),
    }


def link_row(*nodes: str, beta: float = 12.5e6, kind: str = "pair", **fields: Any) -> LinkRow:
    """Among one rank of each of these nodes, `beta` bytes/s within 2 %."""
    sizes = (65_536, 1_048_576, 16_777_216)
    defaults: dict[str, Any] = {
        "kind": kind,
        "ranks": list(range(len(nodes))),
        "nodes": list(nodes),
        "points": [LinkPoint(size_bytes=size, repeats=5, seconds=measured(0.0002 + size / beta)) for size in sizes],
        "alpha_seconds": measured(0.0002, 0.0001),
        "beta_bytes_per_second": measured(beta, 0.02 * beta),
    }
    return LinkRow(**{**defaults, **fields})


def taken_apart_result(**fields: Any) -> TrialResult:
    """Two workers on two nodes, the second the slower one."""
    parts = step_parts()
    defaults: dict[str, Any] = {
        "metrics": part_metrics(parts),
        "ranks": [
            rank_row(0, **rank_parts(0.044, 0.014)),
            rank_row(1, node="n2", **rank_parts(0.056, 0.002)),
        ],
        "parts": parts,
        "links": [link_row("n1", "n2")],
    }
    return trial_result(**{**defaults, **fields})
