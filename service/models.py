"""The models that are offered, with what planning must know of them; read from model_table.json, which
`python -m trainers.model_table` regenerates from timm."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field

from service.spelling import closest


class ParameterTerms(BaseModel):
    """The closed form of a model's parameter count (see `trainers.model_table`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    constant: int
    per_position: int
    per_patch_pixel: int
    per_class: int


class ModelFacts(BaseModel):
    """One Vision Transformer of timm. Sizes are pixels of a square's side."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    patch_size: int = Field(ge=1)
    image_size: int = Field(ge=1)  # its default
    depth: int = Field(ge=1)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    mlp_ratio: float | None  # null: the block is not timm's plain one
    class_token: bool
    register_tokens: int
    distilled: bool
    pooling: str
    plain: bool  # every block is timm's plain one
    parameter_count: int = Field(ge=1)  # at 1000 classes, its own image and patch size
    parameters: ParameterTerms
    # Of the model's tensors: [how many, constant, per_position, per_patch_pixel, per_class], as `parameters` is of all.
    tensors: list[tuple[int, int, int, int, int]]

    def tensor_sizes_at(self, image_size: int, patch_size: int, num_classes: int) -> tuple[tuple[int, int], ...]:
        """(elements, how many such tensors) of the model built for these sizes and this many classes."""
        positions, pixels = (image_size // patch_size) ** 2, patch_size**2
        return tuple(
            (constant + per_position * positions + per_patch_pixel * pixels + per_class * num_classes, count)
            for count, constant, per_position, per_patch_pixel, per_class in self.tensors
        )

    def parameter_count_at(self, image_size: int, patch_size: int, num_classes: int) -> int:
        """Parameters of the model built for these sizes and this many classes."""
        terms = self.parameters
        return (
            terms.constant
            + terms.per_position * (image_size // patch_size) ** 2
            + terms.per_patch_pixel * patch_size**2
            + terms.per_class * num_classes
        )


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    timm: str
    models: list[ModelFacts]


@cache
def model_table() -> Mapping[str, ModelFacts]:
    """All offered models by name."""
    table = _Table.model_validate(json.loads(files("service").joinpath("model_table.json").read_text("utf-8")))
    return MappingProxyType({facts.name: facts for facts in table.models})


def did_you_mean_model(name: str) -> str:
    """A hint for an unknown model's name."""
    names = closest(name, model_table(), count=3)
    if names:
        return f"did you mean {' or '.join(names)}?"
    return "any VisionTransformer or DeiT of timm, e.g. vit_base_patch16_224 or vit_tiny_patch16_224"
