"""Photographs as small files."""

from torch import Tensor

__all__ = ["jpeg"]


def jpeg(image: Tensor, quality: int = 80) -> bytes:
    r"""Return an image, uint8 (3, height, width), as a JPEG file.

    >>> import torch
    >>> jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8))[:3]
    b'\xff\xd8\xff'
    """
    from torchvision.io import encode_jpeg

    return bytes(encode_jpeg(image.cpu().contiguous(), quality).numpy())
