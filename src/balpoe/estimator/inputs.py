"""Arrays as scikit-learn hands them over, made ready for a network: standardised features, or images."""

from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.user.class_names import is_missing
from balpoe.errors import UserError
from balpoe.estimator.normal_scores import heavy_tailed_columns

__all__ = ["FeatureInputs", "ImageInputs", "group_numbers", "numbers_alone", "sample_weights"]

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


def sample_weights(weights: Any, samples: int) -> np.ndarray:
    """Return one weight for each sample, from nothing, one number for all, or one for each.

    >>> sample_weights(None, 2)
    array([1., 1.])
    """
    if weights is None:
        return np.ones(samples)
    if isinstance(weights, Real):
        weights = np.full(samples, float(weights))
    checked = check_array(weights, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight")
    if checked.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if len(checked) != samples:
        raise ValueError(
            f"sample_weight.shape == {checked.shape}, expected {(samples,)}; give one weight for each sample"
        )
    if (checked < 0).any():
        raise ValueError("Negative values in data passed to `sample_weight`; give weights from 0")
    whole: np.ndarray = checked
    return whole


def group_numbers(groups: Any, samples: int) -> Tensor | None:
    """Return a number for each sample, the same for those of one group; None without groups.

    A sample whose label is None, NaN or empty is in no group, as in a table, and has a number of its own. Labels may be
    tuples, of several columns; such a sample is in no group if all of its columns are missing.

    >>> group_numbers(["b", "a", None, "b"], 4)
    tensor([1, 0, 2, 1])
    """
    if groups is None:
        return None
    labels = np.asarray(groups, dtype=object)  # else NaN beside texts would be the text 'nan'
    if labels.shape != (samples,):
        raise ValueError(f"groups has shape {labels.shape}, expected {(samples,)}; give one label for each sample")
    alone = np.array([_says_nothing(label) for label in labels], dtype=bool)
    if any(isinstance(label, tuple) for label in labels):  # which NaN keeps from being sorted
        places: dict[Any, int] = {}
        numbers = np.array([places.setdefault(_without_nan(label), len(places)) for label in labels[~alone]], dtype=int)
    else:
        numbers = np.unique(np.array(labels[~alone].tolist()), return_inverse=True)[1]
    found = np.empty(samples, dtype=np.int64)
    found[~alone], found[alone] = numbers, len(numbers) + np.arange(alone.sum())
    return torch.from_numpy(np.unique(found, return_inverse=True)[1])


def _says_nothing(label: Any) -> bool:
    """Whether a label is missing: None, NaN, what pandas has in their place, an empty text, or a tuple of them."""
    if isinstance(label, tuple):
        return all(map(_says_nothing, label))
    return is_missing(label) or (isinstance(label, str) and not label.strip())


def _without_nan(label: Any) -> Any:
    """A label that equals its equals: None for what is missing in a tuple."""
    return tuple(None if _says_nothing(part) else part for part in label) if isinstance(label, tuple) else label


def numbers_alone(X: np.ndarray) -> np.ndarray:
    """Return an array of numbers, or refuse it: times are numbers to scikit-learn's check, but not to what follows.

    Nor are images without pixels samples.
    """
    if X.dtype.kind not in "buif":
        raise ValueError(f"X must hold numbers, but holds {X.dtype}; turn its columns into numbers")
    if not X[:1].size:
        raise ValueError(f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X
