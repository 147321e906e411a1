"""Weights of the experts that are learnt from the test samples themselves, without their labels."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from balpoe.baselines.sade_test_time import agreeing_weights
from balpoe.data.augment.operations import Operation
from balpoe.data.loading.epoch_plan import sample_rng
from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.evaluation.forward import forward_in_blocks
from balpoe.evaluation.predictions import Predictions

__all__ = ["two_views", "with_learnt_weights"]

VIEWED_AT_ONCE = 500


def two_views(
    network: nn.Module, test: Samples, operations: Sequence[Operation], *, seed: int = 0, workers: int = -1
) -> Tensor:
    """Return a network's expert logits of two views of each test image, (samples, 2, experts, classes), on the CPU.

    Args:
        network: Network, on the device where it is to work.
        test: Images, in memory or in files.
        operations: What makes a view of an image.
        seed: Seed of the views.
        workers: Number of processes that decode image files; -1: as the machine allows.

    >>> import balpoe
    >>> from balpoe.baselines.sade_test_time import view_operations
    >>> data = balpoe.Dataset(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), [0, 0, 0, 0, 1, 1])
    >>> network = balpoe.expert_network("resnet32", num_classes=2, num_experts=3, width=4)
    >>> two_views(network, data, view_operations((3, 8, 8))).shape
    torch.Size([6, 2, 3, 2])
    """
    device = next(network.parameters()).device

    def view(number: int) -> Iterator[Tensor]:
        for block, images in enumerate(raw_blocks(test, VIEWED_AT_ONCE, workers)):
            images = images.to(device)
            for operation in operations:
                images = operation(images, sample_rng(seed, number, f"view {type(operation).__name__}", block))
            yield images

    return torch.stack([forward_in_blocks(network, test.preprocessing, view(number)) for number in (0, 1)], dim=1)


def with_learnt_weights(predictions: Predictions) -> Predictions:
    """Return the predictions with the weights of the experts under which two views of their samples agree most.

    >>> logits = torch.zeros(4, 2, 3)
    >>> predictions = Predictions(logits, torch.arange(4) % 3, [5, 4, 3], [0, 0], view_logits=torch.zeros(4, 2, 2, 3))
    >>> with_learnt_weights(predictions).expert_weights
    tensor([0.5000, 0.5000])
    """
    return replace(predictions, expert_weights=agreeing_weights(*predictions.calibrated_views()))
