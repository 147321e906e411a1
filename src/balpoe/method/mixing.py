"""Mixup and CutMix of a batch, and the loss of a mixed batch.

Both are one formula, `share * image + (1 - share) * partner`: the share is the same number
everywhere in mixup, and zero inside a pasted box in CutMix. Neither changes the label prior
(pairs are drawn from the batch itself), which is what keeps the loss's offsets right.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.private_apis import standard_gamma

__all__ = ["Mixed", "blended_loss", "box_share", "cutmix", "mixed_loss", "mixup"]


class Mixed(NamedTuple):
    """A mixed batch: row i holds `weight` of sample i and the rest of sample `permutation[i]`.

    >>> mixed = mixup(torch.eye(3), alpha=1.0)
    >>> bool(torch.allclose(mixed.images.diagonal()[mixed.permutation != torch.arange(3)], mixed.weight))
    True
    """

    images: Tensor
    permutation: Tensor
    weight: Tensor


def mixup(images: Tensor, alpha: float = 0.4, generator: torch.Generator | None = None) -> Mixed:
    """Return the batch mixed with a permutation of itself, one weight from Beta(alpha, alpha) for all rows.

    Args:
        images: Samples (batch, ...), already normalised; feature vectors as well.
        alpha: Parameter of the Beta distribution, at least 0; 0 leaves the batch as it is.
        generator: Source of randomness; by default torch's own.

    >>> mixed = mixup(torch.ones(4, 3, 8, 8), alpha=0.4)
    >>> bool((mixed.images - 1).abs().max() < 1e-6), sorted(mixed.permutation.tolist())
    (True, [0, 1, 2, 3])
    """
    weight = _beta(alpha, generator).to(images)
    permutation = _permutation(images, generator)
    return Mixed(torch.lerp(images[permutation], images, weight), permutation, weight)


def cutmix(images: Tensor, alpha: float = 1.0, generator: torch.Generator | None = None) -> Mixed:
    """Return the batch with one box, the same for all rows, pasted from a permutation of itself.

    The box covers a share 1 - Beta(alpha, alpha) of the image, is centred anywhere and cut at the
    borders; `weight` is the share that remains after the cut.

    >>> mixed = cutmix(torch.ones(4, 3, 8, 8))
    >>> 0 <= float(mixed.weight) <= 1
    True
    """
    if images.ndim != 4:
        raise UserError(f"CutMix wants images (batch, channels, height, width), but got shape {tuple(images.shape)}")
    height, width = images.shape[-2:]
    row, column = _uniform(2, generator).tolist()
    share = box_share(float(_beta(alpha, generator)), row, column, height, width).to(images)
    permutation = _permutation(images, generator)
    return Mixed(torch.lerp(images[permutation], images, share), permutation, share.mean())


def mixed_loss(
    loss: Callable[..., Tensor], expert_logits: Tensor, targets: Tensor, mixed: Mixed, **arguments: Any
) -> Tensor:
    """Return weight * loss(targets) + (1 - weight) * loss(permuted targets).

    Right for every loss; for cross-entropies it equals the loss of the mixed (soft) labels.

    >>> logits, targets = torch.zeros(4, 3, 2), torch.tensor([0, 1, 0, 1])
    >>> mixed_loss(torch.nn.CrossEntropyLoss(), logits[:, 0], targets, mixup(torch.ones(4, 5)))
    tensor(0.6931)
    """
    partners = targets[mixed.permutation]
    return blended_loss(loss, expert_logits, targets, partners, mixed.weight, **arguments)


def blended_loss(
    loss: Callable[..., Tensor],
    expert_logits: Tensor,
    targets: Tensor,
    partner_targets: Tensor,
    weight: Tensor,
    **arguments: Any,
) -> Tensor:
    """Return weight * loss(targets) + (1 - weight) * loss(partner_targets)."""
    kept = loss(expert_logits, targets, **arguments)
    pasted = loss(expert_logits, partner_targets, **arguments)
    return weight * kept + (1 - weight) * pasted


def box_share(weight: float, row: float, column: float, height: int, width: int) -> Tensor:
    """Return CutMix's share map (height, width): 0 inside the box, 1 outside.

    The box has sides sqrt(1 - weight) of the image's and its centre at (row, column), both in [0, 1).
    """
    half = (1 - weight) ** 0.5 / 2
    rows, columns = torch.arange(height), torch.arange(width)
    inside_rows = (rows >= int(height * row) - int(height * half)) & (rows < int(height * row) + int(height * half))
    inside_columns = (columns >= int(width * column) - int(width * half)) & (
        columns < int(width * column) + int(width * half)
    )
    return (~(inside_rows[:, None] & inside_columns)).float()


def _permutation(images: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randperm(len(images), generator=generator, device=_device(generator)).to(images.device)


def _uniform(count: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(count, dtype=torch.float64, device=_device(generator), generator=generator)


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _beta(alpha: float, generator: torch.Generator | None) -> Tensor:
    """A draw from Beta(alpha, alpha); 1 for alpha = 0, that is, no mixing."""
    if not 0 <= alpha < float("inf"):
        raise UserError(f"alpha must be a number from 0, but is {alpha}")
    if alpha == 0:
        return torch.ones(())
    # Gamma(alpha) = Gamma(alpha + 1) * U^(1/alpha), in logarithms: for small alpha the draws themselves underflow.
    concentration = torch.full((2,), alpha + 1.0, dtype=torch.float64, device=_device(generator))
    log_gamma = standard_gamma(concentration, generator).log()
    log_gamma = log_gamma + _uniform(2, generator).log() / alpha
    return torch.sigmoid(log_gamma[0] - log_gamma[1])
