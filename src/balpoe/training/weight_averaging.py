"""The mean of a network's weights over the end of a training, and batch statistics that belong to it.

What a falling learning rate passes through differs in directions that hardly matter; the mean of it lies in the middle.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_swa_multi_avg_fn

__all__ = ["averaged", "fresh_statistics", "norms_in_training"]


def averaged(mean: list[Tensor], weights: Iterable[Tensor], number: int) -> list[Tensor]:
    """Take one more set of weights into their mean, in place, and return it; `number` counts the sets, with this one.

    >>> mean = averaged([], [torch.tensor([1.0])], number=1)
    >>> averaged(mean, [torch.tensor([4.0])], number=2)
    [tensor([2.5000])]
    """
    # In 16 bits the small steps of a long mean would be lost.
    now = [tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in weights]
    if number == 1:
        return [tensor.clone() for tensor in now]
    get_swa_multi_avg_fn()(mean, now, number - 1)
    return mean


def norms_in_training(network: nn.Module) -> list[_BatchNorm]:
    """Return the batch normalisation that keeps statistics of what passes; what is frozen keeps those that it has."""
    modules = (module for module in network.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in modules if norm.training and norm.track_running_stats]


@contextmanager
def fresh_statistics(norms: Sequence[_BatchNorm]) -> Iterator[None]:
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
