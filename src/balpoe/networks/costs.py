"""What a network costs: its weights, and the multiply-adds of a sample."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from balpoe.networks.experts import ExpertNetwork

__all__ = ["costs_by_asked", "multiply_adds", "num_parameters"]


def num_parameters(network: nn.Module) -> int:
    """Return how many weights a network has, frozen ones included.

    >>> num_parameters(nn.Linear(10, 2))
    22
    """
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, example: Tensor) -> int:
    """Return the multiply-adds of one forward pass of one sample: convolutions and matrix products alone.

    >>> multiply_adds(nn.Linear(10, 2), torch.zeros(1, 10))
    20
    """
    training = network.training
    network.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(example)
    network.train(training)
    return int(counter.get_total_flops()) // (2 * len(example))


def costs_by_asked(network: ExpertNetwork, example: Tensor) -> tuple[int, ...]:
    """Return the multiply-adds of one sample if 1, 2, ... experts are asked about it; experts cost alike.

    >>> from balpoe.networks.expert_layers import CosineClassifier, ExpertLinear
    >>> network = ExpertNetwork(nn.Linear(6, 5), [ExpertLinear(5, 4, num_experts=3)], CosineClassifier(4, 2, 3))
    >>> costs_by_asked(network, torch.zeros(1, 6))
    (58, 86, 114)
    """
    whole = multiply_adds(network.without_router(), example)
    shared = multiply_adds(network.trunk, example)
    decision = 0 if network.router is None else network.router.multiply_adds
    experts = network.num_experts
    return tuple(
        shared + asked * (whole - shared) // experts + min(asked, experts - 1) * decision
        for asked in range(1, experts + 1)
    )
