"""The randomness of an epoch: every draw is a function of the seed, the epoch and what it is for.

Nothing is stored: a resumed run, two processes, or a captured step draw the same numbers by construction.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.mixing import box_share

__all__ = [
    "BatchPlan",
    "EpochLabels",
    "EpochPlan",
    "Mixing",
    "class_balanced_order",
    "plan_epoch",
    "rng",
    "sample_rng",
    "samples_seen",
]


def rng(seed: int, epoch: int, subject: str) -> np.random.Generator:
    """Return the generator of one subject ("order", "mix", ...) in one epoch.

    >>> bool((rng(0, 3, "order").random(4) == rng(0, 3, "order").random(4)).all())
    True
    """
    return sample_rng(seed, epoch, subject, 0)


def sample_rng(seed: int, epoch: int, subject: str, index: int) -> np.random.Generator:
    """Return the generator of one sample, for what is drawn where only that sample is known.

    >>> bool(sample_rng(0, 3, "crop", 7).random() == sample_rng(0, 3, "crop", 7).random())
    True
    """
    key = np.array([seed, zlib.crc32(subject.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, index, 0, epoch]))


@dataclass(frozen=True)
class BatchPlan:
    """One batch: the rows start to stop of the epoch's order, and how it is mixed with itself."""

    start: int
    stop: int
    partners: Tensor | None = None
    """Row i is mixed with row start + partners[i]; None for a batch that is not mixed."""
    weight: float = 1.0
    """Weight of the row itself; with CutMix the share that it keeps before the box is clipped."""
    centre: tuple[float, float] | None = None
    """The centre of CutMix's box; None for mixup."""
    weights: Tensor | None = None
    """A weight for each row, (rows,), of methods that mix each with its own; None for the one weight."""
    label_weights: Tensor | None = None
    """The weight of each row's own label, (rows,), where it is not that of its image."""
    from_all: Tensor | None = None
    """Samples of the whole set, (rows,), that are mixed in instead of rows of the batch."""

    def mates(self) -> Tensor:
        """Return the partners, which for a batch that is not mixed are the rows themselves."""
        return torch.arange(self.stop - self.start) if self.partners is None else self.partners

    def mixed_in(self, order: Tensor) -> Tensor:
        """Return the sample that is mixed into each row, (rows,)."""
        return order[self.start + self.mates()] if self.from_all is None else self.from_all

    def share(self, size: tuple[int, ...], cuts: bool = False) -> Tensor:
        """Return what each pixel of a sample of this size keeps of itself.

        One number in the shape of a sample; with `cuts` a map, (1, height, width), also for mixup.
        """
        if cuts and len(size) != 3:
            raise UserError(f"CutMix wants images, but the samples have shape {size}; set cutmix_probability to 0")
        if self.centre is not None:
            return box_share(self.weight, *self.centre, *size[1:])[None]
        return torch.full((1, *size[1:]) if cuts else (1,) * len(size), self.weight)

    def row_weights(self) -> tuple[Tensor, Tensor]:
        """Return the weights of each row's image and label, (rows,) each, of a method that mixes row by row."""
        same = torch.full((self.stop - self.start,), self.weight)
        images = same if self.weights is None else self.weights.float()
        return images, images if self.label_weights is None else self.label_weights.float()


@dataclass(frozen=True)
class EpochPlan:
    """The order of the samples and the batches cut from it."""

    order: Tensor
    batches: tuple[BatchPlan, ...]
    mixes: bool = False
    """Whether batches may be mixed."""
    cuts: bool = False
    """Whether some of them may be mixed by CutMix."""
    by_row: bool = False
    """Whether rows of a batch have weights of their own."""


class EpochLabels(NamedTuple):
    """The labels that a method's own mixing looks at."""

    ordered: Tensor
    """Labels in the epoch's order, (samples,)."""
    all: Tensor
    """Labels by number of the sample, (samples,)."""
    counts: Tensor
    """Samples of each class, (classes,)."""


class Mixing(Protocol):
    """How a method mixes a batch where that depends on its labels. Its `repr` is part of a checkpoint's identity."""

    cuts: bool
    """Whether it pastes boxes, which wants images."""
    by_row: bool
    """Whether each row has weights of its own."""

    def plan(
        self, batch: BatchPlan, labels: EpochLabels, draws: np.random.Generator, epoch: int, epochs: int
    ) -> BatchPlan:
        """Return how a batch, given with its first and last row alone, is mixed."""
        ...


