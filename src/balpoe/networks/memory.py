"""Too little memory on a GPU: passes in halves, and how many parts of a batch fit."""

import traceback
from collections.abc import Callable

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["fitting_parts", "forward_that_fits"]


def forward_that_fits(forward: Callable[[Tensor], Tensor], samples: Tensor) -> Tensor:
    """Return what a pass without gradients gives; where the GPU has too little memory for it, in halves.

    Args:
        forward: Function of samples, row by row.
        samples: Samples (batch, ...).

    >>> forward_that_fits(torch.neg, torch.ones(3))
    tensor([-1., -1., -1.])
    """
    try:
        return forward(samples)
    except torch.OutOfMemoryError as error:
        if len(samples) < 2:
            raise UserError(
                "not even one sample passes through the network in the memory of the GPU; take smaller images "
                "(--image-size), a smaller --network, or --device cpu"
            ) from error
        _let_go(error)
    return torch.cat([forward_that_fits(forward, half) for half in samples.tensor_split(2)])


def fitting_parts(rows: int, parts: int, attempt: Callable[[int], object], error: torch.OutOfMemoryError) -> int | None:
    """Return in how many parts a batch fits into memory, doubled until one does; None if a single row does not.

    Args:
        rows: Number of rows of the batch.
        parts: Number of parts that do not fit.
        attempt: Function of a number of parts that does with one of them what is to be done with each.
        error: What was raised for that many parts; it holds what the attempt left in memory, until here.

    >>> fitting_parts(32, 1, lambda parts: None, torch.OutOfMemoryError())
    2
    """
    while parts < rows:
        _let_go(error)
        parts = min(2 * parts, rows)
        try:
            attempt(parts)
            return parts
        except torch.OutOfMemoryError as next_error:
            error = next_error
    return None


def _let_go(error: torch.OutOfMemoryError) -> None:
    """Free what an attempt has allocated: an error holds the variables of the functions that it came through."""
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
