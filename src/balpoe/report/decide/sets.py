"""How large prediction sets are and how often they hold the class: of a run's test samples, by shot group."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.class_pools import least_samples
from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.posteriors import label_weights
from balpoe.deployment.set_inputs import logit_blocks
from balpoe.deployment.validation_split import run_validation
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import wilson_interval
from balpoe.report.decide.answers import group_weights, uniform_over_tested

__all__ = ["ALPHAS", "METHODS", "GroupSets", "SetScores", "set_scores", "set_validation"]

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
METHODS = {
    "marginal": "one promise for all samples",
    "per-class": "a promise for each class",
}
"""Methods of `ConformalSets` that the report has, and what a reader may call them."""


class GroupSets(NamedTuple):
    """How good the sets of some test samples are."""

    coverage: float
    """Share of the sets that hold the class."""
    size: float
    """Mean number of classes in a set."""
    interval: tuple[float, float]
    """Wilson's interval of the coverage, at 95 %, for so many test samples."""


class SetScores(NamedTuple):
    """How good the sets of one method are at one alpha."""

    alpha: float
    method: str
    promise: str
    groups: dict[str, GroupSets]
    """Of all test samples in the class mix of the validation samples ("held-out mix") and with equal shares ("all
    alike"), and of each shot group."""


def set_validation(folder: Path) -> tuple[Predictions, bool] | None:
    """Return held-out samples of a run for sets, and whether they are cross-fitted; None where it has none.

    Args:
        folder: Folder of the run.
    """
    return run_validation(folder) if (folder / "calibration.json").exists() else None


def set_scores(
    validation: Predictions,
    test: Predictions,
    shot_groups: tuple[int, int],
    alphas: Sequence[float] = ALPHAS,
    *,
    cross_fitted: bool = False,
) -> list[SetScores]:
    """Return the scores of sets for several alphas and methods; an alpha that the samples cannot serve is left out.

    Args:
        validation: Labelled predictions that are new to all that was fitted.
        test: Labelled predictions of the same model, to measure on.
        shot_groups: Thresholds of the shot groups.
        alphas: Shares of samples whose set may miss their class.
        cross_fitted: Whether networks other than the one in use predicted the validation samples.

    >>> targets = torch.arange(200) % 2
    >>> x = 2.0 * targets - 1 + torch.randn(200, generator=torch.Generator().manual_seed(0))
    >>> predictions = Predictions(torch.stack([-x, x], dim=1)[:, None], targets, [500, 5], [0])
    >>> scores = set_scores(predictions.subset(targets < 9), predictions, (20, 100), alphas=[0.2])
    >>> [(each.method, sorted(each.groups)) for each in scores][0]
    ('marginal', ['all alike', 'few', 'held-out mix', 'many'])
    """
    weights = _weights(validation, test, shot_groups)
    fitted = [_fit(validation, alpha, cross_fitted) for alpha in alphas if len(validation) >= least_samples(alpha)]
    found = []
    for of_a_method in zip(*fitted, strict=True):
        for sets, (held, sizes) in zip(of_a_method, _held_and_sizes(of_a_method, test), strict=True):
            groups = {name: _measured(held, sizes, each) for name, each in weights.items()}
            found.append(SetScores(sets.alpha, sets.method, sets.guarantee, groups))
    return found


def _weights(validation: Predictions, test: Predictions, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    mix = torch.bincount(validation.targets, minlength=test.num_classes).double()
    alike = group_weights(test, uniform_over_tested(test), shot_groups)
    found = {"held-out mix": label_weights(test, mix / mix.sum()), "all alike": alike.pop("all"), **alike}
    return {name: each / each.sum() for name, each in found.items()}


def _measured(held: Tensor, sizes: Tensor, weights: Tensor) -> GroupSets:
    effective = 1 / weights.square().sum()
    low, high = wilson_interval(weights @ held * effective, effective).tolist()
    return GroupSets(float(weights @ held), float(weights @ sizes), (low, high))


def _fit(validation: Predictions, alpha: float, cross_fitted: bool) -> list[ConformalSets]:
    return [ConformalSets.fit(validation, alpha=alpha, method=each, cross_fitted=cross_fitted) for each in METHODS]


def _held_and_sizes(fitted: Sequence[ConformalSets], test: Predictions) -> list[tuple[Tensor, Tensor]]:
    """Whether each sample's set holds its class, and the size of the set, for sets that share a score."""
    thresholds = [sets.thresholds for sets in fitted]
    held, sizes = torch.empty(2, len(fitted), len(test), dtype=torch.float64)
    start = 0
    for logits in logit_blocks(replace(test, calibration=fitted[0].calibration)):
        rows = slice(start, start + len(logits))
        scores = fitted[0].score(logits)  # of no alpha: one for all
        own = scores.gather(1, test.targets[rows, None]).squeeze(1)
        for place, limit in enumerate(thresholds):
            held[place, rows] = (own <= limit[test.targets[rows]]).double()
            sizes[place, rows] = (scores <= limit).sum(dim=1).double()
        start += len(logits)
    return list(zip(held, sizes, strict=True))
