"""Networks by name: every one returns expert logits of shape (batch, experts, classes)."""

from collections.abc import Callable
from typing import Any

from balpoe.errors import UserError, unknown_name
from balpoe.networks.experts import CosineClassifier, ExpertNetwork, multiply_adds, num_parameters
from balpoe.networks.mlp import mlp
from balpoe.networks.resnet_cifar import resnet32

__all__ = [
    "CosineClassifier",
    "ExpertNetwork",
    "expert_network",
    "multiply_adds",
    "num_parameters",
]

NETWORKS: dict[str, Callable[..., ExpertNetwork]] = {"resnet32": resnet32, "mlp": mlp}


def expert_network(name: str, *, num_classes: int, num_experts: int = 3, **settings: Any) -> ExpertNetwork:
    """Return a network by name.

    Args:
        name: "resnet32" for pictures of about 32 pixels, or "mlp" for feature vectors.
        num_classes: Classes.
        num_experts: Branches behind the shared trunk.
        **settings: cosine_scale, width, split, and num_features (mlp) or in_channels (resnet32).

    >>> network = expert_network("resnet32", num_classes=10, num_experts=2, width=4)
    >>> (network.num_experts, network.num_classes)
    (2, 10)
    """
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    if num_classes < 1 or num_experts < 1:
        raise UserError(f"a network wants at least one class and one expert, but got {num_classes} and {num_experts}")
    try:
        return NETWORKS[name](num_classes, num_experts, **settings)
    except TypeError as error:
        raise UserError(f"network {name!r} was given a wrong setting: {error}") from error
