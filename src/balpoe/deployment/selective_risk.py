"""How often the answers are wrong, against how many samples are answered; and a threshold with a promise."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["RiskCoverage", "lowest_threshold", "risk_coverage"]

STARTS = (0.05, 0.25, 0.5, 1.0)  # shares answered at which the tests begin; a small one for errors far below the usual
STEPS = 100  # thresholds that are tested, one for each per cent answered
BOLDNESS = 0.9  # of the largest stake that one loss cannot use up


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve: as the threshold falls, more samples are answered, and more of them wrongly.

    >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([True, True, False, True]))
    >>> curve.coverage.tolist(), [round(risk, 2) for risk in curve.risk.tolist()], round(curve.area, 3)
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.33, 0.25], 0.146)
    """

    threshold: Tensor
    """The distinct confidences, falling, (points,)."""
    coverage: Tensor
    """Share of the samples with at least this confidence, (points,)."""
    risk: Tensor
    """Share of wrong answers among them, (points,)."""
    least_area: float = 0.0
    """The area if every right answer were surer than every wrong one, and no two alike."""

    @property
    def area(self) -> float:
        """The area under the curve (AURC): the mean risk over all shares answered; smaller is better."""
        return float((torch.diff(self.coverage, prepend=self.coverage.new_zeros(1)) * self.risk).sum())

    @property
    def excess_area(self) -> float:
        """What of the area a confidence that puts every right answer before every wrong one would not have."""
        return self.area - self.least_area


def risk_coverage(confidence: Tensor, correct: Tensor, weights: Tensor | None = None) -> RiskCoverage:
    """Return the risk-coverage curve; samples of equal confidence are answered together.

    Args:
        confidence: How sure the answer to each sample is, (samples,): a probability, or any score.
        correct: Whether the answer is right, (samples,).
        weights: Weight of each sample, such as those that make it stand for a deployment prior; None: 1.

    >>> risk_coverage(torch.tensor([0.9, 0.5]), torch.tensor([True, False])).area
    0.25
    """
    confidence, correct = torch.as_tensor(confidence), torch.as_tensor(correct)
    weights = torch.ones(len(confidence)) if weights is None else torch.as_tensor(weights)
    if confidence.ndim != 1 or not confidence.shape == correct.shape == weights.shape:
        raise UserError(
            f"confidence, correct and weights must be one number for each sample, but have the shapes "
            f"{tuple(confidence.shape)}, {tuple(correct.shape)} and {tuple(weights.shape)}"
        )
    if not len(confidence) or bool(confidence.isnan().any()):
        what = f"is NaN for sample {int(confidence.isnan().nonzero()[0])}" if len(confidence) else "has no samples"
        raise UserError(f"confidence {what}; give a number for each sample")
    if not bool((weights >= 0).all()) or not 0 < float(weights.sum()) < math.inf:
        raise UserError("weights must be finite numbers from 0, and not all 0")
    curve = _curve(confidence, correct == 0, weights.double())
    # Small weights first: the steps of the curve are then the smallest that it can have.
    ranks = torch.empty(len(weights), dtype=torch.float64)
    ranks[weights.argsort(descending=True)] = torch.arange(len(weights), dtype=torch.float64)
    best = _curve(torch.where(correct == 0, ranks, ranks + len(weights)), correct == 0, weights.double())
    return replace(curve, least_area=best.area)


def _curve(confidence: Tensor, wrong: Tensor, weights: Tensor) -> RiskCoverage:
    order = confidence.argsort(descending=True, stable=True)
    values, mass = confidence[order], weights[order]
    last = torch.cat([values[1:] < values[:-1], torch.tensor([True])])
    answered, lost = mass.cumsum(0)[last], (mass * wrong[order]).cumsum(0)[last]
    return RiskCoverage(values[last], answered / answered[-1], lost / answered.clamp(min=1e-300))


