"""The field's shifted test sets: the same predictions under eleven label distributions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from balpoe.data.longtail import long_tailed_indices, shifted_test_counts
from balpoe.ensemble import shift_prior
from balpoe.predictions import Predictions

__all__ = ["ShiftedScores", "shifted_test_sets"]

SHIFT_RATIOS = (50, 25, 10, 5, 2)


@dataclass(frozen=True)
class ShiftedScores:
    """A shifted test set: accuracy with the logits as trained, and moved to the set's own label frequencies."""

    name: str
    ratio: float
    samples: int
    not_told: float
    told: float


def shifted_test_sets(
    predictions: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[ShiftedScores]:
    """Return the accuracy on the field's test distributions, forward to uniform to backward.

    Forward sets keep most samples of the classes that are frequent in training, backward sets of the
    rare ones; the samples are those that the reference's rule keeps. Ratios for which a class would
    keep no sample are left out.
    """
    counts = _label_counts(predictions)
    usable = [ratio for ratio in sorted(ratios, reverse=True) if ratio <= int(counts.min())]
    results = [_shifted(predictions, "forward", ratio, seed) for ratio in usable]
    results.append(_told_and_not(predictions, "uniform" if counts.min() == counts.max() else "test set", 1))
    return results + [_shifted(predictions, "backward", ratio, seed) for ratio in reversed(usable)]


def _shifted(predictions: Predictions, direction: str, ratio: float, seed: int) -> ShiftedScores:
    counts = shifted_test_counts(predictions.class_counts, _label_counts(predictions), ratio, direction)
    subset = predictions.subset(long_tailed_indices(predictions.targets, counts, seed))
    return _told_and_not(subset, f"{direction}-{ratio:g}", ratio)


def _told_and_not(predictions: Predictions, name: str, ratio: float) -> ShiftedScores:
    counts = _label_counts(predictions)
    logits = predictions.logits
    told = shift_prior(logits, counts / counts.sum(), predictions.source_prior)
    right = [float((row.argmax(dim=1) == predictions.targets).double().mean()) for row in (logits, told)]
    return ShiftedScores(name, ratio, len(predictions), *right)


def _label_counts(predictions: Predictions) -> Tensor:
    return torch.bincount(predictions.targets, minlength=predictions.num_classes)
