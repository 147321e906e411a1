"""A vision transformer for images of 64 pixels, as one more model of timm, whose own have larger patches.

It is timm's ViT-Tiny with patches of 8 pixels, so that 64 pixels make 64 tokens, and with the mean of the tokens in
place of a class token, which small data sets train better.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

__all__ = ["vit_tiny_patch8_64"]

default_cfgs = generate_default_cfgs({
    "vit_tiny_patch8_64": {
        "num_classes": 200, "input_size": (3, 64, 64), "fixed_input_size": True, "crop_pct": 1.0,
        "interpolation": "bilinear", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5),
        "first_conv": "patch_embed.proj", "classifier": "head",
    },
})  # fmt: skip
"""What timm asks of each model's module, by this name."""


@register_model
def vit_tiny_patch8_64(pretrained: bool = False, **settings: Any) -> VisionTransformer:
    """Return the transformer, 5.4 million weights; timm's hub has none of it, so `pretrained` finds nothing.

    Args:
        pretrained: Whether to look for weights on the hub.
        settings: Settings of timm's `VisionTransformer` in place of these.

    >>> import torch
    >>> vit_tiny_patch8_64(num_classes=0)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 192])
    """
    own = {
        "img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 12, "num_heads": 3, "class_token": False,
        "global_pool": "avg",
    }  # fmt: skip
    model: VisionTransformer = build_model_with_cfg(
        VisionTransformer, "vit_tiny_patch8_64", pretrained, pretrained_filter_fn=checkpoint_filter_fn,
        **{**own, **settings},
    )  # fmt: skip
    return model
