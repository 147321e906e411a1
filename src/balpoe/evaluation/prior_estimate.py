"""The deployment prior, estimated from unlabelled predictions, and whether any prior explains them.

If the labels alone have shifted, validation samples weighted to the right prior look like the predictions: their
answers, their confidence and the spread of their logits have the same distributions. The largest distance of the
distribution functions (Kolmogorov and Smirnov) is compared with what random samples give then. All three are
those of the network as it is: a calibration fitted on the validation samples would make these look better than others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import stratified_resample
from balpoe.method.label_shift import PriorEstimate, estimate_prior, on_curve
from balpoe.method.priors import tempered_prior

__all__ = [
    "CHANGE_LEVEL",
    "MOST_UNSEEN",
    "TargetEstimate",
    "best_fit_p_value",
    "estimate_target",
    "fit_p_value",
    "looks",
    "posterior_source",
]

CHANGE_LEVEL = 0.01
MOST_UNSEEN = 0.03
NULL_DRAWS = 499
INTERVAL_POINTS = 5


@dataclass(frozen=True)
class TargetEstimate:
    """An estimated deployment prior, and how well it explains the predictions.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.randint(2, (400,), generator=generator)
    >>> x = 2.0 * labels - 1 + torch.randn(400, generator=generator)  # one Gaussian around -1, one around 1
    >>> known = Predictions(torch.stack([-x, x], dim=1)[:, None], labels, [90, 10], [0])
    >>> found = estimate_target(known.subset(labels.argsort()[:250]), known.subset(labels.argsort()[150:]))
    >>> found.changed, found.shift.significant
    (False, True)
    """

    shift: PriorEstimate
    """The prior on the curve P^lambda, or any prior where there is no such curve; its interval; whether it is used."""
    fit_p_value: float | None
    """P-value of the first prior that explains the predictions, or the best that does not; None without a check."""
    unseen: float
    """The share of the estimate that falls to classes without a validation sample."""
    cross_fitted: bool = False
    """Whether networks other than the model said the validation predictions, which then cannot show a change."""

    @property
    def changed(self) -> bool | None:
        """Whether no prior explains the predictions: the images themselves seem to have changed."""
        return None if self.fit_p_value is None else self.fit_p_value < CHANGE_LEVEL

    def adjusted(self, predictions: Predictions) -> Predictions:
        """Return the ensemble, calibrated and moved to the estimate where that is significant, as one expert."""
        logits, prior = self.shift.adjust(predictions.logits), self.shift.prior
        return replace(
            predictions, expert_logits=logits[:, None], lambdas=torch.ones(1), train_prior=prior, calibration=None,
            expert_weights=None, view_logits=None, experts_asked=None,
        )  # fmt: skip


def estimate_target(
    predictions: Predictions, validation: Predictions, *, cross_fitted: bool = False, seed: int = 0
) -> TargetEstimate:
    """Estimate the label prior behind predictions, whose labels are not looked at.

    Args:
        predictions: Unlabelled predictions of the deployment.
        validation: Labelled predictions of the same model on other samples, from before deployment.
        cross_fitted: Whether they are of networks that were trained on a part of the samples each: the estimate is
            approximate then, and nothing is checked, for their confidence differs from the model's.
        seed: Seed of the bootstrap.

    >>> predictions = Predictions(torch.zeros(3, 1, 2), torch.tensor([0, 1, 1]), [90, 10], [0])
    >>> estimate_target(predictions, predictions)
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: validation are the predictions themselves; predict other labelled samples for it
    """
    validation = replace(validation, expert_weights=predictions.expert_weights)  # the same ensemble
    _check_validation(predictions, validation)
    logits, source = predictions.logits, posterior_source(predictions)
    family = "tempered" if on_curve(predictions.train_prior, source) else "free"
    train = predictions.train_prior if family == "tempered" else None
    found = estimate_prior(
        logits, source_prior=source, validation=validation, family=family, train_prior=train, seed=seed
    )
    counts = torch.bincount(validation.targets, minlength=predictions.num_classes)
    unseen = float(found.estimate[counts == 0].sum())
    if unseen > MOST_UNSEEN or cross_fitted:
        return TargetEstimate(found, None, unseen, cross_fitted)
    generator = torch.Generator().manual_seed(seed)
    candidates = _candidates(found, logits, predictions.train_prior.double())
    best = best_fit_p_value(logits, validation.logits, validation.targets, candidates, generator)
    return TargetEstimate(found, best, unseen)


def posterior_source(predictions: Predictions) -> Tensor:
    """Return the prior that the logits are made for, or say that no prior can be estimated from them."""
    if predictions.source_prior is None:
        raise UserError(
            "no prior can be estimated from logits that are no posterior; give a prior instead, or logits of a method "
            "that makes them for a known prior"
        )
    return predictions.source_prior


def _candidates(found: PriorEstimate, logits: Tensor, train: Tensor) -> Iterator[Tensor]:
    """Priors that may explain the predictions: those that are used and likely, the interval's, and the best of all.

    An estimate is off where the calibration is; that one wrong prior explains nothing says little about the images.
    """
    assert found.calibration is not None  # it was fitted on the validation data
    yield from (found.prior, found.estimate)
    if found.lambda_ is None:
        return
    low, high = found.interval.tolist()
    yield from tempered_prior(train, torch.linspace(low, high, INTERVAL_POINTS))
    yield estimate_prior(found.calibration(logits), source_prior=found.source_prior, num_resamples=1).estimate


def _check_validation(predictions: Predictions, validation: Predictions) -> None:
    for name in ("class_names", "class_counts", "lambdas", "source_prior"):
        ours, theirs = getattr(predictions, name), getattr(validation, name)
        both = isinstance(ours, Tensor) and isinstance(theirs, Tensor)
        if not (torch.equal(ours, theirs.to(ours)) if both else ours is theirs or ours == theirs):
            raise UserError(f"validation has other {name} than the predictions; predict both with one model")
    if torch.equal(predictions.expert_logits, validation.expert_logits):
        raise UserError("validation are the predictions themselves; predict other labelled samples for it")


def looks(logits: Tensor) -> Tensor:
    """Return what other images would change: confidence, spread of the logits, and answer, (3, samples)."""
    logits = logits.double()
    confidence, answer = logits.softmax(dim=1).max(dim=1)
    return torch.stack([confidence, logits.std(dim=1), answer.double()])


def fit_p_value(
    ours: Tensor,
    theirs: Tensor,
    targets: Tensor,
    prior: Tensor,
    generator: torch.Generator,
    our_weights: Tensor | None = None,
) -> float:
    """Return how often two such random samples lie further apart, if the labels alone shifted, to `prior`.

    Args:
        ours: Looks of the samples in question, (looks, samples).
        theirs: Looks of the validation samples.
        targets: Labels of the validation samples.
        prior: Prior of the samples in question, (classes,).
        generator: Source of the resamples.
        our_weights: Weight of each sample in question, in sum what they are worth; by default 1.
    """
    plain = torch.ones(ours.shape[1], dtype=torch.float64) if our_weights is None else our_weights
    samples = max(1, round(float(plain.sum())))
    counts = torch.bincount(targets, minlength=len(prior))
    weights = (prior / counts.clamp(min=1))[targets]
    weights = weights / weights.sum()
    both = _Steps(torch.cat([ours, theirs], dim=1))
    distance = both.distance(torch.cat([plain / plain.sum(), -weights]))
    null = _Steps(theirs).distance(_null_differences(weights, targets, samples, generator))
    return (1 + int((null >= distance).sum())) / (1 + NULL_DRAWS)


def best_fit_p_value(
    logits: Tensor,
    known: Tensor,
    targets: Tensor,
    priors: Iterable[Tensor],
    generator: torch.Generator,
    weights: Tensor | None = None,
) -> float:
    """Return the p-value of the first prior that explains logits, or the best of those that do not.

    Args:
        logits: Logits of the samples in question, (samples, classes).
        known: Those of the validation samples.
        targets: Labels of the validation samples.
        priors: Priors that may explain them, the likeliest first.
        generator: Source of the resamples.
        weights: Weight of each sample in question, as `fit_p_value` takes it.
    """
    ours, theirs, best = looks(logits), looks(known), 0.0
    for prior in priors:
        best = max(best, fit_p_value(ours, theirs, targets, prior, generator, weights))
        if best >= CHANGE_LEVEL:
            break
    return best


class _Steps:
    """Where the distribution functions of some values rise: sorted once for many distances."""

    def __init__(self, values: Tensor) -> None:
        values, self.order = values.sort(dim=1)
        end = torch.ones(len(values), 1, dtype=torch.bool)
        self.last = torch.cat([values[:, 1:] > values[:, :-1], end], dim=1)  # of equal values, all rise at once

    def distance(self, difference: Tensor) -> Tensor:
        """Return the largest distance of two functions, from the difference of the two weights of each value.

        Args:
            difference: Differences, (values,); or several pairs of functions, (pairs, values).
        """
        rises = (
            difference[..., order].cumsum(dim=-1) * last for order, last in zip(self.order, self.last, strict=True)
        )
        return torch.stack([each.abs().amax(dim=-1) for each in rises]).amax(dim=0)


def _null_differences(weights: Tensor, targets: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Weights of samples drawn from the weighted validation set, less those of other validation sets of this make.

    Both are resampled: a validation set of 20 samples a class is itself random. The result is (draws, validation).
    """
    zeros = torch.zeros(NULL_DRAWS, len(weights), dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.float64)
    drawn = torch.multinomial(weights.expand(NULL_DRAWS, -1), samples, replacement=True, generator=generator)
    again = stratified_resample(targets, generator, NULL_DRAWS)
    ours, theirs = (zeros.scatter_add(1, rows, ones.expand_as(rows)) for rows in (drawn, again))
    return ours / samples - weights * theirs
