"""A data set held on the device: augmented as a whole once per epoch, then normalised, mixed and cut into batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.data.augment.operations import Operation
from balpoe.data.dataset import Dataset
from balpoe.data.loading.epoch_plan import BatchPlan, EpochPlan, rng
from balpoe.data.transfer import to_device

__all__ = ["Batch", "ResidentData", "row_shares", "stacked"]

SAMPLES_AT_ONCE = 4096  # samples normalised and mixed at once: few calls, and memory for floats of no more than these


class Batch(NamedTuple):
    """One process's part of a batch, ready for the network; what is None is so for all batches of a training."""

    images: Tensor
    """Samples, (batch, ...); with a second view of each, (2 * batch, ...), the second ones behind the first."""
    targets: Tensor
    partner_targets: Tensor | None = None
    """Labels of what was mixed into each sample."""
    weight: Tensor | None = None
    """The weight of `targets`, a number or one for each, (batch,); the rest is that of `partner_targets`."""
    part: float = 1.0
    """This process's samples over all of the batch."""

    def tensors(self) -> list[Tensor]:
        """Return what changes from batch to batch."""
        return [tensor for tensor in self[:4] if isinstance(tensor, Tensor)]

    def clone(self) -> "Batch":
        """Return a copy with memory of its own."""
        other, weight = (None if tensor is None else tensor.clone() for tensor in (self.partner_targets, self.weight))
        return Batch(self.images.clone(), self.targets.clone(), other, weight, self.part)


def stacked(views: Sequence[Tensor], layout: torch.memory_format) -> Tensor:
    """Return the views of a batch's samples, one behind the other."""
    return views[0] if len(views) == 1 else torch.cat(list(views)).contiguous(memory_format=layout)


def row_shares(
    batches: Sequence[BatchPlan], size: tuple[int, ...], device: torch.device, rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """Return what each row keeps of itself, (rows, 1, ...) for samples of a size, and the weight of its label, (rows,).

    Args:
        batches: Batches whose rows have weights of their own.
        size: Size of a sample.
        device: Device that both go to.
        rank: Number of this process, whose rows begin there.
        world: Number of processes; every so many rows are this one's.
    """
    weights = [torch.stack(batch.row_weights())[:, rank::world] for batch in batches]
    images, labels = to_device(torch.cat(weights, dim=1), device)
    return images.view(-1, *[1] * len(size)), labels


class ResidentData:
    """Training data on the device, as uint8 or float32.

    Args:
        data: Samples to hold.
        device: Device that holds them.
        augmentation: Operations applied in order to all samples, anew in each epoch.
        seed: Seed of the run.
        second_view: Operations that make a second view of each sample; None for one view.
    """

    def __init__(
        self,
        data: Dataset,
        device: torch.device,
        augmentation: Sequence[Operation],
        seed: int,
        second_view: Sequence[Operation] | None = None,
    ) -> None:
        self.images, self.targets, self.device = data.images.to(device), data.targets.to(device), device
        self.preprocessing = data.preprocessing
        self.augmentation, self.seed, self.second_view = augmentation, seed, second_view
        # What convolutions on a GPU want; a CPU's are faster without.
        images = device.type == "cuda" and data.images.ndim == 4
        self.layout = torch.channels_last if images else torch.contiguous_format

    def batches(self, plan: EpochPlan, epoch: int, *, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this process's part, every `world`-th row from `rank`, of the batches from number `first` on."""
        images = second = self.images
        for operation, drawn_in in (each.in_epoch(epoch) for each in self.augmentation):
            images = operation(images, rng(self.seed, drawn_in, type(operation).__name__))
        for operation, drawn_in in (each.in_epoch(epoch) for each in self.second_view or ()):
            second = operation(second, rng(self.seed, drawn_in, f"second {type(operation).__name__}"))
        per_block = max(1, SAMPLES_AT_ONCE // (plan.batches[0].stop - plan.batches[0].start))
        for begin in range(first, len(plan.batches), per_block):
            yield from self._block(images, second, plan, plan.batches[begin : begin + per_block], rank, world)

    def _block(
        self, images: Tensor, second: Tensor, plan: EpochPlan, batches: Sequence[BatchPlan], rank: int, world: int
    ) -> Iterator[Batch]:
        parts = [torch.arange(batch.start + rank, batch.stop, world) for batch in batches]
        sizes = [len(part) for part in parts]
        rows = to_device(plan.order[torch.cat(parts)], self.device)
        # Operations can make images smaller.
        preprocessing = replace(self.preprocessing, size=tuple(images.shape[1:]))
        inputs, targets = preprocessing.normalise(images[rows]), self.targets[rows]
        mixed: Sequence[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(batches)
        if plan.mixes:
            places = torch.cat([batch.mixed_in(plan.order)[rank::world] for batch in batches])
            partners = to_device(places, self.device)
            shares, weights = self._shares(preprocessing.size, plan, batches, sizes, rank, world)
            inputs = torch.lerp(preprocessing.normalise(images[partners]), inputs, shares)
            mixed = list(zip(self.targets[partners].split(sizes), weights, strict=True))
        inputs = inputs.contiguous(memory_format=self.layout)
        views = [inputs] if self.second_view is None else [inputs, preprocessing.normalise(second[rows])]
        samples = zip(*(view.split(sizes) for view in views), strict=True)
        for batch, x, y, (other, weight) in zip(batches, samples, targets.split(sizes), mixed, strict=True):
            yield Batch(stacked(x, self.layout), y, other, weight, len(y) / (batch.stop - batch.start))

    def _shares(
        self,
        size: tuple[int, ...],
        plan: EpochPlan,
        batches: Sequence[BatchPlan],
        sizes: list[int],
        rank: int,
        world: int,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """What each row keeps of itself, in a shape that its sample can be multiplied by; and each batch's weight."""
        if plan.by_row:
            images, labels = row_shares(batches, size, self.device, rank, world)
            return images, labels.split(sizes)
        shares = to_device(torch.stack([batch.share(size, plan.cuts) for batch in batches]), self.device)
        of_row = to_device(torch.arange(len(batches)).repeat_interleave(torch.tensor(sizes)), self.device)
        return shares[of_row], shares.flatten(1).mean(dim=1).unbind()
