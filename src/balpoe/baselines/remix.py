"""Remix (Chou et al. 2020): mixup whose label goes to the rarer class where the two differ much in frequency.

Images are mixed as by mixup, with one weight w from Beta(alpha, alpha) for a batch. With n_i and n_j samples of the
two classes, the label of sample i has the weight

    0   if n_i / n_j >= kappa    and      w < tau,
    1   if n_i / n_j <= 1 / kappa and 1 - w < tau,
    w   otherwise.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from balpoe.baselines.adjusted import CROSS_ENTROPY
from balpoe.data.loading.epoch_plan import BatchPlan, EpochLabels

__all__ = ["METHOD", "Remix", "remix_weights"]


def remix_weights(weight: float, own: Tensor, partner: Tensor, kappa: float, tau: float) -> Tensor:
    """Return the weight of each sample's own label, (batch,).

    Args:
        weight: Weight of the images.
        own: Training samples of each sample's class, (batch,).
        partner: The same of what is mixed into it, (batch,).
        kappa: Ratio of frequencies from which on the label goes to the rarer class.
        tau: Largest weight of the frequent class with which it does.

    >>> remix_weights(0.3, torch.tensor([90, 10, 20]), torch.tensor([10, 90, 10]), kappa=3.0, tau=0.5)
    tensor([0.0000, 0.3000, 0.3000])
    """
    frequent, rare = own >= kappa * partner, partner >= kappa * own
    label = torch.full(own.shape, weight)
    label[frequent & (weight < tau)] = 0.0
    label[rare & (1 - weight < tau)] = 1.0
    return label


@dataclass(frozen=True)
class Remix:
    """Remix's mixing."""

    alpha: float = 1.0
    kappa: float = 3.0
    tau: float = 0.5
    cuts = False
    by_row = True

    def plan(
        self, batch: BatchPlan, labels: EpochLabels, draws: np.random.Generator, epoch: int, epochs: int
    ) -> BatchPlan:
        """Return how a batch is mixed."""
        partners = torch.from_numpy(draws.permutation(batch.stop - batch.start))
        weight = float(draws.beta(self.alpha, self.alpha))
        own = labels.counts[labels.ordered[batch.start : batch.stop]]
        label = remix_weights(weight, own, own[partners], self.kappa, self.tau)
        return replace(batch, partners=partners, weight=weight, label_weights=label)


METHOD = replace(CROSS_ENTROPY, mixing=Remix)
