"""From samples to expert logits: images are decoded by all cores, and then seen by the network together.

Both happen in turns in the network's own thread: if images were decoded while it computes, each of its threads would
wait for the one whose core decodes. An image that takes long is decoded aside instead, and only its own request waits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import decoded, usable_cores
from balpoe.deployment.loaded_model import load
from balpoe.deployment.serve.batching import Outcome
from balpoe.deployment.serve.intake import checked_header
from balpoe.deployment.serve.refusals import RequestError
from balpoe.errors import UserError
from balpoe.training.distributed import chosen_device

__all__ = ["Network", "decode_aside", "loaded_model"]


def loaded_model(path: str, device: str = "cpu", threads: int = 0) -> Any:
    """Return a model, ready to compute.

    Args:
        path: A run, or a model's file.
        device: Where it computes, as a recipe names it.
        threads: Number of threads that compute; 0: as many as there are cores.
    """
    is_onnx = path.endswith(".onnx")
    model = load(path, threads=threads if is_onnx else 0)
    if threads:
        torch.set_num_threads(threads)
    if not is_onnx:  # which has a session of ONNX Runtime in the place of a network
        model.network.to(chosen_device(device))
    return model


class Network:
    """A model's network with what stands before it.

    Args:
        model: Model, as `balpoe.load` gives it.
        threads: Number of threads that decode; 0: as many as there are cores.
    """

    def __init__(self, model: Any, threads: int = 0) -> None:
        self.model = model
        size = model.preprocessing.size
        dtype = torch.uint8 if len(size) == 3 else torch.float32
        model.expert_logits(torch.zeros((2, *size), dtype=dtype))  # the first time takes longer
        self._decoders = ThreadPoolExecutor(threads or usable_cores(), "decode")

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
        return sample if isinstance(sample, Tensor) else _decoded(sample, self.model.preprocessing)


def decode_aside(preprocessing: Preprocessing, pixels: int) -> Callable[[Sequence[bytes]], list[Outcome]]:
    """Return what decodes images that take long, as the network takes them, or says what is wrong with them.

    Args:
        preprocessing: How the network takes images.
        pixels: Most pixels of an image.
    """

    def decode(images: Sequence[bytes]) -> list[Outcome]:
        return [one(image) for image in images]

    def one(image: bytes) -> Outcome:
        try:
            checked_header(image, pixels)
        except RequestError as error:
            return error
        return _decoded(image, preprocessing)

    return decode


def _decoded(image: bytes, preprocessing: Preprocessing) -> Outcome:
    try:
        return decoded(image, preprocessing)
    except UserError as error:
        return error
