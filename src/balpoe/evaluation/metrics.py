"""What predictions are worth: accuracy per class and per shot group, calibration, likelihood; each also weighted.

Everything takes vectors over the samples and, optionally, one weight per sample (importance
weights to another label prior, or how often a resample has it), where it says so also several rows
of weights. Means are taken in float64; a quantity without samples is NaN.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = [
    "CalibrationBins",
    "ClasswiseSums",
    "accuracy_per_class",
    "brier_scores",
    "calibration_bins",
    "classwise_sums",
    "expected_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihoods",
    "rarest_third",
    "rarest_third_is_few",
    "shot_groups",
    "weighted_mean",
]


def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over the samples; a sample of weight 0 has no part in it, even if it is an infinite loss.

    Args:
        values: One number per sample, (samples,).
        weights: One weight per sample, (samples,), or rows of them, (rows, samples), which give one mean each.

    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]))
    tensor(1.5000, dtype=torch.float64)
    """
    values = values.double()
    if weights is None:
        return values.mean()
    weights, infinite = weights.double(), values == torch.inf
    total = (weights @ values.masked_fill(infinite, 0)).masked_fill(weights @ infinite.double() > 0, torch.inf)
    return total / weights.sum(dim=-1)


def accuracy_per_class(correct: Tensor, targets: Tensor, num_classes: int, counts: Tensor | None = None) -> Tensor:
    """Return the share of right answers of each class, shape (classes,); NaN for a class without samples.

    Args:
        correct: Whether the answer was right, (samples,).
        targets: Labels, (samples,).
        num_classes: Number of classes.
        counts: Frequency of each sample, (samples,), or rows of that, (rows, samples), for (rows, classes).
            Importance weights are not wanted: they are the same for all samples of a class and cancel.

    >>> accuracy_per_class(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), 3)
    tensor([0.5000, 1.0000,    nan], dtype=torch.float64)
    """
    counts = _sample_weights(correct.double(), counts)
    return _sums(targets, counts * correct, num_classes) / _sums(targets, counts, num_classes)


def shot_groups(class_counts: Tensor, thresholds: tuple[int, int] = (20, 100)) -> dict[str, Tensor]:
    """Return which classes are many-, medium- and few-shot: above, between, and below the thresholds.

    >>> {name: mask.tolist() for name, mask in shot_groups(torch.tensor([101, 100, 19])).items()}
    {'many': [True, False, False], 'medium': [False, True, False], 'few': [False, False, True]}
    """
    few, many = thresholds
    if not 0 <= few <= many + 1:
        raise UserError(f"shot groups want thresholds few <= many, such as 20,100, but are {few},{many}")
    is_many, is_few = class_counts > many, class_counts < few
    return {"many": is_many, "medium": ~is_many & ~is_few, "few": is_few}


