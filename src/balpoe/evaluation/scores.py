"""The metrics of one predictor, and how sure they are: from summaries, and what is the same for all predictors."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from balpoe.evaluation.catalogue import METRICS, Metric, OfBins, OfClasses, OfClasswiseBins, OfSamples
from balpoe.evaluation.metrics import accuracy_per_class, calibration_bins
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.summaries import Summary
from balpoe.method.intervals import (
    LEAST_EVIDENCE,
    LEAST_RESAMPLED,
    bootstrap,
    effective_counts,
    mean_difference_interval,
    mean_interval,
    wilson_interval,
)

__all__ = ["Measure", "Scores"]


class _MetricTypes:
    """What editors and type checkers know of the metrics; the values come from the catalogue's names."""

    accuracy: float
    balanced_accuracy: float
    many: float | None
    medium: float | None
    few: float | None
    rarest_third: float | None
    ece: float
    mce: float
    classwise_ece: float
    nll: float | None
    brier: float


@dataclass(frozen=True)
class Scores(_MetricTypes):
    """The metrics of one predictor: `scores.accuracy`, and so on for each name of `catalogue.METRICS`."""

    metrics: dict[str, float | None]
    """Value of each metric, by name; None where there is no sample to measure on, or the value is infinite."""
    per_class: tuple[float | None, ...] = field(repr=False)
    """Accuracy of each class; None for a class without samples."""
    per_class_interval: tuple[tuple[float, float] | None, ...] = field(repr=False)
    """Wilson's interval of each class, at 95 %, over its groups where samples come in groups."""
    reliability: dict[str, list[float]] = field(repr=False)
    """Share, confidence and accuracy of each bin; an empty bin has 0 in all three."""

    def __getattr__(self, name: str) -> Any:
        metrics = vars(self).get("metrics", {})  # empty while a copy is being made
        if name not in metrics:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return metrics[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON: the metrics beside the rest."""
        others = {name: value for name, value in vars(self).items() if name != "metrics"}
        return {**self.metrics, **others}


class Measure:
    """Turns summaries into scores; holds what is the same for all predictors.

    Args:
        predictions: Saved predictions.
        thresholds: Thresholds of the shot groups.
        num_bins: Number of calibration bins.
        weights: Weight of each sample, (samples,); None where all weigh the same.

    >>> from balpoe.evaluation.summaries import summarise
    >>> predictions = Predictions(torch.zeros(3, 1, 2), torch.tensor([0, 0, 1]), [9, 1], [0])
    >>> measure = Measure(predictions, (20, 100), 15, None)
    >>> measure.scores(summarise(predictions, None, 15, None)[0]).balanced_accuracy
    0.5
    """

    def __init__(
        self, predictions: Predictions, thresholds: tuple[int, int], num_bins: int, weights: Tensor | None
    ) -> None:
        self.num_bins, self.weights = num_bins, weights
        self.targets, self.test_groups = predictions.targets, predictions.groups
        self.evidence = predictions.evidence
        self.effective = effective_counts(predictions.targets, predictions.num_classes, predictions.groups)
        # Only classes with samples: where there are very many classes, the others would cost most.
        self.present, self.row_of = torch.unique(predictions.targets, return_inverse=True)
        everything = torch.ones(len(predictions), dtype=torch.float64)
        self.once = everything[None]
        # Not a class that the target prior excludes.
        self.counted = torch.bincount(self.row_of, everything if weights is None else weights) > 0
        self.groups = {
            name: metric.of.members(predictions.class_counts, thresholds)[self.present] & self.counted
            for name, metric in METRICS.items()
            if isinstance(metric.of, OfClasses)
        }
        self.members = torch.stack(list(self.groups.values()), dim=1).double()

    def resampled(self, summary: Summary, counts: Tensor) -> Tensor:
        """Return the metrics that have intervals, (rows, metrics), where samples count so often, (rows, samples).

        Each class that has samples counts at least once in each row. NaN where there is none to measure.
        """
        weights = counts if self.weights is None else counts * self.weights
        means = self._per_class(summary.correct, counts) @ self.members / self.members.sum(dim=0)
        of_classes = dict(zip(self.groups, means.unbind(dim=1), strict=True))
        bins = calibration_bins(summary.confidence, summary.correct, self.num_bins, weights)
        values = []
        for name, metric in _resampled_metrics().items():
            if isinstance(metric.of, OfSamples):
                values.append(metric.of.summary(summary.values[name], weights))
            else:
                values.append(metric.of.value(bins) if isinstance(metric.of, OfBins) else of_classes[name])
        return torch.stack(values, dim=1)

    def intervals(self, summary: Summary, num_resamples: int, seed: int) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of the metrics, without those that have no value, or too few groups to tell."""
        statistic = functools.partial(self.resampled, summary)
        found = {}
        for name, (_, low, high) in self._bootstrapped(statistic, num_resamples, seed).items():
            of_samples = summary.values.get(name)
            most = 1.0 if METRICS[name].per_cent else math.inf
            negative = of_samples is not None and bool((of_samples < 0).any())
            found[name] = low if negative else max(0.0, low), min(most, high)  # what is stretched can leave the range
        shares = self._observed(summary.correct.double())
        closed = {
            name: self._without_resampling(mean_interval, shares, weights)
            for name, weights in self._not_resampled(found)
        }
        return found | closed

    def differences(
        self, ours: Summary, theirs: Summary, num_resamples: int, seed: int
    ) -> dict[str, tuple[float, float, float]]:
        """Return differences of the metrics on the same samples and their 95 % intervals, without the same ones."""
        found = self._bootstrapped(
            lambda counts: self.resampled(ours, counts) - self.resampled(theirs, counts), num_resamples, seed
        )
        shares = self._observed(ours.correct.double() - theirs.correct.double())
        ends = {name: (low, high) for name, (_, low, high) in found.items()}
        for name, weights in self._not_resampled(ends):
            value = float(self._accuracy(ours, weights) - self._accuracy(theirs, weights))
            found[name] = value, *self._without_resampling(mean_difference_interval, shares, weights)
        return found

    def _bootstrapped(
        self, statistic: Callable[[Tensor], Tensor], num_resamples: int, seed: int
    ) -> dict[str, tuple[float, float, float]]:
        """Each metric, or difference of metrics, that is finite, with the ends of its 95 % interval."""
        if self.test_groups is not None and len(torch.unique(self.test_groups)) < LEAST_EVIDENCE:
            return {}
        resamples: dict[str, Any] = {"groups": self.test_groups, "num_resamples": num_resamples, "seed": seed}
        low, high = bootstrap(statistic, self.targets, **resamples).tolist()
        rows = zip(_resampled_metrics(), statistic(self.once)[0].tolist(), low, high, strict=True)
        return {name: (value, a, b) for name, value, a, b in rows if math.isfinite(value) and a == a}

    def _not_resampled(self, found: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, Tensor]]:
        """Accuracies that resampling gives no sound interval of, and how much each class that occurs weighs in them.

        Resampled intervals are too narrow where a class has few samples, and where samples come in groups; where all
        answers are right, they have no width at all.
        """
        samples = self.once.squeeze(0) if self.weights is None else self.weights
        all_weights = {"accuracy": torch.bincount(self.row_of, samples), **self.groups}
        evidence = self.evidence[self.present]
        for name, weights in all_weights.items():
            counted = weights > 0
            if bool(counted.any()) and (
                self.test_groups is not None
                or int(evidence[counted].min()) < LEAST_RESAMPLED
                or found[name][0] == found[name][1]
            ):
                yield name, weights.double()

    def _observed(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean value, class and number of samples of each observation: a sample, or what a group has of a class."""
        if self.test_groups is None:
            return values, self.row_of, self.once.squeeze(0)
        pairs, row, sizes = torch.unique(
            torch.stack([self.row_of, self.test_groups]), dim=1, return_inverse=True, return_counts=True
        )
        return torch.bincount(row, values) / sizes, pairs[0], sizes.double()

    def _without_resampling(
        self,
        interval: Callable[..., tuple[float, float]],
        observed: tuple[Tensor, Tensor, Tensor],
        weights: Tensor,
    ) -> tuple[float, float]:
        """An interval by a formula, of the classes that weigh something."""
        values, classes, sizes = observed
        rows = (weights > 0)[classes]
        return interval(values[rows], classes[rows], sizes=sizes[rows], class_weights=weights[weights > 0])

    def _accuracy(self, summary: Summary, weights: Tensor) -> Tensor:
        return self._per_class(summary.correct, self.once).squeeze(0) @ weights / weights.sum()

    def _per_class(self, correct: Tensor, counts: Tensor) -> Tensor:
        """Accuracy of each class with samples, (rows, classes with samples)."""
        return accuracy_per_class(correct, self.row_of, len(self.present), counts)

    def _metrics(self, summary: Summary) -> dict[str, float | None]:
        found = dict(zip(_resampled_metrics(), self.resampled(summary, self.once)[0].tolist(), strict=True))
        classwise = summary.classwise.bins(self.num_bins)
        for name, metric in METRICS.items():
            if isinstance(metric.of, OfClasswiseBins):
                found[name] = float(metric.of.value(classwise))
        return {name: found[name] if math.isfinite(found[name]) else None for name in METRICS}

    def scores(self, summary: Summary) -> Scores:
        """Return all metrics of one predictor."""
        per_class = torch.full_like(self.effective, torch.nan)
        measured = self._per_class(summary.correct, self.once).squeeze(0)
        per_class[self.present] = measured.masked_fill(~self.counted, torch.nan)
        wilson = wilson_interval(per_class * self.effective, self.effective).T.tolist()
        bins = calibration_bins(summary.confidence, summary.correct, self.num_bins, self.weights)
        parts = (("share", bins.share), ("confidence", bins.confidence), ("accuracy", bins.accuracy))
        return Scores(
            self._metrics(summary),
            per_class=tuple(None if value != value else value for value in per_class.tolist()),
            per_class_interval=tuple(None if low != low else (low, high) for low, high in wilson),
            reliability={name: part.nan_to_num(0.0).tolist() for name, part in parts},
        )


def _resampled_metrics() -> dict[str, Metric]:
    return {name: metric for name, metric in METRICS.items() if metric.resampled}
