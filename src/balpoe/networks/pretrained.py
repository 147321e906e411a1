"""Weights from a file that anybody made, of which nothing is executed, or from a hub that may be out of reach."""

import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from balpoe.errors import UserError

__all__ = ["hub_client", "load_weights", "read_weights"]

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module")
PREFIXES = ("module.", "_orig_mod.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file or of a torch file, by name, without what training put around them.

    Args:
        path: Path of the file; whatever is not .safetensors is read as `torch.save` writes it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3, "model": {"module.bias": torch.ones(2)}}, f"{folder}/checkpoint.pth")
    ...     read_weights(f"{folder}/checkpoint.pth")
    {'bias': tensor([1., 1.])}
    """
    content = _read(Path(path))
    while (wrapper := next((key for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)) is not None:
        content = content[wrapper]
    tensors = {_bare(str(name)): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} holds no weights by name; give a file with a network's state dict")
    return tensors


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """Copy weights by name into a model, all that it has; more in the file, such as a classifier, is ignored.

    Args:
        model: Model that is changed in place, or, if a tensor is missing or has another shape, not at all.
        weights: Tensors by the model's own names.
        path: File that they come from, for the message.

    >>> load_weights(nn.Linear(2, 1), {"weight": torch.ones(1, 2)}, "some.pth")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: some.pth has no weights 'bias'; give a file that was made for this network
    """
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in weights and not name.endswith("num_batches_tracked"):  # which old files lack
            raise UserError(f"{path} has no weights {name!r}; give a file that was made for this network")
        if (found := weights.get(name, tensor)).shape != tensor.shape:
            raise UserError(
                f"the weights {name!r} in {path} have shape {tuple(found.shape)} instead of {tuple(tensor.shape)}; "
                "give a file that was made for this network"
            )
    model.load_state_dict({name: weights.get(name, tensor) for name, tensor in wanted.items()})


@contextlib.contextmanager
def hub_client() -> Iterator[None]:
    """Keep the hub's client from trying for a minute where there is no way to the hub: its cache is used at once."""
    from huggingface_hub import constants

    logger, before = logging.getLogger("huggingface_hub"), constants.HF_HUB_OFFLINE
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of every attempt
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        constants.HF_HUB_OFFLINE = before or not getproxies()  # a proxy may know the address
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        logger.setLevel(level)


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UserError(f"there is no file {path} to read weights from; check the path")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that anybody made can fail in any way
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, UnpicklingError):  # torch's own advice for what is no state dict is to execute it
            reason = "it holds more than weights"
        elif " " not in reason:  # of a text or an empty file torch says no more than a number, or nothing
            reason = "it is not what torch.save writes"
        raise UserError(
            f"cannot read weights from {path}: {reason}; give a .safetensors file or a state dict"
        ) from error
    return content if isinstance(content, Mapping) else {}


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
