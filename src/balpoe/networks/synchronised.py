"""Batch normalisation over the samples of all GPUs together."""

from torch import nn

__all__ = ["synchronised"]


def synchronised(network: nn.Module) -> nn.Module:
    """Return a network, changed in place, whose batch normalisation takes the statistics of all processes together.

    Weights, statistics and their names stay as they are. In training it works between GPUs alone.

    >>> type(synchronised(nn.Sequential(nn.BatchNorm2d(4)))[0]).__name__
    'SyncBatchNorm'
    """
    from timm.layers import convert_sync_batchnorm  # torch's own loses the activation that timm's layers hold

    converted: nn.Module = convert_sync_batchnorm(network)
    return converted
