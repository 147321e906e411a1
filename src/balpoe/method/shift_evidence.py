"""What estimates of a label prior rest on: calibrated ratios, what randomness alone would give, and intervals.

All of it belongs to one model and its labelled validation predictions, and serves any number of estimates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.calibration import Calibration, LabelledLogits, fit_calibration, resampled_calibrations
from balpoe.method.prior_families import PriorFamily, PriorFit, log_likelihood, slopes

__all__ = ["SIGNIFICANCE", "ShiftEvidence", "ValidationLogits", "checked_logits", "checked_weights"]

SIGNIFICANCE = 0.05
LEVEL = 0.95
MIN_RESAMPLES = 40  # below 20 no shift, however large, could be significant


class ValidationLogits(NamedTuple):
    """Labelled logits of a model, on the CPU."""

    logits: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class ShiftEvidence:
    """The calibration of a model's logits, and those that other validation sets of the same make would have given.

    Args:
        members: Priors among which the estimate is.
        source: Prior that the logits are made for, (classes,), in float64.
        validation: Labelled logits, or None.
        calibration: Calibration fitted on them; None without.
        refits: One for each resample of the validation set; None for each without.
    """

    members: PriorFamily
    source: Tensor
    validation: ValidationLogits | None
    calibration: Calibration | None
    refits: Sequence[Calibration | None]

    @classmethod
    def gather(
        cls,
        members: PriorFamily,
        source: Tensor,
        validation: LabelledLogits | None,
        num_resamples: int,
        generator: torch.Generator,
    ) -> "ShiftEvidence":
        """Return the evidence of validation predictions, or that of none."""
        fewest = 1 if validation is None else MIN_RESAMPLES
        if num_resamples < fewest:
            raise UserError(f"num_resamples must be at least {fewest}, but is {num_resamples}")
        if validation is None:
            return cls(members, source, None, None, [None] * num_resamples)
        labelled = _checked_validation(validation, len(source))
        calibration = fit_calibration(labelled, source)
        refits = resampled_calibrations(labelled, source, calibration, num_resamples, generator)
        return cls(members, source, labelled, calibration, refits)

    def ratios(self, logits: Tensor) -> Tensor:
        """Return p(y | x) / source_y, up to a factor a sample, (samples, classes), in float64."""
        return _ratios(logits, self.calibration, self.source)

    def p_value(
        self, found: PriorFit, ratios: Tensor, weights: Tensor, prior: Tensor, null: Callable[[int], Sequence[float]]
    ) -> float:
        """Return how often randomness alone explains samples as much better than a prior does; 1 for one sample.

        Args:
            found: The most likely prior.
            ratios: Ratios of the samples.
            weights: Weight of each sample, in sum what they are worth.
            prior: Prior that the samples are thought to have.
            null: Function from a number of samples to statistics of so many of that prior; not called without
                validation predictions.
        """
        samples = round(float(weights.sum()))
        statistic = _statistic(found, ratios, weights, prior)
        if samples == 1:
            return 1.0
        if self.validation is None:
            return _chi_square_tail(statistic, self.members.freedom)
        drawn = null(samples)
        return (1 + sum(value >= statistic for value in drawn)) / (1 + len(drawn))

    def null(self, prior: Tensor, samples: int, generator: torch.Generator) -> list[float]:
        """Return statistics of `samples` validation rows each, drawn so that their labels follow a prior."""
        assert self.validation is not None
        targets = self.validation.targets
        counts = torch.bincount(targets, minlength=len(prior))
        probabilities = (prior / counts.clamp(min=1))[targets]
        results = []
        for refit in self.refits:
            rows = torch.multinomial(probabilities, samples, replacement=True, generator=generator)
            drawn, times = rows.unique(return_counts=True)
            ratios, weights = _ratios(self.validation.logits[drawn], refit, self.source), times.double()
            results.append(_statistic(self.members.fit(ratios, weights), ratios, weights, prior))
        return results

    def redrawn(self, found: PriorFit, logits: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Return estimates from other samples and validation sets: shares, (draws, classes), or lambdas, (draws,)."""
        plain, rows = _ratios(logits, self.refits[0], self.source), []
        for refit in self.refits:
            ratios = plain if refit is None else _ratios(logits, refit, self.source)
            # Samples are redrawn by random weights (the Bayesian bootstrap): a rare class never loses all of its few.
            times = torch.empty(len(logits), dtype=torch.float64).exponential_(generator=generator)
            rows.append(slopes(ratios, weights * times, found.prior))
        return self.members.refit(found, self.ratios(logits), weights, torch.stack(rows))

    @staticmethod
    def interval(found: PriorFit, redrawn: Tensor, samples: float, generator: torch.Generator) -> Tensor:
        """Return the 95 % bootstrap interval of an estimate: of lambda, (2,), or of each share, (2, classes).

        It is made of percentiles of the redrawn estimates; those of shares with half a random sample more for each
        class. So shares of known labels would get the interval of Jeffreys, and a class without a sample is not surely
        absent.
        """
        tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
        # The k-th of n draws estimates the quantile k / (n + 1).
        positions = ((tails * (len(redrawn) + 1) - 1) / max(len(redrawn) - 1, 1)).clamp(0, 1)
        plain = torch.quantile(redrawn, positions, dim=0)
        if found.lambda_ is not None:
            return plain
        halves = torch.randn(redrawn.shape, generator=generator, dtype=torch.float64).square() / 2
        low, high = torch.quantile(redrawn + halves / samples, positions, dim=0).clamp(max=1)
        return torch.stack([torch.where(plain[0] > 0, low, 0), high])

    @staticmethod
    def usable(found: PriorFit, samples: float) -> Tensor:
        """Return the prior with half a sample at least for each class, if its shares are free."""
        if found.lambda_ is not None:
            return found.prior
        lifted = found.prior.clamp(min=0.5 / samples)
        return lifted / lifted.sum()


