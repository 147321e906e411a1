"""What the metrics need of predictions: a few numbers per sample and some sums, in one pass over blocks of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS, OfSamples, Outputs
from balpoe.evaluation.metrics import ClasswiseSums, classwise_sums
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import shift_prior
from balpoe.method.priors import checked_prior

__all__ = ["Summary", "has_own_weights", "own_priors", "own_weights", "sample_weights", "summarise"]


@dataclass(frozen=True)
class Summary:
    """What the metrics need of one predictor: a few numbers per sample, and sums over the samples."""

    correct: Tensor
    confidence: Tensor
    values: dict[str, Tensor]
    """The number of each sample, (samples,), for each metric made from such."""
    classwise: ClasswiseSums
    marginal: Tensor
    own_marginal: Tensor
    """The marginal of samples weighted to the prior that the predictor is made for."""


def summarise(predictions: Predictions, target_prior: Any, num_bins: int, weights: Tensor | None) -> list[Summary]:
    """Return summaries of the ensemble, then of each expert.

    Args:
        predictions: Saved predictions.
        target_prior: Prior that the logits are adjusted to, (classes,); None leaves them as trained.
        num_bins: Number of calibration bins.
        weights: Weight of each sample, (samples,); None where all weigh the same.

    >>> predictions = Predictions(torch.zeros(3, 2, 4), torch.arange(3), [4, 3, 2, 1], [1, -1])
    >>> [summary.correct.tolist() for summary in summarise(predictions, None, 15, None)]
    [[True, False, False], [True, False, False], [True, False, False]]
    """
    own = own_weights(predictions)

    def of_block(rows: slice) -> list[Summary]:
        tables = _adjusted(predictions, _tables(predictions, rows), target_prior)
        part, targets = None if weights is None else weights[rows], predictions.targets[rows]
        pairs = zip(tables, own, strict=True)
        found = [_summary(table, targets, num_bins, part, each[rows]) for table, each in pairs]
        _check_numbers(found, rows.start)
        return found

    return _total(of_block, list(predictions.blocks()))


def _total(of_block: Callable[[slice], list[Summary]], blocks: Sequence[slice]) -> list[Summary]:
    """Summaries of all blocks, joined by halves: one by one, many small blocks would be copied again each time."""
    if len(blocks) == 1:
        return of_block(blocks[0])
    half = len(blocks) // 2
    pairs = zip(_total(of_block, blocks[:half]), _total(of_block, blocks[half:]), strict=True)
    return [_joined(*pair) for pair in pairs]


def _check_numbers(summaries: Sequence[Summary], first_row: int) -> None:
    for summary in summaries:
        if bool(summary.confidence.isnan().any()):
            row = first_row + int(summary.confidence.isnan().nonzero()[0])
            raise UserError(
                f"the logits of sample {row} are not numbers, infinite, or exclude every class; check the network "
                "that gave them"
            )


def _tables(predictions: Predictions, rows: slice) -> list[Tensor]:
    """Logits (rows, classes) of the ensemble, then of each expert."""
    expert_logits = predictions.calibrated(rows).double()
    return [predictions.product(expert_logits), *expert_logits.unbind(dim=1)]


def _adjusted(predictions: Predictions, tables: list[Tensor], target_prior: Any) -> list[Tensor]:
    """The same logits moved to a prior; without lambdas each expert is taken to be made for the ensemble's prior."""
    if target_prior is None or predictions.source_prior is None:
        return tables
    sources = own_priors(predictions) or [predictions.source_prior] * len(tables)
    return [shift_prior(table, target_prior, source) for table, source in zip(tables, sources, strict=True)]


def own_priors(predictions: Predictions) -> list[Tensor]:
    """Return the prior that the ensemble, and then each expert, is made for; none without lambdas."""
    if predictions.source_prior is None or predictions.expert_priors is None:
        return []
    return [predictions.source_prior.double(), *predictions.expert_priors.double()]


def _summary(logits: Tensor, targets: Tensor, num_bins: int, weights: Tensor | None, own: Tensor) -> Summary:
    log_probabilities = logits.log_softmax(dim=1)
    probabilities = log_probabilities.exp()
    confidence, answer = probabilities.max(dim=1)
    correct = answer == targets
    outputs = Outputs(log_probabilities, probabilities, targets, confidence, correct)
    return Summary(
        correct,
        confidence,
        {name: metric.of.value(outputs) for name, metric in METRICS.items() if isinstance(metric.of, OfSamples)},
        classwise_sums(probabilities, targets, num_bins, weights),
        probabilities.sum(dim=0),
        own @ probabilities,
    )


def _joined(first: Summary, second: Summary) -> Summary:
    return Summary(
        torch.cat([first.correct, second.correct]),
        torch.cat([first.confidence, second.confidence]),
        {name: torch.cat([value, second.values[name]]) for name, value in first.values.items()},
        first.classwise.joined(second.classwise),
        first.marginal + second.marginal,
        first.own_marginal + second.own_marginal,
    )


def sample_weights(predictions: Predictions, target_prior: Any) -> Tensor:
    """Return importance weights of the samples: a prior over the test set's own frequency of the label, (samples,).

    Args:
        predictions: Saved predictions.
        target_prior: Prior that the weighted samples stand for, (classes,).

    >>> predictions = Predictions(torch.zeros(4, 1, 2), torch.tensor([0, 0, 0, 1]), [9, 1], [0])
    >>> sample_weights(predictions, [0.75, 0.25]).tolist(), sample_weights(predictions, [0.0, 1.0]).tolist()
    ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 4.0])
    """
    target = checked_prior(target_prior, predictions.num_classes, "target_prior")
    counts = _test_counts(predictions)
    missing = ((target > 0) & (counts == 0)).nonzero()
    if len(missing):
        name = predictions.class_names[int(missing[0])]
        raise UserError(f"target_prior gives weight to class {name!r}, of which the test set has no sample")
    return (target / counts.clamp(min=1) * len(predictions))[predictions.targets]


def own_weights(predictions: Predictions) -> list[Tensor]:
    """Return weights of the samples to the prior of the ensemble, then of each expert; zero where there are none."""
    if not has_own_weights(predictions):
        return [torch.zeros(len(predictions), dtype=torch.float64)] * (1 + predictions.num_experts)
    return [sample_weights(predictions, prior) for prior in own_priors(predictions)]


def has_own_weights(predictions: Predictions) -> bool:
    """Return whether predictors are made for known priors, and each class has a test sample to be weighted."""
    return bool(own_priors(predictions)) and int(_test_counts(predictions).min()) > 0


def _test_counts(predictions: Predictions) -> Tensor:
    return torch.bincount(predictions.targets, minlength=predictions.num_classes)
