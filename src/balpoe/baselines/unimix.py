"""UniMix with the Bayias loss (Xu et al. 2021): mixup whose partners and weights favour the rarer class.

The partner j of a sample i is drawn from the batch, a sample of a class of n samples with probability proportional
to n^partner_power. The weight of sample i, of its image and of its label, is

    (Beta(alpha, alpha) + n_j / (n_i + n_j)) mod 1,

drawn for each sample. The loss is cross-entropy of the logits plus log of the training prior over the test's,
which is uniform: that of balanced softmax.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from balpoe.baselines.adjusted import BALANCED_SOFTMAX
from balpoe.data.loading.epoch_plan import BatchPlan, EpochLabels

__all__ = ["METHOD", "UniMix"]


@dataclass(frozen=True)
class UniMix:
    """UniMix's mixing."""

    alpha: float = 0.8
    partner_power: float = -0.1
    cuts = False
    by_row = True

    def plan(
        self, batch: BatchPlan, labels: EpochLabels, draws: np.random.Generator, epoch: int, epochs: int
    ) -> BatchPlan:
        """Return how a batch is mixed."""
        own = labels.counts[labels.ordered[batch.start : batch.stop]].double().numpy()
        likely = own**self.partner_power
        partners = draws.choice(len(own), size=len(own), p=likely / likely.sum())
        moved = draws.beta(self.alpha, self.alpha, size=len(own)) + own[partners] / (own + own[partners])
        return replace(batch, partners=torch.from_numpy(partners), weights=torch.from_numpy(moved % 1.0))


METHOD = replace(BALANCED_SOFTMAX, mixing=UniMix)
