"""Parameters of the classifier: what they may be, and what they are by default."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from balpoe.data.augment.operations import AUGMENTATIONS, Operation
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.deployment_prior import target_prior

__all__ = [
    "checked_number",
    "checked_whole",
    "default_batch_size",
    "default_weight_decay",
    "deployment_weights",
    "hidden_units",
    "least_steps",
    "operations_of",
]

BATCHES = 175  # of an epoch; for their sake batches grow with the samples, from 128 to 512


def deployment_weights(spec: Any, classes: np.ndarray, prior: Tensor) -> Tensor:
    """Return the deployment prior, in the order of the classes, (classes,).

    Args:
        spec: Value of the classifier's `target_prior`.
        classes: Class labels.
        prior: Training prior, (classes,).
    """
    names = tuple(map(str, classes))
    if isinstance(spec, Mapping) or (
        hasattr(spec, "items") and getattr(spec, "ndim", 0) == 1
    ):  # a Series, by its index
        known = dict(zip(classes.tolist(), names, strict=True))  # by value: 1, 1.0 and True are one label
        weights = [(known.get(label, str(label)), weight) for label, weight in spec.items()]
        spec = dict(weights)
        if len(spec) < len(weights):
            raise UserError("target_prior has two weights for one class; keep one of them")
    elif not isinstance(spec, str | Path | list | tuple) and not hasattr(spec, "tolist"):
        raise UserError(
            "target_prior must be 'uniform', 'train', 'estimate', a file, a mapping from class to weight, or a row of "
            f"weights in the order of classes_, but is of type {type(spec).__name__}"
        )
    described = SimpleNamespace(class_names=names, class_counts=prior, num_classes=len(names), train_prior=prior)
    found: Tensor = target_prior(spec, described)
    return found


def default_batch_size(samples: int) -> int:
    """Return the samples of a step: an eighth of few, and more of very many.

    >>> default_batch_size(400), default_batch_size(10_000), default_batch_size(100_000)
    (50, 128, 512)
    """
    return min(512, max(16, min(128, samples // 8), samples // BATCHES))


def least_steps(samples: int) -> int:
    """Return how many steps there are at least: 300 up to 200 samples, 600 from 400 on."""
    return min(600, max(300, 3 * samples // 2))


def default_weight_decay(batch_size: int) -> float:
    """Return more where larger batches make fewer steps: it is what lets the weights' directions turn in time."""
    return 5e-4 * math.sqrt(max(1.0, batch_size / 128))


def checked_number(name: str, value: Any, wanted: str = "a number") -> float:
    """Return a parameter that is to be a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} must be {wanted}, but is {value!r}")
    return float(value)


def checked_whole(name: str, value: Any) -> int:
    """Return a parameter that is to be a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, but is {value!r}")
    return int(value)


def hidden_units(hidden: Any) -> list[int]:
    """Return the units of each hidden layer, from one number or several."""
    values = hidden.tolist() if hasattr(hidden, "tolist") else hidden
    return [checked_whole("hidden", value) for value in (values if isinstance(values, list | tuple) else [values])]


def operations_of(name: Any) -> tuple[Operation, ...]:
    """Return the operations of an augmentation."""
    if not isinstance(name, str) or name not in AUGMENTATIONS:
        raise unknown_name("augmentation", name, AUGMENTATIONS)
    return AUGMENTATIONS[name]
