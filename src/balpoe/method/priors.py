"""Label priors: from class counts to the prior, and from lambdas to tempered priors and logit offsets.

Everything here is the bookkeeping of one formula, the paper's target distribution
P^lambda(y) = P_train(y)^lambda_y / sum_j P_train(j)^lambda_j, kept in log space.
"""

import reprlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name
from balpoe.method.lambdas import equidistant_lambdas

__all__ = [
    "Lambdas",
    "checked_lambdas",
    "checked_prior",
    "class_counts",
    "class_prior",
    "equidistant_lambdas",
    "logit_offsets",
    "tempered_prior",
]

LARGEST_LABEL = 10_000_000

Lambdas = float | Sequence[float] | Sequence[Sequence[float]] | Tensor
"""One number, one number per expert, or one vector over the classes per expert."""


def class_counts(targets: Any, num_classes: int | None = None) -> Tensor:
    """Return how often each class occurs, shape (classes,), from labels of shape (samples,).

    Args:
        targets: Integer labels from 0; a tensor, an array or a sequence.
        num_classes: Number of classes; by default the largest label plus one.

    >>> class_counts([0, 0, 2, 0])
    tensor([3, 0, 1])
    """
    labels = _tensor(targets, "labels")
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(
            f"labels must be one row of whole numbers, but have shape {tuple(labels.shape)} and type {labels.dtype}; "
            "number the classes from 0"
        )
    if labels.numel() and int(labels.min()) < 0:
        first = int((labels < 0).nonzero()[0])
        raise UserError(f"label {int(labels[first])} of sample {first} is negative; number the classes from 0")
    if labels.numel() and int(labels.max()) >= LARGEST_LABEL:
        raise UserError(f"label {int(labels.max())} is too large to be one; number the classes from 0 without gaps")
    counts = torch.bincount(labels.long(), minlength=num_classes or 0)
    if num_classes is not None and len(counts) > num_classes:
        first = int((labels >= num_classes).nonzero()[0])
        raise UserError(
            f"label {int(labels[first])} of sample {first} is outside the {num_classes} classes 0 to {num_classes - 1}"
        )
    return counts


def class_prior(
    class_counts: Any, *, method: str = "empirical", beta: float = 0.9999, smoothing: float = 0.0
) -> Tensor:
    """Return the training prior P_train(y), shape (classes,), from counts or from any unnormalised prior.

    Args:
        class_counts: Number of samples of each class; positive, unless `smoothing` lifts the empty classes.
        method: "empirical" for n_y / sum n, or "effective" for the effective number of samples,
            (1 - beta^n_y) / (1 - beta), which the paper names as future work for few-shot classes.
        beta: Parameter of the effective number, in [0, 1).
        smoothing: Addition to each count (Laplace's 1, for instance).

    >>> class_prior([6, 3, 1])
    tensor([0.6000, 0.3000, 0.1000])
    >>> class_prior([6, 3, 0], smoothing=1)
    tensor([0.5833, 0.3333, 0.0833])
    >>> class_prior([5000, 50], method="effective")
    tensor([0.9875, 0.0125])
    """
    counts = _vector(class_counts, "class_counts")
    if not 0 <= smoothing < float("inf"):
        raise UserError(f"smoothing must be a number from 0, but is {smoothing}")
    if bool((counts < 0).any()):
        first = _first(counts < 0)
        raise UserError(f"class {first} has a negative count of {counts[first]:g}; give the samples of each class")
    if not bool(counts.any()) and not smoothing:
        raise UserError("all class counts are zero; give the samples of each class, or ask for smoothing")
    counts = counts + smoothing
    if bool((counts == 0).any()):
        raise UserError(
            f"class {_first(counts == 0)} has no training sample; give it one, leave the class out, "
            "or ask for smoothing (smoothing=1 adds one to each count)"
        )
    if method == "effective":
        if not 0 <= beta < 1:
            raise UserError(f"beta must lie in [0, 1), but is {beta}")
        # expm1 keeps the digits of 1 - beta^n where n is small and beta close to 1.
        counts = -torch.expm1(counts * torch.tensor(beta, dtype=counts.dtype).log())
    elif method != "empirical":
        raise unknown_name("prior method", method, ("empirical", "effective"))
    prior = counts / counts.sum()
    if not bool((prior.float() > 0).all()):
        raise UserError("the class counts differ too much for a prior in float32; check the largest and the smallest")
    return prior if _is_double(class_counts) else prior.float()


