"""First weights of the first convolution: filters that whiten the training images' patches (Page 2019, Jordan 2024).

Neighbouring pixels are almost the same, so that random filters almost all answer to brightness, and the rest is learnt
slowly. Filters along the principal axes, each divided by the deviation along it, answer to different things equally.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.errors import UserError
from balpoe.networks import ExpertNetwork
from balpoe.networks.resnet_cifar import Stem

__all__ = ["start_whitened", "whitening_filters"]

IMAGES_LOOKED_AT = 500  # of 900 patches each, for a covariance of 27 numbers


def start_whitened(network: ExpertNetwork, data: Samples) -> None:
    """Give the first convolution of a `resnet32` filters that whiten patches, in place; they are trained as all others.

    Args:
        network: Network whose trunk begins with a convolution of 3 x 3 pixels.
        data: Training images, of which every so-manieth is looked at: the seed has no part in it.
    """
    stem = next(iter(network.trunk.children()), None)
    if not isinstance(stem, Stem):
        raise UserError("a whitened first layer is for resnet32, whose trunk begins with a convolution; leave it out")
    chosen = torch.arange(0, len(data), max(1, len(data) // IMAGES_LOOKED_AT))[:IMAGES_LOOKED_AT]
    blocks = list(raw_blocks(data.subset(chosen), IMAGES_LOOKED_AT, workers=0))
    images = data.preprocessing.normalise(torch.cat(blocks))
    weight = stem.conv.weight
    with torch.no_grad():
        weight.copy_(whitening_filters(images, len(weight)))


def whitening_filters(images: Tensor, number: int, smallest: float = 1e-3) -> Tensor:
    """Return filters (number, channels, 3, 3) of 3 x 3 patches: principal axes, and the same with the other sign.

    Behind a rectifier an axis and its opposite keep what one of them alone would cut off. Each answers with a variance
    of 2, as random first weights do to white images.

    Args:
        images: Normalised images (samples, channels, height, width).
        number: Number of filters; the axes of largest deviation come first, twice each.
        smallest: Least variance along an axis that is divided by: patches of flat images have almost none.

    >>> filters = whitening_filters(torch.randn(8, 3, 16, 16), 16)
    >>> filters.shape, torch.equal(filters[:8], -filters[8:])
    (torch.Size([16, 3, 3, 3]), True)
    """
    patches = F.unfold(images, 3).transpose(1, 2).flatten(0, 1)
    variances, axes = torch.linalg.eigh(torch.cov(patches.T).double())
    half = -(-number // 2)
    if half > len(variances):
        raise UserError(f"{number} filters are asked for, but patches have {len(variances)} axes; use a smaller width")
    kept = (axes / variances.clamp_min(smallest).sqrt()).T.flip(0)[:half] * 2**0.5
    return torch.cat([kept, -kept])[:number].view(number, images.shape[1], 3, 3).to(images.dtype)
