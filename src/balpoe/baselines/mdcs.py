"""MDCS (Zhao et al. 2023): experts with diverse lambdas, and self-distillation from a weak view to a strong one.

The experts have BalPoE's loss with tau = -0.5, 1, 2.5, that is lambdas 1.5, 0 and -1.5, which average to zero. Each
image comes in two views: as the recipe augments it (weak), and by AutoAugment with Cutout (strong). Beside the loss of
both views, each expert e learns from itself,

    weight * min(1, progress / warm_up) * T^2 * KL( p_e(weak) || p_e(strong) ),    p_e = softmax(v_e / T),

where no gradient flows through the weak view, and only samples count that the expert gets right in it.
"""

import torch
from torch import Tensor, nn

from balpoe.baselines.method import Method, MethodInputs
from balpoe.errors import UserError
from balpoe.method.ensemble import at_least_float32
from balpoe.method.lambdas import equidistant_lambdas
from balpoe.method.losses import BalPoELoss

__all__ = ["METHOD", "MDCSLoss"]

SPREAD = 1.5  # lambdas from 1.5 to -1.5


class MDCSLoss(nn.Module):
    """BalPoE's loss of two views, and what each expert's strong view learns from its weak one.

    Args:
        train_prior: Training prior, (classes,).
        lambdas: One number for each expert, (experts,).
        weight: Weight of the distillation.
        temperature: Temperature of the distillation.
        warm_up: Part of the training over which the weight rises.

    >>> loss = MDCSLoss(torch.tensor([0.9, 0.1]), torch.tensor([1.5, 0.0, -1.5]))
    >>> loss(torch.zeros(8, 3, 2), torch.tensor([0, 0, 1, 0]), progress=0.5).shape
    torch.Size([])
    """

    def __init__(
        self,
        train_prior: Tensor,
        lambdas: Tensor,
        weight: float = 0.6,
        temperature: float = 2.0,
        warm_up: float = 0.1,
    ) -> None:
        super().__init__()
        self.classify = BalPoELoss(train_prior, lambdas)
        self.weight, self.temperature, self.warm_up = weight, temperature, warm_up

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        if len(expert_logits) != 2 * len(targets):
            raise UserError(
                f"the loss of MDCS wants two views of each of {len(targets)} samples, one behind the other, but got "
                f"logits of {len(expert_logits)}"
            )
        weak, strong = expert_logits.chunk(2)
        values = [self.classify(view, targets, progress=progress, reduction="none") for view in (weak, strong)]
        done = torch.as_tensor(0.0 if progress is None else progress, device=weak.device)
        ramp = (done / max(self.warm_up, 1e-6)).clamp(max=1.0)
        total: Tensor = (values[0] + values[1]) / 2 + self.weight * ramp * self._distilled(weak, strong, targets)
        return total.mean() if reduction == "mean" else total

    def _distilled(self, weak: Tensor, strong: Tensor, targets: Tensor) -> Tensor:
        """T^2 * KL of each sample that is right in its weak view, the mean over the experts, (batch,)."""
        teacher = (at_least_float32(weak).detach() / self.temperature).log_softmax(dim=2)
        student = (at_least_float32(strong) / self.temperature).log_softmax(dim=2)
        divergence = (teacher.exp() * (teacher - student)).sum(dim=2)
        right = weak.detach().argmax(dim=2) == targets[:, None]
        return self.temperature**2 * (divergence * right).mean(dim=1)


def loss(inputs: MethodInputs, **settings: float) -> MDCSLoss:
    """Return the loss."""
    return MDCSLoss(inputs.train_prior, lambdas(inputs), **settings)


def lambdas(inputs: MethodInputs, **settings: float) -> Tensor:
    """Return the lambda of each expert."""
    return torch.tensor(equidistant_lambdas(inputs.num_experts, spread=SPREAD))


METHOD = Method(loss, lambdas, second_view="autoaugment-cutout")
