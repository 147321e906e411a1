"""The randomness of an epoch: every draw is a function of the seed, the epoch and what it is for.

Nothing is stored: a resumed run, two processes, or a captured step draw the same numbers by construction.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.mixing import box_share

__all__ = ["BatchPlan", "EpochPlan", "plan_epoch", "rng", "sample_rng"]


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

    def mates(self) -> Tensor:
        """Return the partners, which for a batch that is not mixed are the rows themselves."""
        return torch.arange(self.stop - self.start) if self.partners is None else self.partners

    def share(self, size: tuple[int, ...], cuts: bool = False) -> Tensor:
        """Return what each pixel of a sample of this size keeps of itself.

        One number in the shape of a sample; with `cuts` a map, (1, height, width), also for mixup.
        """
        if cuts and len(size) != 3:
            raise UserError(f"CutMix wants images, but the samples have shape {size}; set cutmix_probability to 0")
        if self.centre is not None:
            return box_share(self.weight, *self.centre, *size[1:])[None]
        return torch.full((1, *size[1:]) if cuts else (1,) * len(size), self.weight)


@dataclass(frozen=True)
class EpochPlan:
    """The order of the samples and the batches cut from it."""

    order: Tensor
    batches: tuple[BatchPlan, ...]
    mixes: bool = False
    """Whether batches may be mixed."""
    cuts: bool = False
    """Whether some of them may be mixed by CutMix."""


def plan_epoch(
    seed: int,
    epoch: int,
    num_samples: int,
    batch_size: int,
    *,
    mixup_alpha: float = 0.0,
    cutmix_probability: float = 0.0,
    smallest_batch: int = 2,
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

    >>> [(batch.start, batch.stop) for batch in plan_epoch(0, 0, 9, 4).batches]
    [(0, 4), (4, 9)]
    """
    order = torch.from_numpy(rng(seed, epoch, "order").permutation(num_samples))
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] < smallest_batch:
        starts.pop()
    draws = rng(seed, epoch, "mix")
    bounds = zip(starts, [*starts[1:], num_samples], strict=True)
    batches = tuple(_plan_batch(start, stop, draws, mixup_alpha, cutmix_probability) for start, stop in bounds)
    mixes = mixup_alpha > 0 or cutmix_probability > 0
    return EpochPlan(order, batches, mixes, cutmix_probability > 0)


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
