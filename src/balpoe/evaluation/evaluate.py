"""Every number about saved predictions: evaluate() for one run, compare() for two."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_check import PriorCheck, prior_checks
from balpoe.evaluation.scores import Measure, Scores
from balpoe.evaluation.summaries import sample_weights, summarise
from balpoe.old_names import reads_old_names

__all__ = ["Evaluation", "compare", "evaluate"]

SHOT_GROUPS = (20, 100)


@dataclass(frozen=True)
class Evaluation(Scores):
    """The ensemble's scores, each expert's, and what they rest on.

    Predictions without lambdas have no `check` and no `expert_checks`.

    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    >>> predictions = Predictions(logits, torch.tensor([0, 1, 1]), torch.tensor([90, 10]), torch.tensor([0.0]))
    >>> evaluation = evaluate(predictions, num_resamples=0)
    >>> evaluation.samples, evaluation.experts[0].accuracy == evaluation.accuracy
    (3, True)
    """

    samples: int = 0
    effective_samples: float = 0.0
    """How many equally weighted samples the weights are worth."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    """95 % intervals over the test samples, or over their groups; of accuracies alone where groups are very few."""
    experts: tuple[Scores, ...] = field(default=(), repr=False)
    check: PriorCheck | None = field(default=None, repr=False)
    """Check of the ensemble, for the prior P^mean(lambda)."""
    expert_checks: tuple[PriorCheck, ...] = field(default=(), repr=False)
    parameters: int | None = None
    multiply_adds: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON."""
        return {
            **super().to_dict(),
            "experts": tuple(expert.to_dict() for expert in self.experts),
            "check": None if self.check is None else dict(vars(self.check)),
            "expert_checks": tuple(dict(vars(each)) for each in self.expert_checks),
        }


@reads_old_names("evaluate")
def evaluate(
    predictions: Predictions,
    target_prior: Any = None,
    *,
    adjust: bool = True,
    shot_groups: tuple[int, int] = SHOT_GROUPS,
    num_bins: int = 15,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Return all metrics of saved predictions, for the ensemble and for each expert.

    Args:
        predictions: Predictions of `predict`, or loaded ones.
        target_prior: Deployment prior: shares that sum to 1, a mapping from class names to weights, or a word
            ("uniform", "train", "forward-R", "backward-R"). The logits are adjusted to it, and the test samples are
            weighted so that they stand for it. None: everything as trained.
        adjust: Whether to adjust the logits; False weights the samples alone, and shows what adjusting is worth.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
        num_bins: Number of calibration bins.
        num_resamples: Number of resamples of the bootstrap; 0 for no intervals.
        seed: Seed of the bootstrap.

    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    >>> predictions = Predictions(logits, torch.tensor([0, 1, 1]), torch.tensor([90, 10]), torch.tensor([0.0]))
    >>> evaluation = evaluate(predictions, num_resamples=0)
    >>> evaluation.balanced_accuracy, evaluation.few, evaluation.many
    (0.75, 0.5, None)
    >>> round(evaluate(predictions, {"0": 9, "1": 1}, num_resamples=0).effective_samples, 2)
    1.23
    """
    if not len(predictions):
        raise UserError("there is no test sample to evaluate; predict on a test set that has some")
    target_prior = _shares(target_prior, predictions)
    weights = None if target_prior is None else sample_weights(predictions, target_prior)
    summaries = summarise(predictions, target_prior if adjust else None, num_bins, weights)
    ensemble, *experts = summaries
    measure = Measure(predictions, shot_groups, num_bins, weights)
    intervals = measure.intervals(ensemble, num_resamples, seed) if num_resamples else {}
    effective = float(len(predictions)) if weights is None else float(weights.sum() ** 2 / weights.square().sum())
    as_trained = summaries if target_prior is None else summarise(predictions, None, num_bins, None)
    checks = prior_checks(predictions, as_trained, num_bins)
    return Evaluation(
        **vars(measure.scores(ensemble)),
        samples=len(predictions),
        effective_samples=effective,
        intervals=intervals,
        experts=tuple(measure.scores(expert) for expert in experts),
        check=checks[0] if checks else None,
        expert_checks=tuple(checks[1:]),
        parameters=predictions.parameters,
        multiply_adds=predictions.multiply_adds,
    )


def compare(
    predictions: Predictions,
    baseline: Predictions,
    *,
    shot_groups: tuple[int, int] = SHOT_GROUPS,
    num_bins: int = 15,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float, float]]:
    """Return, for each metric that has an interval, the difference to a baseline on the same samples, and its interval.

    The bootstrap is paired: both are measured on the same resamples. Accuracies of few samples, or of groups, have an
    interval that needs no resampling.

    >>> targets, counts = torch.tensor([0, 1] * 50), torch.tensor([90, 10])
    >>> right = torch.nn.functional.one_hot(targets)[:, None] * 3.0
    >>> ours = Predictions(right, targets, counts, torch.tensor([0.0]))
    >>> theirs = Predictions(right.flip(-1), targets, counts, torch.tensor([0.0]))
    >>> value, low, high = compare(ours, theirs, num_resamples=100)["accuracy"]
    >>> value, round(low, 2), high
    (1.0, 0.95, 1.0)
    """
    if not torch.equal(predictions.targets, baseline.targets):
        raise UserError("the two runs were predicted on different test samples; compare runs of the same test set")
    ours, theirs = (summarise(each, None, num_bins, None)[0] for each in (predictions, baseline))
    measure = Measure(predictions, shot_groups, num_bins, None)
    return measure.differences(ours, theirs, num_resamples, seed)


def _shares(prior: Any, predictions: Predictions) -> Any:
    """A prior given by a word, by a file or by names, as shares; any other as it is."""
    return target_prior(prior, predictions) if isinstance(prior, str | Path | Mapping) else prior
