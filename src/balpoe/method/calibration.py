"""A temperature and a bias per class, fitted on labelled logits so that these become calibrated."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.ensemble import product_of_experts, source_prior
from balpoe.method.priors import Lambdas, class_counts, logit_offsets

__all__ = ["Calibration", "LabelledLogits", "fit_calibration", "fit_scale", "fit_temperature", "to_labels"]


SCALES = 0.02, 50.0


class LabelledLogits(Protocol):
    """Anything with logits (samples, classes) and targets (samples,), such as `Predictions`."""

    @property
    def logits(self) -> Tensor:
        """Logits, (samples, classes)."""
        ...

    @property
    def targets(self) -> Tensor:
        """Labels, (samples,)."""
        ...


@dataclass(frozen=True)
class Calibration:
    """Logits times `scale` (one over the temperature) plus a bias per class."""

    scale: float
    bias: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Return calibrated logits, in float64."""
        return logits.double() * self.scale + self.bias.to(logits.device)


def fit_calibration(
    validation: LabelledLogits,
    source_prior: Tensor,
    *,
    weights: Tensor | None = None,
    start: Calibration | None = None,
) -> Calibration:
    """Return the temperature and the biases under which the validation labels are most likely.

    The labels' own distribution is allowed for: the result is calibrated for `source_prior`, which
    the logits are made for, whatever the validation set looks like. A normal prior of deviation 1
    keeps the bias of a class with few validation samples, or none, near zero.

    Args:
        validation: Labelled logits of the model.
        source_prior: Prior that the logits are made for, (classes,), positive.
        weights: One weight per sample.
        start: First guess; a good one saves time.
    """
    logits, targets = validation.logits.double(), validation.targets
    if logits.ndim != 2 or len(logits) != len(targets) or not len(targets):
        raise UserError(f"validation has logits of shape {tuple(logits.shape)} for {len(targets)} labels")
    weights = torch.ones(len(targets), dtype=torch.float64) if weights is None else weights
    offsets = to_labels(targets, source_prior)
    problem = _Likelihood(logits, targets, weights, offsets)
    scale = torch.tensor([1.0 if start is None else start.scale], dtype=torch.float64)
    bias = torch.zeros(logits.shape[1], dtype=torch.float64) if start is None else start.bias
    solution = _newton(problem, torch.cat([scale, bias]))
    if float(solution[0]) <= 0:
        raise UserError("the validation labels have nothing to do with the logits: are they of the same samples?")
    return Calibration(float(solution[0]), solution[1:])


def fit_scale(logits: Tensor, targets: Tensor, weights: Tensor, offsets: Tensor) -> float:
    """Return the number, one over the temperature, times which logits make the labels most likely.

    A normal prior around 1, of deviation 1, counts where there are few labels: a few dozen that are all predicted
    rightly would otherwise ask for certainty.

    Args:
        logits: Logits, (samples, classes).
        targets: Labels, (samples,).
        weights: One weight per sample, (samples,).
        offsets: Addition to the scaled logits, (classes,): from the prior of the logits to that of the labels.

    >>> logits, targets = torch.tensor([[2.0, 0.0]] * 400), torch.tensor([0, 0, 0, 1] * 100)
    >>> round(fit_scale(logits, targets, torch.ones(400), torch.zeros(2)), 2)  # 75 % are right: about log 3 / 2
    0.55
    """
    logits, weights = logits.double(), weights.double()
    at_labels = logits.gather(1, targets[:, None]).squeeze(1)
    low, high = SCALES
    for _ in range(60):  # the likelihood is concave: half the logarithm of the interval, towards the ascent
        middle = (low * high) ** 0.5
        expected = ((logits * middle + offsets).softmax(dim=1) * logits).sum(dim=1)
        ascent = float(weights @ (at_labels - expected)) - (middle - 1)
        low, high = (middle, high) if ascent > 0 else (low, middle)
    return float((low * high) ** 0.5)


def fit_temperature(expert_logits: Tensor, targets: Tensor, train_prior: Any, lambdas: Lambdas) -> float:
    """Return the temperature of the experts under which labels that they have not seen are most likely.

    It is for `balpoe.at_temperature`, which see: under it the ensemble is calibrated and, if its lambdas average to
    zero, unbiased. The labels' own distribution is allowed for, as in `fit_calibration`.

    Args:
        expert_logits: Logits (samples, experts, classes) of samples that were not in training.
        targets: Labels, (samples,).
        train_prior: Prior that the loss was given, or class counts.
        lambdas: Lambdas of the loss.

    >>> logits, targets = torch.tensor([[[3.0, 0.0]], [[0.0, 3.0]]] * 400), torch.tensor([0, 1, 0, 1, 0, 1, 1, 0] * 100)
    >>> round(fit_temperature(logits, targets, [50, 50], (0,)), 1)  # 75 % are right: about 3 / log 3
    2.7
    """
    offsets = logit_offsets(train_prior, lambdas).double().mean(dim=0)
    learnt = product_of_experts(expert_logits).double() + offsets
    back = to_labels(targets, source_prior(train_prior, lambdas)) - offsets
    return 1 / fit_scale(learnt, targets, torch.ones(len(learnt)), back)


