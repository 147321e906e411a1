"""What answers are worth by the metrics that they may be made for, beside those of the most probable class."""

from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.score_intervals import ScoreIntervals, WeightedMean
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import effective_counts, wilson_interval

__all__ = ["metric_scores"]

METRICS = ("accuracy", "balanced_accuracy", "macro_f1")


def metric_scores(
    answers: Tensor, plain: Tensor, predictions: Predictions, weights: Tensor, intervals: ScoreIntervals
) -> dict[str, dict[str, Any]]:
    """Return the metrics of answers, of the most probable classes, and of their difference, with 95 % intervals.

    Args:
        answers: Answers, each a class, (samples,).
        plain: Most probable classes, (samples,).
        predictions: The samples with their labels.
        weights: Weight of each sample, the same within a class, (samples,).
        intervals: Intervals over the samples.

    >>> targets = torch.arange(40) % 2
    >>> predictions = Predictions(torch.zeros(40, 1, 2), targets, [9, 9], [0])
    >>> weights, nothing = torch.ones(40, dtype=torch.float64), torch.zeros(40, dtype=torch.int64)
    >>> found = metric_scores(targets, nothing, predictions, weights, ScoreIntervals(predictions))
    >>> found["difference"]["macro_f1"], found["most probable class"]["recall"]
    (0.6666666666666667, [1.0, 0.0])
    """
    targets, classes = predictions.targets, predictions.num_classes
    ways = {"decision": answers, "most probable class": plain}

    def statistic(counts: Tensor) -> Tensor:
        ours, theirs = (_metrics(each, targets, counts * weights, classes) for each in (answers, plain))
        return torch.cat([ours, theirs, ours - theirs], dim=1)

    values = statistic(torch.ones(1, len(targets), dtype=torch.float64))[0].split(len(METRICS))
    ends = intervals.resampled(statistic)
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate((*ways, "difference")):
        own = ends[number * len(METRICS) : (number + 1) * len(METRICS)]
        found[name] = dict(zip(METRICS, values[number].tolist(), strict=True))
        found[name]["intervals"] = dict(zip(METRICS, own, strict=True))
    once = (1 / torch.bincount(targets).clamp(min=1).double())[targets] * (weights > 0)
    for name, given in ways.items():
        right = (given == targets).double()
        shares = [WeightedMean(right, weights), WeightedMean(right, once)]
        found[name]["intervals"] |= dict(zip(METRICS, intervals.of_shares(shares), strict=False))
        found[name] |= _recalls(right, weights, predictions)
    return found


def _metrics(answers: Tensor, targets: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Accuracy, balanced accuracy and macro F1 under weights, (rows, samples), of the classes that have any."""
    right = (answers == targets) * weights
    zeros = torch.zeros(len(weights), classes, dtype=torch.float64)
    mass, given, hits = (
        zeros.index_add(1, labels, values)
        for labels, values in ((targets, weights), (answers, weights), (targets, right))
    )
    there = mass > 0
    several = there.sum(dim=1)
    recall = (hits / mass.clamp(min=1e-300) * there).sum(dim=1) / several
    f1 = (2 * hits / (mass + given).clamp(min=1e-300) * there).sum(dim=1) / several
    return torch.stack([right.sum(dim=1) / weights.sum(dim=1), recall, f1], dim=1)


def _recalls(right: Tensor, weights: Tensor, predictions: Predictions) -> dict[str, list[Any]]:
    """Recall of each class and Wilson's interval of it; None without a sample that counts."""
    targets, classes = predictions.targets, predictions.num_classes
    counts = torch.bincount(targets, minlength=classes).double()
    there = torch.bincount(targets, weights, minlength=classes) > 0
    recall = torch.bincount(targets, right, minlength=classes) / counts
    effective = effective_counts(targets, classes, predictions.groups)
    ends = wilson_interval(recall * effective, effective).T.tolist()
    known = list(zip(there.tolist(), recall.tolist(), ends, strict=True))
    return {
        "recall": [value if is_there else None for is_there, value, _ in known],
        "recall_intervals": [tuple(end) if is_there else None for is_there, _, end in known],
    }
