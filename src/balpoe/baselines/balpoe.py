"""BalPoE: each expert has a logit-adjusted loss for its own lambda; cross-entropy is the one lambda 1."""

import torch
from torch import Tensor

from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.losses import BalPoELoss

__all__ = ["METHOD"]


def lambdas(inputs: MethodInputs) -> Tensor:
    """Return one lambda for each expert."""
    return torch.tensor(inputs.lambdas)


def loss(inputs: MethodInputs) -> BalPoELoss:
    """Return the BalPoE loss."""
    return BalPoELoss(inputs.train_prior, lambdas(inputs))


METHOD = Method(loss, lambdas)
