"""An unknown label prior, estimated from unlabelled predictions, and used only when the evidence carries it.

If P(x | y) is the same in deployment, the likelihood of unlabelled samples under a prior pi is,
up to a constant, prod_i sum_y pi_y r_iy with the ratios r_iy = p(y | x_i) / source_y. The maximum over
all priors is found by EM (Saerens et al. 2002), the maximum over the curve P^lambda by a search in
one dimension. Both need calibrated p(y | x): labelled validation predictions fit a temperature and a bias per class
first, and their bootstrap tells how large the likelihood ratio gets when nothing has shifted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name
from balpoe.method.calibration import Calibration, LabelledLogits, fit_calibration
from balpoe.method.ensemble import checked_source, shift_prior
from balpoe.method.intervals import stratified_resample
from balpoe.method.priors import checked_prior, tempered_prior

__all__ = ["PriorEstimate", "estimate_prior", "on_curve"]

SIGNIFICANCE = 0.05
EM_TOLERANCE = 1e-6
LAMBDA_LIMIT = 4.0
MIN_RESAMPLES = 40  # below 20 no shift, however large, could be significant


@dataclass(frozen=True)
class PriorEstimate:
    """An estimated label prior and whether to believe it.

    >>> found = estimate_prior(torch.tensor([[4.0, -4.0]] * 90 + [[-4.0, 4.0]] * 10))
    >>> found.significant, found.prior.round(decimals=1).tolist(), found.adjust(torch.zeros(1, 2)).argmax(dim=1).item()
    (True, [0.9, 0.1], 0)
    """

    prior: Tensor
    """The prior to use, (classes,): the estimate if it is significant, otherwise the source prior, unchanged."""
    estimate: Tensor
    """The most likely prior, (classes,), believed or not."""
    lambda_: float | None
    """Lambda of the family P^lambda; None for a free estimate."""
    significant: bool
    """Whether a shift explains the predictions better than randomness does, at 5 %."""
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
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = (torch.rand(2000, generator=generator) < 0.9).float()
    >>> x = 2 * labels - 1 + torch.randn(2000, generator=generator)  # one Gaussian around -1, one around 1
    >>> estimate_prior(torch.stack([-x, x], dim=1)).prior.round(decimals=1)
    tensor([0.1000, 0.9000], dtype=torch.float64)
    """
    logits = _checked_logits(logits, "logits").cpu()  # thousands of small operations: a GPU would wait
    classes = logits.shape[1]
    if validation is not None:
        validation = _Labelled(_checked_logits(validation.logits, "validation").cpu(), validation.targets.cpu())
        if validation.logits.shape[1] != classes:
            raise UserError(
                f"validation has {validation.logits.shape[1]} classes, but logits {classes}; "
                "predict both with one model"
            )
    fewest = 1 if validation is None else MIN_RESAMPLES
    if num_resamples < fewest:
        raise UserError(f"num_resamples must be at least {fewest}, but is {num_resamples}")
    source = torch.full((classes,), 1 / classes, dtype=torch.float64)
    if source_prior is not None:
        source = checked_source(source_prior, classes)
    search = _family(family, train_prior, source)
    generator = torch.Generator().manual_seed(seed)
    calibration = None if validation is None else fit_calibration(validation, source)
    found, statistic = search(_ratios(logits, calibration, source), None)
    if validation is None or calibration is None:
        p_value = _chi_square_tail(statistic, classes - 1 if family == "free" else 1)
        calibrations: Sequence[Calibration | None] = [None] * num_resamples
    else:
        calibrations = refits = [_refit(validation, source, calibration, generator) for _ in range(num_resamples)]
        null = [_null_statistic(search, validation, refit, source, len(logits), generator) for refit in refits]
        p_value = (1 + sum(value >= statistic for value in null)) / (1 + num_resamples)
    significant = p_value < SIGNIFICANCE
    interval = _interval(search, logits, calibrations, source, generator)
    used = found.prior if significant else source
    return PriorEstimate(used, found.prior, found.lambda_, significant, p_value, interval, source, calibration)


def _checked_logits(logits: Tensor, name: str) -> Tensor:
    if logits.ndim != 2 or not len(logits):
        raise UserError(f"{name} must have shape (samples, classes), but have {tuple(logits.shape)}")
    if not bool(torch.isfinite(logits).all()):
        row = int((~torch.isfinite(logits)).any(dim=1).nonzero()[0])
        raise UserError(f"{name} must be finite, but are not in sample {row}; check the network that gave them")
    return logits


class _Labelled(NamedTuple):
    logits: Tensor
    targets: Tensor


@dataclass(frozen=True)
class _PriorFit:
    """The most likely prior of a family, and its lambda where the family has one."""

    prior: Tensor
    lambda_: float | None


_Search = Callable[[Tensor, Tensor | None], tuple[_PriorFit, float]]
"""From ratios (samples, classes) and a weight per sample to the best prior and twice its gain in log-likelihood."""


def _family(family: str, train_prior: Any, source: Tensor) -> _Search:
    if family == "free":
        return lambda ratios, weights: _search_free(ratios, weights, source)
    if family != "tempered":
        raise unknown_name("family", family, ("free", "tempered"))
    if train_prior is None:
        raise UserError("family 'tempered' bends the training prior: give train_prior")
    train = checked_prior(train_prior, len(source), "train_prior")
    _check_on_curve(train, source)
    return lambda ratios, weights: _search_tempered(ratios, weights, source, train)


def _check_on_curve(train: Tensor, source: Tensor) -> None:
    """The test compares the source prior with others of its family: it has to be a member."""
    if float(train.max() - train.min()) < 1e-9:
        raise UserError("train_prior is uniform, so that P^lambda is the same for every lambda; use family='free'")
    if not on_curve(train, source):
        raise UserError("source_prior is not of the form P^lambda of train_prior; use family='free'")


