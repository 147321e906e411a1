"""Optimisers by name, with a rate for each group of parameters.

On CPU and GPU they are fused: one pass over weights and state, without temporary copies of them. On a GPU they work
without reading from the device, so that a whole step can be captured.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from balpoe.errors import UserError
from balpoe.networks.expert_layers import ExpertConv2d
from balpoe.networks.experts import ExpertNetwork
from balpoe.training.muon import Muon
from balpoe.training.plain_optimizers import SGD, AdamW
from balpoe.training.settings import FitSettings
from balpoe.training.sharding import in_parts

__all__ = ["BUILDERS", "has_kernels", "make_optimizer", "parameter_groups"]

SEQUENCES = (nn.Sequential, nn.ModuleList)
Groups = list[dict[str, Any]]


def make_optimizer(network: nn.Module, settings: FitSettings, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser of a network's parameters; each group's `rate` is its factor of the learning rate.

    >>> network = nn.Linear(2, 2)
    >>> make_optimizer(network, FitSettings(optimizer="adamw"), torch.device("cpu")).param_groups[0]["rate"]
    1.0
    """
    groups = parameter_groups(network, settings)
    if not groups:
        raise UserError("no parameter of the network learns: it has none, or all are frozen; set requires_grad of some")
    return BUILDERS[settings.optimizer](groups, settings, device.type == "cuda")


def _sgd(groups: Groups, settings: FitSettings, on_cuda: bool) -> torch.optim.Optimizer:
    sharded = in_parts(weight for group in groups for weight in group["params"])
    fused = None if sharded else _fused(on_cuda)  # torch has no fused SGD for parts of weights
    return SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov, fused=fused)


def _adamw(groups: Groups, settings: FitSettings, on_cuda: bool) -> torch.optim.Optimizer:
    own = settings.all_optimizer_settings()
    return AdamW(groups, lr=settings.lr, fused=_fused(on_cuda), capturable=on_cuda, **own)


def _muon(groups: Groups, settings: FitSettings, on_cuda: bool) -> torch.optim.Optimizer:
    own = settings.all_optimizer_settings()
    if not any(group["matrices"] for group in groups):
        raise UserError("muon is for kernels of convolutions, but none learn here; choose sgd or adamw")
    for group in groups:
        if not group["matrices"]:
            group["rate"] *= own["others_factor"]
            continue
        group |= {"direction_momentum": settings.momentum, "look_ahead": settings.nesterov}
        group |= {"momentum": 0.0, "nesterov": False, "weight_decay": own["kernel_decay"]}
    same: dict[str, Any] = {"momentum": settings.momentum, "nesterov": settings.nesterov, "fused": _fused(on_cuda)}
    return Muon(groups, lr=settings.lr, iterations=own["iterations"], **same)


def _fused(on_cuda: bool) -> bool | None:
    """Whether to fuse; None, torch's own choice, on a Mac."""
    return on_cuda or not torch.backends.mps.is_available() or None


BUILDERS: dict[str, Callable[[Groups, FitSettings, bool], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "muon": _muon,
}
"""To add an optimiser: a builder here, its name and its own settings in `training.settings.OPTIMIZERS`."""


def parameter_groups(network: nn.Module, settings: FitSettings) -> Groups:
    """Return the parameters that learn, grouped by their rate (a factor of the learning rate) and weight decay.

    For Muon also by their number of `matrices`: of the kernels of convolutions one for each expert, of others none.
    """
    blocks = [block for block in _blocks(network) if block]
    depth = {id(each): number for number, block in enumerate(blocks) for each in block}
    in_trunk = set(map(id, network.trunk.parameters())) if isinstance(network, ExpertNetwork) else set()
    matrices = _matrices(network) if settings.optimizer == "muon" else None
    groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
    learning = ((name, each) for name, each in network.named_parameters() if each.requires_grad)
    for name, parameter in learning:
        rate = settings.depth_lr_decay ** (len(blocks) - 1 - depth[id(parameter)])
        rate *= settings.trunk_lr_factor if id(parameter) in in_trunk else 1.0
        for beginning, factor in settings.lr_factors.items():
            rate *= factor if name.startswith(beginning) else 1.0
        decayed = settings.decay_norms or parameter.ndim > 1  # scales, shifts and biases are vectors
        number = matrices.get(id(parameter), 0) if matrices else 0
        groups.setdefault((rate, settings.weight_decay if decayed else 0.0, number), []).append(parameter)
    return [
        {"params": several, "rate": rate, "weight_decay": decay, **({} if matrices is None else {"matrices": number})}
        for (rate, decay, number), several in groups.items()
    ]


def has_kernels(network: nn.Module, trains: tuple[str, ...]) -> bool:
    """Return whether some parameters of a network, by their names, are kernels of convolutions, which Muon is for.

    Args:
        network: The network.
        trains: Beginnings of the parameters' names.

    >>> network = nn.ModuleDict({"trunk": nn.Conv2d(1, 2, 3), "classifier": nn.Linear(2, 2)})
    >>> has_kernels(network, ("trunk.",)), has_kernels(network, ("classifier.",))
    (True, False)
    """
    kernels = _matrices(network)
    return any(id(each) in kernels and name.startswith(trains) for name, each in network.named_parameters())


def _matrices(network: nn.Module) -> dict[int, int]:
    """How many matrices each kernel of a convolution holds, by the identity of the parameter."""
    numbers = {}
    for module in network.modules():
        if isinstance(module, ExpertConv2d):
            numbers[id(module.weight)] = module.num_experts
        elif isinstance(module, nn.Conv2d):
            numbers[id(module.weight)] = module.groups
    return numbers


def _blocks(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The parameters of each block, from input to output.

    A block is an entry of a sequence or list of modules, or what lies before, between or behind such sequences.
    """
    between = list(network.parameters(recurse=False))  # a transformer's position embedding, say
    for child in network.children():
        if not isinstance(child, SEQUENCES) and not _has_sequence(child):
            between += child.parameters()
            continue
        yield between
        between = []
        yield from _entries(child) if isinstance(child, SEQUENCES) else _blocks(child)
    yield between


def _entries(sequence: nn.Module) -> Iterator[list[nn.Parameter]]:
    for entry in sequence.children():
        if isinstance(entry, SEQUENCES):
            yield from _entries(entry)
        else:
            yield list(entry.parameters())


def _has_sequence(module: nn.Module) -> bool:
    return any(isinstance(child, SEQUENCES) or _has_sequence(child) for child in module.children())
