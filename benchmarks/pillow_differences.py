"""Our augmentation against the released code's, image by image: how many values differ, and by how much.

    python benchmarks/pillow_differences.py --data-root FOLDER [--out results/pillow_differences.json]

The released code changes Pillow images with the operations written out here; ours are `balpoe.data`'s, of whole sets.
Both get the same parameters: the levels at which the 25 sub-policies use an operation, in both directions where it has
two. Images are every 27th of CIFAR-100-LT, ratio 100.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from balpoe.data.augment.autoaugment import MAGNITUDES, OPERATIONS, SIGNED, policies
from balpoe.data.augment.operations import rotate
from balpoe.data.registry import load_data
from balpoe.files import write_json

GREY = (128, 128, 128)
FURTHEST = 150 / 331  # of the side, in translations
ANGLES = 31  # from -15 to 15 degrees


@dataclass
class OperationDifference:
    """One operation at one level, the direction in which it differs most."""

    operation: str
    level: int
    differ: float
    """Share of the values."""
    by: float
    """Grey levels, on average over those that differ."""
    most: int


def affine(image: Image.Image, matrix: tuple[float, ...], how: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=GREY)


def enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, share: kind(image).enhance(1 + 0.9 * share)


BICUBIC, NEAREST = Image.Resampling.BICUBIC, Image.Resampling.NEAREST
RELEASED: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "ShearX": lambda image, share: affine(image, (1, 0.3 * share, 0, 0, 1, 0), BICUBIC),
    "ShearY": lambda image, share: affine(image, (1, 0, 0, 0.3 * share, 1, 0), BICUBIC),
    "TranslateX": lambda image, share: affine(image, (1, 0, FURTHEST * 32 * share, 0, 1, 0), NEAREST),
    "TranslateY": lambda image, share: affine(image, (1, 0, 0, 0, 1, FURTHEST * 32 * share), NEAREST),
    "Rotate": lambda image, share: image.rotate(30 * share, NEAREST, fillcolor=GREY),
    "Brightness": enhanced(ImageEnhance.Brightness),
    "Color": enhanced(ImageEnhance.Color),
    "Contrast": enhanced(ImageEnhance.Contrast),
    "Sharpness": enhanced(ImageEnhance.Sharpness),
    "Posterize": lambda image, share: ImageOps.posterize(image, round(8 - 4 * share)),
    "Solarize": lambda image, share: ImageOps.solarize(image, math.ceil(256 * (1 - share))),
    "AutoContrast": lambda image, share: ImageOps.autocontrast(image),
    "Equalize": lambda image, share: ImageOps.equalize(image),
    "Invert": lambda image, share: ImageOps.invert(image),
}
"""Functions of an image and how far an operation goes, from -1 to 1 where it has two directions."""


def pillow(images: Tensor, change: Callable[[Image.Image, float], Image.Image], amount: float) -> Tensor:
    """Return the images, each changed by itself."""
    changed = [change(Image.fromarray(image), amount) for image in images.permute(0, 2, 3, 1).numpy()]
    return torch.from_numpy(np.stack([np.asarray(image) for image in changed])).permute(0, 3, 1, 2)


def difference(operation: str, level: int, ours: Tensor, theirs: Tensor) -> OperationDifference:
    gaps = (ours.int() - theirs.int()).abs()
    differ = gaps > 0
    by = float(gaps[differ].float().mean()) if bool(differ.any()) else 0.0
    return OperationDifference(operation, level, float(differ.float().mean()), by, int(gaps.max()))


def of_operation(name: str, level: int, images: Tensor) -> OperationDifference:
    """The direction that differs most; which of two directions is called positive is no difference."""
    rows = []
    for sign in (1, -1) if name in SIGNED else (1,):
        amount = torch.full((len(images),), float(sign * MAGNITUDES.get(name, [0.0])[level]))
        ours = OPERATIONS[name](images, amount, GREY[0])
        shares = {sign * level / 9, -sign * level / 9} if name in SIGNED else {level / 9}
        found = [difference(name, level, ours, pillow(images, RELEASED[name], share)) for share in shares]
        rows.append(min(found, key=lambda row: row.differ * row.by))
    return max(rows, key=lambda row: row.differ)


def levels() -> dict[str, set[int]]:
    """The levels at which the policy uses each operation; ShearX, which it does not use, at those of ShearY."""
    used: dict[str, set[int]] = {}
    for steps in policies():
        for name, _, level in steps:
            used.setdefault(name, set()).add(level or 0)
    return {**used, "ShearX": used["ShearY"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", default="")
    parser.add_argument("--out", type=Path, default=Path("results/pillow_differences.json"))
    arguments = parser.parse_args()
    images = load_data("cifar100-lt", arguments.data_root or None)[0].images[::27]
    rows = [of_operation(name, level, images) for name, found in levels().items() for level in sorted(found)]
    angles = torch.linspace(-15, 15, ANGLES, dtype=torch.float64)
    ours = torch.cat([rotate(images, angle.expand(len(images)), 0) for angle in angles])
    theirs = torch.cat([pillow(images, Image.Image.rotate, float(angle)) for angle in angles])
    rows.append(difference("rotation by up to 15 degrees", 0, ours, theirs))
    for row in rows:
        print(f"{row.operation:28} {row.level} {100 * row.differ:8.3f} % by {row.by:.1f}, at most {row.most}")
    result = {"pillow": PIL.__version__, "pictures": len(images), "rows": [asdict(row) for row in rows]}
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
