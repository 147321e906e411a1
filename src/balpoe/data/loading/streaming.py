"""Images from files on their way to the device: decoded ahead, then varied, normalised and mixed there in batches.

Worker processes decode and crop, a batch at a time; everything else is done to whole batches on the device. What
happens to an image is drawn for the whole set by its number, as for images in memory: both give the same batches, bit
for bit.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from balpoe.data.augment.operations import Operation
from balpoe.data.loading.decode import ResizedCrop
from balpoe.data.loading.epoch_plan import BatchPlan, EpochPlan, rng
from balpoe.data.loading.image_files import ImageLoader, PictureFiles, Samples
from balpoe.data.loading.in_memory import Batch, ResidentData, row_shares, stacked
from balpoe.data.transfer import to_device
from balpoe.errors import UserError

__all__ = ["StreamedData", "batch_source"]


def batch_source(
    data: Samples,
    device: torch.device,
    augmentation: Sequence[Operation | ResizedCrop],
    seed: int,
    workers: int = -1,
    second_view: Sequence[Operation] | None = None,
) -> "ResidentData | StreamedData":
    """Return what cuts a data set into batches: held on the device, or streamed to it.

    Args:
        data: Training set.
        device: Device that batches go to.
        augmentation: Operations applied in order, anew in each epoch; a `ResizedCrop` comes first, and for files alone.
        seed: Seed of the run.
        workers: Number of processes that decode files.
        second_view: Operations that make a second view of each image; None for one view.
    """
    crops = [operation for operation in augmentation if isinstance(operation, ResizedCrop)]
    operations = [operation for operation in augmentation if not isinstance(operation, ResizedCrop)]
    if isinstance(data, PictureFiles):
        return StreamedData(data, device, crops[0] if crops else None, operations, seed, workers, second_view)
    if crops:
        raise UserError("images held in memory cannot be cropped while they are decoded; use --augmentation crop-flip")
    return ResidentData(data, device, operations, seed, second_view)


class StreamedData:
    """Training images in files: the batches of `ResidentData`, for more than a device or memory holds.

    Args:
        data: Files to read.
        device: Device that batches go to.
        crop: Distribution of the part that is decoded; None for the middle.
        augmentation: Operations applied to each batch on the device.
        seed: Seed of the run.
        workers: Number of processes that decode.
        second_view: Operations that make a second view of each image; None for one view.
    """

    def __init__(
        self,
        data: PictureFiles,
        device: torch.device,
        crop: ResizedCrop | None,
        augmentation: Sequence[Operation],
        seed: int,
        workers: int = -1,
        second_view: Sequence[Operation] | None = None,
    ) -> None:
        self.targets, self.preprocessing, self.device = data.targets, data.preprocessing, device
        self.augmentation, self.seed, self.second_view = augmentation, seed, second_view
        self.on_gpu = device.type == "cuda"
        self.loader = ImageLoader(data, crop, seed, workers, pin=self.on_gpu)

    def batches(self, plan: EpochPlan, epoch: int, *, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this process's part, every `world`-th row from `rank`, of the batches from number `first` on."""
        # Drawn for all images, whatever the batches: what happens to an image does not depend on its neighbours.
        size = self.preprocessing.size[-2:]
        draws = [
            [
                operation.draw(len(self.targets), size, rng(self.seed, drawn_in, f"{view}{type(operation).__name__}"))
                for operation, drawn_in in (each.in_epoch(epoch) for each in operations)
            ]
            for view, operations in (("", self.augmentation), ("second ", self.second_view or ()))
        ]
        batches = plan.batches[first:]
        parts = [_rows(plan, batch, rank, world) for batch in batches]
        blocks = self.loader.blocks(epoch, (part.tolist() for part in parts))
        for batch, rows, images in zip(batches, parts, blocks, strict=True):
            yield self._batch(plan, batch, rows, images, draws, rank, world)

    def _batch(
        self,
        plan: EpochPlan,
        batch: BatchPlan,
        rows: Tensor,
        images: Tensor,
        draws: Sequence[Sequence[tuple[np.ndarray, ...]]],
        rank: int,
        world: int,
    ) -> Batch:
        images = images.to(self.device, non_blocking=True)
        views = [_varied(images, self.augmentation, draws[0], rows)]
        if self.second_view is not None:
            views.append(_varied(images, self.second_view, draws[1], rows))
        inputs, *second = [self.preprocessing.normalise(view) for view in views]
        targets = to_device(self.targets[rows], self.device)
        others = weight = None
        if plan.mixes:
            own = len(range(batch.start + rank, batch.stop, world))
            partners = to_device(_partners(plan, batch, own, rank, world), self.device)
            share, weight = self._share(plan, batch, rank, world)
            mates, others = inputs[partners], targets[partners]
            inputs, targets = torch.lerp(mates, inputs[:own], share), targets[:own]
        layout = torch.channels_last if self.on_gpu else torch.contiguous_format
        inputs = stacked([inputs.contiguous(memory_format=layout), *second], layout)
        return Batch(inputs, targets, others, weight, len(targets) / (batch.stop - batch.start))

    def _share(self, plan: EpochPlan, batch: BatchPlan, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """What the rows keep of themselves, and the weight of their labels."""
        size = self.preprocessing.size
        if plan.by_row:
            return row_shares([batch], size, self.device, rank, world)
        share = to_device(batch.share(size, plan.cuts), self.device)
        return share, share.mean()


def _varied(
    images: Tensor, operations: Sequence[Operation], draws: Sequence[tuple[np.ndarray, ...]], rows: Tensor
) -> Tensor:
    """Images of some rows, each changed by its own draws."""
    for operation, drawn in zip(operations, draws, strict=True):
        images = operation.apply(images, *(values[..., rows.numpy()] for values in drawn))
    return images


def _rows(plan: EpochPlan, batch: BatchPlan, rank: int, world: int) -> Tensor:
    """What this process decodes of a batch: its rows, and behind them partners that are not among these."""
    rows = plan.order[batch.start + rank : batch.stop : world]
    if not _decodes_partners(plan, batch, world):
        return rows
    return torch.cat([rows, batch.mixed_in(plan.order)[rank::world]])


def _partners(plan: EpochPlan, batch: BatchPlan, own: int, rank: int, world: int) -> Tensor:
    """Where among what was decoded each row's partner lies.

    Within this process's part where one partner is as good as another, so that no image is decoded twice.
    """
    if _decodes_partners(plan, batch, world):
        return torch.arange(own, 2 * own)
    mates = batch.mates()[rank::world]
    return mates if world == 1 else mates.argsort().argsort()


def _decodes_partners(plan: EpochPlan, batch: BatchPlan, world: int) -> bool:
    return batch.from_all is not None or (plan.by_row and world > 1)
