"""An unknown label prior, estimated from unlabelled predictions, and used only when the evidence carries it.

If P(x | y) is the same in deployment, the likelihood of unlabelled samples under a prior pi is,
up to a constant, prod_i sum_y pi_y r_iy with the ratios r_iy = p(y | x_i) / source_y (Saerens et al. 2002);
`prior_families.py` finds its maximum. It needs calibrated p(y | x): labelled validation predictions fit a temperature
and a bias per class first, and their resamples tell how large the likelihood ratio gets when nothing has shifted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.calibration import Calibration, LabelledLogits, fit_calibration, resampled_calibrations
from balpoe.method.ensemble import checked_source, shift_prior
from balpoe.method.prior_families import PriorFamily, PriorFit, log_likelihood, on_curve, prior_family, slopes

__all__ = ["PriorEstimate", "estimate_prior", "on_curve"]

SIGNIFICANCE = 0.05
LEVEL = 0.95
MIN_RESAMPLES = 40  # below 20 no shift, however large, could be significant


@dataclass(frozen=True)
class PriorEstimate:
    """An estimated label prior and whether to believe it.

    >>> found = estimate_prior(torch.tensor([[4.0, -4.0]] * 90 + [[-4.0, 4.0]] * 10))
    >>> found.significant, found.prior.round(decimals=1).tolist(), found.adjust(torch.zeros(1, 2)).argmax(dim=1).item()
    (True, [0.9, 0.1], 0)
    """

    prior: Tensor
    """The prior to use, (classes,): the estimate if it is significant, otherwise the source prior, unchanged.

    A free estimate gives each class half a sample at least, so that none is excluded."""
    estimate: Tensor
    """The most likely prior, (classes,), believed or not; shares may be zero."""
    lambda_: float | None
    """Lambda of the family P^lambda; None for a free estimate."""
    significant: bool
    """Whether a shift explains the predictions better than randomness does, at 5 %; one sample never suffices."""
    p_value: float
    interval: Tensor
    """95 % bootstrap interval: of lambda, (2,), or of each class's share, (2, classes)."""
    source_prior: Tensor
    """What the logits were made for."""
    calibration: Calibration | None
    """Fitted on the validation data; None without."""

    def adjust(self, logits: Tensor) -> Tensor:
        """Return logits calibrated and moved to `prior`: what to predict with in deployment."""
        logits = logits if self.calibration is None else self.calibration(logits)
        return shift_prior(logits, self.prior, self.source_prior)


def estimate_prior(
    logits: Tensor,
    *,
    source_prior: Any = None,
    validation: LabelledLogits | None = None,
    family: str = "free",
    train_prior: Any = None,
    weights: Any = None,
    num_resamples: int = 100,
    seed: int = 0,
) -> PriorEstimate:
    """Estimate the label prior behind unlabelled logits (samples, classes).

    Give validation predictions whenever there are any: networks are not calibrated well enough to be
    taken at their word, and an estimate from uncalibrated logits can be worse than none.

    Args:
        logits: Logits of the unlabelled samples.
        source_prior: The prior that the logits are made for; by default uniform (a balanced ensemble).
        validation: Labelled predictions of the same model, any label distribution.
        family: "free" for any prior, or "tempered" for P^lambda, one parameter, which needs far fewer samples.
        train_prior: The prior that "tempered" bends.
        weights: One weight a sample, of which the ratios alone matter: unequal ones make the evidence thinner, as
            that of (sum of weights)^2 / (sum of their squares) samples. To count a sample twice, repeat its row.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = (torch.rand(2000, generator=generator) < 0.9).float()
    >>> x = 2 * labels - 1 + torch.randn(2000, generator=generator)  # one Gaussian around -1, one around 1
    >>> estimate_prior(torch.stack([-x, x], dim=1)).prior.round(decimals=1)
    tensor([0.1000, 0.9000], dtype=torch.float64)
    """
    logits = _checked_logits(logits, "logits").cpu()  # thousands of small operations: a GPU would wait
    weights = _checked_weights(weights, len(logits))
    classes = logits.shape[1]
    fewest = 1 if validation is None else MIN_RESAMPLES
    if num_resamples < fewest:
        raise UserError(f"num_resamples must be at least {fewest}, but is {num_resamples}")
    source = torch.full((classes,), 1 / classes, dtype=torch.float64)
    if source_prior is not None:
        source = checked_source(source_prior, classes)
    members = prior_family(family, train_prior, source)
    generator = torch.Generator().manual_seed(seed)
    calibration = None
    refits: Sequence[Calibration | None] = [None] * num_resamples
    if validation is not None:
        validation = _checked_validation(validation, classes)
        calibration = fit_calibration(validation, source)
        refits = resampled_calibrations(validation, source, calibration, num_resamples, generator)
    ratios = _ratios(logits, calibration, source)
    found = members.fit(ratios, weights)
    statistic = _statistic(found, ratios, weights, source)
    if round(float(weights.sum())) == 1:
        p_value = 1.0
    elif validation is None:
        p_value = _chi_square_tail(statistic, members.freedom)
    else:
        null = _null_statistics(members, validation, refits, source, round(float(weights.sum())), generator)
        p_value = (1 + sum(value >= statistic for value in null)) / (1 + num_resamples)
    redrawn = _redrawn_slopes(found, logits, weights, refits, source, generator)
    interval = _interval(found, members.refit(found, ratios, weights, redrawn), float(weights.sum()), generator)
    significant = p_value < SIGNIFICANCE
    used = _usable(found, float(weights.sum())) if significant else source
    return PriorEstimate(used, found.prior, found.lambda_, significant, p_value, interval, source, calibration)


