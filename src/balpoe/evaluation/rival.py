"""The honest rival: cross-entropy adjusted to the prior that the ensemble is made for, and whether it is beaten."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import SHOT_GROUPS, compare
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import mean_lambda

__all__ = ["Difference", "adjusted_rival", "paired_difference", "paired_differences", "rival_name", "verdict"]

SAME = 1e-6  # difference of shares up to which a prior counts as uniform
NORMAL = 1.959964  # half width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Difference:
    """A difference to a rival on the same test samples, and its 95 % interval."""

    metric: str
    """Name of the metric, a key of `catalogue.METRICS`."""
    value: float
    low: float
    high: float
    pairs: int = 1
    """Number of pairs of seeds, over which it is the mean."""

    @property
    def sign(self) -> int:
        """1 if better than the rival beyond the interval, -1 if worse, 0 if the interval does not tell."""
        beyond = int(self.low > 0) - int(self.high < 0)
        return -beyond if METRICS[self.metric].lower_is_better else beyond


def adjusted_rival(predictions: Predictions) -> Predictions | None:
    """Return the predictions adjusted to the uniform prior; None if they are made for it, or are no posterior.

    The lambdas are moved along, so that the result is what it would be had it been trained so: `evaluate`, `compare`
    and every table take it as it is, and classes without test samples do no harm.

    >>> plain = Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [90, 10], [1])
    >>> rival = adjusted_rival(plain)
    >>> rival.logits, rival.source_prior
    (tensor([[-0.5878,  1.6094]]), tensor([0.5000, 0.5000]))
    >>> adjusted_rival(rival) is None
    True
    """
    source = predictions.source_prior
    if source is None or float(source.max() - source.min()) < SAME:
        return None
    uniform = torch.full_like(source, 1 / predictions.num_classes)
    logits = predictions.adjusted(predictions.calibrated(), uniform)
    moved = replace(predictions, expert_logits=logits, calibration=None, view_logits=None)
    if predictions.lambdas is None:
        return replace(moved, source_prior=uniform)
    return replace(moved, lambdas=predictions.lambdas - mean_lambda(predictions.lambdas, predictions.expert_weights))


def rival_name(name: str, predictions: Predictions) -> str:
    """Return what a run is called once it is adjusted, in tables and legends.

    >>> rival_name("photos-2", Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [90, 10], [1]))
    'photos-2 (cross-entropy), adjusted'
    """
    plain = predictions.num_experts == 1 and predictions.lambdas is not None and bool((predictions.lambdas == 1).all())
    method = " (cross-entropy)" if plain and "cross-entropy" not in name else ""
    return f"{name}{method}, adjusted"


def paired_difference(
    ours: Sequence[Predictions],
    rivals: Sequence[Predictions],
    metric: str = "balanced_accuracy",
    shot_groups: tuple[int, int] = SHOT_GROUPS,
) -> Difference:
    """Return the difference of a metric on the same test samples, with an interval over samples and seeds.

    One seed of each: the paired bootstrap over the test samples. Several: pair by pair, and the spread of the pairs is
    added to the interval, which then says how a further seed would fare too.

    Args:
        ours: Predictions of each seed.
        rivals: Predictions of each seed of the rival, already adjusted; those without a partner are left out.
        metric: Name of the metric.
        shot_groups: Thresholds of the shot groups.

    >>> targets, counts = torch.tensor([0, 1] * 50), torch.tensor([90, 10])
    >>> right = torch.nn.functional.one_hot(targets)[:, None] * 3.0
    >>> ours = Predictions(right, targets, counts, torch.tensor([0.0]))
    >>> round(paired_difference([ours], [replace(ours, expert_logits=right.flip(-1))]).low, 2)
    0.95
    """
    return paired_differences(ours, rivals, [metric], shot_groups)[metric]


def paired_differences(
    ours: Sequence[Predictions],
    rivals: Sequence[Predictions],
    metrics: Sequence[str],
    shot_groups: tuple[int, int] = SHOT_GROUPS,
) -> dict[str, Difference]:
    """Return what `paired_difference` does for several metrics, those left out that have no value."""
    found = [compare(a, b, shot_groups=shot_groups) for a, b in zip(ours, rivals, strict=False)]
    return {
        name: _over_seeds(name, [each[name] for each in found])
        for name in metrics
        if all(name in each for each in found)
    }


def _over_seeds(metric: str, found: Sequence[tuple[float, float, float]]) -> Difference:
    """The mean of differences, each with its interval over the samples, and an interval over samples and seeds."""
    values = [value for value, _, _ in found]
    mean = statistics.fmean(values)
    below = statistics.fmean(value - low for value, low, _ in found)
    above = statistics.fmean(high - value for value, _, high in found)
    seeds = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    low, high = (mean + sign * _half_width(half, seeds, len(values)) for sign, half in ((-1, below), (1, above)))
    if METRICS[metric].per_cent:  # two seeds that differ much would ask for more than all
        low, high = max(low, -1.0), min(high, 1.0)
    return Difference(metric, mean, low, high, len(values))


def _half_width(samples: float, seeds: float, count: int) -> float:
    """Half of the interval from that over the samples and the standard error over the seeds.

    Student's quantile with the degrees of freedom of Welch and Satterthwaite: two seeds tell little about their own
    spread, which matters as far as that spread does.
    """
    if seeds == 0:
        return samples
    from scipy.special import stdtrit  # on first use

    error = math.hypot(samples / NORMAL, seeds)
    return float(stdtrit((count - 1) * (error / seeds) ** 4, 0.975)) * error


def verdict(name: str, rival: str, difference: Difference) -> str:
    """Return whether the rival is beaten, in a sentence; inside the interval it is not.

    Args:
        name: Name of ours.
        rival: Name of the rival.
        difference: Difference of ours to the rival.

    >>> verdict("BalPoE", "cross-entropy, adjusted", Difference("balanced_accuracy", -0.007, -0.021, 0.008))
    'On these data BalPoE cannot be told from cross-entropy, adjusted: balanced accuracy differs by -0.7 points (95 % \
interval -2.1 to +0.8), which may be random.'
    """
    metric = METRICS[difference.metric]
    value, low, high = (metric.shown(each, "+") for each in (difference.value, difference.low, difference.high))
    size = f"{value}{' points' if metric.per_cent else ''} (95 % interval {low} to {high}"
    size += f", {difference.pairs} seeds)" if difference.pairs > 1 else ")"
    if difference.sign > 0:
        return f"On these data {name} is better than {rival}: {metric.label} differs by {size}."
    if difference.sign < 0:
        return f"On these data {name} is worse than {rival}: {metric.label} differs by {size}."
    return f"On these data {name} cannot be told from {rival}: {metric.label} differs by {size}, which may be random."
