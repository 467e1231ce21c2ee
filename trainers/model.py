"""Builds the Vision Transformer of a trial from timm, and counts its forward FLOPs."""

from typing import Any

import torch
from torch import nn

from trainers.config import TrialConfig
from trainers.flops import ViTShape, forward_flops_per_image


class UnknownModel(ValueError):
    """timm has no such Vision Transformer."""


def import_timm() -> None:
    """Import what a trial needs of timm: the two modules register their models by themselves."""
    import timm.models.deit
    import timm.models.vision_transformer  # noqa: F401


def build_model(config: TrialConfig, device: torch.device | str) -> nn.Module:
    """The model of `config` on `device`, initialised from `config.seed`, the same on every rank.

    Without a second target DeiT's distilled models average their class and distillation heads, in training as in
    evaluation (timm's `distilled_training` stays off), so that both learn from the one label there is.

    Raises:
        UnknownModel: not one of timm's VisionTransformer or DeiT models.
    """
    import_timm()
    from timm.models import is_model, model_entrypoint

    if not is_model(config.model):
        raise UnknownModel(f"timm has no model {config.model!r}")
    entrypoint = model_entrypoint(config.model)
    if entrypoint.__module__ not in ("timm.models.vision_transformer", "timm.models.deit"):
        raise UnknownModel(f"{config.model!r} is not one of timm's VisionTransformer or DeiT models")
    torch.manual_seed(config.seed)
    model: nn.Module = entrypoint(
        pretrained=False,
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        device=device,
    )
    if config.activation_checkpointing:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    return model


def plain_shape(model: Any) -> ViTShape | None:
    """The shape of a plain ViT (timm's own block, MLP, attention and patches), None for any other."""
    from timm.layers.mlp import Mlp
    from timm.layers.patch_embed import PatchEmbed
    from timm.models.vision_transformer import Attention, Block

    blocks = list(model.blocks)
    plain_blocks = all(
        type(block) is Block and type(block.mlp) is Mlp and type(block.attn) is Attention for block in blocks
    )
    if not plain_blocks or type(model.patch_embed) is not PatchEmbed or model.attn_pool is not None:
        return None
    return ViTShape(
        image_size=model.patch_embed.img_size[0],
        patch_size=model.patch_embed.patch_size[0],
        depth=len(blocks),
        width=model.embed_dim,
        mlp_width=blocks[0].mlp.fc1.out_features,
        prefix_tokens=model.num_prefix_tokens,
        num_classes=model.num_classes,
        heads_out=2 if hasattr(model, "head_dist") else 1,
    )


def count_forward_flops(config: TrialConfig) -> float:
    """FLOPs of one image's forward pass, counted by torch on the meta device (nothing is computed)."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build_model(config.model_copy(update={"activation_checkpointing": False}), "meta").eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, config.image_size, config.image_size, device="meta"))
    return float(counter.get_total_flops())


def flops_per_image(model: nn.Module, config: TrialConfig) -> float:
    """Forward FLOPs per image: the closed form where it holds, else counted."""
    shape = plain_shape(model)
    return float(forward_flops_per_image(shape)) if shape is not None else count_forward_flops(config)
