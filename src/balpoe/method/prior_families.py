"""Families of label priors, and the member of each under which unlabelled samples are most likely.

With the ratios r_iy = p(y | x_i) / source_y the log-likelihood of a prior pi is sum_i w_i log sum_y pi_y r_iy, up to a
constant. It is concave in pi. Its slope for class y, the mean of r_iy / sum_j pi_j r_ij, is 1 at the maximum if the
share of the class is positive, and at most 1 if it is zero. Both conditions together are those of a maximum over all
pi >= 0 of the likelihood less the sum of pi, which is 1 there by itself.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name
from balpoe.method.priors import checked_prior, tempered_prior

__all__ = ["PriorFamily", "PriorFit", "log_likelihood", "on_curve", "prior_family", "slopes"]

LAMBDA_LIMIT = 4.0
TOLERANCE = 1e-8


@dataclass(frozen=True)
class PriorFit:
    """The most likely prior of a family, and its lambda where the family has one."""

    prior: Tensor
    lambda_: float | None


class PriorFamily(Protocol):
    """Some priors, with a search among them."""

    freedom: int
    """The number of free parameters."""

    def fit(self, ratios: Tensor, weights: Tensor, start: Tensor | None = None) -> PriorFit:
        """Return the most likely member, from ratios (samples, classes) and weights (samples,).

        A prior to start from, positive, saves time where it is close.
        """
        ...

    def refit(self, fit: PriorFit, ratios: Tensor, weights: Tensor, redrawn: Tensor) -> Tensor:
        """Return what `fit` would be for other samples, by one Newton step from it.

        Args:
            fit: The most likely prior for `ratios` and `weights`.
            ratios: Ratios, (samples, classes).
            weights: One weight a sample, (samples,).
            redrawn: Slopes at `fit` of the other samples, (draws, classes).

        Returns:
            The shares, (draws, classes), or lambdas, (draws,).
        """
        ...


def prior_family(family: str, train_prior: Any, source: Tensor) -> PriorFamily:
    """Return the family "free", or "tempered" around a training prior, of whose curve the source prior is a member."""
    if family == "free":
        return _Free(source)
    if family != "tempered":
        raise unknown_name("family", family, ("free", "tempered"))
    if train_prior is None:
        raise UserError("family 'tempered' bends the training prior: give train_prior")
    train = checked_prior(train_prior, len(source), "train_prior")
    if float(train.max() - train.min()) < 1e-9:
        raise UserError("train_prior is uniform, so that P^lambda is the same for every lambda; use family='free'")
    if not on_curve(train, source):
        raise UserError("source_prior is not of the form P^lambda of train_prior; use family='free'")
    return _Tempered(train)


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


def log_likelihood(ratios: Tensor, weights: Tensor, prior: Tensor) -> Tensor:
    """Return the log-likelihood of one prior (classes,), or of several (priors, classes)."""
    return weights @ (ratios @ prior.movedim(-1, 0)).log()


def slopes(ratios: Tensor, weights: Tensor, prior: Tensor) -> Tensor:
    """Return the slope of the log-likelihood for each class, (classes,), for weights that count as one sample."""
    return (weights / weights.sum() / (ratios @ prior)) @ ratios


class _Free:
    """All priors."""

    def __init__(self, source: Tensor) -> None:
        self.source, self.freedom = source, len(source) - 1

    def fit(self, ratios: Tensor, weights: Tensor, start: Tensor | None = None) -> PriorFit:
        """A step of EM and one of Newton in turn: the first is never far off, the second ends the search.

        EM alone would need thousands of steps for classes that overlap.
        """
        weights = weights / weights.sum()
        prior = self.source if start is None else start
        for _ in range(100):
            prior = prior * slopes(ratios, weights, prior)
            slope = slopes(ratios, weights, prior)
            excess = torch.where(prior > 0, (slope - 1).abs(), slope - 1)
            if float(excess.max()) < TOLERANCE:
                break
            # The curvature times the prior is the slope, so that the model of the likelihood is short.
            newton = _nonnegative_maxima(_curvature(ratios, weights, prior), (2 * slope - 1)[None])
            prior = _towards(newton[0], prior, slope, ratios, weights)
        return PriorFit(prior / prior.sum(), None)

    def refit(self, fit: PriorFit, ratios: Tensor, weights: Tensor, redrawn: Tensor) -> Tensor:
        weights = weights / weights.sum()
        curvature = _curvature(ratios, weights, fit.prior)
        shares = _nonnegative_maxima(curvature, curvature @ fit.prior + redrawn - 1)
        return shares / shares.sum(dim=1, keepdim=True)


class _Tempered:
    """The curve P^lambda of a training prior."""

    freedom = 1

    def __init__(self, train: Tensor) -> None:
        self.train = train

    def fit(self, ratios: Tensor, weights: Tensor, start: Tensor | None = None) -> PriorFit:
        """The best lambda of a grid, for there may be several peaks, then a search between its neighbours."""
        from scipy.optimize import minimize_scalar

        curve = torch.linspace(-LAMBDA_LIMIT, LAMBDA_LIMIT, 33, dtype=torch.float64)
        best = int(log_likelihood(ratios, weights, tempered_prior(self.train, curve)).argmax())
        bounds = float(curve[max(best - 1, 0)]), float(curve[min(best + 1, len(curve) - 1)])

        log_train = self.train.log()

        def loss(lambda_: float) -> float:
            return -float(log_likelihood(ratios, weights, (lambda_ * log_train).softmax(dim=0)))

        lambda_ = float(minimize_scalar(loss, bounds=bounds, options={"xatol": 1e-5}).x)
        return PriorFit(tempered_prior(self.train, lambda_), lambda_)

    def refit(self, fit: PriorFit, ratios: Tensor, weights: Tensor, redrawn: Tensor) -> Tensor:
        assert fit.lambda_ is not None
        log_train = self.train.log()
        tangent = fit.prior * (log_train - fit.prior @ log_train)
        curvature = (weights / weights.sum()) @ ((ratios @ tangent) / (ratios @ fit.prior)).square()
        lambdas = fit.lambda_ + redrawn @ tangent / curvature.clamp(min=1e-12)
        return lambdas.clamp(-LAMBDA_LIMIT, LAMBDA_LIMIT)


def _curvature(ratios: Tensor, weights: Tensor, prior: Tensor) -> Tensor:
    """The negative Hessian of the log-likelihood, (classes, classes)."""
    table = ratios * (weights.sqrt() / (ratios @ prior))[:, None]
    return table.T @ table


def _nonnegative_maxima(curvature: Tensor, slopes: Tensor) -> Tensor:
    """For each of some slopes the shares p >= 0 with the largest slope p - p curvature p / 2, many exactly zero."""
    from scipy.optimize import nnls

    ridge = 1e-10 * curvature.diagonal() + 1e-14  # for classes that no sample tells apart, or none can be of
    lower = torch.linalg.cholesky(curvature + ridge.diag())
    right = torch.linalg.solve_triangular(lower, slopes.T, upper=False).T.numpy()
    upper, most = lower.T.numpy(), 30 * len(ridge)
    return torch.stack([torch.from_numpy(nnls(upper, each, maxiter=most)[0]) for each in right])


def _towards(aim: Tensor, prior: Tensor, slope: Tensor, ratios: Tensor, weights: Tensor) -> Tensor:
    """The point on the way from `prior` to `aim`, halved until the likelihood agrees."""

    def value(prior: Tensor) -> float:
        return float(log_likelihood(ratios, weights, prior) - prior.sum())  # -inf where a sample becomes impossible

    step, now, length = aim - prior, value(prior), 1.0
    while length > 1e-8 and not value(prior + length * step) >= now + 1e-4 * length * float((slope - 1) @ step) - 1e-15:
        length /= 2
    return (prior + length * step).clamp(min=0)
