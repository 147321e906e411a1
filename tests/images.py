"""Generated picture folders: coloured shapes that a network without training can tell apart."""

from pathlib import Path

import numpy as np
from PIL import Image

SHADES = ((220, 40, 40), (40, 200, 60), (50, 70, 220), (220, 210, 60), (200, 60, 200), (60, 210, 210))


def picture(label: int, number: int, size: int = 24) -> Image.Image:
    """A stripe or a block of the class's colour on noise, another one for each number."""
    chance = np.random.default_rng([label, number])
    pixels = chance.integers(60, 140, (size, size, 3))
    start, width = int(chance.integers(2, size // 2)), int(chance.integers(size // 4, size // 2))
    across = slice(start, start + width)
    colour = np.array(SHADES[label % len(SHADES)]) + chance.integers(-30, 30, 3)
    pixels[across if label % 2 else slice(None), across] = colour.clip(0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def picture_folder(root: Path, counts: dict[str, int], *, suffix: str = ".png", first: int = 0) -> Path:
    """A subfolder of pictures for each class."""
    for label, (name, count) in enumerate(counts.items()):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            picture(label, number).save(folder / f"{number:03}{suffix}")
    return root


def track_folder(root: Path, tracks: dict[str, int], frames: int = 5, name: str = "{track:05}_{frame:05}.png") -> Path:
    """Series: a random image for each track, and its frames, a little darker and noisier one after the other."""
    for label, (folder, number) in enumerate(tracks.items()):
        for track in range(number):
            chance = np.random.default_rng([label, track])
            scene = chance.integers(0, 256, (6, 6, 3)).repeat(4, axis=0).repeat(4, axis=1)
            for frame in range(frames):
                path = root / folder / name.format(track=track, frame=frame)
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = scene * (1 - 0.03 * frame) + chance.normal(0, 12, scene.shape)
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return root
