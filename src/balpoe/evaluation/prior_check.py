"""Whether each predictor is calibrated for the prior that it was made for, as the theorem needs it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from balpoe.evaluation.metrics import calibration_bins, expected_calibration_error
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.summaries import Summary, has_own_weights, own_priors, own_weights

__all__ = ["PriorCheck", "prior_checks"]


@dataclass(frozen=True)
class PriorCheck:
    """Whether a predictor is what the theorem needs: calibrated for the prior it was made for."""

    marginal: tuple[float, ...] = field(repr=False)
    """Its average prediction over the test data, the paper's Figure 3."""
    marginal_kl: float
    """Divergence of that from its prior, as the paper draws it: grows with separation even for a perfect expert."""
    weighted_kl: float | None
    """That divergence over test data weighted to its prior: 0 if calibrated; None if a class has no test sample."""
    weighted_ece: float | None
    """The expert's ECE under those weights."""


def prior_checks(predictions: Predictions, as_trained: Sequence[Summary], num_bins: int) -> list[PriorCheck]:
    """Return the paper's Figure 3 for ensemble and experts, and the same weighted to the prior that each was made for.

    Args:
        predictions: Saved predictions; without lambdas there are no checks.
        as_trained: Summaries of the ensemble and of each expert, not adjusted to any prior.
        num_bins: Number of calibration bins.

    >>> from balpoe.evaluation.summaries import summarise
    >>> predictions = Predictions(torch.zeros(4, 1, 2), torch.arange(4) % 2, [9, 1], [0])
    >>> [check.weighted_kl for check in prior_checks(predictions, summarise(predictions, None, 15, None), 15)]
    [0.0, 0.0]
    """
    if not (priors := own_priors(predictions)):
        return []
    samples, can_weight, checks = len(predictions), has_own_weights(predictions), []
    for summary, prior, weights in zip(as_trained, priors, own_weights(predictions), strict=True):
        marginal, weighted, ece = summary.marginal / samples, None, None
        if can_weight:
            bins = calibration_bins(summary.confidence, summary.correct, num_bins, weights)
            weighted, ece = _divergence(summary.own_marginal / samples, prior), float(expected_calibration_error(bins))
        checks.append(PriorCheck(tuple(marginal.tolist()), _divergence(marginal, prior), weighted, ece))
    return checks


def _divergence(observed: Tensor, prior: Tensor) -> float:
    """The Kullback-Leibler divergence of an average prediction from a prior, in nats; not below 0 by rounding."""
    prior = prior.clamp(min=1e-300)  # what extreme lambdas round to zero
    return max(0.0, float((torch.special.xlogy(observed, observed) - torch.xlogy(observed, prior)).sum()))
