"""First weights of the classifiers: the mean features of each class, as a pretrained backbone gives them."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.networks import ExpertNetwork
from balpoe.networks.memory import forward_that_fits

__all__ = ["start_from_class_means"]

IMAGES_AT_ONCE = 64


def start_from_class_means(
    network: ExpertNetwork,
    data: Samples,
    *,
    device: str = "cpu",
    workers: int = -1,
    progress: Callable[[int], object] = lambda done: None,
) -> None:
    """Let each class's weights point to the mean of its samples' features, in place.

    A class without samples keeps its random weights, and a warning names it.

    Args:
        network: Network whose classifiers are to start so.
        data: Labelled training samples.
        device: Device to compute on.
        workers: Processes that decode image files; -1: as the machine allows.
        progress: Called with the number of samples that have gone through.

    >>> import balpoe
    >>> data = balpoe.Dataset(torch.randn(6, 4), torch.arange(6) % 3)
    >>> head = balpoe.ExpertHead(num_features=4, num_classes=3)
    >>> start_from_class_means(head, data)
    >>> head.classifier.weight.norm(dim=-1).round(decimals=3).unique()
    tensor([1.], grad_fn=<Unique2Backward0>)
    """
    weight, training, done = network.classifier.weight, network.training, 0
    network.to(device).eval()
    sums = torch.zeros(network.num_classes, network.num_experts, weight.shape[-1], dtype=torch.float64)

    def forward(block: Tensor) -> Tensor:
        return network.expert_features(data.preprocessing.normalise(block.to(device))).double().cpu()

    with torch.inference_mode():
        for block in raw_blocks(data, IMAGES_AT_ONCE, workers):
            features = forward_that_fits(forward, block)
            targets = data.targets[done : done + len(block)]
            sums.index_add_(0, targets, features.expand(-1, network.num_experts, -1))
            done += len(block)
            progress(len(block))
    network.to("cpu").train(training)
    there = torch.bincount(data.targets, minlength=network.num_classes) > 0
    if not bool(there.all()):
        names = ", ".join(name for name, found in zip(data.class_names, there.tolist(), strict=True) if not found)
        warnings.warn(f"classes without training samples start from random weights: {names}", stacklevel=2)
    with torch.no_grad():
        network.classifier.weight[:, there] = F.normalize(sums, dim=-1)[there].transpose(0, 1).to(weight.dtype)
