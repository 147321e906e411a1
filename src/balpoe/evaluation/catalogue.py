"""All metrics: what each is called, how it is computed, and how it is shown. Adding one means adding an entry here.

An entry feeds `evaluate` and `compare`, evaluation.json, the tables of the terminal and of the report, and the
explorer. Every metric but the classwise ones is also computed for resamples of the test samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.evaluation.metrics import (
    CalibrationBins,
    brier_scores,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihoods,
    rarest_third,
    shot_groups,
    weighted_mean,
)

__all__ = ["METRICS", "Metric", "OfBins", "OfClasses", "OfClasswiseBins", "OfSamples", "Outputs"]


class Outputs(NamedTuple):
    """What a classifier said about some samples."""

    log_probabilities: Tensor
    """(samples, classes)."""
    probabilities: Tensor
    """(samples, classes)."""
    targets: Tensor
    """(samples,)."""
    confidence: Tensor
    """(samples,): the probability of the answer."""
    correct: Tensor
    """(samples,): whether the answer is right."""


@dataclass(frozen=True)
class OfSamples:
    """A metric made from one number per sample: their mean, unless `summary` says otherwise."""

    value: Callable[[Outputs], Tensor]
    """From the outputs of a block of samples to (samples,)."""
    summary: Callable[[Tensor, Tensor], Tensor] = weighted_mean
    """From the numbers of all samples and rows of weights, (rows, samples), to (rows,)."""


@dataclass(frozen=True)
class OfClasses:
    """The mean accuracy of some classes."""

    members: Callable[[Tensor, tuple[int, int]], Tensor]
    """From the training counts and the thresholds of the shot groups to which classes are meant, (classes,)."""


@dataclass(frozen=True)
class OfBins:
    """A metric of the reliability diagram."""

    value: Callable[[CalibrationBins], Tensor]
    """From bins (rows, bins) to (rows,)."""


@dataclass(frozen=True)
class OfClasswiseBins:
    """A metric of the reliability diagrams of all classes; it has no interval, which would cost too much."""

    value: Callable[[CalibrationBins], Tensor]
    """From bins (classes, bins) to one number."""


@dataclass(frozen=True)
class Metric:
    """A number about predictions, as a fraction or in a unit of its own.

    >>> METRICS["few"].heading, METRICS["nll"].heading, METRICS["nll"].shown(0.51234)
    ('few %', 'NLL', '0.512')
    """

    title: str
    """Short name, for the columns of tables."""
    label: str
    """Name in a sentence."""
    meaning: str
    """What it is, in a few words."""
    of: OfSamples | OfClasses | OfBins | OfClasswiseBins
    """How it is computed."""
    per_cent: bool = True
    """Whether it is a fraction and shown in per cent; otherwise it is shown as it is, with three digits."""
    lower_is_better: bool = False
    optional: bool = False
    """Whether it can be None: there is no sample of such classes, or the value is infinite."""
    in_tables: bool = True
    """Whether tables of scores have a column for it."""
    explorer: str | None = None
    """JavaScript for the report's explorer, which then shows it: an expression over what `measure` in explorer.js has
    (perClass, prior, members, bins, correct, confidence, weights) and its functions mean and weightedMean."""

    @property
    def heading(self) -> str:
        """Title with its unit."""
        return f"{self.title} %" if self.per_cent else self.title

    @property
    def resampled(self) -> bool:
        """Whether it is also computed for resamples, and has an interval."""
        return not isinstance(self.of, OfClasswiseBins)

    def shown(self, value: float, sign: str = "") -> str:
        """Return a value as text; a `sign` of "+" is for differences."""
        return f"{100 * value:{sign}.1f}" if self.per_cent else f"{value:{sign}.3f}"


METRICS: dict[str, Metric] = {
    "accuracy": Metric(
        "accuracy", "accuracy", "share of right answers",
        OfSamples(lambda outputs: outputs.correct), explorer="weightedMean(perClass, prior)",
    ),
    "balanced_accuracy": Metric(
        "balanced", "balanced accuracy", "mean of the accuracies of the classes",
        OfClasses(lambda counts, _: torch.ones_like(counts, dtype=torch.bool)), explorer="mean(members.all)",
    ),
    "many": Metric(
        "many", "many-shot classes", "mean accuracy of the classes with many training samples",
        OfClasses(lambda *classes: shot_groups(*classes)["many"]), optional=True, explorer="mean(members.many)",
    ),
    "medium": Metric(
        "medium", "medium-shot classes", "mean accuracy of the classes between many and few",
        OfClasses(lambda *classes: shot_groups(*classes)["medium"]), optional=True, explorer="mean(members.medium)",
    ),
    "few": Metric(
        "few", "few-shot classes", "mean accuracy of the classes with few training samples",
        OfClasses(lambda *classes: shot_groups(*classes)["few"]), optional=True, explorer="mean(members.few)",
    ),
    "rarest_third": Metric(
        "rarest third", "the rarest third of the classes", "mean accuracy of the third with fewest training samples",
        OfClasses(lambda counts, _: rarest_third(counts)), optional=True, in_tables=False,  # wide enough without it
    ),
    "ece": Metric(
        "ECE", "ECE", "mean gap of confidence and accuracy", OfBins(expected_calibration_error), lower_is_better=True,
        explorer="bins.reduce((sum, bin) => sum + bin.share * bin.gap, 0)",
    ),
    "mce": Metric(
        "MCE", "MCE", "largest gap of any bin", OfBins(maximum_calibration_error), lower_is_better=True,
        explorer="Math.max(...bins.map((bin) => bin.gap))",
    ),
    "classwise_ece": Metric(
        "classwise ECE", "classwise ECE", "ECE of the probability of each class, averaged over the classes",
        OfClasswiseBins(lambda bins: expected_calibration_error(bins).mean()), lower_is_better=True, in_tables=False,
    ),
    "nll": Metric(
        "NLL", "NLL", "mean negative log-likelihood, in nats",
        OfSamples(lambda outputs: negative_log_likelihoods(outputs.log_probabilities, outputs.targets)),
        per_cent=False, lower_is_better=True, optional=True,  # infinite where a class that occurs was excluded
    ),
    "brier": Metric(
        "Brier", "Brier score", "mean squared distance from the truth, summed over the classes, 0 to 2",
        OfSamples(lambda outputs: brier_scores(outputs.probabilities, outputs.targets)),
        per_cent=False, lower_is_better=True,
    ),
}  # fmt: skip
"""From the name of each metric to its entry, in the order of tables."""
