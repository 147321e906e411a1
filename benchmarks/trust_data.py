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


def many_classes(folder: Path) -> None:
    """3,000 Gaussian classes in 64 features, of 6 to 150 rows: 127,572 rows."""
    rng = np.random.default_rng(0)
    counts = np.round(long_tail(150, 3000, 25, whole=False)).astype(int)
    counts[: 127_572 - counts.sum()] += 1  # so that there are as many as in the trial that showed the fault
    means = rng.normal(size=(3000, 64))
    parts = []
    for each in (counts, np.full(3000, 3)):
        labels = np.repeat(np.arange(3000), each)
        parts.append((means[labels] + 0.9 * rng.normal(size=(len(labels), 64)), labels))
    write_features(folder, *parts)


def long_tail(most: int, classes: int, ratio: float, whole: bool = True) -> np.ndarray:
    counts = most * (1 / ratio) ** (np.arange(classes) / (classes - 1))
    return np.maximum(counts.astype(int), 1) if whole else counts


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
    "many-classes": many_classes,
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
