"""Makes service/reference/paper/*.csv from the paper's logs: `paper_studies.py EPOCHS_CSV STEPS_CSV_GZ FOLDER`.

EPOCHS_CSV has a row per (run_id, epoch, gpu_model): seconds as the mean over the `ranks` with that GPU. STEPS_CSV_GZ
has a row per (run_id, epoch, step): rank 0's compute (forward + backward) and all-reduce milliseconds. Out come the
columns that `service.measured_rows` reads, a file for each (cluster, topology, data set, mode): per epoch a row
with the mean over ranks, and, where steps were logged, one of rank 0 with the means over the epoch's steps.
"""

import csv
import gzip
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

WEAK_FRACTION = 0.1  # of the data set per worker; any other fraction is of the whole
RANK_ORDER = ("NVIDIA GeForce RTX 3070", "Tesla P4", "NVIDIA GeForce GTX 1070", "Tesla T4")
COLUMNS = (
    "run", "world_size", "nodes", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
    "zero_stage", "precision", "placement", "model", "dataset", "dataset_fraction", "device", "steps_per_epoch",
    "epoch", "rank", "epoch_seconds", "compute_seconds", "communication_seconds", "loss", "accuracy",
)  # fmt: skip


def main(epochs: Path, steps: Path, folder: Path) -> None:
    parts = _rank_0_parts(steps)
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with epochs.open(newline="") as file:
        for row in csv.DictReader(file):
            groups[row["run_id"], row["epoch"]].append(row)
    studies: dict[str, list[dict[str, object]]] = defaultdict(list)
    for (run, epoch), rows in groups.items():
        mode = "weak" if _is_weak(rows[0]) else "strong"
        name = "-".join([rows[0][key] for key in ("cluster", "topology", "dataset")] + [mode])
        studies[name] += _epoch_rows(run, int(epoch), rows, mode, parts.get((run, epoch)))
    for name, rows_of_study in studies.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows_of_study)


def _rank_0_parts(steps: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Compute and all-reduce seconds per step, the mean over all logged steps of each (run, epoch)."""
    compute, exchange = defaultdict(list), defaultdict(list)
    with gzip.open(steps, "rt", newline="") as file:
        for row in csv.DictReader(file):
            compute[row["run_id"], row["epoch"]].append(float(row["compute_ms"]) / 1e3)
            exchange[row["run_id"], row["epoch"]].append(float(row["allreduce_ms"]) / 1e3)
    return {key: (fmean(compute[key]), fmean(exchange[key])) for key in compute}


def _is_weak(row: dict[str, str]) -> bool:
    return abs(float(row["dataset_fraction"]) / int(row["gpus"]) - WEAK_FRACTION) < 1e-9


def _epoch_rows(
    run: str, epoch: int, rows: list[dict[str, str]], mode: str, parts: tuple[float, float] | None
) -> list[dict[str, object]]:
    first = rows[0]
    by_gpu = sorted(rows, key=lambda row: RANK_ORDER.index(row["gpu_model"]))
    counts = [int(row["ranks"]) for row in by_gpu]

    def over_ranks(key: str) -> float:
        return round(sum(n * float(row[key]) for n, row in zip(counts, by_gpu, strict=True)) / sum(counts), 6)

    shared: dict[str, object] = {
        "run": run,
        "world_size": first["gpus"],
        "nodes": first["nodes"],
        "train_micro_batch_size_per_gpu": first["per_gpu_batch"],
        "gradient_accumulation_steps": 1,
        "train_batch_size": int(first["per_gpu_batch"]) * int(first["gpus"]),
        "zero_stage": 0,
        "precision": first["precision"],
        "placement": first["topology"],
        "model": "vit_base_patch16_224",
        "dataset": first["dataset"],
        "dataset_fraction": WEAK_FRACTION if mode == "weak" else first["dataset_fraction"],
        "steps_per_epoch": first["steps_per_epoch"],
        "epoch": epoch,
    }
    devices = [row["gpu_model"] for row in by_gpu]
    listed = "; ".join(f"{n} x {gpu}" for n, gpu in zip(counts, devices, strict=True)) if devices[1:] else devices[0]
    mean = {key: over_ranks(key) for key in ("epoch_seconds", "loss", "accuracy")}
    made = [{**shared, "device": listed, **mean}]
    if parts is not None:
        compute, exchange = (round(seconds, 6) for seconds in parts)
        made.append({**shared, "rank": 0, "compute_seconds": compute, "communication_seconds": exchange})
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