def _checked_logits(logits: Tensor, name: str) -> Tensor:
    if logits.ndim != 2 or not len(logits):
        raise UserError(f"{name} must have shape (samples, classes), but have {tuple(logits.shape)}")
    if not bool(torch.isfinite(logits).all()):
        row = int((~torch.isfinite(logits)).any(dim=1).nonzero()[0])
        raise UserError(f"{name} must be finite, but are not in sample {row}; check the network that gave them")
    return logits


def _checked_weights(weights: Any, samples: int) -> Tensor:
    """The weights, scaled to sum to the number of equally weighted samples that tell as much (Kish)."""
    if weights is None:
        return torch.ones(samples, dtype=torch.float64)
    given = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if given.shape != (samples,):
        raise UserError(f"weights must be one for each of the {samples} samples, but have shape {tuple(given.shape)}")
    if not bool((given.isfinite() & (given >= 0)).all()) or not bool(given.any()):
        raise UserError("weights must be finite and not negative, and not all zero; fix those that are not")
    shares = given / given.sum()
    return shares / shares.square().sum()


class _Labelled(NamedTuple):
    logits: Tensor
    targets: Tensor


def _checked_validation(validation: LabelledLogits, classes: int) -> _Labelled:
    logits = _checked_logits(validation.logits, "validation").cpu()
    if logits.shape[1] != classes:
        raise UserError(f"validation has {logits.shape[1]} classes, but logits {classes}; predict both with one model")
    return _Labelled(logits, validation.targets.cpu())


def _ratios(logits: Tensor, calibration: Calibration | None, source: Tensor) -> Tensor:
    """p(y | x) / source_y, each row scaled to a maximum of 1: a constant factor that no prior sees."""
    logits = logits.double() if calibration is None else calibration(logits)
    log_ratios = logits - source.log()
    return (log_ratios - log_ratios.amax(dim=1, keepdim=True)).exp()


def _statistic(found: PriorFit, ratios: Tensor, weights: Tensor, source: Tensor) -> float:
    """Twice the gain in log-likelihood over the source prior."""
    both = log_likelihood(ratios, weights, torch.stack([found.prior, source]))
    return 2 * float(both[0] - both[1])


def _null_statistics(
    members: PriorFamily,
    validation: LabelledLogits,
    refits: Sequence[Calibration | None],
    source: Tensor,
    samples: int,
    generator: torch.Generator,
) -> list[float]:
    """Statistics of `samples` validation rows each, drawn so that their labels follow the source prior: no shift."""
    counts = torch.bincount(validation.targets, minlength=len(source))
    probabilities = (source / counts.clamp(min=1))[validation.targets]
    results = []
    for refit in refits:
        rows = torch.multinomial(probabilities, samples, replacement=True, generator=generator)
        drawn, times = rows.unique(return_counts=True)
        ratios, weights = _ratios(validation.logits[drawn], refit, source), times.double()
        results.append(_statistic(members.fit(ratios, weights), ratios, weights, source))
    return results


def _redrawn_slopes(
    found: PriorFit,
    logits: Tensor,
    weights: Tensor,
    refits: Sequence[Calibration | None],
    source: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Slopes of the likelihood at the estimate for other samples and other validation sets, (draws, classes).

    Samples are redrawn by random weights (the Bayesian bootstrap): a rare class never loses all of its few samples.
    """
    plain, rows = _ratios(logits, refits[0], source), []
    for refit in refits:
        ratios = plain if refit is None else _ratios(logits, refit, source)
        times = torch.empty(len(logits), dtype=torch.float64).exponential_(generator=generator)
        rows.append(slopes(ratios, weights * times, found.prior))
    return torch.stack(rows)


def _interval(found: PriorFit, redrawn: Tensor, samples: float, generator: torch.Generator) -> Tensor:
    """Percentiles of the redrawn estimates; those of shares with half a random sample more for each class.

    So shares of known labels would get the interval of Jeffreys, and a class without a sample is not surely absent.
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


def _usable(found: PriorFit, samples: float) -> Tensor:
    """The prior with half a sample at least for each class, if its shares are free."""
    if found.lambda_ is not None:
        return found.prior
    lifted = found.prior.clamp(min=0.5 / samples)
    return lifted / lifted.sum()


def _chi_square_tail(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
