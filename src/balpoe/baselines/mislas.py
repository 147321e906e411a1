"""MiSLAS (Zhong et al. 2021): mixup, then the classifier anew with balanced classes and label-aware smoothing.

First cross-entropy with mixup. Then the classifier is trained further, with classes drawn alike and without mixup, and
with it a factor for the logits of each class; batch normalisation takes the statistics of these batches. The loss of
a label y whose class has n_y samples is

    (1 - e_y) * -log p_y + e_y * mean_j(-log p_j),
    e_y = e_rare + (e_frequent - e_rare) * sin( pi / 2 * (n_y - n_min) / (n_max - n_min) ),

so that frequent classes, of which networks are too sure, are smoothed most.
"""

import math

import torch
from torch import Tensor, nn

from balpoe.baselines.adjusted import CROSS_ENTROPY
from balpoe.baselines.class_weights import at_label, equal_shares, hard_labels
from balpoe.baselines.method import Method, MethodInputs, Stage
from balpoe.method.ensemble import at_least_float32
from balpoe.networks.experts import ExpertNetwork

__all__ = ["METHOD", "LabelAwareSmoothing", "smoothing_by_class"]


def smoothing_by_class(class_counts: Tensor, frequent: float = 0.4, rare: float = 0.1) -> Tensor:
    """Return how much of each label is given to all classes alike, (classes,).

    Args:
        class_counts: Training samples of each class, (classes,).
        frequent: Smoothing of the most frequent class.
        rare: Smoothing of the rarest class.

    >>> smoothing_by_class(torch.tensor([500, 250, 10]), 0.4, 0.1)
    tensor([0.4000, 0.3087, 0.1000])
    """
    counts = class_counts.double()
    span = (counts.max() - counts.min()).clamp(min=1.0)  # classes that are alike are all rare ones
    return (rare + (frequent - rare) * torch.sin(math.pi / 2 * (counts - counts.min()) / span)).float()


class LabelAwareSmoothing(nn.Module):
    """Cross-entropy of labels that are smoothed by class, averaged over the experts.

    Args:
        class_counts: Training samples of each class, (classes,).
        frequent: Smoothing of the most frequent class.
        rare: Smoothing of the rarest class.

    >>> LabelAwareSmoothing(torch.tensor([90, 10]))(torch.zeros(3, 1, 2), torch.tensor([0, 1, 1]))
    tensor(0.6931)
    """

    smoothing: Tensor

    def __init__(self, class_counts: Tensor, frequent: float = 0.4, rare: float = 0.1) -> None:
        super().__init__()
        self.register_buffer("smoothing", smoothing_by_class(class_counts, frequent, rare))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        labels = hard_labels(targets, "MiSLAS")
        nll = -at_least_float32(expert_logits).log_softmax(dim=2)
        share = self.smoothing.to(nll)[labels]
        values = (1 - share) * at_label(nll, labels).mean(dim=1) + share * nll.mean(dim=(1, 2))
        return values.mean() if reduction == "mean" else values


def stages(
    inputs: MethodInputs,
    smoothing_frequent: float,
    smoothing_rare: float,
    classifier_lr_factor: float,
    shift_statistics: bool,
) -> list[Stage]:
    """Return the second stage."""
    loss = LabelAwareSmoothing(inputs.class_counts, smoothing_frequent, smoothing_rare)
    return [
        Stage(
            "stage-2",
            loss,
            trains=("classifier.",),
            keeps_statistics=not shift_statistics,
            lr_factors={"classifier.weight": classifier_lr_factor},
        )
    ]


def extend(network: ExpertNetwork, **settings: object) -> None:
    """Add the factors of the classes, which the second stage trains."""
    network.classifier.add_class_scale()


METHOD = Method(CROSS_ENTROPY.loss, source_prior=equal_shares, stages=stages, extend=extend)
