"""The product of experts, the prior it is made for, and the way to any other prior."""

from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.priors import Lambdas, checked_lambdas, checked_prior, logit_offsets, tempered_prior

__all__ = [
    "at_least_float32",
    "at_temperature",
    "checked_source",
    "mean_lambda",
    "product_of_experts",
    "shift_prior",
    "source_prior",
]


def product_of_experts(expert_logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the ensemble's logits, the mean over the experts: (batch, experts, classes) to (batch, classes).

    The average in log space is the paper's definition of the ensemble; by its Theorem 1 the result
    describes the joint distribution P(x | y) P^mean(lambda)(y).

    Args:
        expert_logits: Expert logits, (batch, experts, classes).
        weights: Weights of the experts, (experts,), which sum to 1; None: equal ones, as in the paper.

    >>> product_of_experts(torch.tensor([[[1.0, 0.0], [3.0, 2.0]]]))
    tensor([[2., 1.]])
    >>> product_of_experts(torch.tensor([[[1.0, 0.0], [3.0, 2.0]]]), torch.tensor([0.25, 0.75]))
    tensor([[2.5000, 1.5000]])
    """
    if expert_logits.ndim != 3:
        raise UserError(
            f"expert_logits must have shape (batch, experts, classes), but have {tuple(expert_logits.shape)}; "
            "logits[:, None] makes one expert of (batch, classes)"
        )
    logits = at_least_float32(expert_logits)
    return logits.mean(dim=1) if weights is None else torch.einsum("e,bec->bc", weights.to(logits), logits)


def at_temperature(expert_logits: Tensor, temperature: float, train_prior: Any, lambdas: Lambdas) -> Tensor:
    """Return expert logits (batch, experts, classes) as if the training posterior of each had this temperature.

    What an expert learns is the posterior of the training set, softmax(logits + offsets), so that is what is divided,
    before the offsets are taken out again. An overconfident expert's logits are not only too large: as the offsets
    are not too large with them, they also lean to the frequent classes. This fixes both; plain division leaves the
    second. `balpoe.fit_temperature` finds the temperature.

    Args:
        expert_logits: Logits of a network that was trained with `BalPoELoss`.
        temperature: Temperature, above 0; above 1 for experts that are too sure of themselves.
        train_prior: Prior that the loss was given, or class counts.
        lambdas: Lambdas of the loss.

    >>> at_temperature(torch.tensor([[[2.0, 0.0]]]), 2.0, [0.9, 0.1], (0,))  # (2 + log 0.9) / 2 - log 0.9
    tensor([[[1.0527, 1.1513]]])
    """
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature must be a number above 0, but is {temperature}")
    logits = at_least_float32(expert_logits)
    return (logits / temperature).add_((1 / temperature - 1) * logit_offsets(train_prior, lambdas).to(logits))


def source_prior(train_prior: Any, lambdas: Lambdas, weights: Tensor | None = None) -> Tensor:
    """Return the prior under which the ensemble's logits are posteriors: P^mean(lambda), shape (classes,).

    Uniform for lambdas that average to zero, the training prior for cross-entropy (Theorem 1).

    Args:
        train_prior: Prior that the loss was given, or class counts.
        lambdas: Lambdas of the loss, (experts,) or (experts, classes).
        weights: Weights of the experts, as for `product_of_experts`.

    >>> source_prior([0.9, 0.1], (1, 0, -1))
    tensor([0.5000, 0.5000])
    """
    return tempered_prior(train_prior, mean_lambda(lambdas, weights)[None])[0]


def mean_lambda(lambdas: Lambdas, weights: Tensor | None = None) -> Tensor:
    """Return the lambda of the ensemble, a number or one for each class: the weighted mean over the experts.

    >>> float(mean_lambda((1, 0, -1))), float(mean_lambda((1, 0, -1), torch.tensor([0.5, 0.5, 0.0])))
    (0.0, 0.5)
    """
    checked = torch.atleast_1d(checked_lambdas(lambdas))
    mean: Tensor = checked.mean(dim=0) if weights is None else weights.to(checked) @ checked
    return mean


def shift_prior(logits: Tensor, target_prior: Any, source_prior: Any = None) -> Tensor:
    """Return the logits moved to another label prior, logits + log target - log source.

    Exact for calibrated logits, because P(x | y) does not change with the prior. A class whose
    target is zero is excluded: its logit becomes minus infinity.

    Args:
        logits: Logits (batch, classes), posteriors under `source_prior`.
        target_prior: Label prior of the deployment, (classes,).
        source_prior: Prior that the logits are made for; by default uniform, as for a balanced ensemble.

    >>> shift_prior(torch.zeros(1, 2), [0.75, 0.25]).softmax(dim=-1)
    tensor([[0.7500, 0.2500]])
    """
    classes = logits.shape[-1]
    shift = checked_prior(target_prior, classes, "target_prior").log()
    if source_prior is not None:
        shift = shift - checked_source(source_prior, classes).log().to(shift.device)
    logits = at_least_float32(logits)
    return logits + shift.to(logits)


def checked_source(source_prior: Any, num_classes: int) -> Tensor:
    """Return the prior that logits are made for, positive and in float64, or say what is wrong with it."""
    source = checked_prior(source_prior, num_classes, "source_prior")
    if bool((source == 0).any()):
        zero = int((source == 0).nonzero()[0])
        raise UserError(
            f"source_prior is zero for class {zero}, and logits say nothing about a class they exclude; "
            "leave the class out of both"
        )
    return source


def at_least_float32(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32; float32 and float64 as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
