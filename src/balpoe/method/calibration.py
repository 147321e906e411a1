"""A temperature and a bias per class, fitted on labelled logits so that these become calibrated."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.ensemble import product_of_experts, source_prior
from balpoe.method.intervals import stratified_resample
from balpoe.method.priors import Lambdas, class_counts, logit_offsets

__all__ = [
    "Calibration",
    "LabelledLogits",
    "fit_calibration",
    "fit_scale",
    "fit_temperature",
    "resampled_calibrations",
    "to_labels",
]


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
    problem = _Likelihood(logits, targets, weights, to_labels(targets, source_prior))
    scale = torch.tensor([1.0 if start is None else start.scale], dtype=torch.float64)
    bias = torch.zeros(logits.shape[1], dtype=torch.float64) if start is None else start.bias
    solution = problem.minimum(torch.cat([scale, bias]))
    if float(solution[0]) <= 0:
        raise UserError("the validation labels have nothing to do with the logits: are they of the same samples?")
    return Calibration(float(solution[0]), solution[1:])


def resampled_calibrations(
    validation: LabelledLogits,
    source_prior: Tensor,
    calibration: Calibration,
    num_resamples: int,
    generator: torch.Generator,
) -> list[Calibration]:
    """Return calibrations that other validation sets of the same make would have given, by one Newton step each.

    Args:
        validation: Labelled logits of the model; resamples keep the number of samples of each class.
        source_prior: Prior that the logits are made for, (classes,), positive.
        calibration: Result of `fit_calibration` for both.
        num_resamples: Number of calibrations.
        generator: Source of the resamples.
    """
    targets = validation.targets
    plain = torch.ones(len(targets), dtype=torch.float64)
    problem = _Likelihood(validation.logits.double(), targets, plain, to_labels(targets, source_prior))
    fitted = torch.cat([torch.tensor([calibration.scale], dtype=torch.float64), calibration.bias])
    scores, curvature = problem.scores_and_curvature(fitted)
    rows = stratified_resample(targets, generator, num_resamples)
    counts = torch.stack([torch.bincount(each, minlength=len(targets)) for each in rows]).double()
    steps = torch.cholesky_solve(((counts - 1) @ scores).T, torch.linalg.cholesky(curvature)).T
    steps[:, 0] = steps[:, 0].clamp(max=0.9 * calibration.scale)  # a step too far would turn the logits round
    return [Calibration(float(each[0]), each[1:]) for each in fitted - steps]


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
    from scipy.optimize import brentq

    logits, weights = logits.double(), weights.double()
    at_labels = logits.gather(1, targets[:, None]).squeeze(1)

    def ascent(scale: float) -> float:
        expected = ((logits * scale + offsets).softmax(dim=1) * logits).sum(dim=1)
        return float(weights @ (at_labels - expected)) - (scale - 1)

    low, high = SCALES
    if ascent(low) <= 0 or ascent(high) >= 0:  # the likelihood is concave: the best lies beyond an end
        return low if ascent(low) <= 0 else high
    return float(brentq(ascent, low, high, xtol=1e-12))


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
        labels = targets[:, None]
        self.at_labels = torch.cat([
            (weights @ logits.gather(1, labels))[:1],
            torch.zeros(logits.shape[1], dtype=torch.float64).index_add(0, targets, weights),
        ])  # fmt: skip

    def minimum(self, start: Tensor) -> Tensor:
        from scipy.optimize import minimize

        options = {"ftol": 0, "gtol": 1e-8, "maxiter": 1000, "maxcor": 20}
        found = minimize(self.value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options)
        return torch.from_numpy(found.x)

    def value_and_gradient(self, parameters: Any) -> tuple[float, Any]:
        """Both for one sample, which is what the search's tolerance is about."""
        point = torch.from_numpy(parameters)
        scaled = self.logits * point[0] + (point[1:] + self.offsets)
        normaliser = scaled.logsumexp(dim=1)
        at_label = scaled.gather(1, self.targets[:, None]).squeeze(1)
        value = self.weights @ (normaliser - at_label) + point[1:].square().sum() / 2
        mass = (scaled - normaliser[:, None]).exp_().mul_(self.weights[:, None])
        gradient = torch.cat([(mass * self.logits).sum()[None], mass.sum(dim=0) + point[1:]]) - self.at_labels
        total = float(self.weights.sum())
        return float(value) / total, (gradient / total).numpy()

    def scores_and_curvature(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each sample without the squares, (samples, 1 + classes), and the Hessian of the whole."""
        p = (self.logits * point[0] + (point[1:] + self.offsets)).softmax(dim=1)
        mean = (p * self.logits).sum(dim=1, keepdim=True)
        scores = torch.cat([mean - self.logits.gather(1, self.targets[:, None]), p], dim=1)
        scores[torch.arange(len(p)), 1 + self.targets] -= 1
        mass = self.weights[:, None] * p
        by_bias = torch.diag(mass.sum(dim=0) + 1) - mass.T @ p
        mixed = (mass * (self.logits - mean)).sum(dim=0)
        by_scale = (mass * (self.logits - mean).square()).sum()
        top = torch.cat([by_scale[None] + 1e-9, mixed])  # flat for labels that are predicted without a doubt
        return scores, torch.cat([top[None], torch.cat([mixed[:, None], by_bias], dim=1)])
