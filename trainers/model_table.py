"""Regenerate the table of offered models: `python -m trainers.model_table [--output service/model_table.json]`.

The planner may not import torch, so what it must know of a model stands in a file. Every number is read from timm's own
model, built on the meta device (no memory, no weights). A model is offered when it is timm's VisionTransformer or the
distilled DeiT and its parameter count follows the closed form

    parameters = constant + per_position * (image_size // patch_size)^2
                 + per_patch_pixel * patch_size^2 + per_class * num_classes

which is checked at a second image size, patch size and class count. The same holds for each of its tensors, which are
listed as [how many, constant, per_position, per_patch_pixel, per_class]: DeepSpeed partitions tensor by tensor.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEFAULT_NUM_CLASSES = 1000
DEFAULT_OUTPUT = Path(__file__).parent.parent / "service" / "model_table.json"
_MODULES = ("timm.models.vision_transformer", "timm.models.deit")
_PREFIXES = ("vit_", "deit_", "deit3_", "flexivit_")


def offered_names() -> list[str]:
    """timm's names of the ViT and DeiT families, sorted."""
    import timm

    return sorted(
        name
        for name in timm.list_models()
        if name.startswith(_PREFIXES) and timm.model_entrypoint(name).__module__ in _MODULES
    )


def build_on_meta(name: str, **arguments: Any) -> Any:
    """timm's model `name` with shapes only: nothing is allocated and nothing is initialised."""
    import timm

    return timm.create_model(name, pretrained=False, device="meta", **arguments)


def count_parameters(model: Any) -> int:
    """Elements of all parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def closed_form_parameters(row: dict[str, Any], image_size: int, patch_size: int, num_classes: int) -> int:
    """The module's closed form, for a row of the table."""
    terms: dict[str, int] = row["parameters"]
    return (
        terms["constant"]
        + terms["per_position"] * (image_size // patch_size) ** 2
        + terms["per_patch_pixel"] * patch_size**2
        + terms["per_class"] * num_classes
    )


def describe(name: str) -> dict[str, Any] | None:
    """One row of the table, or None where the model does not follow the closed form (it is then not offered)."""
    from timm.layers.mlp import Mlp
    from timm.layers.patch_embed import PatchEmbed
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Attention, Block, VisionTransformer

    model = build_on_meta(name, num_classes=DEFAULT_NUM_CLASSES)
    if type(model) not in (VisionTransformer, VisionTransformerDistilled) or type(model.patch_embed) is not PatchEmbed:
        return None
    patch_size, image_size = model.patch_embed.patch_size[0], model.patch_embed.img_size[0]
    width, block = model.embed_dim, model.blocks[0]
    # The closed form of the FLOPs holds for this kind of block only; others are counted on the built model.
    is_plain = type(block) is Block and type(block.mlp) is Mlp and type(block.attn) is Attention
    is_plain = is_plain and model.attn_pool is None
    is_distilled = isinstance(model, VisionTransformerDistilled)
    terms = {
        "constant": 0,
        "per_position": 0 if model.pos_embed is None else width,
        "per_patch_pixel": model.patch_embed.proj.in_channels * width,
        "per_class": (model.head.in_features + 1) * (2 if is_distilled else 1),
    }
    row: dict[str, Any] = {
        "name": name,
        "patch_size": patch_size,
        "image_size": image_size,
        "depth": len(model.blocks),
        "width": width,
        "heads": _heads(block),
        "mlp_ratio": block.mlp.fc1.out_features / width if is_plain else None,
        "class_token": bool(model.has_class_token),
        "register_tokens": int(model.num_reg_tokens),
        "distilled": is_distilled,
        "pooling": model.global_pool,
        "plain": is_plain,
        "parameter_count": count_parameters(model),
        "parameters": terms,
    }
    terms["constant"] = row["parameter_count"] - closed_form_parameters(
        row, image_size, patch_size, DEFAULT_NUM_CLASSES
    )
    row["tensors"] = _tensors(model)
    other = {"img_size": 6 * (patch_size + 2), "patch_size": patch_size + 2, "num_classes": 10}
    rebuilt = build_on_meta(name, **other)
    if count_parameters(rebuilt) != closed_form_parameters(row, *other.values()):
        return None
    if sorted(closed_form_tensors(row, *other.values())) != sorted(p.numel() for p in rebuilt.parameters()):
        return None
    return row


def closed_form_tensors(row: dict[str, Any], image_size: int, patch_size: int, num_classes: int) -> list[int]:
    """Elements of each of the model's tensors, for a row of the table."""
    factors = (1, (image_size // patch_size) ** 2, patch_size**2, num_classes)
    return [
        sum(term * factor for term, factor in zip(terms, factors, strict=True))
        for count, *terms in row["tensors"]
        for _ in range(count)
    ]


def _tensors(model: Any) -> list[list[int]]:
    """How many tensors there are of each closed form, the largest constants first."""
    patches, patch_pixels = model.patch_embed.num_patches, model.patch_embed.patch_size[0] ** 2
    counts: Counter[tuple[int, ...]] = Counter()
    for name, parameter in model.named_parameters():
        size, per_position, per_patch_pixel, per_class = parameter.numel(), 0, 0, 0
        if name == "pos_embed":
            per_position = model.embed_dim
        elif name == "patch_embed.proj.weight":
            per_patch_pixel = size // patch_pixels
        elif name.split(".")[0] in ("head", "head_dist"):
            per_class = size // DEFAULT_NUM_CLASSES
        varying = per_position * patches + per_patch_pixel * patch_pixels + per_class * DEFAULT_NUM_CLASSES
        counts[size - varying, per_position, per_patch_pixel, per_class] += 1
    return [[counts[terms], *terms] for terms in sorted(counts, reverse=True)]


def _heads(block: Any) -> int:
    for owner in (block, getattr(block, "attn", None), *(getattr(block, "attns", None) or [])):
        heads = getattr(owner, "num_heads", None) or getattr(getattr(owner, "attn", None), "num_heads", None)
        if heads:
            return int(heads)
    raise ValueError(f"cannot tell the number of attention heads of a {type(block).__name__}")


def build_table() -> dict[str, Any]:
    """The whole table: the timm version it was read from, and one row per offered model, by name."""
    import timm

    return {"timm": timm.__version__, "models": list(_rows())}


def _rows() -> Iterator[dict[str, Any]]:
    for name in offered_names():
        row = describe(name)
        if row is None:
            print(f"not offered: {name} (does not follow the closed form)", file=sys.stderr)
        else:
            yield row


def as_text(table: dict[str, Any]) -> str:
    """The table as JSON, one model a line, so that a change of timm shows as a change of lines."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in table["models"])
    return f'{{\n "timm": {json.dumps(table["timm"])},\n "models": [\n{rows}\n ]\n}}\n'


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainers.model_table", description=__doc__)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    options = parser.parse_args(arguments)
    table = build_table()
    options.output.write_text(as_text(table), encoding="utf-8")
    print(f"{options.output}: {len(table['models'])} models of timm {table['timm']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
