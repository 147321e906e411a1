"""Arrays as scikit-learn hands them over, made ready for a network: standardised features, or images."""

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.errors import UserError
from balpoe.estimator.normal_scores import heavy_tailed_columns

__all__ = ["FeatureInputs", "ImageInputs"]

CLIP = 8.0  # deviations from the mean, towards which a feature is bent that lies further out
LARGEST = 1e300


class FeatureInputs:
    """From arrays of any shape to features, standardised as those of the training samples.

    A feature with heavy tails is replaced by its normal scores first.

    Args:
        X: The training samples, (samples, ...).
        weights: One a sample.

    >>> inputs = FeatureInputs(np.array([[0.0], [2.0]]), np.ones(2))
    >>> inputs(np.array([[1.0], [1e9]]))
    tensor([[0.],
            [8.]])
    """

    def __init__(self, X: np.ndarray, weights: np.ndarray) -> None:
        self.shape = X.shape[1:]
        values = _flat(X)
        self.unit = np.abs(values).max(axis=0)  # squares of the largest floats would be infinite
        self.unit[self.unit == 0] = 1
        values = values / self.unit
        self.scores = heavy_tailed_columns(values, weights)
        values = self._scored(values)
        self.mean = np.average(values, axis=0, weights=weights)
        self.std = np.average((values - self.mean) ** 2, axis=0, weights=weights) ** 0.5
        self.std[self.std < 1e-12] = 1
        self.preprocessing = Preprocessing((values.shape[1],))

    def __call__(self, X: np.ndarray) -> Tensor:
        """Return features (samples, features) in float32."""
        if X.shape[1:] != self.shape:
            raise UserError(f"samples of shape {self.shape} were expected, but got {X.shape[1:]}")
        with np.errstate(over="ignore"):
            values = (self._scored(_flat(X) / self.unit) - self.mean) / self.std
        values = values.clip(-LARGEST, LARGEST)
        return torch.from_numpy(values / np.hypot(1, values / CLIP)).float()

    def _scored(self, values: np.ndarray) -> np.ndarray:
        """Replace the features with heavy tails, in place."""
        for column, scores in self.scores.items():
            values[:, column] = scores(values[:, column])
        return values


class ImageInputs:
    """From bytes or floats (samples, channels, height, width) to the same as a tensor, to be normalised by channel.

    Args:
        X: The training images.

    >>> inputs = ImageInputs(np.full((4, 3, 2, 2), 255, dtype=np.uint8))
    >>> inputs.preprocessing.mean, inputs(np.full((1, 3, 2, 2), 255.0)).max()  # the same numbers in another type
    ((1.0, 1.0, 1.0), tensor(1.))
    """

    def __init__(self, X: np.ndarray) -> None:
        if X.ndim != 4:
            raise UserError(
                f"a network for images wants X of shape (samples, channels, height, width), but it has {X.shape}; "
                "leave network at 'auto' for tables"
            )
        self.bytes = X.dtype == np.uint8
        self.preprocessing = Dataset(self(X), np.zeros(len(X), dtype=np.int64)).preprocessing

    def __call__(self, X: np.ndarray) -> Tensor:
        """Return raw images, of the type that the training images had."""
        if self.bytes and X.dtype == np.uint8:
            return torch.from_numpy(X)
        return torch.from_numpy(X.astype(np.float32) / (255 if self.bytes else 1))


def _flat(X: np.ndarray) -> np.ndarray:
    return X.reshape(len(X), -1).astype(np.float64)
