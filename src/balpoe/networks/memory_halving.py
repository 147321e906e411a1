"""A batch that does not fit into the memory of the GPU goes through in halves."""

from collections.abc import Callable

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["in_halves"]


def in_halves(outputs: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Return what a function makes of the rows of a batch, half by half where memory is too small for all at once.

    Args:
        outputs: Function of some rows, each of which it treats for itself.
        batch: The rows, (rows, ...).

    >>> in_halves(lambda rows: rows + 1, torch.zeros(2))
    tensor([1., 1.])
    """
    try:
        return outputs(batch)
    except torch.OutOfMemoryError as error:
        if len(batch) < 2:
            raise UserError(
                f"a single sample of shape {tuple(batch.shape[1:])} does not fit into the memory of the GPU; give a "
                "smaller --image-size or network, or --device cpu"
            ) from error
    # Not above, where the error still holds what was computed.
    torch.cuda.empty_cache()
    return torch.cat([in_halves(outputs, part) for part in batch.tensor_split(2)])
