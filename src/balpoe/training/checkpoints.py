"""The state of a training on disk: written whole, read without executing anything."""

import io
import warnings
from pathlib import Path
from typing import Any

import torch

from balpoe.errors import UserError
from balpoe.files import write_file

__all__ = ["VERSION", "load_checkpoint", "save_checkpoint"]

VERSION = 2


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers and text so that a crash leaves the last good checkpoint."""
    memory = io.BytesIO()  # on a full disk torch.save itself fails in a way that does not say so
    torch.save({"version": VERSION, **state}, memory)
    write_file(path, lambda stream: stream.write(memory.getbuffer()))


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return a checkpoint's state; anything but plain data in it is refused, never executed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}; fix that, or delete it"
        ) from error
    except Exception as error:  # torch raises a dozen kinds for the ways in which a file can be wrong
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is cut short, or not one of ours; "
            "delete it to train this run from the start"
        ) from error
    if not isinstance(state, dict) or "version" not in state:
        raise UserError(f"{path} is not a checkpoint of balpoe; delete it to train this run from the start")
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise UserError(
            f"{path} is a checkpoint of format {state['version']}, but this balpoe reads format {VERSION}; "
            "use the version that wrote it, or delete it to train from the start"
        )
    return state
