"""Whether others used the cores that a trial wanted. Pure: readings in, verdicts out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainers.telemetry.readings import CoreCounters, CorePool, ProcessUse, RankReadings
from trainers.telemetry.rows import CoresRow, ProcessRow

# What others may take of the cores a trial wants before its time is doubted, in cores. A head of Ray with its
# dashboard, the leader of a trial, and VitScale's own server and client use 0.13 to 0.16 together (measured on two
# cores); a process that computes takes its fair share of a core, half of one or more.
OTHERS_CORES: Final = 0.2
# ... or so much of one rank's cores, where a rank has many. Of one rank and not of all: what others take they may take
# from a single rank, and all wait for the slowest.
OTHERS_SHARE: Final = 0.10
# A hypervisor's steal cannot be argued with: what it takes, a step gets longer by. Quiet virtual machines stay below
# one percent.
STEAL_SHARE: Final = 0.03
# The kernel counts processor time in ticks of 10 ms (proc(5), USER_HZ); each core's count may be one off at each
# reading, and independent errors add up as their root. Less than twice that is nothing.
_TICK_SECONDS: Final = 0.01
_KEPT_PROCESSES: Final = 10
_NAMED_PROCESSES: Final = 3  # in the note
_MENTIONED_CORES: Final = 0.01


@dataclass(frozen=True)
class CoreVerdict:
    """One pool of cores: what is told of it, and why the trial was contended there (empty: it was not)."""

    row: CoresRow
    reasons: list[str]


def judge_cores(ranks: Sequence[RankReadings]) -> list[CoreVerdict]:
    """One verdict for each pool of cores whose counters were read in at least one window."""
    verdicts = []
    for pool in dict.fromkeys(pool for rank in ranks for pool in rank.pools):
        members = [rank for rank in ranks if pool in rank.pools]
        reader = next((rank for rank in members if _counted(rank, pool)), None)
        if reader is not None:
            own_pids = {pid for rank in ranks if rank.machine == reader.machine for pid in rank.pids}
            verdicts.append(_judge(pool, members, reader, own_pids))
    return verdicts


def excess_cores(others_cores: float, wanted_cores: float, cores: float) -> float:
    """Of the cores that a trial wanted, those that others had: what they used beyond what it would have left free.

    A trial that wants more than there is loses everything that others use; one that leaves cores free loses nothing to
    those who stay on them.
    """
    return max(0.0, min(others_cores, others_cores + wanted_cores - cores))


def _judge(pool: CorePool, members: Sequence[RankReadings], reader: RankReadings, own_pids: set[int]) -> CoreVerdict:
    counted = _counted(reader, pool)
    seconds = sum(window_seconds for window_seconds, _, _ in counted)
    busy = sum(after.busy_seconds - before.busy_seconds for _, before, after in counted)
    pairs = [(window.before, window.after) for rank in members for window in rank.windows]
    own = sum(after.own_cpu_seconds - before.own_cpu_seconds for before, after in pairs)
    children = sum(after.children_cpu_seconds - before.children_cpu_seconds for before, after in pairs)
    others_cores = max(0.0, busy - own) / seconds
    steal = [
        after.steal_seconds - before.steal_seconds
        for _, before, after in counted
        if after.steal_seconds is not None and before.steal_seconds is not None
    ]
    steal_share = max(0.0, sum(steal)) / max(busy + sum(steal), 1e-9) if steal else None
    row = CoresRow(
        node=reader.node,
        ranks=[rank.rank for rank in members],
        limit=pool.limit,
        cores=pool.cores,
        trial_cores=own / seconds,
        others_cores=others_cores,
        steal_share=steal_share,
        others=_others(reader.processes, own_pids),
    )
    # Its threads want a core each, whatever they got; of loader workers nobody knows more than what they used.
    wanted = sum(rank.num_threads for rank in members) + children / seconds
    excess = excess_cores(others_cores, wanted, pool.cores)
    resolution = 2 * _TICK_SECONDS * math.sqrt(2 * pool.cores * len(counted)) / seconds
    reasons = []
    tolerated = max(OTHERS_CORES, OTHERS_SHARE * wanted / len(members), resolution)
    if excess > tolerated:
        reasons.append(
            f"others used {others_cores:.2f} of {pool.cores:g} cores ({pool.limit}) of {reader.node} where the trial "
            f"wanted {wanted:.2f}: {_who(row.others, others_cores - _seen_cores(reader.processes, own_pids))}"
        )
    if steal_share is not None and steal_share > STEAL_SHARE and sum(steal) > resolution * seconds:
        reasons.append(f"the hypervisor took {steal_share:.1%} of the processor time wanted on {reader.node} (steal)")
    return CoreVerdict(row, reasons)


def _counted(rank: RankReadings, pool: CorePool) -> list[tuple[float, CoreCounters, CoreCounters]]:
    """(seconds, counters before, counters after) of each window in which this rank read the pool's counters."""
    if pool not in rank.pools:
        return []
    place = rank.pools.index(pool)
    found = []
    for window in rank.windows:
        if place < len(window.before.pools) and place < len(window.after.pools) and window.seconds > 0:
            before, after = window.before.pools[place], window.after.pools[place]
            if before is not None and after is not None:
                found.append((window.seconds, before, after))
    return found


def _others(processes: Sequence[ProcessUse], own_pids: set[int]) -> list[ProcessRow]:
    busiest = sorted((use for use in processes if use.pid not in own_pids), key=lambda use: -use.cores)
    return [
        ProcessRow(name=use.name, pid=use.pid, cores=round(use.cores, 3))
        for use in busiest[:_KEPT_PROCESSES]
        if use.cores >= _MENTIONED_CORES
    ]


def _seen_cores(processes: Sequence[ProcessUse], own_pids: set[int]) -> float:
    return sum(use.cores for use in processes if use.pid not in own_pids)


def _who(others: Sequence[ProcessRow], unseen_cores: float) -> str:
    named = [f"{row.name} (pid {row.pid}) {row.cores:.2f}" for row in others[:_NAMED_PROCESSES]]
    if unseen_cores > OTHERS_CORES / 2:
        named.append(f"processes that had ended or cannot be seen from here {unseen_cores:.2f}")
    return ", ".join(named)
