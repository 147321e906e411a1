"""What a request's samples must be, as far as it is seen before any of them is decoded."""

from collections.abc import Sequence

import torch
from torch import Tensor

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.decode import ImageHeader, read_header
from balpoe.deployment.serve.refusals import RequestError
from balpoe.errors import UserError

__all__ = ["Intake", "checked_header"]

QUICK_BYTES = 2**20
QUICK_PIXELS = dict.fromkeys(("PNG", "WEBP", "GIF", "BMP", "PPM"), 2_000_000)
QUICK_PIXELS |= dict.fromkeys(("JPEG", "MPO"), 16_000_000)  # which are decoded at a part of their size
"""Most pixels of what takes milliseconds, by format; others may take long at any size."""


class Intake:
    """The samples that a model takes.

    Args:
        preprocessing: How its network takes them.
        pixels: Most pixels of an image.

    >>> Intake(Preprocessing((2,)), 1_000_000).rows([[1.0, 2.0]])
    tensor([[1., 2.]])
    """

    def __init__(self, preprocessing: Preprocessing, pixels: int) -> None:
        self.size, self.pixels = tuple(preprocessing.size), pixels
        self.takes_images = len(self.size) == 3
        if self.takes_images and self.size[0] != 3:
            raise UserError("the model was trained on arrays of other channels than images have; serve another one")

    def is_quick(self, image: bytes) -> bool:
        """Return whether an image is decoded quickly, by what its header says, or refuse it."""
        if len(image) > QUICK_BYTES:
            return False
        header = checked_header(image, self.pixels)
        return not header.progressive and header.width * header.height <= QUICK_PIXELS.get(header.format, 0)

    def rows(self, features: Sequence[Sequence[float]]) -> Tensor:
        """Return rows of features as the network takes them, or refuse them."""
        wanted = self.size[0]
        if wrong := next((row for row in features if len(row) != wanted), None):
            raise RequestError(422, f"a row has {len(wrong)} features, but the model takes {wanted}; send so many")
        if any(not row for row in features):
            raise RequestError(422, f"a row is empty, but the model takes {wanted} features; send so many")
        rows = torch.tensor(features, dtype=torch.float64).float()
        if not bool(rows.isfinite().all()):
            raise RequestError(422, "a feature is too large for the network; send numbers below 1e38")
        return rows


def checked_header(image: bytes, pixels: int) -> ImageHeader:
    """Return what an image's header says, or refuse the image.

    Args:
        image: Whole file.
        pixels: Most pixels that it may have.
    """
    try:
        header = read_header(image)
    except UserError as error:
        raise RequestError(422, str(error)) from None
    if header.width * header.height > pixels:
        raise RequestError(
            413, f"the image has {header.width} x {header.height} pixels, but {pixels:,} are read; shrink it"
        )
    return header
