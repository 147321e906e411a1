"""The loss of SADE (Zhang et al. 2022): as BalPoE's, but the last expert is made for the reversed training prior."""

from typing import Any

import torch
from torch import Tensor

from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.losses import BalPoELoss
from balpoe.method.priors import logit_offsets

__all__ = ["METHOD", "backward_lambdas"]


def backward_lambdas(train_prior: Any, tau: float = 2.0) -> Tensor:
    """Return the lambda of each class with which this loss is that of SADE's third expert, (classes,).

    Its loss adds log P - tau * log P_backward to the logits, where P_backward gives the k-th most frequent class
    the k-th smallest share; with lambda = tau * log P_backward / log P that is (1 - lambda) * log P.

    >>> backward_lambdas([0.8, 0.2], tau=1)
    tensor([7.2126, 0.1386])
    """
    prior = torch.as_tensor(train_prior)
    log_prior = logit_offsets(prior.double(), 0.0)[0]
    order = log_prior.argsort(descending=True, stable=True)
    backward = torch.empty_like(log_prior)
    backward[order] = log_prior[order.flip(0)]
    lambdas = tau * backward / log_prior
    return lambdas if prior.dtype == torch.float64 else lambdas.float()


def lambdas(inputs: MethodInputs, backward_tau: float) -> Tensor:
    """Return the lambdas of each expert and class, (experts, classes)."""
    per_class = torch.tensor(inputs.lambdas)[:, None].repeat(1, len(inputs.train_prior))
    per_class[-1] = backward_lambdas(inputs.train_prior, backward_tau)
    return per_class


def loss(inputs: MethodInputs, backward_tau: float) -> BalPoELoss:
    """Return the loss."""
    return BalPoELoss(inputs.train_prior, lambdas(inputs, backward_tau))


METHOD = Method(loss, lambdas)
