"""Methods whose experts all have one fixed lambda in BalPoE's loss, the cross-entropy of v + (1 - lambda) * log P.

Cross-entropy is lambda = 1. Balanced softmax (Ren et al. 2020) adds log n_y to the logits, which is lambda = 0; the
logit-adjusted loss (Menon et al. 2021) adds tau * log P, which is lambda = 1 - tau.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from balpoe.baselines.method import Method, MethodInputs
from balpoe.method.losses import BalPoELoss

__all__ = ["BALANCED_SOFTMAX", "CROSS_ENTROPY", "LOGIT_ADJUSTMENT"]


def _of_one_lambda(value: Callable[..., float]) -> Method:
    """The method whose experts have the lambda that `value` makes of the method's settings."""

    def lambdas(inputs: MethodInputs, **settings: float) -> Tensor:
        return torch.full((inputs.num_experts,), value(**settings))

    def loss(inputs: MethodInputs, **settings: float) -> BalPoELoss:
        return BalPoELoss(inputs.train_prior, lambdas(inputs, **settings))

    return Method(loss, lambdas)


CROSS_ENTROPY = _of_one_lambda(lambda **settings: 1.0)
BALANCED_SOFTMAX = _of_one_lambda(lambda **settings: 0.0)
LOGIT_ADJUSTMENT = _of_one_lambda(lambda tau: 1.0 - tau)
