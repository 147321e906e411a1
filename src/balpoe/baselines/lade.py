"""LADE (Hong et al. 2021): balanced softmax, and a regulariser that makes logits log-ratios of densities.

With logits v, the training prior P, C classes, and a batch of N samples,

    loss  = -log softmax(v + log P)_y + alpha * LADER,
    LADER = -sum_c P_c (mean over samples of class c of v_c - r_c - lambda * r_c^2),
    r_c   = log( 1/N sum_i e^(v_ic) * (1/C) / P_c ),

the regularised Donsker-Varadhan bound for each class; a class that is not in the batch has a first term of 0. The
logits are made for equally frequent classes.
"""

import math

from torch import Tensor, nn

from balpoe.baselines.class_weights import equal_shares, hard_labels, is_label
from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.ensemble import at_least_float32
from balpoe.method.losses import BalPoELoss

__all__ = ["METHOD", "LADELoss", "density_ratio_bound"]


def density_ratio_bound(logits: Tensor, labels: Tensor, log_prior: Tensor, strength: float) -> Tensor:
    """Return LADER of a batch for each expert, (experts,).

    Args:
        logits: Expert logits, (batch, experts, classes).
        labels: Labels, (batch,).
        log_prior: Logarithm of the training prior, (classes,).
        strength: The paper's lambda, which keeps r near 0.

    >>> import torch
    >>> log_prior = torch.tensor([0.5, 0.5]).log()
    >>> density_ratio_bound(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([0, 1]), log_prior, 0.0)
    tensor([-0.5662])
    """
    samples, _, classes = logits.shape
    of_class = is_label(labels, classes).to(logits)  # (batch, 1, classes)
    own = (logits * of_class).sum(dim=0) / of_class.sum(dim=0).clamp(min=1)  # (experts, classes)
    ratio = logits.logsumexp(dim=0) - math.log(samples) - log_prior - math.log(classes)
    return -(log_prior.exp() * (own - ratio - strength * ratio.square())).sum(dim=1)


class LADELoss(nn.Module):
    """Balanced softmax with the regulariser, averaged over the experts.

    The regulariser belongs to a batch; a sample's value has the whole of it, so that the values average to the loss.

    Args:
        train_prior: Training prior, (classes,).
        num_experts: Number of experts.
        strength: The paper's lambda, of the square in the regulariser.
        alpha: Weight of the regulariser.

    >>> import torch
    >>> loss = LADELoss(torch.tensor([0.9, 0.1]), alpha=0.0)
    >>> loss(torch.tensor([[[2.0, 0.0]]]), torch.tensor([1]))
    tensor(4.2122)
    """

    def __init__(self, train_prior: Tensor, num_experts: int = 1, strength: float = 0.01, alpha: float = 0.1) -> None:
        super().__init__()
        self.strength, self.alpha = strength, alpha
        self.balanced_softmax = BalPoELoss(train_prior, (0.0,) * num_experts)

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        labels, logits = hard_labels(targets, "LADE"), at_least_float32(expert_logits)
        log_prior = self.balanced_softmax.offsets[0].to(logits)  # (1 - lambda) * log P of lambda 0
        regulariser = density_ratio_bound(logits, labels, log_prior, self.strength).mean()
        values: Tensor = self.balanced_softmax(logits, labels, progress, reduction)
        return values + self.alpha * regulariser


def loss(inputs: MethodInputs, strength: float, alpha: float) -> LADELoss:
    """Return the loss."""
    return LADELoss(inputs.train_prior, inputs.num_experts, strength, alpha)


METHOD = Method(loss, source_prior=equal_shares)
