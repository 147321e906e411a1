"""BalPoE: each expert has a logit-adjusted loss for its own lambda; cross-entropy is the one lambda 1."""

from typing import Any

import torch
from torch import Tensor

from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.losses import BalPoELoss

__all__ = ["METHOD", "fixed_lambdas"]


def lambdas(inputs: MethodInputs) -> Tensor:
    """Return one lambda for each expert."""
    return torch.tensor(inputs.lambdas)


def loss(inputs: MethodInputs) -> BalPoELoss:
    """Return the BalPoE loss."""
    return BalPoELoss(inputs.train_prior, lambdas(inputs))


def fixed_lambdas(*values: float) -> dict[str, Any]:
    """Return the loss and lambdas of a method that differs from BalPoE by them, whatever its own settings.

    >>> fixed_lambdas(0.0)["lambdas"](MethodInputs(torch.tensor([3, 1]), torch.tensor([0.75, 0.25]), ()), kappa=3.0)
    tensor([0.])
    """
    chosen = torch.tensor(values)
    return {
        "loss": lambda inputs, **settings: BalPoELoss(inputs.train_prior, chosen),
        "lambdas": lambda inputs, **settings: chosen,
    }


METHOD = Method(loss, lambdas)
