"""The mean of a network's weights over the end of a training, and batch statistics that belong to it.

What a falling learning rate passes through differs in directions that hardly matter; the mean of it lies in the middle.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_swa_multi_avg_fn

__all__ = ["averaged", "renew_statistics"]


def averaged(mean: list[Tensor], weights: Iterable[Tensor], number: int) -> list[Tensor]:
    """Return the mean of `number` sets of weights: of `mean`, that of the others, which is changed, and of these.

    >>> mean = averaged([], [torch.tensor([1.0])], number=1)
    >>> averaged(mean, [torch.tensor([4.0])], number=2)
    [tensor([2.5000])]
    """
    now = [tensor.detach() for tensor in weights]
    if number == 1:
        return [tensor.clone() for tensor in now]
    if now:
        get_swa_multi_avg_fn()(mean, now, number - 1)
    return mean


def renew_statistics(network: nn.Module, forward: Callable[[Any], object], inputs: Iterable[Any]) -> None:
    """Set the statistics of batch normalisation to their means over batches: those kept belong to other weights.

    Args:
        network: In training mode; its weights stay as they are.
        forward: Computes the network's outputs for a batch.
        inputs: The batches; not looked at where nothing is normalised.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
    try:
        with torch.no_grad():
            for number, batch in enumerate(inputs, start=1):
                for norm in norms:
                    norm.momentum = 1 / number
                forward(batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
