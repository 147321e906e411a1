"""The data sets of benchmarks/trust.py, as strangers would bring them: folders of images, and features.

    python benchmarks/trust_data.py FOLDER [NAME ...]

Writes FOLDER/NAME (train/CLASS/N.png and test/CLASS/N.png of CIFAR, whose files BALPOE_DATA holds) or FOLDER/NAME.npz;
all of them without a NAME. `photographs` is whatever its owner puts there.
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import make_classification

import balpoe


def images(name: str, ratio: float) -> Callable[[Path], None]:
    """A benchmark of images as a folder."""

    def write(folder: Path) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for part, data in zip(("train", "test"), balpoe.load_data(name, imbalance_ratio=ratio), strict=True):
                for number, label in enumerate(data.targets.tolist()):
                    path = folder / part / data.class_names[label] / f"{number}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    pool.submit(Image.fromarray(data.images[number].permute(1, 2, 0).numpy()).save, path)

    return write


def digits(ratio: float) -> Callable[[Path], None]:
    """Handwritten digits as 64 features."""

    def write(folder: Path) -> None:
        train, test = balpoe.load_data("digits-lt", imbalance_ratio=ratio)
        parts = [(data.images.flatten(1).numpy() / 16, data.targets.numpy()) for data in (train, test)]
        write_features(folder, *parts)

    return write


def table(samples: int, classes: int, ratio: float, **settings: float) -> Callable[[Path], None]:
    """A table of scikit-learn's, clusters of each class in 30 features, made long-tailed; a balanced test set."""

    def write(folder: Path) -> None:
        X, y = make_classification(
            n_samples=samples, n_classes=classes, n_features=30, n_informative=15, n_clusters_per_class=2,
            random_state=0, **settings,
        )  # fmt: skip
        tested = np.arange(samples) % 2 == 1
        counts = long_tail(int(np.bincount(y[~tested]).min()), classes, ratio)
        kept = np.concatenate([np.flatnonzero((y == label) & ~tested)[:n] for label, n in enumerate(counts)])
        write_features(folder, (X[kept], y[kept]), (X[tested], y[tested]))

    return write


def many_classes(classes: int, rows: int, per_class: int = 3) -> Callable[[Path], None]:
    """Gaussian classes in 64 features, families of 20 that overlap; counts fall as in Zipf's law, about 150 to 1."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        families = rng.normal(size=(-(-classes // 20), 64))
        means = families[np.arange(classes) % len(families)] + 0.5 * rng.normal(size=(classes, 64))
        shares = 1 / (np.arange(classes) + classes / 150)
        counts = np.floor(rows * shares / shares.sum()).astype(int)
        counts[: rows - counts.sum()] += 1
        parts = []
        for each in (counts, np.full(classes, per_class)):
            labels = np.repeat(np.arange(classes), each)
            parts.append((means[labels] + 1.1 * rng.normal(size=(len(labels), 64)), labels))
        write_features(folder, *parts)

    return write


def long_tail(most: int, classes: int, ratio: float) -> np.ndarray:
    counts = most * (1 / ratio) ** (np.arange(classes) / (classes - 1))
    whole: np.ndarray = np.maximum(counts.astype(int), 1)
    return whole


def write_features(folder: Path, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> None:
    np.savez(
        folder.with_suffix(".npz"), features=train[0].astype(np.float32), labels=train[1],
        test_features=test[0].astype(np.float32), test_labels=test[1],
    )  # fmt: skip


DATA: dict[str, Callable[[Path], None]] = {
    "cifar100-lt-100": images("cifar100-lt", 100),
    "cifar100-lt-10": images("cifar100-lt", 10),
    "cifar10-lt-100": images("cifar10-lt", 100),
    "cifar10-lt-10": images("cifar10-lt", 10),
    "digits": digits(50),
    "table": table(24_000, 6, 100, class_sep=1.0),
    "noisy-table": table(24_000, 6, 100, class_sep=0.7, flip_y=0.1),
    "many-classes": many_classes(3000, 127_572),
    "thousand-classes": many_classes(1000, 40_000, per_class=5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *DATA])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or DATA:
        DATA[name](arguments.folder / name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
