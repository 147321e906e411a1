"""A small fully connected network for feature vectors: shared layers, a hidden layer per expert."""

from collections.abc import Sequence

from torch import nn

from balpoe.errors import UserError
from balpoe.networks.expert_layers import CosineClassifier, ExpertLinear
from balpoe.networks.experts import ExpertNetwork

__all__ = ["mlp"]


def mlp(
    num_classes: int,
    num_experts: int = 3,
    *,
    num_features: int,
    cosine_scale: float = 32.0,
    width: int | Sequence[int] = 128,
    split: int = 1,
) -> ExpertNetwork:
    """Return two hidden layers, the first shared, the second per expert, and a cosine classifier per expert.

    Without batch normalisation: it works for batches of any size. Images are flattened.

    Args:
        num_classes: Number of classes.
        num_experts: Number of branches.
        num_features: Number of features of a sample.
        cosine_scale: Scale of the classifier, the paper's kappa.
        width: Units per hidden layer; several numbers make as many layers.
        split: Number of hidden layers that the experts share.

    >>> import torch
    >>> mlp(10, 3, num_features=64)(torch.zeros(2, 64)).shape
    torch.Size([2, 3, 10])
    """
    widths = [width, width] if isinstance(width, int) else list(width) * (2 if len(width) == 1 else 1)
    if min(widths, default=0) < 1:
        raise UserError(f"width must be a positive number of units per layer, but is {width}")
    if not 0 <= split <= len(widths):
        raise UserError(
            f"split must be 0 to {len(widths)}, the number of layers that the experts share, but is {split}"
        )
    sizes = [num_features, *widths]
    shared = [layer for i in range(split) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    branches = [ExpertLinear(sizes[i], sizes[i + 1], num_experts) for i in range(split, len(widths))]
    classifier = CosineClassifier(sizes[-1], num_classes, num_experts, cosine_scale)
    return ExpertNetwork(nn.Sequential(nn.Flatten(), *shared), branches, classifier)
