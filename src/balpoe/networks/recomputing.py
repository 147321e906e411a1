"""Gradient checkpointing: what a block computes is forgotten and computed again for its gradients, to save memory."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from balpoe.errors import UserError

__all__ = ["recompute_blocks"]


class RecomputedBlocks(nn.Sequential):
    """Blocks in which nothing is drawn at random, so that no state of a generator is kept, which cannot be captured."""

    def forward(self, x: Tensor) -> Tensor:
        """Map through all blocks; between them, and nowhere else, tokens are kept for gradients."""
        for block in self:
            again = torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if again else block(x)
        return x


def recompute_blocks(model: Any, name: str) -> None:
    """Let a model of timm's compute its blocks again for their gradients, in place; gradients stay the same.

    Args:
        model: Model of timm.
        name: Its name there, for the message.

    >>> import timm
    >>> model = timm.create_model("test_vit")
    >>> recompute_blocks(model, "test_vit")
    >>> type(model.blocks).__name__
    'RecomputedBlocks'
    """
    plain = isinstance(getattr(model, "blocks", None), nn.Sequential) and hasattr(model, "patch_embed")
    if plain and not any(map(_draws, model.modules())):
        model.blocks = RecomputedBlocks(*model.blocks)
        return
    try:
        model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError) as error:
        raise UserError(f"network {name!r} cannot compute blocks again; leave gradient_checkpointing out") from error


def _draws(module: nn.Module) -> bool:
    """Whether a module draws at random: dropout, or timm's DropPath."""
    return bool(module.p if isinstance(module, nn.Dropout) else getattr(module, "drop_prob", 0.0))