def plan_epoch(
    seed: int,
    epoch: int,
    num_samples: int,
    batch_size: int,
    *,
    mixup_alpha: float = 0.0,
    cutmix_probability: float = 0.0,
    smallest_batch: int = 2,
    mixing: Mixing | None = None,
    class_balanced: bool = False,
    targets: Tensor | None = None,
    epochs: int = 0,
    drop_last: bool = False,
) -> EpochPlan:
    """Return an epoch's plan: each sample once; a last batch below `smallest_batch` joins the one before.

    Args:
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        num_samples: Size of the training set.
        batch_size: Samples of a batch, over all processes.
        mixup_alpha: Parameter of Beta(alpha, alpha); 0 for no mixup.
        cutmix_probability: Share of the batches that CutMix, with alpha 1, takes from mixup.
        smallest_batch: Least number of samples; batch normalisation wants 2 in every process.
        mixing: A method's own mixing, instead of mixup and CutMix.
        class_balanced: Whether samples are drawn, with replacement, so that all classes come equally often.
        targets: Labels, (samples,), for what looks at them.
        epochs: Number of epochs, for mixing that changes with them.
        drop_last: Whether a last batch that is smaller than the others is left out, unless it is the only one.

    >>> [(batch.start, batch.stop) for batch in plan_epoch(0, 0, 9, 4).batches]
    [(0, 4), (4, 9)]
    """
    draws = rng(seed, epoch, "order")
    if class_balanced:
        assert targets is not None
        order = class_balanced_order(targets, draws)
    else:
        order = torch.from_numpy(draws.permutation(num_samples))
    num_samples = samples_seen(num_samples, batch_size, drop_last)
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] < smallest_batch:
        starts.pop()
    draws = rng(seed, epoch, "mix")
    bounds = zip(starts, [*starts[1:], num_samples], strict=True)
    if mixing is not None:
        assert targets is not None
        labels = EpochLabels(targets[order], targets, torch.bincount(targets))
        planned = tuple(mixing.plan(BatchPlan(*bound), labels, draws, epoch, epochs) for bound in bounds)
        return EpochPlan(order, planned, mixes=True, cuts=mixing.cuts, by_row=mixing.by_row)
    batches = tuple(_plan_batch(start, stop, draws, mixup_alpha, cutmix_probability) for start, stop in bounds)
    mixes = mixup_alpha > 0 or cutmix_probability > 0
    return EpochPlan(order, batches, mixes, cutmix_probability > 0)


def samples_seen(num_samples: int, batch_size: int, drop_last: bool) -> int:
    """Return how many samples an epoch sees: all, or those of whole batches; all of fewer than a batch.

    >>> samples_seen(9, 4, drop_last=True), samples_seen(9, 4, drop_last=False), samples_seen(3, 4, drop_last=True)
    (8, 9, 3)
    """
    return num_samples - num_samples % batch_size if drop_last and num_samples > batch_size else num_samples


def class_balanced_order(targets: Tensor, draws: np.random.Generator) -> Tensor:
    """Return as many samples as there are, drawn with replacement: first a class, each alike, then one of its samples.

    >>> labels = torch.tensor([0] * 900 + [1] * 100)
    >>> 400 < int(labels[class_balanced_order(labels, rng(0, 0, "order"))].sum()) < 600
    True
    """
    by_class = targets.argsort(stable=True)
    counts = torch.bincount(targets)
    present = counts.nonzero().squeeze(1).numpy()
    classes = present[draws.integers(len(present), size=len(targets))]
    first = (counts.cumsum(0) - counts).numpy()
    place = first[classes] + np.floor(draws.random(len(targets)) * counts.numpy()[classes]).astype(np.int64)
    return by_class[torch.from_numpy(place)]


def _plan_batch(
    start: int, stop: int, draws: np.random.Generator, mixup_alpha: float, cutmix_probability: float
) -> BatchPlan:
    if not mixup_alpha and not cutmix_probability:
        return BatchPlan(start, stop)
    cut = draws.random() < cutmix_probability
    if not cut and not mixup_alpha:
        return BatchPlan(start, stop)
    partners = torch.from_numpy(draws.permutation(stop - start))
    weight = float(draws.random() if cut else draws.beta(mixup_alpha, mixup_alpha))  # Beta(1, 1) is uniform
    return BatchPlan(start, stop, partners, weight, (draws.random(), draws.random()) if cut else None)
