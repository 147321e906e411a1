"""Handwritten digits, which scikit-learn is installed with: nothing to fetch."""

from pathlib import Path

import numpy as np
import torch

from balpoe.data.dataset import Dataset
from balpoe.data.long_tail import long_tailed_indices

__all__ = ["load_digits"]


def load_digits(name: str, root: str | Path | None = None, download: bool = False) -> tuple[Dataset, Dataset]:
    """Return the training pool and the test set, 50 images of each digit, drawn once and for all.

    >>> pool, test = load_digits("digits-lt")
    >>> len(pool), len(test), pool.preprocessing.size
    (1297, 500, (1, 8, 8))
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    targets = torch.from_numpy(digits.target)
    held_out = long_tailed_indices(targets, [50] * 10, seed=1)
    rest = torch.ones(len(targets), dtype=torch.bool).index_fill(0, held_out, False)
    pool = Dataset(images[rest], targets[rest])
    return pool, Dataset(images[held_out], targets[held_out], pool.class_names, pool.preprocessing)
