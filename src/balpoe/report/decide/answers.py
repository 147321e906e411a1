"""Answers of the most probable class, given from some confidence on: how many are wrong, and who gets none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.selective_risk import risk_coverage
from balpoe.evaluation.metrics import shot_groups as groups_of_classes
from balpoe.evaluation.predictions import Predictions

__all__ = ["Answered", "Answers", "group_weights", "most_probable", "surest", "uniform_over_tested"]


class Answered(NamedTuple):
    """What comes of answering where the confidence reaches a threshold, for the samples of some classes."""

    share: float
    """Share of the samples that are answered."""
    error: float | None
    """Share of the answers that are wrong; None without any."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The most probable class of each sample under a prior, as far as it matters here."""

    confidence: Tensor
    """Its probability, (samples,)."""
    right: Tensor
    """Whether it is the sample's class, (samples,)."""
    weights: dict[str, Tensor]
    """Weight of each sample among all, and among the shot groups that have samples."""

    def from_confidence(self, threshold: float) -> dict[str, Answered]:
        """Return what comes of answering from this confidence on, for all samples and each shot group."""
        given = self.confidence >= threshold
        found = {}
        for name, weights in self.weights.items():
            mass = weights * given
            error = float(mass @ (~self.right).double() / mass.sum()) if bool(mass.any()) else None
            found[name] = Answered(float(mass.sum() / weights.sum()), error)
        return found

    def areas(self) -> dict[str, float]:
        """Return the area under the risk-coverage curve, for all samples and each shot group."""
        members = {name: weights > 0 for name, weights in self.weights.items()}
        return {
            name: risk_coverage(self.confidence[rows], self.right[rows], self.weights[name][rows]).area
            for name, rows in members.items()
        }


def uniform_over_tested(predictions: Predictions) -> Tensor:
    """Return the uniform prior over the classes that have a test sample: of others nothing can be measured.

    >>> uniform_over_tested(Predictions(torch.zeros(2, 1, 3), torch.tensor([0, 2]), [5, 5, 5], [0])).tolist()
    [0.5, 0.0, 0.5]
    """
    tested = torch.bincount(predictions.targets, minlength=predictions.num_classes) > 0
    return tested.double() / tested.sum()


def group_weights(predictions: Predictions, prior: Tensor, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    """Return weights that make the samples stand for a prior: of all of them, and of each shot group that has some.

    Args:
        predictions: Labelled predictions.
        prior: Prior, (classes,).
        shot_groups: Thresholds of the shot groups.

    >>> predictions = Predictions(torch.zeros(2, 1, 2), torch.tensor([0, 1]), [500, 5], [0])
    >>> {name: each.tolist() for name, each in group_weights(predictions, torch.tensor([0.5, 0.5]), (20, 100)).items()}
    {'all': [1.0, 1.0], 'many': [1.0, 0.0], 'few': [0.0, 1.0]}
    """
    weights = label_weights(predictions, prior)
    groups = groups_of_classes(predictions.class_counts, shot_groups)
    found = {"all": weights, **{name: weights * mask[predictions.targets] for name, mask in groups.items()}}
    return {name: each for name, each in found.items() if bool(each.any())}


def most_probable(predictions: Predictions, prior: Tensor, shot_groups: tuple[int, int]) -> Answers:
    """Return the most probable class of each test sample under a prior, read block by block.

    Args:
        predictions: Labelled predictions.
        prior: Deployment prior, (classes,).
        shot_groups: Thresholds of the shot groups.

    >>> predictions = Predictions(torch.tensor([[[2.0, 0.0]], [[0.1, 0.0]]]), torch.tensor([0, 1]), [500, 5], [0])
    >>> answers = most_probable(predictions, torch.tensor([0.5, 0.5]), (20, 100))
    >>> answers.from_confidence(0.0)["all"], answers.from_confidence(0.8)["few"]
    (Answered(share=1.0, error=0.5), Answered(share=0.0, error=None))
    """
    posteriors = Posteriors(predictions, prior)
    confidence = torch.empty(len(predictions), dtype=torch.float64)
    right = torch.empty(len(predictions), dtype=torch.bool)
    for rows, probabilities in posteriors.probabilities():
        confidence[rows], answers = probabilities.max(dim=1)
        right[rows] = answers == predictions.targets[rows]
    return Answers(confidence, right, group_weights(predictions, prior, shot_groups))


def surest(answers: Answers, shares: Sequence[float]) -> list[float]:
    """Return the confidence from which on each share of the samples, or just more, is answered.

    >>> confidence, right = torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([True, True, False, True])
    >>> [round(each, 1) for each in surest(Answers(confidence, right, {"all": torch.ones(4)}), (1.0, 0.6, 0.5))]
    [0.5, 0.6, 0.8]
    """
    curve = risk_coverage(answers.confidence, answers.right, answers.weights["all"])
    wanted = torch.tensor(shares, dtype=torch.float64) - 1e-9
    return [float(each) for each in curve.threshold[torch.searchsorted(curve.coverage, wanted)]]
