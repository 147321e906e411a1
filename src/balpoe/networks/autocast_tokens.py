"""Tokens between frozen blocks in autocast's type: half of the bytes, of which a step of adapters mostly consists.

Under autocast, torch keeps sums and norms in float32, for weights that learn. Those of a backbone with adapters do not,
so that its tokens pass from block to block in bfloat16. Weights stay float32, statistics of norms are computed in
float32, and behind the last block tokens are float32 again. Without autocast nothing changes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LayerScale", "keep_autocast_type", "normalised"]


def keep_autocast_type(blocks: Sequence[nn.Module]) -> None:
    """Let tokens pass through frozen blocks, one after the other, in autocast's type, in place; names stay.

    Args:
        blocks: Blocks of one of timm's backbones.

    >>> import timm
    >>> model = timm.create_model("test_vit", num_classes=0)
    >>> keep_autocast_type(model.blocks)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     model.blocks[0](torch.zeros(1, 4, 64)).dtype, model.blocks(torch.zeros(1, 4, 64)).dtype
    (torch.bfloat16, torch.float32)
    """
    for block in blocks:
        for module in block.modules():
            for name, child in module.named_children():
                if (replacement := REPLACEMENTS.get(type(child).__name__)) is not None:
                    setattr(module, name, replacement(child))
        block.register_forward_pre_hook(_enter)
    blocks[-1].register_forward_hook(_leave)


def normalised(norm: Callable[..., Tensor], tokens: Tensor, eps: float = 1e-5, **weights: Tensor) -> Tensor:
    """Return tokens (..., width), each normalised; autocast alone would do it in float32.

    Args:
        norm: torch's `layer_norm` or `rms_norm`.
        tokens: Tokens.
        eps: What is added to the variance.
        weights: Weights of the norm, (width,) each, by its names for them.

    >>> normalised(F.layer_norm, torch.tensor([[1.0, 3.0]]))
    tensor([[-1.0000,  1.0000]])
    """
    if not _is_cast(tokens):
        return norm(tokens, tokens.shape[-1:], eps=eps, **weights)
    weights = {name: weight.bfloat16() for name, weight in weights.items()}
    with torch.autocast(tokens.device.type, enabled=False):
        return norm(tokens.bfloat16(), tokens.shape[-1:], eps=eps, **weights)


class FrozenNorm(nn.Module):
    """A norm of tokens with the weights of another module, which do not learn.

    Args:
        norm: torch's `layer_norm` or `rms_norm`.
        module: Module that computes it.
    """

    def __init__(self, norm: Callable[..., Tensor], module: Any) -> None:
        super().__init__()
        self.norm, self.eps = norm, module.eps
        for name, weight in module.named_parameters():
            self.register_parameter(name, weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalise tokens (..., width)."""
        return normalised(self.norm, tokens, self.eps, **dict(self.named_parameters()))


class LayerScale(nn.Module):
    """A factor for each feature, which does not learn; timm's rotary transformers have it as a parameter of the block.

    Args:
        gamma: The factors, (width,).
    """

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale tokens (..., width)."""
        return (self.gamma.bfloat16() if _is_cast(tokens) else self.gamma) * tokens


REPLACEMENTS: dict[str, Callable[[Any], nn.Module]] = {
    "LayerNorm": functools.partial(FrozenNorm, F.layer_norm),
    "RmsNorm": functools.partial(FrozenNorm, F.rms_norm),
    "LayerScale": lambda scale: LayerScale(scale.gamma),
}
"""What takes the place of layers of torch and timm in a block, by name of their class; another kind of norm stays."""


def _is_cast(tokens: Tensor) -> bool:
    """Whether autocast is on, with bfloat16: the range of float16 is too small for sums over blocks."""
    device = tokens.device.type
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16


def _enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a block its tokens, the first of what it is called with, in autocast's type."""
    tokens, *others = inputs
    return (tokens.bfloat16() if _is_cast(tokens) else tokens, *others)


def _leave(_: nn.Module, __: tuple[Any, ...], tokens: Tensor) -> Tensor:
    """Give norm, pooling and head behind the last block float32."""
    return tokens.float() if _is_cast(tokens) else tokens
