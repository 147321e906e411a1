"""The end of a training pass in kernels of our own (`head_kernels.py`): the cosine classifier, and the BalPoE loss.

Torch takes seventy small kernels for them, forward and back, a tenth of a fused step; here it is a handful.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from balpoe.networks.expert_layers import CosineClassifier
from balpoe.networks.fused.launch_table import power

__all__ = [
    "MOST_CLASSES",
    "blended_cross_entropy",
    "can_be_fused_cosine",
    "cosine_backward",
    "cosine_forward",
    "cosine_logits",
    "head_kernels",
]

# By features: samples and classes that a program takes at a time, as many as registers hold, and its warps.
BLOCKS = {16: (32, 32, 4), 32: (32, 32, 4), 64: (32, 32, 8), 128: (16, 32, 8), 256: (16, 16, 8)}
ROWS, MOST_CLASSES = 4, 2048  # a row of logits is one block


def can_be_fused_cosine(classifier: Any, num_experts: int) -> bool:
    """Whether `cosine_logits` says what a classifier says of the features of so many experts."""
    if type(classifier) is not CosineClassifier or classifier.num_experts != num_experts:
        return False
    weight, (_, classes, width) = classifier.weight, classifier.weight.shape
    class_scale: Tensor | None = classifier.class_scale
    plain = class_scale is None and weight.dtype == torch.float32 and weight.requires_grad
    return plain and classes <= MOST_CLASSES and width in BLOCKS


def cosine_logits(features: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return what `CosineClassifier` says of features (batch, experts, features) of type float32."""
    logits: Tensor = _Cosine.apply(features, weight, scale)
    return logits


class _Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.scale = scale
        return cosine_forward(features, weight, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight = ctx.saved_tensors
        return *cosine_backward(gradient.contiguous(), features, weight, ctx.scale), None


def cosine_forward(features: Tensor, weight: Tensor, scale: float, kernels: Any = None) -> Tensor:
    """Return logits (batch, experts, classes)."""
    (samples, experts, width), classes = features.shape, weight.shape[1]
    logits = features.new_empty(samples, experts, classes)
    (kernels or head_kernels()).cosine_forward[*_blocks(samples, classes, width), experts](
        features, weight, logits, samples, classes, scale, **_settings(experts, width)
    )
    return logits


def cosine_backward(
    gradient: Tensor, features: Tensor, weight: Tensor, scale: float, kernels: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of features and weights, from that of the logits."""
    kernels = kernels or head_kernels()
    (samples, experts, width), classes = features.shape, weight.shape[1]
    of_features, of_weight = torch.empty_like(features), torch.empty_like(weight)
    blocks, class_blocks = _blocks(samples, classes, width)
    inputs, settings = (gradient, features, weight), _settings(experts, width)
    kernels.cosine_features_gradient[blocks, experts](
        *inputs, of_features, samples, classes, scale, TURNS=class_blocks, **settings
    )
    kernels.cosine_weights_gradient[class_blocks, experts](
        *inputs, of_weight, samples, classes, scale, TURNS=blocks, **settings
    )
    return of_features, of_weight


def _blocks(samples: int, classes: int, width: int) -> tuple[int, int]:
    of_samples, of_classes, _ = BLOCKS[width]
    return -(-samples // of_samples), -(-classes // of_classes)


def _settings(experts: int, width: int) -> dict[str, int]:
    samples, classes, warps = BLOCKS[width]
    return {"EXPERTS": experts, "WIDTH": width, "SAMPLES": samples, "CLASSES": classes, "num_warps": warps}


def blended_cross_entropy(logits: Tensor, offsets: Tensor, targets: Tensor, partners: Tensor, weight: Tensor) -> Tensor:
    """Return weight * loss(targets) + (1 - weight) * loss(partners), with the loss of `BalPoELoss` of these offsets.

    Args:
        logits: Expert logits (batch, experts, classes) of type float32, at most `MOST_CLASSES`, contiguous.
        offsets: Offsets (experts, classes) of the logits.
        targets: Labels (batch,) of type int64.
        partners: Labels of the samples that were mixed in.
        weight: Share of the first labels, for all samples or (batch,) one for each.
    """
    value: Tensor = _Blended.apply(logits, offsets, targets, partners, weight)
    return value


class _Blended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, offsets: Tensor, targets: Tensor, partners: Tensor, weight: Tensor) -> Tensor:
        samples, experts, classes = logits.shape
        rows = samples * experts
        values, gradient = logits.new_empty(rows), torch.empty_like(logits)
        head_kernels().loss_forward[(-(-rows // ROWS),)](
            logits, offsets, targets, partners, weight, values, gradient, rows, classes,
            EXPERTS=experts, PER_SAMPLE=weight.ndim, ROWS=ROWS, CLASSES=power(classes),
        )  # fmt: skip
        ctx.save_for_backward(gradient)
        return values.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None, None


def head_kernels() -> Any:
    """Return the module; Triton may be missing where nobody asks for it."""
    from balpoe.networks.fused import head_kernels as module

    return module
