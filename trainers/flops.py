"""FLOPs of a Vision Transformer's forward pass in closed form. Pure.

A multiply-add counts as two operations. Counted are the matrix products, as torch's FlopCounterMode does: patch
embedding, the four projections and two products of attention, the two layers of the MLP, and the head. Biases, norms,
softmax and GELU are left out (well under 1 %). Architecture: Dosovitskiy et al., "An Image is Worth 16x16 Words",
arXiv 2010.11929, section 3.1 and table 1; the distilled variant has a second token and head: Touvron et al.,
arXiv 2012.12877. Training is three times the forward pass (Kaplan et al., arXiv 2001.08361, section 2.1); recomputation
under activation checkpointing is not counted.
"""

from dataclasses import dataclass

TRAINING_PER_FORWARD = 3


@dataclass(frozen=True)
class ViTShape:
    """What the closed form needs of a plain ViT. Sizes are pixels of a square's side, `width` features per token."""

    image_size: int
    patch_size: int
    depth: int
    width: int
    mlp_width: int  # hidden features of the MLP
    prefix_tokens: int  # class, distillation and register tokens
    num_classes: int
    heads_out: int = 1  # classification heads: 2 with distillation
    channels: int = 3

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens(self) -> int:
        return self.patches + self.prefix_tokens


def forward_flops_per_image(shape: ViTShape) -> int:
    """FLOPs of one image's forward pass (multiply-add = 2): 35.1e9 for ViT-B/16 at 224 with 1000 classes."""
    tokens, width = shape.tokens, shape.width
    patch_embedding = 2 * shape.patches * shape.channels * shape.patch_size**2 * width
    projections = 2 * tokens * width * (3 * width + width)  # query, key, value; output
    attention = 2 * 2 * tokens * tokens * width  # scores; weighted values; the number of heads cancels
    mlp = 2 * 2 * tokens * width * shape.mlp_width
    head = 2 * width * shape.num_classes * shape.heads_out
    return patch_embedding + shape.depth * (projections + attention + mlp) + head


def achieved_flops_per_second(flops_per_image: float, images_per_second: float) -> float:
    """Model FLOPs per second of training, all workers together."""
    return TRAINING_PER_FORWARD * flops_per_image * images_per_second


def model_flops_utilisation(
    flops_per_image: float, images_per_second: float, world_size: int, peak_flops_per_device: float | None
) -> float | None:
    """Share of the devices' dense peak that the model's own FLOPs take, or None where the peak is not known."""
    if peak_flops_per_device is None:
        return None
    return achieved_flops_per_second(flops_per_image, images_per_second) / (world_size * peak_flops_per_device)
