"""Arrays from a .npz that anybody may have made: nothing in it is executed, and it cannot fill the memory."""

import math
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from balpoe.errors import UserError, unknown_name

__all__ = ["read_archive"]

# Numbers of a network hardly compress; a file that unpacks to a hundred times its size was made to do harm.
LARGEST_RATIO, ALWAYS_FINE = 100, 64 * 2**20


def read_archive(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return the arrays of numbers or text in a .npz; an array of another name than these is refused.

    Args:
        path: Path of the file.
        names: Names that arrays may have.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise UserError(f"{path} has two arrays of one name; write it again with numpy.savez")
            for name in members:
                if name not in names:
                    raise UserError(f"{path}: {unknown_name('array', name, names)}")
            size = sum(info.file_size for info in members.values())
            if size > LARGEST_RATIO * path.stat().st_size + ALWAYS_FINE:
                raise UserError(f"{path} would unpack to {size / 1e9:,.1f} GB; write it again with numpy.savez")
            return {name: _array(path, archive, info) for name, info in members.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}; check the path") from error
    except UserError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is not a whole .npz ({error}); write it again with numpy.savez") from error


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    try:
        return _parsed(archive, info)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError):  # of the archive, not of this array
        raise
    except Exception as error:  # numpy's reader of a garbled header knows many
        raise UserError(
            f"{path}: {info.filename} is not an array of numbers or text; write it again with numpy.savez"
        ) from error


def _parsed(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array, read by hand: numpy would reserve whatever memory the header asks for."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a limit
        raise ValueError
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_columns, dtype = header(stream)
        if dtype.kind not in "fiuU" or not dtype.itemsize or (dtype.kind != "U" and dtype.itemsize > 8):
            raise ValueError
        data = stream.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")
    return array.astype(dtype.newbyteorder("="), order="C")
