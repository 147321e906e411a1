"""RIDE (Wang et al. 2021), without its router (`ride_router`): experts with margins, and a term that drives them apart.

With expert logits v_e, their mean v over the experts, and the margin loss LDAM (`ldam`), summed over the experts,

    loss = sum_e LDAM(v_e) - diversity * mean(T)^2 * KL( softmax(v / T) || softmax(v_e / T) ),

where no gradient goes through v. T is 1 until the classes are weighted, epoch 160 of 200; from there on it is a
temperature for each class, T_c ~ g * C * P_c + 1 - g with the largest 1, lower for rare classes.
"""

import torch
from torch import Tensor, nn

from balpoe.baselines.class_weights import at_label, equal_shares, hard_labels, sample_weights, weights_from
from balpoe.baselines.ldam import ldam_margins, with_margins
from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.ensemble import at_least_float32

__all__ = ["METHOD", "RIDELoss", "divergence_from_mean", "diversity_temperatures"]


def diversity_temperatures(class_counts: Tensor, factor: float = 0.05) -> Tensor:
    """Return a temperature for each class, (classes,), 1 for the most frequent and lower for rare ones.

    >>> diversity_temperatures(torch.tensor([90, 10]), factor=0.5)
    tensor([1.0000, 0.4286])
    """
    counts = class_counts.double()
    temperatures = factor * len(counts) * counts / counts.sum() + 1 - factor
    return (temperatures / temperatures.max()).to(torch.promote_types(class_counts.dtype, torch.float32))


def divergence_from_mean(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Return mean(T)^2 * KL( softmax(mean logits / T) || softmax(logits / T) ) of each expert, (batch, experts).

    Args:
        logits: Expert logits, (batch, experts, classes).
        temperatures: Temperature of each class, (classes,).

    >>> divergence_from_mean(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]), torch.ones(2))
    tensor([[0.1201, 0.1201]])
    """
    mean = (logits.detach().mean(dim=1, keepdim=True) / temperatures).log_softmax(dim=2)
    each = (logits / temperatures).log_softmax(dim=2)
    return temperatures.mean().square() * (mean.exp() * (mean - each)).sum(dim=2)


class RIDELoss(nn.Module):
    """The margin loss of each expert less their diversity, summed over the experts.

    Args:
        class_counts: Training samples of each class, (classes,).
        scale: Scale of the network's cosine classifier.
        diversity: Weight of the diversity.
        temperature_factor: The g of the temperatures.
        max_margin: Margin of the rarest class, on the cosine.
        beta: Parameter of the effective number of samples.
        reweight_from: Part of the training after which classes are weighted.

    >>> loss = RIDELoss(torch.tensor([160_000, 16]), scale=2.0)
    >>> loss(torch.zeros(1, 2, 2), torch.tensor([1]))
    tensor(2.6265)
    """

    margins: Tensor
    weights: Tensor
    temperatures: Tensor

    def __init__(
        self,
        class_counts: Tensor,
        scale: float,
        diversity: float = 0.45,
        temperature_factor: float = 0.05,
        max_margin: float = 0.5,
        beta: float = 0.9999,
        reweight_from: float = 0.8,
    ) -> None:
        super().__init__()
        self.diversity, self.reweight_from = diversity, reweight_from
        self.register_buffer("margins", scale * ldam_margins(class_counts, max_margin))
        self.register_buffer("weights", sample_weights(class_counts, beta))
        self.register_buffer("temperatures", diversity_temperatures(class_counts, temperature_factor))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        labels, logits = hard_labels(targets, "RIDE"), at_least_float32(expert_logits)
        weights, temperatures = (
            weights_from(self.reweight_from, each, progress).to(logits) for each in (self.weights, self.temperatures)
        )
        margin_loss = -at_label(with_margins(logits, labels, self.margins).log_softmax(dim=2), labels)
        apart = divergence_from_mean(logits, temperatures)
        values = (weights[labels, None] * margin_loss - self.diversity * apart).sum(dim=1)
        return values.mean() if reduction == "mean" else values


def loss(inputs: MethodInputs, **settings: float) -> RIDELoss:
    """Return the loss for the scale of the network's cosine."""
    return RIDELoss(inputs.class_counts, inputs.cosine_scale, **settings)


METHOD = Method(loss, source_prior=equal_shares)