def to_labels(targets: Tensor, source_prior: Tensor) -> Tensor:
    """Return what takes logits from the prior that they are made for to the labels' own distribution, (classes,)."""
    counts = class_counts(targets, len(source_prior)).double()
    if int((counts > 0).sum()) < 2:
        raise UserError("validation has samples of one class alone; give labelled samples of all classes")
    return (counts / counts.sum()).log() - source_prior.double().log()


class _Likelihood:
    """The convex function to minimise: weighted -log p(label) plus half the squares of the biases."""

    def __init__(self, logits: Tensor, targets: Tensor, weights: Tensor, offsets: Tensor) -> None:
        self.logits, self.targets, self.weights, self.offsets = logits, targets, weights, offsets
        self.rows = torch.arange(len(targets))

    def value(self, parameters: Tensor) -> float:
        log_p = (self.logits * parameters[0] + parameters[1:] + self.offsets).log_softmax(dim=1)
        return float(parameters[1:].square().sum() / 2 - self.weights @ log_p[self.rows, self.targets])

    def gradient(self, parameters: Tensor) -> Tensor:
        """Also keeps what `curve` needs at this point."""
        p = (self.logits * parameters[0] + parameters[1:] + self.offsets).softmax(dim=1)
        self.p, self.mass = p, self.weights[:, None] * p
        self.row_mean = (p * self.logits).sum(dim=1)
        weighted = self.mass * self.logits
        self.class_sum, self.square = weighted.sum(dim=0), (weighted * self.logits).sum()
        at_labels = torch.zeros_like(parameters[1:]).index_add(0, self.targets, self.weights)
        by_scale = self.weights @ (self.row_mean - self.logits[self.rows, self.targets])
        return torch.cat([by_scale[None], self.mass.sum(dim=0) - at_labels + parameters[1:]])

    def curve(self, direction: Tensor) -> Tensor:
        """The Hessian times a direction: two products with the table of probabilities, never a classes^2 matrix."""
        mean = direction[0] * self.row_mean + self.p @ direction[1:]
        by_bias = direction[0] * self.class_sum + direction[1:] * (self.mass.sum(dim=0) + 1) - mean @ self.mass
        by_scale = direction[0] * self.square + self.class_sum @ direction[1:] - (self.weights * self.row_mean) @ mean
        return torch.cat([by_scale[None], by_bias])

    def diagonal(self) -> Tensor:
        by_scale = self.square - self.weights @ self.row_mean.square()
        return torch.cat([by_scale[None], self.mass.sum(dim=0) - (self.mass * self.p).sum(dim=0) + 1])


def _newton(problem: _Likelihood, parameters: Tensor) -> Tensor:
    """Newton steps, halved while they do not help, until one would gain nothing."""
    value = problem.value(parameters)
    for _ in range(100):
        gradient = problem.gradient(parameters)
        direction = _conjugate_gradients(problem, -gradient)
        slope = float(gradient @ direction)
        length = 1.0
        while problem.value(parameters + length * direction) > value + 1e-4 * length * slope and length > 1e-6:
            length /= 2
        parameters = parameters + length * direction
        value = problem.value(parameters)
        if -slope < 1e-9 * len(problem.targets):
            break
    return parameters


def _conjugate_gradients(problem: _Likelihood, right: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Solve Hessian * x = right roughly, preconditioned by the Hessian's diagonal."""
    scale = problem.diagonal().clamp(min=1e-12)
    x, residual = torch.zeros_like(right), right
    step = direction = residual / scale
    fit = residual @ step
    for _ in range(len(right)):
        curved = problem.curve(direction)
        if float(direction @ curved) <= 0:
            break  # flat but for rounding: the labels are predicted without a doubt, and there is nothing to gain
        length = fit / (direction @ curved)
        x, residual = x + length * direction, residual - length * curved
        if float(residual.norm()) < tolerance * float(right.norm()):
            break
        step = residual / scale
        fit, before = residual @ step, fit
        direction = step + fit / before * direction
    return x
