"""Image files of any usual format as uint8 tensors, cropped and resized while they are read.

An image is what one sees: turned as its EXIF entry says, the first frame of several, transparent parts on white,
16-bit grey values by their high byte. Pixel for pixel the results are those of torchvision on Pillow images; only a
JPEG much larger than wanted is decoded at a half, a quarter or an eighth of its size, which skips most of the work.
Nothing else that Pillow could open is tried: some of its formats start other programs.
"""

import contextlib
import functools
import io
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "IMAGE_SUFFIXES",
    "MOST_PIXELS",
    "ImageHeader",
    "ResizedCrop",
    "Source",
    "read_crop",
    "read_header",
    "read_image",
    "read_thumbnail",
]

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
    | {".avif", ".heic", ".heif", ".hif"}
)
"""Endings of the names of image files, in lower case; what is in a file decides how it is read."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "HEIF")

PLUGINS = {".avif": ("AVIF", "pillow>=11.3")} | dict.fromkeys((".heic", ".heif", ".hif"), ("HEIC", "pillow-heif"))
"""What reads the formats of phones and cameras where Pillow does not by itself."""

MOST_PIXELS = 250_000_000
"""A larger image is refused by its header: decoded it would take more than a gigabyte."""

OVERSAMPLED = 1.5
"""A reduced JPEG keeps so many pixels for each one wanted. On photographs the result then differs from that of the
full decode by one or two grey levels of 255 in the mean, and is 3 % less sharp; with 1.0 it is three, and 10 %."""

KEPT_OF_CROPS = 1.0
"""The same for random parts, which training varies by far more than that; photographs are read faster for it."""

LONGEST_SHAPE = 4
"""Beyond so many times the short side, a centre crop looks at the middle alone: a line of pixels stays small."""

Source: TypeAlias = "str | Path | bytes | IO[bytes] | Image.Image | np.ndarray"
"""A path, the bytes of a file, an open file, a Pillow image, or pixels: uint8 (height, width, 3) or (height, width)."""


@dataclass(frozen=True)
class ResizedCrop:
    """A part of the image of random area and shape, as torchvision's RandomResizedCrop draws it.

    >>> ResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0)).box(300, 200, np.random.default_rng(0))  # no square has it all
    (50, 0, 200, 200)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    """Least and greatest share of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and greatest width over height."""

    def box(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return left, top, width and height of a part of an image of this size.

        Ten draws that do not fit give the largest part in the middle that has an allowed shape.
        """
        shapes = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area, shape = width * height * rng.uniform(*self.scale), math.exp(rng.uniform(*shapes))
            wide, tall = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < wide <= width and 0 < tall <= height:
                return int(rng.integers(width - wide + 1)), int(rng.integers(height - tall + 1)), wide, tall
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, tall = min(width, round(height * shape)), min(height, round(width / shape))
        return (width - wide) // 2, (height - tall) // 2, wide, tall


def read_image(source: Source, size: int, resize: int, interpolation: str = "bilinear") -> Tensor:
    """Return the middle of an image, uint8 (3, size, size), its short side resized to `resize` before.

    Args:
        source: A path, the bytes of a file, an open file, or a Pillow image.
        size: Side of the square that is returned, in pixels.
        resize: Pixels of the short side, at least `size`.
        interpolation: Way to resize: "bilinear", "bicubic", or another of Pillow's.

    >>> from balpoe.data.png import png
    >>> read_image(png(torch.full((3, 20, 30), 7, dtype=torch.uint8)), size=8, resize=10).unique()
    tensor([7], dtype=torch.uint8)
    """
    if not 1 <= size <= resize:
        raise UserError(f"the square of {size} pixels must fit into the short side of {resize}; give resize >= size")
    resample = _resampling(interpolation)
    with _opened(source) as image:
        width, height = _size(image)
        longest = LONGEST_SHAPE * min(width, height)
        left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
        width, height = min(width, longest), min(height, longest)
        short = min(width, height)
        wide, tall = resize * width // short, resize * height // short
        resized = _resized(image, (left, top, width, height), (wide, tall), OVERSAMPLED, resample)
        left, top = round((wide - size) / 2), round((tall - size) / 2)
        return _tensor(resized.crop((left, top, left + size, top + size)))


def read_crop(
    source: Source, size: int, crop: ResizedCrop, rng: np.random.Generator, interpolation: str = "bilinear"
) -> Tensor:
    """Return a random part of an image, resized to uint8 (3, size, size).

    Args:
        source: A path, the bytes of a file, an open file, or a Pillow image.
        size: Side of the square that is returned, in pixels.
        crop: Distribution of the parts.
        rng: Generator of the draw.
        interpolation: Way to resize, as for `read_image`.

    >>> from balpoe.data.png import png
    >>> image = png(torch.full((3, 20, 30), 7, dtype=torch.uint8))
    >>> read_crop(image, 8, ResizedCrop(), np.random.default_rng(0)).shape
    torch.Size([3, 8, 8])
    """
    resample = _resampling(interpolation)
    with _opened(source) as image:
        return _tensor(_resized(image, crop.box(*_size(image), rng), (size, size), KEPT_OF_CROPS, resample))


def read_thumbnail(source: Source, size: tuple[int, int]) -> tuple[tuple[int, int], np.ndarray]:
    """Return an image's (width, height), and the whole of it in grey and tiny, uint8 (rows, columns).

    All of the file is decoded, so that one that is cut short is found, but a JPEG at the smallest scale there is.

    Args:
        source: A path, the bytes of a file, an open file, or a Pillow image.
        size: Number of columns and rows.

    >>> from balpoe.data.png import png
    >>> read_thumbnail(png(torch.full((3, 20, 30), 7, dtype=torch.uint8)), (2, 1))
    ((30, 20), array([[7, 7]], dtype=uint8))
    """
    from PIL.Image import Resampling

    with _opened(source) as image:
        seen = _size(image)
        image.draft("L", size)
        return seen, np.asarray(_rgb(_upright(image)).convert("L").resize(size, Resampling.BILINEAR))


class ImageHeader(NamedTuple):
    """What the first bytes of an image say of it."""

    format: str
    """Pillow's name of the format, such as "JPEG"."""
    width: int
    height: int
    progressive: bool = False
    """Whether it is a JPEG in many scans, of which each may take as long as the whole of another file."""


def read_header(source: Source) -> ImageHeader:
    """Return what an image's header says, without decoding it; whether the rest is whole is not known then.

    Args:
        source: A path, the bytes of a file, or an open file.

    >>> from balpoe.data.png import png
    >>> read_header(png(torch.zeros(3, 20, 30, dtype=torch.uint8)))
    ImageHeader(format='PNG', width=30, height=20, progressive=False)
    """
    with _opened(source, decode=False) as image:
        progressive = bool(image.info.get("progressive") or image.info.get("progression"))
        return ImageHeader(image.format or "", image.width, image.height, progressive)


class _OwnTerms:
    """Pillow without its warnings, and with our limit of pixels in place of its own, while somebody is inside.

    Both belong to the whole process: the first thread that comes in sets them, the last one that leaves puts them back.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.put_back = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        from PIL import Image

        with self.lock:
            if not self.inside:
                self.put_back.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                self.put_back.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
                Image.MAX_IMAGE_PIXELS = MOST_PIXELS // 2  # it warns beyond this, and refuses beyond twice this
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.put_back.close()


_OWN_TERMS = _OwnTerms()


@contextlib.contextmanager
def _opened(source: Source, decode: bool = True) -> Iterator["Image.Image"]:
    """The image, of which only a JPEG is not decoded yet; whatever goes wrong with it becomes one sentence."""
    from PIL import Image

    try:
        with _OWN_TERMS:
            if isinstance(source, np.ndarray):
                if source.dtype != np.uint8:
                    raise UserError(f"has pixels of type {source.dtype}, but uint8 is read")
                yield Image.fromarray(source)
                return
            if isinstance(source, Image.Image):
                yield source.copy()  # decoded; the caller's own stays as it is
                return
            if (
                isinstance(source, str | Path)
                and os.path.exists(source)
                and not (os.path.isfile(source) or os.path.isdir(source))
            ):
                raise UserError("is no file")  # a pipe would be waited for
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as image:
                if decode and image.format not in ("JPEG", "MPO"):
                    image.load()  # some formats tell only then how the image is turned
                yield image
    except Exception as error:  # a garbled file raises all kinds, KeyError and struct.error among them
        raise UserError(_sentence(source, error)) from error


def _sentence(source: Source, error: Exception) -> str:
    """What is wrong with an image, and what to do about it."""
    from PIL import Image, UnidentifiedImageError

    name = "the image"
    if isinstance(source, str | Path):
        name = str(source) if str(source).isprintable() else repr(str(source))
    if isinstance(error, OSError) and error.strerror:
        return f"cannot read {name}: {error.strerror.lower()}; check the path"
    if isinstance(error, UserError):
        what = str(error)
    elif isinstance(error, Image.DecompressionBombError):
        pixels = max(map(int, re.findall(r"\d+", str(error))))
        what = f"has {pixels:,} pixels, but at most {MOST_PIXELS:,} are read"
    elif isinstance(error, UnidentifiedImageError) and (needed := _plugin(source)):
        return f"{name} is a {needed[0]} image, which Pillow cannot read here; pip install '{needed[1]}', or convert it"
    elif isinstance(error, UnidentifiedImageError):
        what = "is empty" if _is_empty(source) else f"is not a whole image ({', '.join(_formats())} are read)"
    else:
        what = f"is damaged ({str(error) or type(error).__name__})"
    return f"{name} {what}; replace it or leave it out"


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats that are tried: those that Pillow, or its plugin that is installed, can read."""
    from PIL import Image

    with contextlib.suppress(ImportError):
        import pillow_heif  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(each for each in FORMATS if each in Image.OPEN)


def _plugin(source: Source) -> tuple[str, str] | None:
    """Name of a format that cannot be read here, and what would read it."""
    suffix = os.path.splitext(source)[1].lower() if isinstance(source, str | Path) else ""
    known = PLUGINS.get(suffix)
    return (
        known
        if known and not _is_empty(source) and {"HEIC": "HEIF"}.get(known[0], known[0]) not in _formats()
        else None
    )


def _is_empty(source: Source) -> bool:
    return (isinstance(source, bytes) and not source) or (
        isinstance(source, str | Path) and not os.path.getsize(source)
    )


def _turn(image: "Image.Image") -> int:
    """The EXIF orientation, 1 (as stored) to 8; whatever is odd about it is no reason to refuse an image."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # garbled entries raise all kinds
        return 1


def _size(image: "Image.Image") -> tuple[int, int]:
    """Width and height as seen."""
    return (image.height, image.width) if _turn(image) in (5, 6, 7, 8) else image.size


def _upright(image: "Image.Image") -> "Image.Image":
    """The image as seen."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(_turn(image))
    return image if turn is None else image.transpose(turn)


def _resampling(interpolation: str) -> "Image.Resampling":
    """Pillow's filter of a name."""
    from PIL.Image import Resampling

    known = {each.name.lower(): each for each in Resampling}
    if interpolation not in known:
        raise unknown_name("interpolation", interpolation, known)
    return known[interpolation]


def _resized(
    image: "Image.Image",
    box: tuple[int, int, int, int],
    target: tuple[int, int],
    kept: float,
    resample: "Image.Resampling",
) -> "Image.Image":
    """The part of the image in a box (left, top, width, height, as seen) as RGB of the target's size."""
    width, height = _size(image)
    factor = _reduce(image, min(box[2] / target[0], box[3] / target[1]), kept)
    upright, turn = _upright(image), _turn(image)
    # Where the reduced size is rounded up, the last row or column is part of one; a turn may bring it to the front.
    right = upright.width - width / factor if turn in (2, 3, 6, 7) else 0.0
    down = upright.height - height / factor if turn in (3, 4, 7, 8) else 0.0
    left, top = box[0] / factor + right, box[1] / factor + down
    return _stretched(upright, (left, top, left + box[2] / factor, top + box[3] / factor), target, resample)


def _stretched(
    image: "Image.Image",
    box: tuple[float, float, float, float],
    target: tuple[int, int],
    resample: "Image.Resampling",
) -> "Image.Image":
    """The part between left, top, right and bottom, at another size; nothing outside has a say at its edges."""
    left, top = math.floor(box[0]), math.floor(box[1])
    outer = left, top, math.ceil(box[2]), math.ceil(box[3])
    part = image if outer == (0, 0, *image.size) else image.crop(outer)
    inner = box[0] - left, box[1] - top, box[2] - left, box[3] - top
    return _rgb(part).resize(target, resample, box=inner)


def _reduce(image: "Image.Image", surplus: float, kept: float) -> int:
    """Have a JPEG decoded at 1/8, 1/4 or 1/2 of its size where that keeps enough of a surplus of pixels a side."""
    factor = next((factor for factor in (8, 4, 2) if surplus >= kept * factor), 1)
    reduced = factor > 1 and image.draft(None, (image.width // factor, image.height // factor))
    return factor if reduced else 1


def _rgb(image: "Image.Image") -> "Image.Image":
    """The image in 8-bit colours, transparent parts on white."""
    from PIL import Image

    if image.mode.startswith("I"):
        image = Image.fromarray(_high_bytes(np.asarray(image)))
    if image.mode == "F":
        raise UserError("has floating-point pixels, whose range is unknown")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def _high_bytes(values: np.ndarray) -> np.ndarray:
    """16-bit grey values as 8-bit ones, as Pillow itself reads 16-bit colours; 65535 becomes 255."""
    if values.min() < 0 or values.max() > 65535:
        raise UserError(f"has grey values from {values.min()} to {values.max()}, but 0 to 65535 are read")
    return (values >> 8).astype(np.uint8)


def _tensor(image: "Image.Image") -> Tensor:
    """An RGB image as uint8 (3, height, width); channel by channel is faster than by a transposed copy."""
    planes = bytearray().join(channel.tobytes() for channel in image.split())
    return torch.frombuffer(planes, dtype=torch.uint8).view(3, image.height, image.width)
