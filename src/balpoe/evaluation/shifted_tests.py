"""The field's shifted test sets: the same predictions under eleven label distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe.data.long_tail import long_tailed_indices, shifted_test_counts
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_estimate import posterior_source
from balpoe.method.label_shift import estimate_prior
from balpoe.method.priors import class_counts, class_prior

__all__ = ["EstimatedScores", "ShiftedScores", "estimated_test_sets", "full_evaluation", "shifted_test_sets"]

SHIFT_RATIOS = (50, 25, 10, 5, 2)


@dataclass(frozen=True)
class ShiftedScores:
    """A shifted test set: accuracy with the logits as trained, and moved to the set's own label frequencies."""

    name: str
    ratio: float
    samples: int
    as_trained: float
    adjusted: float | None
    """None for logits that are no posterior, which cannot be moved."""


@dataclass(frozen=True)
class EstimatedScores:
    """A shifted test set whose prior was estimated from its own unlabelled predictions."""

    name: str
    samples: int
    estimated: float
    """The accuracy with calibrated logits, moved to the estimate where it is significant."""
    lambda_: float | None
    significant: bool


def full_evaluation(predictions: Predictions, shot_groups: tuple[int, int]) -> dict[str, Any]:
    """Return what a run saves as its evaluation: all metrics, the shifted test sets, and what calibration changed."""
    evaluation = evaluate(predictions, shot_groups=shot_groups).to_dict()
    evaluation["shifted"] = [asdict(scores) for scores in shifted_test_sets(predictions)]
    if predictions.calibration is not None:
        before = evaluate(predictions.uncalibrated(), shot_groups=shot_groups, num_resamples=0).to_dict()
        scores = {name: before[name] for name in METRICS if name in before}
        evaluation["calibration"] = {**asdict(predictions.calibration), "before": scores}
    return evaluation


def shifted_test_sets(
    predictions: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[ShiftedScores]:
    """Return the accuracy on the field's test distributions, forward to uniform to backward.

    Forward sets keep most samples of the classes that are frequent in training, backward sets of the
    rare ones; the samples are those that the reference's rule keeps. Ratios for which a class would
    keep no sample are left out.
    """
    sets = list(_test_sets(predictions, ratios, seed))
    counts = (class_counts(predictions.targets[rows], predictions.num_classes) for _, _, rows in sets)
    priors = [count / count.sum() for count in counts]
    answers = predictions.answers(priors)
    results = []
    for (name, ratio, rows), answer in zip(sets, answers[1:], strict=True):
        right = [float((each[rows] == predictions.targets[rows]).double().mean()) for each in (answers[0], answer)]
        adjusted = None if predictions.source_prior is None else right[1]
        results.append(ShiftedScores(name, ratio, len(rows), right[0], adjusted))
    return results


def estimated_test_sets(
    predictions: Predictions, validation: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[EstimatedScores]:
    """Return the accuracy on the same test sets with the prior estimated from the unlabelled predictions of each.

    Args:
        predictions: Predictions of the whole test set.
        validation: Labelled predictions of the same model on other samples.
        ratios: Imbalance ratios of the test sets.
        seed: Seed of the choice of samples.
    """
    results = []
    for name, _, rows in _test_sets(predictions, ratios, seed):
        subset = predictions.subset(rows)
        found = estimate_prior(
            subset.logits, source_prior=posterior_source(predictions), validation=validation,
            family="tempered", train_prior=class_prior(predictions.class_counts),
        )  # fmt: skip
        right = float((found.adjust(subset.logits).argmax(dim=1) == subset.targets).double().mean())
        results.append(EstimatedScores(name, len(subset), right, found.lambda_, found.significant))
    return results


def _test_sets(predictions: Predictions, ratios: Sequence[float], seed: int) -> Iterator[tuple[str, float, Tensor]]:
    """Name, ratio and samples of each test set."""
    counts = class_counts(predictions.targets, predictions.num_classes)
    fewest = int(counts.min())
    # iNaturalist has three test images a class: there the paper takes ratio 3, which no larger test set has.
    ratios = [*ratios, 3] if fewest == 3 and tuple(ratios) == SHIFT_RATIOS else ratios
    usable = [ratio for ratio in sorted(ratios, reverse=True) if ratio <= fewest]
    forward, backward = [("forward", ratio) for ratio in usable], [("backward", ratio) for ratio in reversed(usable)]
    whole = "uniform" if counts.min() == counts.max() else "test set"
    for direction, ratio in [*forward, (whole, 1), *backward]:
        if direction == whole:
            yield whole, 1, torch.arange(len(predictions))
        else:
            kept = shifted_test_counts(predictions.class_counts, counts, ratio, direction)
            yield f"{direction}-{ratio:g}", ratio, long_tailed_indices(predictions.targets, kept, seed)
