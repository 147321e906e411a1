"""LDAM-DRW (Cao et al. 2019): a margin that is larger for rare classes, and deferred weights of the classes.

With logits v = s * cosine, n_y samples of the label y, and C classes,

    loss = w_y * -log( e^(v_y - s m_y) / (e^(v_y - s m_y) + sum_{j != y} e^(v_j)) ),
    m_y  = max_margin * n_y^(-1/4) / max_j n_j^(-1/4),

where w_y = 1 until a part of the training is done, epoch 160 of 200, and from there on goes with 1 / the effective
number of samples. Dividing by the weights of a batch, as is often done, makes a sample's value depend on the others;
here weights are 1 on average over the training set, which comes to the same in the mean.
"""

import torch
from torch import Tensor, nn

from balpoe.baselines.class_weights import at_label, equal_shares, hard_labels, is_label, sample_weights, weights_from
from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.ensemble import at_least_float32

__all__ = ["METHOD", "LDAMLoss", "ldam_margins", "with_margins"]


def ldam_margins(class_counts: Tensor, max_margin: float = 0.5) -> Tensor:
    """Return the margin of each class on its cosine, (classes,): that of the rarest is the largest.

    >>> ldam_margins(torch.tensor([160_000, 10_000, 16]))
    tensor([0.0500, 0.1000, 0.5000])
    """
    counts = class_counts.clamp(min=1).double()
    margins = max_margin * (counts / counts.min()) ** -0.25
    return margins.to(torch.promote_types(class_counts.dtype, torch.float32))


def with_margins(expert_logits: Tensor, labels: Tensor, margins: Tensor) -> Tensor:
    """Return logits, (batch, experts, classes), with the label's lower by its margin, in float32 at least."""
    logits = at_least_float32(expert_logits)
    return logits - is_label(labels, logits.shape[2]) * margins.to(logits)


class LDAMLoss(nn.Module):
    """The margin loss with deferred weights, averaged over the experts.

    Args:
        class_counts: Training samples of each class, (classes,).
        scale: Scale of the network's cosine classifier.
        max_margin: Margin of the rarest class, on the cosine.
        beta: Parameter of the effective number of samples.
        reweight_from: Part of the training after which classes are weighted.

    >>> loss = LDAMLoss(torch.tensor([160_000, 16]), scale=2.0)
    >>> loss(torch.zeros(1, 1, 2), torch.tensor([1]))
    tensor(1.3133)
    """

    margins: Tensor
    weights: Tensor

    def __init__(
        self,
        class_counts: Tensor,
        scale: float,
        max_margin: float = 0.5,
        beta: float = 0.9999,
        reweight_from: float = 0.8,
    ) -> None:
        super().__init__()
        self.reweight_from = reweight_from
        self.register_buffer("margins", scale * ldam_margins(class_counts, max_margin))
        self.register_buffer("weights", sample_weights(class_counts, beta))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        labels = hard_labels(targets, "LDAM")
        logits = with_margins(expert_logits, labels, self.margins)
        weights = weights_from(self.reweight_from, self.weights, progress).to(logits)
        values = -weights[labels] * at_label(logits.log_softmax(dim=2), labels).mean(dim=1)
        return values.mean() if reduction == "mean" else values


def loss(inputs: MethodInputs, max_margin: float, beta: float, reweight_from: float) -> LDAMLoss:
    """Return the loss for the scale of the network's cosine."""
    return LDAMLoss(inputs.class_counts, inputs.cosine_scale, max_margin, beta, reweight_from)


METHOD = Method(loss, source_prior=equal_shares)
