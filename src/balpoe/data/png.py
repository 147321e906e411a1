"""Images as files."""

from torch import Tensor

__all__ = ["png"]


def png(image: Tensor) -> bytes:
    r"""Return an image, uint8 (channels, height, width), as a PNG file.

    >>> import torch
    >>> png(torch.zeros(3, 8, 8, dtype=torch.uint8))[:4]
    b'\x89PNG'
    """
    from torchvision.io import encode_png

    return bytes(encode_png(image.cpu().contiguous()).numpy())
