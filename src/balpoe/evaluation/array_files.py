"""Arrays of numbers in files .npy: whole or absent, mapped if wanted, and nothing in them is executed."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.files import write_file

__all__ = ["load_array", "save_array"]


def save_array(path: Path, array: Tensor) -> None:
    """Write an array, beside its place first."""
    write_file(path, lambda stream: np.save(stream, array.cpu().numpy()))


def load_array(path: Path, mapped: bool = False) -> Tensor:
    """Read an array.

    Args:
        path: Path of the file.
        mapped: Whether it stays on disk until it is used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_array(Path(folder, "targets.npy"), torch.tensor([2, 0]))
    ...     load_array(Path(folder, "targets.npy"))
    tensor([2, 0])
    """
    try:
        with open(path, "rb") as stream:
            if stream.read(6) != b"\x93NUMPY":  # nor an archive or a pickle, which numpy would look into
                raise ValueError
        # Mode "c" maps the file; writing to the tensor would change a private copy, never the file. It also compares
        # the file's size with what its header says, before there is memory for that.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        array = array if mapped else np.array(array)
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}; predict again") from error
    except MemoryError:
        raise
    except Exception as error:  # numpy's reader of a damaged header knows many
        raise UserError(f"{path} is not a whole array of numbers; predict again") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or not array.dtype.isnative:
        raise UserError(f"{path} is not an array of this machine's numbers; predict again")
    return torch.from_numpy(array)
