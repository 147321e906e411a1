"""CMO (Park et al. 2022) with balanced softmax: patches of rare classes, pasted on images as they come.

In half of the batches a box is cut out of every image, as by CutMix, and filled from another one, which is drawn from
the whole training set: a sample of a class of n samples with probability proportional to n^-patch_power. Labels have
the weights of the areas. The first four epochs and the last three are without.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from balpoe.baselines.adjusted import BALANCED_SOFTMAX
from balpoe.data.loading.epoch_plan import BatchPlan, EpochLabels

__all__ = ["CMO", "METHOD"]

FIRST_EPOCHS, LAST_EPOCHS = 4, 3  # without patches


@dataclass(frozen=True)
class CMO:
    """CMO's mixing: a background from the batch, a patch from a sampler of rare classes."""

    probability: float = 0.5
    patch_power: float = 1.0
    cuts = True
    by_row = False

    def plan(
        self, batch: BatchPlan, labels: EpochLabels, draws: np.random.Generator, epoch: int, epochs: int
    ) -> BatchPlan:
        """Return how a batch is mixed."""
        pastes = FIRST_EPOCHS <= epoch < epochs - LAST_EPOCHS and draws.random() < self.probability
        if not pastes:
            return batch
        likely = (labels.counts.double() ** -self.patch_power)[labels.all].cumsum(0).numpy()
        patches = np.searchsorted(likely, draws.random(batch.stop - batch.start) * likely[-1], side="right")
        patches = np.minimum(patches, len(likely) - 1)  # rounding
        centre = (draws.random(), draws.random())
        return replace(batch, from_all=torch.from_numpy(patches), weight=draws.random(), centre=centre)


METHOD = replace(BALANCED_SOFTMAX, mixing=CMO)