def rarest_third(class_counts: Tensor) -> Tensor:
    """Return which classes are the third with the fewest training samples, whatever their numbers; rounded up.

    >>> rarest_third(torch.tensor([9, 8, 7, 1000, 1, 6, 5])).tolist()
    [False, False, False, False, True, True, True]
    """
    rarest = class_counts.argsort(stable=True)[: -(-len(class_counts) // 3)]
    return torch.zeros(len(class_counts), dtype=torch.bool).index_fill(0, rarest, True)


def rarest_third_is_few(class_counts: Tensor, thresholds: tuple[int, int]) -> bool:
    """Return whether the rarest third of the classes are just the few-shot ones, so that one score says it all.

    >>> rarest_third_is_few(torch.tensor([101, 100, 19]), (20, 100))
    True
    """
    return torch.equal(rarest_third(class_counts), shot_groups(class_counts, thresholds)["few"])


class CalibrationBins(NamedTuple):
    """Confidence against accuracy in equal bins of [0, 1], as sums, so that blocks of samples can be added.

    Each field has shape (bins,), or (columns, bins) when every column, or row of weights, was binned by itself.
    """

    mass: Tensor
    """How many samples, or how much of their weight, lies in the bin."""
    confidence_mass: Tensor
    correct_mass: Tensor

    @property
    def share(self) -> Tensor:
        """The part of all samples in the bin; the shares sum to 1."""
        return self.mass / self.mass.sum(dim=-1, keepdim=True)

    @property
    def confidence(self) -> Tensor:
        """The mean confidence; NaN in an empty bin."""
        return self.confidence_mass / self.mass

    @property
    def accuracy(self) -> Tensor:
        """The share of right answers; NaN in an empty bin."""
        return self.correct_mass / self.mass

    @property
    def gap(self) -> Tensor:
        """The distance of accuracy and confidence; 0 in an empty bin."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)


def calibration_bins(
    confidence: Tensor, correct: Tensor, num_bins: int = 15, weights: Tensor | None = None
) -> CalibrationBins:
    """Return the reliability diagram's numbers: right-closed bins, 1.0 in the last one and 0 in the first.

    Args:
        confidence: Probability given to the answer, (samples,).
        correct: Whether it was right, (samples,).
        num_bins: Number of bins.
        weights: One weight per sample, or rows of them, (rows, samples).

    >>> bins = calibration_bins(torch.tensor([0.97, 1.0]), torch.tensor([True, False]))
    >>> round(float(expected_calibration_error(bins)), 4)
    0.485
    """
    probability = confidence.double()
    weight = _sample_weights(probability, weights)
    index = torch.bucketize(probability, _inner_edges(num_bins, probability))
    masses = (weight, weight * probability, weight * correct)
    return CalibrationBins(*(_sums(index, mass, num_bins) for mass in masses))


@dataclass(frozen=True)
class ClasswiseSums:
    """What the bins of each class need of some samples: a few numbers per sample and class, so that blocks are cheap.

    All bins of all classes are many more numbers than a block of few samples and many classes has itself.
    """

    index: Tensor
    """(entries,): class and bin, as one number, of each probability beyond the first bin."""
    masses: Tensor
    """(3, entries): the sample's weight, that times the probability, and that where the class is the label."""
    totals: Tensor
    """(3, classes): the same sums over all probabilities, those of the first bin included."""

    def joined(self, other: "ClasswiseSums") -> "ClasswiseSums":
        """Return the sums of these and other samples."""
        index, masses = torch.cat([self.index, other.index]), torch.cat([self.masses, other.masses], dim=1)
        return ClasswiseSums(index, masses, self.totals + other.totals)

    def bins(self, num_bins: int = 15) -> CalibrationBins:
        """Return the bins of each class, (classes, bins); the first one gets what the others leave."""
        size = self.totals.shape[1] * num_bins
        parts = [torch.bincount(self.index, mass, minlength=size).view(-1, num_bins) for mass in self.masses]
        rest = torch.stack([total - part.sum(dim=1) for total, part in zip(self.totals, parts, strict=True)])
        empty = rest[0] <= 1e-12 * self.totals[0]  # but for rounding
        for part, left in zip(parts, rest.clamp(min=0).masked_fill(empty, 0), strict=True):
            part[:, 0] = left
        return CalibrationBins(*parts)


def classwise_sums(
    probabilities: Tensor, targets: Tensor, num_bins: int = 15, weights: Tensor | None = None
) -> ClasswiseSums:
    """Return what the bins of each class need, of a block of samples.

    Args:
        probabilities: Probabilities, (samples, classes); of many classes almost all lie in the first bin.
        targets: Labels, (samples,).
        num_bins: Number of bins.
        weights: One weight per sample.

    >>> sums = classwise_sums(torch.tensor([[0.97, 0.03], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> sums.index.tolist(), sums.joined(sums).bins().mass[:, [0, 14]].tolist()
    ([14, 14], [[0.0, 4.0], [4.0, 0.0]])
    """
    probability, classes = probabilities.double(), probabilities.shape[1]
    weight, edges = _sample_weights(probability, weights), _inner_edges(num_bins, probability)
    rows, columns = (probability > (edges[0] if num_bins > 1 else 1)).nonzero(as_tuple=True)
    values, mass = probability[rows, columns], weight[rows]
    labelled = torch.bincount(targets, weight, minlength=classes)
    return ClasswiseSums(
        columns * num_bins + torch.bucketize(values, edges),
        torch.stack([mass, mass * values, mass * (targets[rows] == columns)]),
        torch.stack([weight.sum().expand(classes), weight @ probability, labelled]),
    )


def _sums(index: Tensor, masses: Tensor, size: int) -> Tensor:
    """Sums of masses, (..., samples), over the samples of each index, (..., size)."""
    return masses.new_zeros(*masses.shape[:-1], size).scatter_add_(-1, index.expand_as(masses), masses)


def _sample_weights(probability: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.ones(len(probability), dtype=torch.float64, device=probability.device)
    return weights.to(probability)


def _inner_edges(num_bins: int, like: Tensor) -> Tensor:
    return torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)[1:-1].to(like)


def expected_calibration_error(bins: CalibrationBins) -> Tensor:
    """Return ECE, the mean gap of confidence and accuracy, each bin with its share (supplement, eq. ECE).

    The bins of all classes give one value per class, whose mean is the classwise ECE.
    """
    return (bins.share * bins.gap).sum(dim=-1)


def maximum_calibration_error(bins: CalibrationBins) -> Tensor:
    """Return MCE, the largest gap of any bin that is not empty (supplement, eq. MCE)."""
    return bins.gap.amax(dim=-1)


def negative_log_likelihoods(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return -log p(target) of each sample, in nats; infinite where the target was excluded."""
    return -log_probabilities.double().gather(1, targets[:, None]).squeeze(1)


def brier_scores(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distance from the one-hot truth of each sample, summed over classes, from 0 to 2.

    >>> brier_scores(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor([0.5000], dtype=torch.float64)
    """
    probabilities = probabilities.double()
    at_target = probabilities.gather(1, targets[:, None]).squeeze(1)
    return probabilities.square().sum(dim=1) - 2 * at_target + 1
