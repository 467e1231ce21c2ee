"""All of it together: CSV text to the trials of a study, and the specification that is stored with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.analysis.scaling import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH, Hold, Mode
from service.canonical import canonical_json
from service.measured_rows.columns import PARAMETERS
from service.measured_rows.errors import Problems
from service.measured_rows.runs import read_runs
from service.measured_rows.table import parse_renames, read_table
from service.measured_rows.trials import MeasuredTrial, to_trials


@dataclass(frozen=True)
class MeasuredStudy:
    """What the rows say. `mode` is the importer's word; `hold` follows from the rows."""

    mode: Mode
    hold: Hold
    trials: Sequence[MeasuredTrial]

    def spec(self) -> dict[str, Any]:
        """What is stored where a planned study has its specification: `imported` is true, and `scaling`,
        `parameters` and `measurement.repeats` read as there. `parameters` has the values that occur, not a product:
        not every combination of them was measured. The batch key that `hold` derives is left out."""
        repeats = 1 + max(trial.repeat for trial in self.trials)
        return {
            "imported": True,
            "scaling": {"mode": self.mode, "hold": self.hold, "baseline_world_size": None},
            "parameters": self._axes(),
            "measurement": {"repeats": repeats},
        }

    def _axes(self) -> dict[str, Any]:
        axes: dict[str, Any] = {}
        for name in PARAMETERS:
            values = {
                canonical_json(value): value
                for trial in self.trials
                if (value := trial.parameters.get(name)) is not None
            }
            if values and name not in self._derived():
                found = sorted(values.values(), key=lambda value: (isinstance(value, str), value))
                axes[name] = {"value": found[0]} if len(found) == 1 else {"values": found}
        return axes

    def _derived(self) -> frozenset[str]:
        """As `service.analysis.scaling.derived_batch_keys` will find it from what is left."""
        if self.hold == "micro_batch":
            return frozenset({GLOBAL_BATCH})
        accumulations = {trial.parameters.get(ACCUMULATION) for trial in self.trials}
        return frozenset({MICRO_BATCH}) if len(accumulations) == 1 else frozenset({ACCUMULATION})


def read_measured_rows(text: str, *, mode: Mode = "none", renames: Sequence[str] = ()) -> MeasuredStudy:
    """The study in CSV text (see the package for its columns).

    Args:
        mode: strong, weak (dataset_fraction is per worker) or none, as in a spec's `scaling.mode`.
        renames: `theirs=ours` for each column that has another name, `theirs=` for one to pass over.

    Raises:
        RowsInvalid: all that is wrong, by line and column.
        BadRequest: a rename is no such thing.
    """
    problems = Problems()
    table = read_table(text, parse_renames(renames), problems)
    runs = read_runs(table.rows, problems)
    trials = to_trials(runs, table.columns, problems)
    problems.raise_any()
    return MeasuredStudy(mode, _hold(trials), trials)


def _hold(trials: Sequence[MeasuredTrial]) -> Hold:
    """What stays as it is while the world size changes: the micro batch and accumulation, or the global batch."""
    if any(trial.parameters.get(MICRO_BATCH) is None for trial in trials):
        return "global_batch"
    per_worker: dict[int, set[object]] = {}
    together: dict[int, set[object]] = {}
    for trial in trials:
        size = int(trial.parameters["world_size"])
        shares = (trial.parameters.get(MICRO_BATCH), trial.parameters.get(ACCUMULATION))
        per_worker.setdefault(size, set()).add(shares)
        together.setdefault(size, set()).add(trial.parameters.get(GLOBAL_BATCH))
    return "global_batch" if _is_shared(together) and not _is_shared(per_worker) else "micro_batch"


def _is_shared(by_world_size: dict[int, set[object]]) -> bool:
    """Whether some value is there at every one of at least two world sizes."""
    return len(by_world_size) > 1 and bool(set.intersection(*by_world_size.values()))
