"""Which samples of known classes a report's run would call unknown; of truly unknown ones it has none to try."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.class_pools import least_samples
from balpoe.deployment.posteriors import label_weights
from balpoe.deployment.unknown import OTHER_NETWORKS
from balpoe.deployment.unknown_scores import unknown_scores
from balpoe.deployment.unknown_threshold import Basis, coverage_notes
from balpoe.evaluation.predictions import Predictions
from balpoe.report.decide.answers import group_weights, most_probable, uniform_over_tested

__all__ = ["BINS", "KEEPS", "Called", "UnknownPart", "UnknownScores", "unknown_part"]

KEEPS = (0.8, 0.9, 0.95, 0.98, 0.99)
BINS = 25
SCORE = "probability"  # from 0 to 1, and no worse than others where it was measured


class Called(NamedTuple):
    """Shares of some test samples that are called unknown; None where there are none of the kind."""

    all: float
    right: float | None
    """Of those that are answered rightly."""
    wrong: float | None
    """Of those that are answered wrongly."""


class UnknownScores(NamedTuple):
    """What comes of one threshold."""

    keep: float
    """Share of known samples that it keeps."""
    threshold: float
    groups: dict[str, Called]
    """Of all test samples in the class mix of the held-out samples ("held-out mix"), and of each shot group."""


class UnknownPart(NamedTuple):
    """How unknown test samples look, and who would be called so."""

    right: list[float]
    """Share of the rightly answered samples in each bin of the score, from 0 to 1, (bins,)."""
    wrong: list[float]
    """The same of the wrongly answered ones."""
    scores: list[UnknownScores]
    notes: tuple[str, ...]
    """What is not promised."""


def unknown_part(
    validation: Predictions,
    test: Predictions,
    shot_groups: tuple[int, int],
    keeps: Sequence[float] = KEEPS,
    *,
    cross_fitted: bool = False,
) -> UnknownPart | None:
    """Return who would be called unknown by thresholds of held-out samples; None where those are too few.

    Args:
        validation: Labelled predictions that are new to all that was fitted.
        test: Labelled predictions of the same model, to measure on.
        shot_groups: Thresholds of the shot groups.
        keeps: Shares of known samples that thresholds keep.
        cross_fitted: Whether networks other than the one in use predicted the validation samples.

    >>> targets = torch.arange(200) % 2
    >>> x = 2.0 * targets - 1 + torch.randn(200, generator=torch.Generator().manual_seed(0))
    >>> predictions = Predictions(torch.stack([-x, x], dim=1)[:, None], targets, [500, 5], [0])
    >>> part = unknown_part(predictions, predictions, (20, 100), keeps=[0.9])
    >>> round(part.scores[0].groups["held-out mix"].all, 3), sorted(part.scores[0].groups)
    (0.095, ['few', 'held-out mix', 'many'])
    """
    possible = [keep for keep in keeps if len(validation) >= least_samples(1 - keep)]
    if not possible:
        return None
    test, classes = replace(test, calibration=validation.calibration), test.num_classes
    basis = Basis.whole(len(validation), validation.targets, None)
    known, found = unknown_scores(validation, SCORE), unknown_scores(test, SCORE)
    answers = most_probable(test, uniform_over_tested(test), shot_groups)
    weights = _weights(validation, test, shot_groups)
    scores = []
    for keep in possible:
        threshold = basis.limit(known, keep, classes)
        called = (found > threshold).double()
        groups = {name: _called(called, answers.right, each) for name, each in weights.items()}
        scores.append(UnknownScores(keep, threshold, groups))
    absent = basis.uncovered(test.train_prior, classes)
    notes = coverage_notes(absent, test.class_names, None, possible[0], None)  # of no share kept: there are several
    right, wrong = (_shares(found, answers.weights["all"] * rows) for rows in (answers.right, ~answers.right))
    return UnknownPart(right, wrong, scores, (*notes, *([OTHER_NETWORKS] if cross_fitted else [])))


def _weights(validation: Predictions, test: Predictions, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    """Weights of the test samples: as the held-out samples are mixed, and of each shot group with its classes alike."""
    mix = torch.bincount(validation.targets, minlength=test.num_classes).double()
    groups = group_weights(test, uniform_over_tested(test), shot_groups)
    return {"held-out mix": label_weights(test, mix / mix.sum()), **{k: v for k, v in groups.items() if k != "all"}}


def _called(called: Tensor, right: Tensor, weights: Tensor) -> Called:
    everyone, *parts = (_mean(called, weights * rows) for rows in (torch.ones_like(right), right, ~right))
    return Called(everyone or 0.0, *parts)


def _mean(values: Tensor, weights: Tensor) -> float | None:
    return float(values @ weights / weights.sum()) if bool(weights.any()) else None


def _shares(scores: Tensor, weights: Tensor) -> list[float]:
    """Share of the weight in each bin; zeros without any."""
    place = (scores * BINS).long().clamp(0, BINS - 1)
    mass = torch.bincount(place, weights, minlength=BINS)
    found: list[float] = (mass / mass.sum().clamp(min=1e-300)).tolist()
    return found