def on_curve(train_prior: Tensor, source_prior: Tensor) -> bool:
    """Return whether the source prior is P^lambda of a training prior that is not uniform.

    >>> on_curve(torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5]))
    True
    >>> on_curve(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    False
    """
    train, source = train_prior.double().log(), source_prior.double().log()
    bent, straight = train - train.mean(), source - source.mean()
    if float(bent.abs().max()) < 1e-9:
        return False
    return float((straight - (bent @ straight) / (bent @ bent) * bent).abs().max()) <= 1e-3


def _ratios(logits: Tensor, calibration: Calibration | None, source: Tensor) -> Tensor:
    """p(y | x) / source_y, each row scaled to a maximum of 1: a constant factor that no prior sees."""
    logits = logits.double() if calibration is None else calibration(logits)
    log_ratios = logits - source.log()
    return (log_ratios - log_ratios.amax(dim=1, keepdim=True)).exp()


def _log_likelihood(ratios: Tensor, weights: Tensor | None, prior: Tensor) -> Tensor:
    """Log-likelihood of one prior (classes,), or of several (priors, classes)."""
    values = (ratios @ prior.movedim(-1, 0)).log()
    return values.sum(dim=0) if weights is None else weights @ values


def _search_free(ratios: Tensor, weights: Tensor | None, source: Tensor) -> tuple[_PriorFit, float]:
    """EM from the source prior until an update moves less than 1e-6 of the mass.

    Two updates tell where EM is heading, and a long step there (SQUAREM, Varadhan and Roland 2008),
    taken only if the likelihood agrees, saves most of the hundreds that classes which overlap would need.
    """
    weights = torch.ones(len(ratios), dtype=torch.float64) if weights is None else weights

    def update(prior: Tensor) -> Tensor:
        prior = prior * ((weights / (ratios @ prior)) @ ratios)
        return prior / prior.sum()

    prior = source
    for _ in range(5_000):
        first = update(prior)
        change = first - prior
        if float(change.abs().sum()) < EM_TOLERANCE:
            break
        second = update(first)
        curvature = second - first - change
        length = max(1.0, float(change.norm() / curvature.norm().clamp(min=1e-300)))
        leap = (prior + 2 * length * change + length**2 * curvature).clamp(min=1e-300)
        leap = update(leap / leap.sum())
        better = _log_likelihood(ratios, weights, leap) >= _log_likelihood(ratios, weights, second)
        prior = leap if better else second
    gain = _log_likelihood(ratios, weights, prior) - _log_likelihood(ratios, weights, source)
    return _PriorFit(prior, None), 2 * float(gain)


def _search_tempered(ratios: Tensor, weights: Tensor | None, source: Tensor, train: Tensor) -> tuple[_PriorFit, float]:
    """The best lambda on a grid, then a golden-section search between its neighbours."""
    curve = torch.linspace(-LAMBDA_LIMIT, LAMBDA_LIMIT, 65, dtype=torch.float64)
    best = int(_log_likelihood(ratios, weights, tempered_prior(train, curve)).argmax())
    low, high = float(curve[max(best - 1, 0)]), float(curve[min(best + 1, len(curve) - 1)])

    def value(lambda_: float) -> float:
        return float(_log_likelihood(ratios, weights, tempered_prior(train, lambda_)))

    lambda_ = _golden_section(value, low, high)
    gain = value(lambda_) - float(_log_likelihood(ratios, weights, source))
    return _PriorFit(tempered_prior(train, lambda_), lambda_), 2 * gain


def _golden_section(value: Callable[[float], float], low: float, high: float, tolerance: float = 1e-4) -> float:
    """The maximum of a function with one peak between low and high."""
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = value(left), value(right)
    while high - low > tolerance:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = value(right)
    return (low + high) / 2


def _refit(
    validation: LabelledLogits, source: Tensor, calibration: Calibration, generator: torch.Generator
) -> Calibration:
    """The calibration that another validation set of the same make would have given."""
    rows = stratified_resample(validation.targets, generator)
    weights = torch.bincount(rows, minlength=len(validation.targets)).double()
    return fit_calibration(validation, source, weights=weights, start=calibration)


def _null_statistic(
    search: _Search,
    validation: LabelledLogits,
    calibration: Calibration,
    source: Tensor,
    samples: int,
    generator: torch.Generator,
) -> float:
    """The statistic of `samples` validation rows drawn so that their labels follow the source prior: no shift."""
    counts = torch.bincount(validation.targets, minlength=len(source))
    probabilities = (source / counts.clamp(min=1))[validation.targets]
    rows = torch.multinomial(probabilities, samples, replacement=True, generator=generator)
    weights = torch.bincount(rows, minlength=len(probabilities)).double()
    return search(_ratios(validation.logits, calibration, source), weights)[1]


def _interval(
    search: _Search,
    logits: Tensor,
    calibrations: Sequence[Calibration | None],
    source: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Percentiles over resampled rows and refitted calibrations."""
    values = []
    for calibration in calibrations:
        rows = torch.randint(len(logits), (len(logits),), generator=generator)
        weights = torch.bincount(rows, minlength=len(logits)).double()
        found, _ = search(_ratios(logits, calibration, source), weights)
        values.append(found.prior if found.lambda_ is None else torch.tensor(found.lambda_, dtype=torch.float64))
    levels = torch.tensor([0.025, 0.975], dtype=torch.float64)
    return torch.quantile(torch.stack(values), levels, dim=0)


def _chi_square_tail(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