def tempered_prior(train_prior: Any, lambdas: Lambdas) -> Tensor:
    """Return P^lambda(y), which is proportional to P_train(y)^lambda_y.

    Args:
        train_prior: Training prior, positive, (classes,).
        lambdas: Powers: a number gives shape (classes,); (experts,) or (experts, classes) give (experts, classes).

    >>> tempered_prior([0.8, 0.2], (1, 0, -1))
    tensor([[0.8000, 0.2000],
            [0.5000, 0.5000],
            [0.2000, 0.8000]])
    """
    log_prior = _log_prior(train_prior)
    prior = torch.softmax(_per_class(lambdas, log_prior) * log_prior, dim=-1)
    return prior if _is_double(train_prior) else prior.float()


def logit_offsets(train_prior: Any, lambdas: Lambdas) -> Tensor:
    """Return what the loss adds to each expert's logits, (1 - lambda) * log P_train, shape (experts, classes).

    In the paper's words tau * log P_train with tau = 1 - lambda: nothing for a cross-entropy expert
    (lambda = 1), the balanced softmax for lambda = 0, twice that for an expert of the inverse prior.

    >>> logit_offsets([0.5, 0.5], (0, -1))
    tensor([[-0.6931, -0.6931],
            [-1.3863, -1.3863]])
    """
    log_prior = _log_prior(train_prior)
    offsets: Tensor = torch.atleast_2d((1 - _per_class(lambdas, log_prior)) * log_prior)
    return offsets if _is_double(train_prior) else offsets.float()


def checked_prior(prior: Any, num_classes: int, name: str) -> Tensor:
    """Return a prior as a float64 vector that sums to 1, or say in one sentence what is wrong with it."""
    vector = _vector(prior, name)
    if len(vector) != num_classes:
        raise UserError(
            f"{name} has {len(vector)} entries, but there are {num_classes} classes; give one entry for each"
        )
    if bool((vector < 0).any()):
        raise UserError(f"{name} is negative for class {_first(vector < 0)}; give shares from 0 to 1")
    total = float(vector.sum())
    if abs(total - 1) > 1e-4:
        raise UserError(f"{name} sums to {total:g}, not to 1; divide it by its sum")
    return vector / total


def checked_lambdas(lambdas: Lambdas) -> Tensor:
    """Return lambdas as a finite float64 tensor of shape (), (experts,) or (experts, classes)."""
    tensor = _tensor(lambdas, "lambdas", torch.float64)
    if tensor.ndim > 2 or tensor.numel() == 0:
        raise UserError(f"lambdas must be a number or vector per expert, but have shape {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise UserError(f"lambdas must be finite numbers, but are {tensor.tolist()}")
    return tensor


def _per_class(lambdas: Lambdas, log_prior: Tensor) -> Tensor:
    """Lambdas that broadcast against the classes: (), (experts, 1) or (experts, classes)."""
    tensor = checked_lambdas(lambdas).to(log_prior.device)
    if tensor.ndim == 2 and tensor.shape[1] != len(log_prior):
        raise UserError(f"lambdas have {tensor.shape[1]} entries per expert, but there are {len(log_prior)} classes")
    return tensor.unsqueeze(-1) if tensor.ndim == 1 else tensor


def _log_prior(train_prior: Any) -> Tensor:
    prior = _vector(train_prior, "train_prior")
    if not bool((prior > 0).all()):
        raise UserError(
            f"train_prior must be positive, but is {prior[_first(prior <= 0)]:g} for class {_first(prior <= 0)}"
        )
    return (prior / prior.sum()).log()


def _vector(values: Any, name: str) -> Tensor:
    vector = _tensor(values, name, torch.float64)
    if vector.ndim != 1 or vector.numel() == 0:
        raise UserError(f"{name} must be one row of numbers, but has shape {tuple(vector.shape)}")
    if not bool(torch.isfinite(vector).all()):
        first = _first(~torch.isfinite(vector))
        raise UserError(f"{name} must be finite, but is {vector[first]:g} for class {first}; fix that entry")
    return vector


def _tensor(values: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    try:
        if type(values).__module__ == "numpy":
            values = values.copy()  # torch does not take a reversed view
        return torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} must be numbers of one shape, but {reprlib.repr(values)} is not ({error})") from error


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0])


def _is_double(values: Any) -> bool:
    """Whether the caller works in float64: then the answer stays so; everything else gets float32."""
    return isinstance(values, Tensor) and values.dtype == torch.float64
