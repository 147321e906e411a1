"""A yes or no to each class in a report: what thresholds of held-out samples come to on the test samples."""

from typing import Any

from balpoe.deployment.posteriors import label_weights
from balpoe.deployment.threshold_scores import threshold_scores
from balpoe.deployment.thresholds import Thresholds
from balpoe.evaluation.predictions import Predictions
from balpoe.report.decide.answers import uniform_over_tested

__all__ = ["AIMS", "aimed_scores"]

AIMS: tuple[dict[str, Any], ...] = ({}, {"precision": 0.9}, {"recall": 0.9})
"""What thresholds are fitted for: the best F1, a precision, a recall."""


def aimed_scores(
    held_out: Predictions, test: Predictions, shot_groups: tuple[int, int]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return precision, recall and F1 of each aim's thresholds, with each tested class alike, by shot group.

    Args:
        held_out: Labelled predictions outside of training.
        test: Labelled predictions of the same model, to measure on.
        shot_groups: Thresholds of the shot groups.

    >>> import torch
    >>> targets = torch.arange(200) % 2
    >>> x = 2.0 * targets - 1 + torch.randn(200, generator=torch.Generator().manual_seed(0))
    >>> predictions = Predictions(torch.stack([-x, x], dim=1)[:, None], targets, [500, 5], [0])
    >>> scores = aimed_scores(predictions, predictions, (20, 100))
    >>> list(scores), round(scores["recall 0.9"]["few"]["recall"], 2)
    (['best F1', 'precision 0.9', 'recall 0.9'], 0.9)
    """
    prior = uniform_over_tested(test)
    weights, found = label_weights(test, prior), {}
    for aim in AIMS:
        thresholds = Thresholds.fit(held_out, target_prior=prior, num_resamples=1, **aim)
        found[thresholds.aim] = threshold_scores(thresholds(test), test, weights, shot_groups)
    return found
