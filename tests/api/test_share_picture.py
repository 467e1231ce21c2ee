"""What docs/share_picture.py takes from the rows that `vitscale results ID --format json` prints."""

from typing import Any

import pytest

from docs.share_picture import MAX_LINES, SharePoint, shares_of
from service.views import ResultRow


def row(micro_batch: int, accumulation: int, share: float | None, **parameters: Any) -> ResultRow:
    """A share of plus and minus 2 percentage points on two threads of one machine."""
    ends = {"": 0.0, "_ci95_low": -0.02, "_ci95_high": 0.02}
    known = {} if share is None else {f"communication_share{name}": share + end for name, end in ends.items()}
    fixed = {"model": "vit_tiny_patch16_224", "patch_size": 4, "dataset": "digits", "image_size": 32}
    batch = {
        "world_size": 2,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": 2 * micro_batch * accumulation,
    }
    return ResultRow.model_validate(
        {
            "trial": 1,
            "repeat": 0,
            "attempt": 1,
            "state": "failed" if share is None else "succeeded",
            "reason": None,
            "parameters": {**fixed, "precision": "fp32", "zero_stage": 0, **batch, **parameters},
            "metrics": known,
            "quality": {},
            "overhead": {},
            "hardware": {"devices": ["Xeon", "Xeon"], "nodes": 1, "backend": "gloo", "num_threads": 1},
            "between_runs": None,
        }
    )


def test_each_run_with_a_share_is_a_point_in_percent_by_line_and_micro_batch() -> None:
    shares = shares_of([row(8, 1, 0.25), row(2, 4, -0.0125), row(2, 1, 0.5), row(2, 1, 0.375), row(4, 1, None)])
    found = [(point.accumulation, point.micro_batch, point.share) for point in shares.points]
    assert found == [(1, 2, 50.0), (1, 2, 37.5), (1, 8, 25.0), (4, 2, -1.25)]
    assert shares.points[2] == SharePoint(8, 1, 25.0, pytest.approx(23.0), pytest.approx(27.0))


def test_the_title_says_what_was_trained_and_where() -> None:
    shares = shares_of([row(2, 1, 0.4)])
    assert shares.what == "vit_tiny_patch16_224, patch 4, digits at 32 px, fp32, ZeRO 0"
    assert shares.where == "2 workers: 2 x Xeon (1 thread each)"


def test_rows_without_a_share_are_refused_with_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"communication: true"):
        shares_of([row(2, 1, None)])


def test_rows_that_one_line_cannot_join_are_refused_with_what_differs() -> None:
    with pytest.raises(ValueError, match="differ in model, world_size: take a study where only"):
        shares_of([row(2, 1, 0.4), row(4, 1, 0.2, world_size=4, model="vit_base_patch16_224")])
    elsewhere = row(4, 1, 0.2)
    elsewhere.hardware.devices[1] = "Opteron"
    with pytest.raises(ValueError, match="1 x Opteron, 1 x Xeon"):
        shares_of([row(2, 1, 0.4), elsewhere])
    with pytest.raises(ValueError, match=f"more than {MAX_LINES} values of gradient_accumulation_steps"):
        shares_of([row(2, accumulation, 0.4) for accumulation in range(1, MAX_LINES + 2)])
