"""The mean of a network's weights over the end of a training, and batch statistics that belong to it.

What a falling learning rate passes through differs in directions that hardly matter; the mean of it lies in the middle.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

__all__ = ["averaged", "first_mean", "fresh_statistics", "move_mean", "norms_in_training"]

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def first_mean(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the mean of one set of weights: a copy, in at least 32 bits, for in 16 small steps would be lost."""
    return [tensor.detach().to(_at_least_float32(tensor), copy=True) for tensor in weights]


def averaged(mean: list[Tensor], weights: Iterable[Tensor], number: int) -> list[Tensor]:
    """Take one more set of weights into their mean, in place, and return it; `number` counts the sets, with this one.

    >>> mean = averaged([], [torch.tensor([1.0])], number=1)
    >>> averaged(mean, [torch.tensor([4.0])], number=2)
    [tensor([2.5000])]
    """
    if number == 1:
        return first_mean(weights)
    get_swa_multi_avg_fn()(mean, _in_precision_of_means(weights), number - 1)
    return mean


def move_mean(mean: list[Tensor], weights: Iterable[Tensor], decay: float) -> None:
    """Move an exponential mean towards the weights, in place: decay * mean + (1 - decay) * weights.

    >>> mean = [torch.tensor([1.0])]
    >>> move_mean(mean, [torch.tensor([3.0])], decay=0.75)
    >>> mean
    [tensor([1.5000])]
    """
    get_ema_multi_avg_fn(decay)(mean, _in_precision_of_means(weights), 0)


def _in_precision_of_means(weights: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().to(_at_least_float32(tensor)) for tensor in weights]


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def norms_in_training(network: nn.Module) -> list[BatchNorm]:
    """Return the batch normalisation that keeps statistics of what passes; what is frozen keeps those that it has."""
    modules = (module for module in network.modules() if isinstance(module, BATCH_NORMS))
    return [norm for norm in modules if norm.training and norm.track_running_stats]


@contextmanager
def fresh_statistics(norms: Sequence[BatchNorm]) -> Iterator[None]:
    """Forget the statistics of batch normalisation; of the batches that pass within, each counts alike."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
