"""The logit-adjusted loss, for one classifier and for a product of experts."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.errors import UserError
from balpoe.method.ensemble import at_least_float32, source_prior
from balpoe.method.priors import Lambdas, checked_lambdas, class_prior, logit_offsets

__all__ = ["BalPoELoss", "LogitAdjustedLoss", "logit_adjusted_cross_entropy", "warn_if_biased"]


def logit_adjusted_cross_entropy(logits: Tensor, targets: Tensor, offsets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of `logits + offsets`, the paper's generalised logit-adjusted loss.

    Args:
        logits: Logits (batch, classes), or (batch, experts, classes), where each expert sees the same targets.
        targets: Labels (batch,) of type int64, or probabilities (batch, classes).
        offsets: Offsets of the logits, (classes,) or (experts, classes); see `balpoe.logit_offsets`.
        reduction: "mean", "sum", or "none" for one value per row (and expert).

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> logit_adjusted_cross_entropy(logits, torch.tensor([1]), torch.tensor([0.9, 0.1]).log())
    tensor(4.2122)
    """
    if logits.ndim < offsets.ndim + 1:
        raise UserError(
            f"offsets of shape {tuple(offsets.shape)} are for {'several experts' if offsets.ndim > 1 else 'a batch'}, "
            f"but logits have shape {tuple(logits.shape)}"
        )
    adjusted = at_least_float32(logits)
    adjusted = adjusted + offsets.to(adjusted)
    if adjusted.ndim == 3:  # one batch of batch * experts rows: the loop over experts, in one kernel
        experts = adjusted.shape[1]
        targets = targets.repeat_interleave(experts, dim=0)
        value = F.cross_entropy(adjusted.flatten(0, 1), _like(targets, adjusted), reduction=reduction)
        return value.view(-1, experts) if reduction == "none" else value
    return F.cross_entropy(adjusted, _like(targets, adjusted), reduction=reduction)


class BalPoELoss(nn.Module):
    """The BalPoE loss: each expert's logit-adjusted cross-entropy for its own lambda, averaged.

    The ensemble is Fisher-consistent for the balanced error when the lambdas average to zero and the
    experts are calibrated (train with mixup). Do not resample or re-weight as well: the offsets
    already account for the training prior. Cross-entropy is `lambdas=(1,)`, balanced softmax and
    logit adjustment are `(0,)`, a uniform ensemble is `(0, 0, 0)`.

    Args:
        class_counts: Number of samples of each class, or any prior (it is normalised).
        lambdas: One lambda per expert, (experts,), or (experts, classes) for one vector per expert.

    >>> loss = BalPoELoss([90, 9, 1], lambdas=(1, 0, -1))
    >>> loss(torch.zeros(4, 3, 3), torch.tensor([0, 0, 1, 2]))
    tensor(2.1053)
    """

    offsets: Tensor

    def __init__(self, class_counts: Any, lambdas: Lambdas = (1, 0, -1)) -> None:
        super().__init__()
        prior = class_prior(class_counts)
        self.register_buffer("offsets", logit_offsets(prior, lambdas))
        warn_if_biased(prior, lambdas)

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the loss of `expert_logits` (batch, experts, classes), averaged over the experts.

        Args:
            expert_logits: Expert logits.
            targets: Labels (batch,) of type int64, or probabilities (batch, classes).
            progress: Part of the training that is done; for losses that change with it, as this one does not.
            reduction: "mean" over the samples, or "none" for one value of each, (batch,).
        """
        if expert_logits.shape[1:] != self.offsets.shape:
            raise UserError(_mismatch(tuple(self.offsets.shape), tuple(expert_logits.shape)))
        value = logit_adjusted_cross_entropy(expert_logits, targets, self.offsets, reduction)
        return value.mean(dim=1) if reduction == "none" else value

    def extra_repr(self) -> str:
        """Return the sizes, for `print(loss)`."""
        return "experts={}, classes={}".format(*self.offsets.shape)


class LogitAdjustedLoss(nn.Module):
    """The logit-adjusted loss for one set of logits (batch, classes): cross-entropy of logits + tau * log prior.

    With `tau=1` this is balanced softmax; it is `BalPoELoss` with the one lambda `1 - tau`.

    >>> loss = LogitAdjustedLoss([90, 10])
    >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([1]))
    tensor(4.2122)
    """

    offsets: Tensor

    def __init__(self, class_counts: Any, tau: float = 1.0) -> None:
        super().__init__()
        if not math.isfinite(tau):
            raise UserError(f"tau must be a finite number, but is {tau}")
        self.register_buffer("offsets", logit_offsets(class_prior(class_counts), 1 - tau)[0])

    def forward(self, logits: Tensor, targets: Tensor, progress: float | None = None) -> Tensor:
        """Return the mean loss of `logits` (batch, classes); `progress` is for losses that change."""
        if logits.ndim != 2 or logits.shape[1] != len(self.offsets):
            raise UserError(
                f"the loss is made for logits of shape (batch, {len(self.offsets)}), but got {tuple(logits.shape)}"
            )
        return logit_adjusted_cross_entropy(logits, targets, self.offsets)


def _like(targets: Tensor, logits: Tensor) -> Tensor:
    """Soft targets in the logits' precision; labels as they are."""
    return targets.to(logits) if targets.is_floating_point() else targets


def _mismatch(expected: tuple[int, ...], got: tuple[int, ...]) -> str:
    if len(got) != 3:
        return f"the loss wants expert_logits of shape (batch, experts, classes), but got {got}"
    if got[1] != expected[0]:
        return (
            f"lambdas describes {expected[0]} experts but the network returned {got[1]}; "
            f"build the network with num_experts={expected[0]}"
        )
    return f"the loss is made for {expected[1]} classes but the network returned {got[2]}"


def warn_if_biased(train_prior: Tensor, lambdas: Lambdas) -> None:
    """Say for which prior an ensemble is made whose lambdas differ and do not average to zero."""
    values = torch.atleast_1d(checked_lambdas(lambdas))
    mean = values.mean(dim=0)
    different = bool((values != values[0]).any())
    if not different or bool((mean.abs() < 1e-6).all()):
        return
    ensemble = source_prior(train_prior, lambdas)
    low, high = float(mean.min()), float(mean.max())
    average = f"{low:g}" if mean.ndim == 0 else f"between {low:.3g} and {high:.3g}, class by class"
    made_for = f"the prior P^{average}," if mean.ndim == 0 else "a prior"
    warnings.warn(
        f"lambdas average to {average}, so the ensemble is made for {made_for} from {ensemble.min():.3g} to "
        f"{ensemble.max():.3g}, and not for balanced error; for a balanced ensemble let them average to 0 "
        "(lambda = 1 - tau, if your numbers are taus)",
        stacklevel=3,
    )
