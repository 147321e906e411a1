"""The field's shifted test sets: the same predictions under eleven label distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from balpoe.data.longtail import long_tailed_indices, shifted_test_counts
from balpoe.ensemble import shift_prior
from balpoe.label_shift import estimate_prior
from balpoe.predictions import Predictions
from balpoe.priors import class_prior

__all__ = ["EstimatedScores", "ShiftedScores", "estimated_test_sets", "shifted_test_sets"]

SHIFT_RATIOS = (50, 25, 10, 5, 2)


@dataclass(frozen=True)
class ShiftedScores:
    """A shifted test set: accuracy with the logits as trained, and moved to the set's own label frequencies."""

    name: str
    ratio: float
    samples: int
    not_told: float
    told: float


@dataclass(frozen=True)
class EstimatedScores:
    """A shifted test set whose prior was estimated from its own unlabelled predictions."""

    name: str
    samples: int
    estimated: float
    """The accuracy with calibrated logits, moved to the estimate where it is significant."""
    lambda_: float | None
    significant: bool


def shifted_test_sets(
    predictions: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[ShiftedScores]:
    """Return the accuracy on the field's test distributions, forward to uniform to backward.

    Forward sets keep most samples of the classes that are frequent in training, backward sets of the
    rare ones; the samples are those that the reference's rule keeps. Ratios for which a class would
    keep no sample are left out.
    """
    return [_told_and_not(*each) for each in _test_sets(predictions, ratios, seed)]


def estimated_test_sets(
    predictions: Predictions, validation: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[EstimatedScores]:
    """Return the accuracy on the same test sets with the prior estimated from the unlabelled predictions of each.

    Args:
        predictions: Of the whole test set.
        validation: Labelled predictions of the same model on other samples.
        ratios: As for `shifted_test_sets`.
        seed: As for `shifted_test_sets`.
    """
    results = []
    for name, _, subset in _test_sets(predictions, ratios, seed):
        found = estimate_prior(
            subset.logits, source_prior=predictions.source_prior, validation=validation,
            family="tempered", train_prior=class_prior(predictions.class_counts),
        )  # fmt: skip
        right = float((found.adjust(subset.logits).argmax(dim=1) == subset.targets).double().mean())
        results.append(EstimatedScores(name, len(subset), right, found.lambda_, found.significant))
    return results


def _test_sets(
    predictions: Predictions, ratios: Sequence[float], seed: int
) -> Iterator[tuple[str, float, Predictions]]:
    counts = _label_counts(predictions)
    usable = [ratio for ratio in sorted(ratios, reverse=True) if ratio <= int(counts.min())]
    forward, backward = [("forward", ratio) for ratio in usable], [("backward", ratio) for ratio in reversed(usable)]
    whole = "uniform" if counts.min() == counts.max() else "test set"
    for direction, ratio in [*forward, (whole, 1), *backward]:
        if direction == whole:
            yield whole, 1, predictions
        else:
            kept = shifted_test_counts(predictions.class_counts, counts, ratio, direction)
            subset = predictions.subset(long_tailed_indices(predictions.targets, kept, seed))
            yield f"{direction}-{ratio:g}", ratio, subset


def _told_and_not(name: str, ratio: float, predictions: Predictions) -> ShiftedScores:
    counts = _label_counts(predictions)
    logits = predictions.logits
    told = shift_prior(logits, counts / counts.sum(), predictions.source_prior)
    right = [float((row.argmax(dim=1) == predictions.targets).double().mean()) for row in (logits, told)]
    return ShiftedScores(name, ratio, len(predictions), *right)


def _label_counts(predictions: Predictions) -> Tensor:
    return torch.bincount(predictions.targets, minlength=predictions.num_classes)
