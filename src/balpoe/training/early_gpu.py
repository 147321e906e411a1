"""The GPU made ready in a thread, while Python imports the rest and data are read.

A process waits one to two seconds for its first kernels: CUDA makes a context, and the libraries of products and
convolutions are loaded. None of that needs Python, which has seconds of its own to do before the first step.
"""

import threading
from contextlib import suppress

import torch

from balpoe.training.cuda_graphs import no_capture
from balpoe.training.launchers import launcher

__all__ = ["wake_gpu"]


def wake_gpu(device: str, devices: int) -> threading.Thread | None:
    """Begin to make the GPU ready, and return the thread that does; None where no single GPU will be used.

    What goes wrong there is left to the training, which says it better.

    Args:
        device: Device of a recipe.
        devices: Number of processes of a recipe, each of which has a GPU of its own.

    >>> wake_gpu("cpu", 1) is None
    True
    """
    if device not in ("auto", "cuda") or devices > 1 or launcher() is not None or not torch.cuda.is_available():
        return None
    thread = threading.Thread(target=_first_kernels, name="wake-gpu", daemon=True)
    thread.start()
    return thread


def _first_kernels() -> None:
    """One product and one convolution, in the types of a training; a graph that is captured waits for them."""
    with suppress(RuntimeError), no_capture(), torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            images = torch.zeros(2, 3, 8, 8, device="cuda", dtype=dtype)
            images.flatten(1) @ images.flatten(1).mT
            torch.nn.functional.conv2d(images, images[:, :, :3, :3])
        torch.cuda.synchronize()
