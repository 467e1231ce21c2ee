"""The verdict on a measurement from what its ranks read: flags, a note for each cause, and the rows to keep. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trainers.telemetry.cores import judge_cores
from trainers.telemetry.devices import judge_devices
from trainers.telemetry.readings import RankReadings
from trainers.telemetry.rows import Telemetry

CONTENDED: Final = "contended"
THROTTLED: Final = "throttled"
SHARED_GPU: Final = "shared_gpu"
CLOCK_MISMATCH: Final = "clock_mismatch"


@dataclass(frozen=True)
class Verdict:
    """`flags` for `quality.flags`, `notes` for `quality.notes`."""

    telemetry: Telemetry | None = None
    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge(ranks: Sequence[RankReadings], measured_steps: int) -> Verdict:
    """Over the windows that the ranks kept, which had `measured_steps` optimizer steps in all."""
    if not ranks or measured_steps < 1:
        return Verdict()
    cores, devices = judge_cores(ranks), judge_devices(ranks)
    causes = {
        CONTENDED: [reason for verdict in cores for reason in verdict.reasons] + devices.contended,
        THROTTLED: devices.throttled,
        SHARED_GPU: devices.shared,
        CLOCK_MISMATCH: devices.mismatched,
    }
    notes = [f"{flag}: {cause}" for flag, found in causes.items() for cause in found]
    notes += devices.notes + list(dict.fromkeys(note for rank in ranks for note in rank.notes))
    if not cores:
        notes.append("whether others used the cores is not known: the machine does not tell its processor time")
    telemetry = Telemetry(
        cores=[verdict.row for verdict in cores],
        devices=devices.rows,
        windows=max(len(rank.windows) for rank in ranks),
        reading_seconds_per_step=max(sum(w.reading_seconds for w in rank.windows) for rank in ranks) / measured_steps,
        scan_seconds=max(rank.scan_seconds for rank in ranks),
    )
    return Verdict(telemetry, [flag for flag, found in causes.items() if found], notes)
