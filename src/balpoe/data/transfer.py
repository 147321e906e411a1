"""From the CPU to a device."""

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; an ordinary copy to a GPU would wait until that has done all its work.

    >>> to_device(torch.arange(3), torch.device("cpu"))
    tensor([0, 1, 2])
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
