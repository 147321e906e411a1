"""CB-Focal (Cui et al. 2019): a sigmoid focal loss, each class weighted by its effective number of samples.

With z_j = v_j for the label and -v_j for every other class, p_j = sigmoid(z_j), and n_y samples of the label,

    loss = w_y * sum_j (1 - p_j)^gamma * -log p_j,        w_y ~ (1 - beta) / (1 - beta^n_y), summing to the classes.

The v_j of C classes are the network's logits less log(C - 1): its cosine classifier has no bias, which in the paper
begins so that every class has a small probability.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.baselines.class_weights import effective_number_weights, equal_shares, is_label
from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.ensemble import at_least_float32

__all__ = ["METHOD", "CBFocalLoss"]


class CBFocalLoss(nn.Module):
    """The class-balanced focal loss, averaged over the experts; linear in the targets.

    Args:
        class_counts: Training samples of each class, (classes,).
        gamma: Power of the focal loss; 0 is the binary cross-entropy.
        beta: Parameter of the effective number of samples.

    >>> loss = CBFocalLoss(torch.tensor([90, 10]), gamma=1.0)
    >>> loss(torch.zeros(2, 1, 2), torch.tensor([0, 1]))
    tensor(0.6931)
    """

    weights: Tensor

    def __init__(self, class_counts: Tensor, gamma: float = 1.0, beta: float = 0.9999) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weights", effective_number_weights(class_counts, beta))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        logits = at_least_float32(expert_logits)  # (batch, experts, classes)
        logits = logits - math.log(max(1, logits.shape[2] - 1))
        right, wrong = _focal(logits, self.gamma), _focal(-logits, self.gamma)
        if_label = self.weights.to(logits) * (wrong.sum(dim=2, keepdim=True) + right - wrong)
        shares = targets[:, None] if targets.ndim == 2 else is_label(targets, logits.shape[2])
        values = (if_label * shares).sum(dim=2).mean(dim=1)
        return values.mean() if reduction == "mean" else values


def _focal(z: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma * -log p of p = sigmoid(z), without the logarithm of a number that rounds to 0."""
    return torch.exp(-gamma * F.softplus(z)) * F.softplus(-z)


def loss(inputs: MethodInputs, gamma: float, beta: float) -> CBFocalLoss:
    """Return the loss."""
    return CBFocalLoss(inputs.class_counts, gamma, beta)


METHOD = Method(loss, source_prior=equal_shares)
