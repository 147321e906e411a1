"""A data set held on the device: augmented as a whole once per epoch, batches are slices of it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.data.augment import Operation
from balpoe.data.datasets import Dataset
from balpoe.data.plan import EpochPlan, chance

__all__ = ["Batch", "ResidentData"]


class Batch(NamedTuple):
    """One process's part of a batch, raw; `partners` and what follows are None when nothing is mixed."""

    images: Tensor
    targets: Tensor
    part: float
    """This process's samples over all of the batch."""
    partners: Tensor | None = None
    partner_targets: Tensor | None = None
    share: Tensor | None = None
    """What each pixel keeps of its own sample: a number, or a map (height, width)."""


class ResidentData:
    """Training data on the device, as uint8 or float32.

    Args:
        data: What to hold.
        device: Where.
        augmentation: Operations applied in order to all samples, anew in each epoch.
        seed: Of the run.
    """

    def __init__(self, data: Dataset, device: torch.device, augmentation: Sequence[Operation], seed: int) -> None:
        self.images, self.targets = data.images.to(device), data.targets.to(device)
        self.size = data.preprocessing.size
        self.augmentation, self.seed = augmentation, seed

    def batches(self, plan: EpochPlan, epoch: int, *, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this process's part, every `world`-th row from `rank`, of the batches from number `first` on."""
        images = self.images
        for operation in self.augmentation:
            images = operation(images, chance(self.seed, epoch, type(operation).__name__))
        order = plan.order.to(images.device)
        images, targets = images[order], self.targets[order]
        for batch in plan.batches[first:]:
            rows = slice(batch.start + rank, batch.stop, world)
            part = len(range(batch.start, batch.stop)[rank::world]) / (batch.stop - batch.start)
            if batch.partners is None:
                yield Batch(images[rows], targets[rows], part)
                continue
            partners = (batch.start + batch.partners[rank::world]).to(images.device)
            share = batch.share(self.size).to(images.device)
            yield Batch(images[rows], targets[rows], part, images[partners], targets[partners], share)
