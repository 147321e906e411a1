"""RIDE with its router (Wang et al. 2021): a sample is shown to further experts only where these may help.

First the training of `ride`. Then all of the network stays as it is, and a router (`networks.router`) is trained behind
it: after expert e of E it gives a score s_e, and with the mean v_e of the logits of experts 1 to e its loss is

    mean over e < E of   -w y_e log sigmoid(s_e) - (1 - y_e) log(1 - sigmoid(s_e)),
    y_e = 1 where argmax v_e is wrong and argmax v_j is right for some j > e, and 0 elsewhere,

with the weight w of 100, as few samples want a further expert. In prediction experts are asked one after the other as
long as s_e > 0, and the answer is the mean of the logits of those that were asked. Each expert, and so each such mean,
is made for the same prior.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.baselines import ride
from balpoe.baselines.class_weights import hard_labels
from balpoe.baselines.method import MethodInputs, Stage
from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.router import running_means, split_scores

__all__ = ["METHOD", "RouterLoss", "further_helps"]


def further_helps(expert_logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether a sample gains by experts after each but the last, (batch, experts - 1), as 0 and 1.

    It does where the mean of the experts so far is wrong, and that of more of them is right.

    Args:
        expert_logits: Expert logits, (batch, experts, classes).
        labels: Labels, (batch,).

    >>> logits = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]])
    >>> further_helps(logits, torch.tensor([1])), further_helps(logits, torch.tensor([0]))
    (tensor([[1., 0.]]), tensor([[0., 0.]]))
    """
    right = (running_means(expert_logits).argmax(dim=2) == labels[:, None]).to(expert_logits.dtype)
    later = right[:, 1:].flip(1).cummax(dim=1).values.flip(1)
    return (1 - right[:, :-1]) * later


class RouterLoss(nn.Module):
    """Cross-entropy of whether further experts help, those samples weighted for which they do.

    Args:
        weight: Weight of samples for which they help.

    >>> outputs = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 3.0, 0.0]]])  # the scores are behind the two classes
    >>> RouterLoss(weight=100.0)(outputs, torch.tensor([1])), RouterLoss(weight=100.0)(outputs, torch.tensor([0]))
    (tensor(69.3147), tensor(0.6931))
    """

    weight: Tensor

    def __init__(self, weight: float = 100.0) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,).

        Args:
            expert_logits: Expert logits with the router's scores behind them, (batch, experts, classes + 1).
            targets: Labels, (batch,).
            progress: Part of the training that is done, which changes nothing.
            reduction: "mean" or "none".
        """
        logits, scores = split_scores(expert_logits)
        helps = further_helps(logits, hard_labels(targets, "RIDE's router"))
        values = self.weight.to(scores) * helps * F.softplus(-scores) + (1 - helps) * F.softplus(scores)
        return values.mean() if reduction == "mean" else values.mean(dim=1)


def loss(inputs: MethodInputs, **settings: float) -> ride.RIDELoss:
    """Return RIDE's loss; the router's own settings are not for it."""
    return ride.loss(inputs, **{name: value for name, value in settings.items() if not name.startswith("router_")})


def stages(
    inputs: MethodInputs, router_weight: float, router_epochs: float, router_lr_factor: float, **settings: object
) -> list[Stage]:
    """Return the second stage, in which the router alone is trained."""
    return [
        Stage(
            "stage-2",
            RouterLoss(router_weight),
            trains=("router.",),
            epochs=router_epochs,
            keeps_statistics=True,
            lr_factors={"router.": router_lr_factor},
        )
    ]


def extend(network: ExpertNetwork, *, router_hidden: int, router_logits: int, **settings: object) -> None:
    """Add the router."""
    network.add_router(router_hidden, router_logits)


METHOD = replace(ride.METHOD, loss=loss, stages=stages, extend=extend)
