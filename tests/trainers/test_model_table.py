"""The table the planner reads, held against timm. `python -m trainers.model_table` makes it anew."""

import json
import random
from typing import Any

import pytest

from trainers.model_table import (
    DEFAULT_OUTPUT,
    build_on_meta,
    closed_form_parameters,
    count_parameters,
    describe,
    offered_names,
)

TABLE: dict[str, Any] = json.loads(DEFAULT_OUTPUT.read_text(encoding="utf-8"))
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in TABLE["models"]}
# A fixed choice over the families; building all of them takes minutes.
SAMPLE = [
    "vit_tiny_patch16_224",
    "vit_base_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "deit3_small_patch16_224",
    "vit_little_patch16_reg4_gap_256",
    "vit_xsmall_patch16_clip_224",
]


@pytest.mark.slow
def test_it_was_made_from_the_installed_timm_and_offers_its_families() -> None:
    import timm

    assert TABLE["timm"] == timm.__version__
    assert set(ROWS) <= set(offered_names())
    assert {"vit_large_patch16_224", "vit_huge_patch14_224", "vit_small_patch16_224", *SAMPLE} <= set(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_what_timm_says(name: str) -> None:
    assert describe(name) == ROWS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLE[:3], random.Random(TABLE["timm"]).choice(sorted(ROWS))])
@pytest.mark.parametrize("image_size", [96, 160])
def test_the_parameter_count_holds_at_other_image_sizes(name: str, image_size: int) -> None:
    row = ROWS[name]
    patch_size, num_classes = 8, 100
    model = build_on_meta(name, img_size=image_size, patch_size=patch_size, num_classes=num_classes)
    assert closed_form_parameters(row, image_size, patch_size, num_classes) == count_parameters(model)


@pytest.mark.slow
def test_vit_base_has_86_567_656_parameters() -> None:
    # As published with timm's weights of vit_base_patch16_224 (86.57 M).
    assert ROWS["vit_base_patch16_224"]["parameter_count"] == 86_567_656
    row = ROWS["vit_base_patch16_224"]
    assert closed_form_parameters(row, 224, 16, 1000) == 86_567_656
    assert (row["depth"], row["width"], row["heads"], row["mlp_ratio"]) == (12, 768, 12, 4.0)
