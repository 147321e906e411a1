"""From what a request sent to expert logits: images are decoded by all cores, and then seen by the network together.

Both happen in turns in the network's own thread: if images were decoded while it computes, each of its threads would
wait for the one whose core decodes. An image that takes long is decoded aside instead, and only its own request waits.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from balpoe.data.loading.decode import ImageHeader, read_header
from balpoe.data.loading.image_files import decoded
from balpoe.deployment.serve.batching import Outcome
from balpoe.deployment.serve.refusals import RequestError
from balpoe.errors import UserError

__all__ = ["Network"]

QUICK_BYTES = 2**20
QUICK_PIXELS = dict.fromkeys(("PNG", "WEBP", "GIF", "BMP", "PPM"), 2_000_000)
QUICK_PIXELS |= dict.fromkeys(("JPEG", "MPO"), 16_000_000)  # which are decoded at a part of their size
"""Most pixels of what takes milliseconds, by format; others may take long at any size."""


class Network:
    """A model's network with what stands before it.

    Args:
        model: Model, as `balpoe.load` gives it.
        pixels: Most pixels of an image.
    """

    def __init__(self, model: Any, pixels: int) -> None:
        self.model, self.pixels = model, pixels
        self.size = tuple(model.preprocessing.size)
        self.takes_images = len(self.size) == 3
        if self.takes_images and self.size[0] != 3:
            raise UserError("the model was trained on arrays of other channels than images have; serve another one")
        dtype = torch.uint8 if self.takes_images else torch.float32
        first = model.expert_logits(torch.zeros((2, *self.size), dtype=dtype))  # also warms it up
        self.num_experts = first.shape[1]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._decoders = ThreadPoolExecutor(cores, "decode")

    def __call__(self, samples: Sequence[Any]) -> list[Outcome]:
        """Return expert logits of each sample, (experts, classes), or what is wrong with it."""
        inputs = list(self._decoders.map(self._input, samples)) if len(samples) > 1 else [self._input(samples[0])]
        whole = [each for each in inputs if isinstance(each, Tensor)]
        found = iter(self._logits(whole) if whole else [])
        return [next(found) if isinstance(each, Tensor) else each for each in inputs]

    def _logits(self, inputs: Sequence[Tensor]) -> list[Outcome]:
        logits = self.model.expert_logits(torch.stack(list(inputs))).float().cpu()
        finite = logits.isfinite().flatten(1).all(dim=1).tolist()
        wrong = UserError("the network gives no number for this sample; send one like those it was trained on")
        return [row if is_finite else wrong for row, is_finite in zip(logits, finite, strict=True)]

    def _input(self, sample: Any) -> Outcome:
        if isinstance(sample, Tensor):
            return sample
        try:
            return decoded(sample, self.model.preprocessing)
        except UserError as error:
            return error

    def is_quick(self, image: bytes) -> bool:
        """Return whether an image is decoded quickly, by what its header says, or refuse it."""
        if len(image) > QUICK_BYTES:
            return False
        header = self._header(image)
        return not header.progressive and header.width * header.height <= QUICK_PIXELS.get(header.format, 0)

    def decode_aside(self, image: bytes) -> Tensor:
        """Return a large image as the network takes it, or refuse it."""
        self._header(image)
        found = self._input(image)
        if isinstance(found, UserError):
            raise RequestError(422, str(found))
        return found

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

    def close(self) -> None:
        """End the threads that decode."""
        self._decoders.shutdown()

    def _header(self, image: bytes) -> ImageHeader:
        try:
            header = read_header(image)
        except UserError as error:
            raise RequestError(422, str(error)) from None
        if header.width * header.height > self.pixels:
            raise RequestError(
                413, f"the image has {header.width} x {header.height} pixels, but {self.pixels:,} are read; shrink it"
            )
        return header