def checked_logits(logits: Tensor, name: str) -> Tensor:
    """Return logits of shape (samples, classes), or say in one sentence what is wrong with them."""
    if logits.ndim != 2 or not len(logits):
        raise UserError(f"{name} must have shape (samples, classes), but have {tuple(logits.shape)}")
    if not bool(torch.isfinite(logits).all()):
        row = int((~torch.isfinite(logits)).any(dim=1).nonzero()[0])
        raise UserError(f"{name} must be finite, but are not in sample {row}; check the network that gave them")
    return logits


def checked_weights(weights: Any, samples: int) -> Tensor:
    """Return the weights, scaled to sum to the number of equally weighted samples that tell as much (Kish)."""
    if weights is None:
        return torch.ones(samples, dtype=torch.float64)
    given = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if given.shape != (samples,):
        raise UserError(f"weights must be one for each of the {samples} samples, but have shape {tuple(given.shape)}")
    if not bool((given.isfinite() & (given >= 0)).all()) or not bool(given.any()):
        raise UserError("weights must be finite and not negative, and not all zero; fix those that are not")
    shares = given / given.sum()
    return shares / shares.square().sum()


def _checked_validation(validation: LabelledLogits, classes: int) -> ValidationLogits:
    logits = checked_logits(validation.logits, "validation").cpu()
    if logits.shape[1] != classes:
        raise UserError(f"validation has {logits.shape[1]} classes, but logits {classes}; predict both with one model")
    return ValidationLogits(logits, validation.targets.cpu())


def _ratios(logits: Tensor, calibration: Calibration | None, source: Tensor) -> Tensor:
    """p(y | x) / source_y, each row scaled to a maximum of 1: a constant factor that no prior sees."""
    logits = logits.double() if calibration is None else calibration(logits)
    log_ratios = logits - source.log()
    return (log_ratios - log_ratios.amax(dim=1, keepdim=True)).exp()


def _statistic(found: PriorFit, ratios: Tensor, weights: Tensor, prior: Tensor) -> float:
    """Twice the gain in log-likelihood over a prior."""
    both = log_likelihood(ratios, weights, torch.stack([found.prior, prior]))
    return 2 * float(both[0] - both[1])


def _chi_square_tail(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
