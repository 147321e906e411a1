"""Every number about saved predictions: evaluate() for one run, compare() for two."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS, Metric, OfBins, OfClasses, OfClasswiseBins, OfSamples, Outputs
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.metrics import (
    ClasswiseSums,
    accuracy_per_class,
    calibration_bins,
    classwise_sums,
    expected_calibration_error,
)
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import shift_prior
from balpoe.method.intervals import (
    LEAST_EVIDENCE,
    LEAST_RESAMPLED,
    bootstrap,
    effective_counts,
    mean_difference_interval,
    mean_interval,
    wilson_interval,
)
from balpoe.method.priors import checked_prior
from balpoe.old_names import reads_old_names

__all__ = ["Evaluation", "PriorCheck", "Scores", "compare", "evaluate"]

SHOT_GROUPS = (20, 100)


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
    weights = None if target_prior is None else _weights(predictions, target_prior)
    summaries = _summaries(predictions, target_prior if adjust else None, num_bins, weights)
    ensemble, *experts = summaries
    measure = _Measure(predictions, shot_groups, num_bins, weights)
    intervals = measure.intervals(ensemble, num_resamples, seed) if num_resamples else {}
    effective = float(len(predictions)) if weights is None else float(weights.sum() ** 2 / weights.square().sum())
    as_trained = summaries if target_prior is None else _summaries(predictions, None, num_bins, None)
    checks = _checks(predictions, as_trained, num_bins)
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
    ours, theirs = (_summaries(p, None, num_bins, None)[0] for p in (predictions, baseline))
    measure = _Measure(predictions, shot_groups, num_bins, None)
    return measure.differences(ours, theirs, num_resamples, seed)


@dataclass(frozen=True)
class _Summary:
    """What the metrics need of one predictor: a few numbers per sample, and sums over the samples."""

    correct: Tensor
    confidence: Tensor
    values: dict[str, Tensor]
    """The number of each sample, (samples,), for each metric made from such."""
    classwise: ClasswiseSums
    marginal: Tensor
    own_marginal: Tensor
    """The marginal of samples weighted to the prior that the predictor is made for."""


def _resampled_metrics() -> dict[str, Metric]:
    return {name: metric for name, metric in METRICS.items() if metric.resampled}


class _Measure:
    """Turns summaries into scores; holds what is the same for all predictors."""

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

    def resampled(self, summary: _Summary, counts: Tensor) -> Tensor:
        """The metrics that have intervals, (rows, metrics), where samples count so often, (rows, samples).

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

    def intervals(self, summary: _Summary, num_resamples: int, seed: int) -> dict[str, tuple[float, float]]:
        """95 % intervals of the metrics, those left out that have no value, or too few groups to tell."""
        statistic = functools.partial(self.resampled, summary)
        found = {}
        for name, (_, low, high) in self.bootstrapped(statistic, num_resamples, seed).items():
            of_samples = summary.values.get(name)
            most = 1.0 if METRICS[name].per_cent else math.inf
            negative = of_samples is not None and bool((of_samples < 0).any())
            found[name] = low if negative else max(0.0, low), min(most, high)  # what is stretched can leave the range
        shares = self._of_groups(summary.correct.double())
        closed = {name: self._closed(mean_interval, shares, weights) for name, weights in self._not_resampled(found)}
        return found | closed

    def differences(
        self, ours: _Summary, theirs: _Summary, num_resamples: int, seed: int
    ) -> dict[str, tuple[float, float, float]]:
        """Differences of the metrics on the same samples and their 95 % intervals, those left out as above."""
        found = self.bootstrapped(
            lambda counts: self.resampled(ours, counts) - self.resampled(theirs, counts), num_resamples, seed
        )
        shares = self._of_groups(ours.correct.double() - theirs.correct.double())
        ends = {name: (low, high) for name, (_, low, high) in found.items()}
        for name, weights in self._not_resampled(ends):
            value = float(self._accuracy(ours, weights) - self._accuracy(theirs, weights))
            found[name] = value, *self._closed(mean_difference_interval, shares, weights)
        return found

    def bootstrapped(
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
        """Accuracies whose interval is not to be had by resampling, and how much each class that occurs weighs in it.

        Few samples of a class, or groups of any number that are right or wrong as a whole, make it too narrow; where
        all are right, it has no width at all.
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

    def _of_groups(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean value, class and number of samples of each observation: a sample, or what a group has of a class."""
        if self.test_groups is None:
            return values, self.row_of, self.once.squeeze(0)
        pairs, row, sizes = torch.unique(
            torch.stack([self.row_of, self.test_groups]), dim=1, return_inverse=True, return_counts=True
        )
        return torch.bincount(row, values) / sizes, pairs[0], sizes.double()

    def _closed(
        self,
        interval: Callable[..., tuple[float, float]],
        observed: tuple[Tensor, Tensor, Tensor],
        weights: Tensor,
    ) -> tuple[float, float]:
        values, classes, sizes = observed
        rows = (weights > 0)[classes]
        return interval(values[rows], classes[rows], sizes=sizes[rows], class_weights=weights[weights > 0])

    def _accuracy(self, summary: _Summary, weights: Tensor) -> Tensor:
        return self._per_class(summary.correct, self.once).squeeze(0) @ weights / weights.sum()

    def _per_class(self, correct: Tensor, counts: Tensor) -> Tensor:
        """Accuracy of each class with samples, (rows, classes with samples)."""
        return accuracy_per_class(correct, self.row_of, len(self.present), counts)

    def _metrics(self, summary: _Summary) -> dict[str, float | None]:
        found = dict(zip(_resampled_metrics(), self.resampled(summary, self.once)[0].tolist(), strict=True))
        classwise = summary.classwise.bins(self.num_bins)
        for name, metric in METRICS.items():
            if isinstance(metric.of, OfClasswiseBins):
                found[name] = float(metric.of.value(classwise))
        return {name: found[name] if math.isfinite(found[name]) else None for name in METRICS}

    def scores(self, summary: _Summary) -> Scores:
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


def _summaries(predictions: Predictions, target_prior: Any, num_bins: int, weights: Tensor | None) -> list[_Summary]:
    """Summaries of the ensemble, then of each expert, in one pass over blocks of rows."""
    own = _own_weights(predictions)
    return _total(
        lambda rows: _block_summaries(predictions, rows, target_prior, num_bins, weights, own),
        list(predictions.blocks()),
    )


def _total(summaries: Callable[[slice], list[_Summary]], blocks: Sequence[slice]) -> list[_Summary]:
    """Summaries of all blocks, joined by halves: one by one, many small blocks would be copied again each time."""
    if len(blocks) == 1:
        return summaries(blocks[0])
    half = len(blocks) // 2
    pairs = zip(_total(summaries, blocks[:half]), _total(summaries, blocks[half:]), strict=True)
    return [_joined(*pair) for pair in pairs]


def _block_summaries(
    predictions: Predictions,
    rows: slice,
    target_prior: Any,
    num_bins: int,
    weights: Tensor | None,
    own_weights: list[Tensor],
) -> list[_Summary]:
    tables, targets = _tables(predictions, rows), predictions.targets[rows]
    if target_prior is not None:
        tables = _adjusted(predictions, tables, target_prior)
    used = None if weights is None else weights[rows]
    pairs = zip(tables, own_weights, strict=True)
    found = [_summary(table, targets, num_bins, used, own[rows]) for table, own in pairs]
    for summary in found:
        if bool(summary.confidence.isnan().any()):
            row = rows.start + int(summary.confidence.isnan().nonzero()[0])
            raise UserError(
                f"the logits of sample {row} are not numbers, infinite, or exclude every class; check the network "
                "that gave them"
            )
    return found


def _tables(predictions: Predictions, rows: slice) -> list[Tensor]:
    """Logits (rows, classes) of the ensemble, then of each expert."""
    expert_logits = predictions.calibrated(rows).double()
    return [predictions.product(expert_logits), *expert_logits.unbind(dim=1)]


def _adjusted(predictions: Predictions, tables: list[Tensor], target_prior: Any) -> list[Tensor]:
    """The same logits moved to a prior; without lambdas each expert is taken to be made for the ensemble's prior."""
    if predictions.source_prior is None:
        return tables
    sources = _own_priors(predictions) or [predictions.source_prior] * len(tables)
    return [shift_prior(table, target_prior, source) for table, source in zip(tables, sources, strict=True)]


def _own_priors(predictions: Predictions) -> list[Tensor]:
    """The prior that the ensemble, and then each expert, is made for; none without lambdas."""
    if predictions.source_prior is None or predictions.expert_priors is None:
        return []
    return [predictions.source_prior.double(), *predictions.expert_priors.double()]


def _summary(logits: Tensor, targets: Tensor, num_bins: int, weights: Tensor | None, own: Tensor) -> _Summary:
    log_probabilities = logits.log_softmax(dim=1)
    probabilities = log_probabilities.exp()
    confidence, answer = probabilities.max(dim=1)
    correct = answer == targets
    outputs = Outputs(log_probabilities, probabilities, targets, confidence, correct)
    return _Summary(
        correct,
        confidence,
        {name: metric.of.value(outputs) for name, metric in METRICS.items() if isinstance(metric.of, OfSamples)},
        classwise_sums(probabilities, targets, num_bins, weights),
        probabilities.sum(dim=0),
        own @ probabilities,
    )


def _joined(first: _Summary, second: _Summary) -> _Summary:
    return _Summary(
        torch.cat([first.correct, second.correct]),
        torch.cat([first.confidence, second.confidence]),
        {name: torch.cat([value, second.values[name]]) for name, value in first.values.items()},
        first.classwise.joined(second.classwise),
        first.marginal + second.marginal,
        first.own_marginal + second.own_marginal,
    )


def _shares(prior: Any, predictions: Predictions) -> Any:
    """A prior given by a word, by a file or by names, as shares; any other as it is."""
    return target_prior(prior, predictions) if isinstance(prior, str | Path | Mapping) else prior


def _weights(predictions: Predictions, target_prior: Any) -> Tensor:
    """Importance weights of the samples: the target prior over the test set's own frequency of the label."""
    target = checked_prior(target_prior, predictions.num_classes, "target_prior")
    counts = torch.bincount(predictions.targets, minlength=predictions.num_classes)
    missing = ((target > 0) & (counts == 0)).nonzero()
    if len(missing):
        name = predictions.class_names[int(missing[0])]
        raise UserError(f"target_prior gives weight to class {name!r}, of which the test set has no sample")
    return (target / counts.clamp(min=1) * len(predictions))[predictions.targets]


def _own_weights(predictions: Predictions) -> list[Tensor]:
    """Weights of the samples to the prior of the ensemble, then of each expert; zero where they cannot be had."""
    priors = _own_priors(predictions)
    if not priors or int(torch.bincount(predictions.targets, minlength=predictions.num_classes).min()) == 0:
        return [torch.zeros(len(predictions), dtype=torch.float64)] * (1 + predictions.num_experts)
    return [_weights(predictions, prior) for prior in priors]


def _checks(predictions: Predictions, as_trained: list[_Summary], num_bins: int) -> list[PriorCheck]:
    """The paper's Figure 3 for ensemble and experts, and the same weighted to the prior that each was made for."""
    priors = _own_priors(predictions)
    if not priors:
        return []
    marginals = [summary.marginal / len(predictions) for summary in as_trained]
    if int(torch.bincount(predictions.targets, minlength=predictions.num_classes).min()) == 0:
        pairs = zip(marginals, priors, strict=True)
        return [PriorCheck(tuple(m.tolist()), _divergence(m, prior), None, None) for m, prior in pairs]
    checks = []
    for summary, prior, marginal, weight in zip(as_trained, priors, marginals, _own_weights(predictions), strict=True):
        bins = calibration_bins(summary.confidence, summary.correct, num_bins, weight)
        weighted = _divergence(summary.own_marginal / len(predictions), prior)
        ece = float(expected_calibration_error(bins))
        checks.append(PriorCheck(tuple(marginal.tolist()), _divergence(marginal, prior), weighted, ece))
    return checks


def _divergence(observed: Tensor, prior: Tensor) -> float:
    """The Kullback-Leibler divergence of an average prediction from a prior, in nats; not below 0 by rounding."""
    prior = prior.clamp(min=1e-300)  # what extreme lambdas round to zero
    return max(0.0, float((torch.special.xlogy(observed, observed) - torch.xlogy(observed, prior)).sum()))
