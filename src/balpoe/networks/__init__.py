"""Networks by name: every one returns expert logits of shape (batch, experts, classes)."""

import functools
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from balpoe.errors import UserError, unknown_name
from balpoe.networks.adapters import add_adapters, merged
from balpoe.networks.costs import multiply_adds, num_parameters
from balpoe.networks.expert_layers import CosineClassifier
from balpoe.networks.experts import ExpertHead, ExpertNetwork
from balpoe.networks.mlp import mlp
from balpoe.networks.resnet_cifar import resnet32
from balpoe.networks.timm_backbones import backbone_names, backbone_preprocessing, is_backbone, timm_network

__all__ = [
    "CosineClassifier",
    "ExpertHead",
    "ExpertNetwork",
    "add_adapters",
    "backbone_preprocessing",
    "expert_network",
    "merged",
    "multiply_adds",
    "num_parameters",
    "timm_network",
]

NETWORKS: dict[str, Callable[..., ExpertNetwork]] = {
    "resnet32": resnet32,
    "mlp": mlp,
    "head": lambda num_classes, num_experts, num_features, **settings: ExpertHead(
        num_features, num_classes, num_experts, **settings
    ),
}


def expert_network(name: str, *, num_classes: int, num_experts: int = 3, **settings: Any) -> ExpertNetwork:
    """Return a network by name.

    Args:
        name: "resnet32" for images of about 32 pixels, "mlp" or "head" for feature vectors, or any model of timm.
        num_classes: Number of classes.
        num_experts: Number of branches behind the shared trunk.
        **settings: cosine_scale, split; width, and num_features (mlp) or in_channels (resnet32); num_features and
            hidden (head); those of `timm_network`.

    >>> network = expert_network("resnet32", num_classes=10, num_experts=2, width=4)
    >>> (network.num_experts, network.num_classes)
    (2, 10)
    """
    build = NETWORKS.get(name)
    if build is None:
        if not is_backbone(name):
            ours = get_close_matches(name, NETWORKS, cutoff=0.85)  # one of timm's thousand may be as near
            raise unknown_name("network", name, ours or [*NETWORKS, *backbone_names()])
        build = functools.partial(timm_network, name)
    if num_classes < 1 or num_experts < 1:
        raise UserError(f"a network wants at least one class and one expert, but got {num_classes} and {num_experts}")
    try:
        return build(num_classes, num_experts, **settings)
    except TypeError as error:
        raise UserError(f"network {name!r} was given a wrong setting: {error}") from error