def lowest_threshold(
    confidence: Tensor,
    correct: Tensor,
    error: float,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    doubt: float | None = None,
    seed: int = 0,
) -> float | None:
    """Return the lowest threshold at which at most a share of the answers is wrong; None if there is none.

    Without doubt it is the lowest at which that holds for these samples. With it, each threshold is a hypothesis,
    "more than this share of further answers is wrong", and they are tested in a fixed order, from several shares
    answered downwards, each row of tests until the first that fails (learn then test, Angelopoulos and others): the
    probability that the threshold breaks its promise is at most the doubt.

    Args:
        confidence: How sure each answer is, (samples,).
        correct: Whether it is right, (samples,).
        error: Largest share of wrong answers.
        weights: Weight of each sample; None: 1.
        groups: Group of each sample; groups are independent, their samples need not be.
        doubt: Probability of a broken promise; None: no promise.
        seed: Seed of the order in which unequal samples are tested.

    >>> confidence = torch.linspace(1, 0, 1000)
    >>> correct = confidence > torch.rand(1000, generator=torch.Generator().manual_seed(0)) / 4
    >>> plain, sure = (lowest_threshold(confidence, correct, 0.02, doubt=doubt) for doubt in (None, 0.05))
    >>> plain < sure < 0.5
    True
    """
    curve = risk_coverage(confidence, correct, weights)
    if doubt is None:
        fine = (curve.risk <= error + 1e-12).nonzero()
        return float(curve.threshold[fine[-1]]) if len(fine) else None
    tested = torch.searchsorted(curve.coverage, torch.arange(1, STEPS + 1).double() / STEPS - 1e-9)
    thresholds = curve.threshold[tested]
    level = doubt / len(STARTS)
    test = _Test(confidence, correct, error, weights, groups, seed)
    found: float | None = None
    for start in STARTS:
        for threshold in thresholds[round(start * STEPS) - 1 :].tolist():
            if (found is None or threshold < found) and not test.rejects(threshold, level):
                break
            found = threshold if found is None else min(found, threshold)
    return found


class _Test:
    """Tests of "the share of wrong answers is above the error" at any threshold.

    Equal and independent samples: the exact binomial test. Else a bet against the hypothesis, sample by sample or group
    by group, that cannot be expected to gain if it is true (Waudby-Smith and Ramdas): it turns 1 into 1 / level with a
    probability of at most the level. The stake on each is made from those before it.
    """

    def __init__(
        self,
        confidence: Tensor,
        correct: Tensor,
        error: float,
        weights: Tensor | None,
        groups: Tensor | None,
        seed: int,
    ) -> None:
        samples = len(confidence)
        self.confidence, self.wrong, self.error = confidence, (correct == 0).double(), error
        mass = torch.ones(samples, dtype=torch.float64) if weights is None else weights.double()
        self.binomial = groups is None and torch.allclose(mass, mass[0].expand_as(mass), rtol=1e-9)
        units = torch.arange(samples) if groups is None else torch.unique(groups, return_inverse=True)[1]
        drawn = torch.randperm(int(units.max()) + 1, generator=torch.Generator().manual_seed(seed))
        self.unit, self.mass = drawn[units], mass / mass.mean()
        self.largest = float(torch.bincount(self.unit, self.mass).max())

    def rejects(self, threshold: float, level: float) -> bool:
        """Whether the hypothesis is rejected at a level."""
        chosen = self.confidence >= threshold
        if self.binomial:
            from scipy.special import bdtr

            return float(bdtr(float(self.wrong[chosen].sum()), int(chosen.sum()), self.error)) <= level
        excess = self.mass * (self.wrong - self.error) * chosen
        losses = torch.bincount(self.unit, excess)[torch.unique(self.unit[chosen])]
        return float(self._fortune(losses, level).max()) >= -math.log(level)

    def _fortune(self, losses: Tensor, level: float) -> Tensor:
        """The logarithm of what 1 has become after each unit."""
        number = torch.arange(1, len(losses) + 1)
        before = torch.cat([losses.new_zeros(1), losses[:-1]])
        spread = (self.error + before.square().cumsum(0)) / number
        # With this stake on each of as many losses, the least mean gain is enough that can be.
        stake = (-2 * math.log(level) / (spread * len(losses))).sqrt()
        return torch.log1p(-stake.clamp(max=BOLDNESS / ((1 - self.error) * self.largest)) * losses).cumsum(0)
