"""Weights of classes, from the start or late in a training, and the labels that weighted and margin losses want."""

import torch
from torch import Tensor

from balpoe.baselines.method import MethodInputs
from balpoe.errors import UserError
from balpoe.method.priors import class_prior

__all__ = [
    "at_label",
    "effective_number_weights",
    "equal_shares",
    "hard_labels",
    "is_label",
    "sample_weights",
    "weights_from",
]


def effective_number_weights(class_counts: Tensor, beta: float) -> Tensor:
    """Return weights of the classes that sum to their number, w_y ~ (1 - beta) / (1 - beta^n_y) (Cui et al. 2019).

    Args:
        class_counts: Training samples of each class, (classes,).
        beta: Parameter of the effective number, in [0, 1); 0 weights all alike, near 1 they go with 1 / n_y.

    >>> effective_number_weights(torch.tensor([90, 10]), 0.9999)
    tensor([0.2007, 1.7993])
    """
    counts = class_counts.clamp(min=1)  # a class without samples has no weight of its own
    weights = 1 / class_prior(counts.double(), method="effective", beta=beta)
    return (weights * len(weights) / weights.sum()).to(torch.promote_types(class_counts.dtype, torch.float32))


def sample_weights(class_counts: Tensor, beta: float) -> Tensor:
    """Return weights by effective numbers, (classes,), that are 1 on average over the training samples.

    >>> sample_weights(torch.tensor([90, 10]), 0.9999)
    tensor([0.5567, 4.9900])
    """
    counts = class_counts.double()
    weights = effective_number_weights(counts, beta)
    mean = (weights * counts).sum() / counts.sum()
    return (weights / mean).to(torch.promote_types(class_counts.dtype, torch.float32))


def equal_shares(inputs: MethodInputs, **settings: object) -> Tensor:
    """Return the prior that scores of weighted classes are made for: all alike.

    Only weights alone make a posterior. Margins do not (Menon et al. 2021), nor do sigmoids, so that the scores of
    these methods come near one by calibration at best; that is what tells how far to trust them.
    """
    return torch.full_like(inputs.train_prior, 1 / len(inputs.train_prior))


def weights_from(start: float, weights: Tensor, progress: Tensor | float | None) -> Tensor:
    """Return weights from a part of the training on, and ones before; `progress` None is before.

    >>> weights_from(0.8, torch.tensor([0.5, 1.5]), 0.79), weights_from(0.8, torch.tensor([0.5, 1.5]), 0.8)
    (tensor([1., 1.]), tensor([0.5000, 1.5000]))
    """
    if not isinstance(progress, Tensor):
        progress = torch.full((), -1.0 if progress is None else progress, device=weights.device)
    return torch.where(progress >= start, weights, 1.0)


def hard_labels(targets: Tensor, name: str) -> Tensor:
    """Return targets that are labels, or say that this loss has no value for probabilities."""
    if targets.ndim != 1 or targets.is_floating_point():
        raise UserError(
            f"the loss of {name} wants labels of shape (batch,), but targets have shape {tuple(targets.shape)} "
            f"and type {targets.dtype}; mix the losses of two labels instead of the labels, as balpoe.mixed_loss does"
        )
    return targets


def is_label(labels: Tensor, num_classes: int) -> Tensor:
    """Return where a class is a sample's label, (batch, 1, classes): for every expert.

    >>> is_label(torch.tensor([1, 0]), 2).int().tolist()
    [[[0, 1]], [[1, 0]]]
    """
    return (labels[:, None] == torch.arange(num_classes, device=labels.device))[:, None]


def at_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return what each expert has at the label, (batch, experts), of values (batch, experts, classes).

    >>> at_label(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([2]))
    tensor([[3.]])
    """
    rows = labels[:, None, None].expand(-1, values.shape[1], 1)
    return values.gather(2, rows).squeeze(2)
