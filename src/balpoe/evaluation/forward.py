"""A network run over a test set: its expert logits, and the predictions made of them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.method.priors import Lambdas, checked_lambdas
from balpoe.networks.costs import costs_by_asked, multiply_adds, num_parameters
from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.memory import forward_that_fits
from balpoe.networks.router import experts_asked

__all__ = ["forward_in_blocks", "logits_of", "network_costs", "predict"]


def predict(
    network: nn.Module,
    test: Samples,
    *,
    class_counts: Any,
    lambdas: Lambdas | None = None,
    train_prior: Any = None,
    source_prior: Any = None,
    batch_size: int = 500,
    workers: int = -1,
) -> Predictions:
    """Run a network once over a test set, on the device it is on.

    Args:
        network: Network from normalised samples to expert logits.
        test: Raw samples with their preprocessing, in memory or in files.
        class_counts: Number of training samples of each class: they define the shot groups and the priors.
        lambdas: Lambdas of the loss, if it has any.
        train_prior: Prior that the loss was given; by default the shares of the class counts.
        source_prior: Prior that the ensemble's logits are made for, where no lambdas say it; None: they are no
            posterior.
        batch_size: Number of samples of a forward pass; no effect on the result but for rounding.
        workers: Number of processes that decode image files; -1: as the machine allows.

    >>> import balpoe
    >>> data = balpoe.Dataset(torch.randn(6, 8), [0, 0, 0, 0, 1, 1])
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> predict(network, data, class_counts=data.class_counts, lambdas=(1, 0, -1)).expert_logits.shape
    torch.Size([6, 3, 2])
    """
    example = torch.zeros(1, *test.preprocessing.size, device=_device(network))
    logits = logits_of(network, test, batch_size=batch_size, workers=workers)
    return Predictions(
        logits,
        test.targets,
        torch.as_tensor(class_counts),
        None if lambdas is None else checked_lambdas(lambdas),
        test.class_names,
        train_prior,
        source_prior=source_prior,
        groups=test.groups,
        **network_costs(network, logits, example),
    )


def network_costs(network: nn.Module, expert_logits: Tensor, example: Tensor) -> dict[str, Any]:
    """Return what predictions say of their network's size and work, by the names of their fields.

    Args:
        network: Network that gave the logits.
        expert_logits: Its expert logits of some samples.
        example: One sample, on the network's device.
    """
    size = {"parameters": num_parameters(network)}
    if not isinstance(network, ExpertNetwork) or network.router is None:
        return {**size, "multiply_adds": multiply_adds(network, example)}
    asked, costs = experts_asked(expert_logits), costs_by_asked(network, example)
    mean = sum(cost * int((asked == number).sum()) for number, cost in enumerate(costs, start=1)) / max(1, len(asked))
    whole = multiply_adds(network.without_router(), example)
    return {**size, "experts_asked": asked, "multiply_adds": round(mean), "multiply_adds_of_all": whole}


def logits_of(network: nn.Module, test: Samples, *, batch_size: int = 500, workers: int = -1) -> Tensor:
    """Return a network's expert logits of a test set, (samples, experts, classes), on the CPU.

    Args:
        network: Network, as `predict` takes it.
        test: Samples, as `predict` takes them.
        batch_size: Number of samples of a forward pass.
        workers: Number of processes that decode image files; -1: as the machine allows.
    """
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, but is {batch_size}")
    return forward_in_blocks(network, test.preprocessing, raw_blocks(test, batch_size, workers))


def forward_in_blocks(network: nn.Module, preprocessing: Preprocessing, blocks: Iterable[Tensor]) -> Tensor:
    """Return the float32 expert logits of blocks of raw samples, on the CPU, computed on the network's device.

    The network is as in use, not as in training, and afterwards as it was.

    Args:
        network: Network from normalised samples to expert logits.
        preprocessing: How raw samples become the network's input.
        blocks: Blocks of raw samples, (samples, ...) each.
    """
    device, training = _device(network), network.training

    def forward(block: Tensor) -> Tensor:
        logits: Tensor = network(preprocessing.normalise(block.to(device))).float().cpu()
        return logits

    network.eval()
    try:
        with torch.inference_mode():
            return torch.cat([forward_that_fits(forward, block) for block in blocks])
    finally:
        network.train(training)


def _device(network: nn.Module) -> torch.device:
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
