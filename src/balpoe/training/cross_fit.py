"""Networks side by side, each trained without a part of the samples, which then tells how far to trust them.

The networks are further groups of experts in one `ExpertNetwork`, trained by one call of `balpoe.fit`: a "sample" of
that call is one sample for each network, and its "label" is a row number, by which the loss finds labels and weights.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from balpoe.baselines.method import MethodLoss
from balpoe.data.dataset import Dataset
from balpoe.errors import UserError
from balpoe.evaluation.forward import logits_of
from balpoe.method.calibration import fit_scale
from balpoe.method.priors import class_prior
from balpoe.networks.expert_layers import CosineClassifier, ExpertLinear
from balpoe.networks.experts import ExpertNetwork
from balpoe.training.fit import fit_and_predict
from balpoe.training.random_state import first_weights
from balpoe.training.settings import FitSettings

__all__ = [
    "CrossFitted",
    "CrossLoss",
    "Folds",
    "Unseen",
    "can_be_repeated",
    "cross_fit",
    "expert_means",
    "feature_experts",
    "fold_training",
    "held_out_logits",
    "network_means",
    "repeated",
    "split_folds",
    "weighted_prior",
]

ROWS_AT_ONCE = 4096
BIAS = 3.0  # a hidden unit's bend lies anywhere in the data, not at their mean


class Folds(NamedTuple):
    """Which samples each of several networks goes without."""

    fold: Tensor
    """The network that does not see a sample, or -1, (samples,)."""
    rows: Tensor
    """What each network is trained on, (rows, networks): in random order, the shorter ones filled up from the start."""


def split_folds(
    targets: Tensor, networks: int, folds: int, generator: torch.Generator, groups: Tensor | None = None
) -> Folds:
    """Split the samples of each class into folds; the first networks go without one fold each.

    Every network keeps every class: a class of one sample, or of one group, is seen by all.

    Args:
        targets: Labels, (samples,).
        networks: Number of networks, at most `folds`.
        folds: Number of folds, at least 2.
        generator: Source of the order.
        groups: Number of each sample's group, (samples,), which is never split; None where each is its own.

    >>> split_folds(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 2, 2, torch.Generator().manual_seed(0)).fold[-1]
    tensor(-1)
    """
    group = torch.arange(len(targets)) if groups is None else groups.unique(return_inverse=True)[1]
    order = torch.randperm(len(targets), generator=generator)
    order = order[targets[order].argsort(stable=True)]
    fold = _group_folds(group[order], folds)[group]
    fold[fold >= networks] = -1
    for each in range(networks):  # a class that a network would not see at all stays with it, and its groups with it
        counts = torch.bincount(targets, minlength=int(targets.max()) + 1)
        without = torch.bincount(targets[fold == each], minlength=len(counts)) == counts
        fold[torch.isin(group, group[without[targets]])] = -1
    shuffled = torch.randperm(len(targets), generator=generator)
    seen = [shuffled[fold[shuffled] != network] for network in range(networks)]
    longest = max(map(len, seen))
    filled = [rows.repeat(math.ceil(longest / len(rows)))[:longest] for rows in seen]
    return Folds(fold, torch.stack(filled, dim=1))


def _group_folds(ordered: Tensor, folds: int) -> Tensor:
    """The fold of each group, (groups,): one after the other, in the order in which they first come."""
    first = torch.full((int(ordered.max()) + 1,), len(ordered))
    first.scatter_reduce_(0, ordered, torch.arange(len(ordered)), reduce="amin")
    fold = torch.empty_like(first)
    fold[first.argsort()] = torch.arange(len(first)) % folds
    return fold


class Unseen(NamedTuple):
    """What networks say about samples that they have not seen."""

    logits: Tensor
    """Calibrated logits of the network that has not seen a sample, the mean over its experts, (samples, classes)."""
    targets: Tensor
    fold: Tensor
    """Number of that network, (samples,)."""
    groups: Tensor | None = None
    """Number of each sample's group, (samples,); None where each is its own."""

    def subset(self, rows: Tensor) -> "Unseen":
        """Return some of the samples."""
        groups = None if self.groups is None else self.groups[rows]
        return Unseen(self.logits[rows], self.targets[rows], self.fold[rows], groups)


@dataclass(frozen=True)
class CrossFitted:
    """Trained networks side by side."""

    network: ExpertNetwork
    train_prior: Tensor
    """Training prior, weights counted, (classes,), in float64."""
    scale: float
    """Logits are to be multiplied by it: one over the temperature."""
    nll: float
    """Minus the mean log-likelihood of the unseen samples' labels, calibrated; 0 if there are none."""
    unseen: Unseen
    history: list[dict[str, float]]


def cross_fit(
    network: ExpertNetwork,
    data: Dataset,
    weights: Tensor,
    folds: Folds,
    loss: MethodLoss,
    source_prior: Tensor,
    settings: FitSettings,
) -> CrossFitted:
    """Train networks side by side, each on its rows; calibrate them on the rest.

    Args:
        network: Network of `feature_experts`, trained in place; or any, if there is one network.
        data: All samples.
        weights: One weight a sample, 1 on average.
        folds: Which samples each network goes without.
        loss: Loss of one network's experts, of any method; made for `weighted_prior` of the same data and weights.
        source_prior: Prior under which the logits of that method's product are posteriors.
        settings: Settings of the training.
    """
    history, _ = fit_and_predict(network, *fold_training(data, weights, folds, loss), None, settings)
    return _calibrated(network, data, weights, folds, source_prior, history)


def fold_training(data: Dataset, weights: Tensor, folds: Folds, loss: MethodLoss) -> "tuple[CrossLoss, Dataset]":
    """Return the loss and the data by which one `fit` trains networks side by side, each on its rows.

    Args:
        data: All samples.
        weights: One weight a sample, 1 on average.
        folds: Which samples each network goes without.
        loss: Loss of one network's experts, of any method.
    """
    rows, alone, networks = folds.rows, data.preprocessing, folds.rows.shape[1]
    times = networks if len(alone.mean) == alone.size[0] else 1  # statistics of each channel, or one of all
    size = (networks * alone.size[0], *alone.size[1:])
    preprocessing = replace(alone, size=size, mean=times * alone.mean, std=times * alone.std)
    together = Dataset(data.images[rows].flatten(1, 2), torch.arange(len(rows)), preprocessing=preprocessing)
    return CrossLoss(loss, data.targets[rows], weights[rows].float()), together


def held_out_logits(network: ExpertNetwork, data: Dataset, folds: Folds) -> tuple[Tensor, Tensor]:
    """Return the samples that a network has not seen, and what its experts say, (held out, experts, classes)."""
    held_out = (folds.fold >= 0).nonzero().squeeze(1)
    networks = folds.rows.shape[1]
    experts, found = network.num_experts // networks, []
    for rows in held_out.split(ROWS_AT_ONCE):
        logits = logits_of(network, data.subset(rows)).unflatten(1, (networks, experts))
        found.append(logits[torch.arange(len(rows)), folds.fold[rows]])
    return held_out, torch.cat(found) if found else torch.zeros(0, experts, network.num_classes)


def weighted_prior(targets: Tensor, weights: Tensor) -> Tensor:
    """Return the training prior of weighted samples, (classes,), in float64."""
    return class_prior(torch.bincount(targets, weights=weights.double())).double()


def _calibrated(
    network: ExpertNetwork,
    data: Dataset,
    weights: Tensor,
    folds: Folds,
    source_prior: Tensor,
    history: list[dict[str, float]],
) -> CrossFitted:
    """One temperature, from what each network says about the samples that it has not seen."""
    held_out, own = held_out_logits(network, data, folds)
    prior = weighted_prior(data.targets, weights)
    targets, scale, nll = data.targets[held_out], 1.0, 0.0
    logits = torch.zeros(0, len(prior))
    if len(held_out):
        logits = own.mean(dim=1).double().log_softmax(dim=1)
        moved = prior.log() - source_prior.log()  # the labels follow the training prior
        scale = fit_scale(logits, targets, weights[held_out], moved)
        log_p = (scale * logits + moved).log_softmax(dim=1).gather(1, targets[:, None]).squeeze(1)
        nll = -float(weights[held_out].double() @ log_p / weights[held_out].sum())
    groups = None if data.groups is None else data.groups[held_out]
    unseen = Unseen(scale * logits, targets, folds.fold[held_out], groups)
    return CrossFitted(network, prior, scale, nll, unseen, history)


def expert_means(network: ExpertNetwork, data: Dataset, num_experts: int) -> Tensor:
    """Return each expert's logits, the mean over the networks, (samples, experts, classes), block by block."""
    blocks = torch.arange(len(data)).split(ROWS_AT_ONCE)
    return torch.cat(
        [logits_of(network, data.subset(rows)).unflatten(1, (-1, num_experts)).mean(dim=1) for rows in blocks]
    )


def network_means(network: ExpertNetwork, data: Dataset, num_networks: int) -> Iterator[Tensor]:
    """Yield each network's logits, the mean over its experts, (networks, some samples, classes), block by block.

    Args:
        network: Networks side by side.
        data: Samples.
        num_networks: Number of networks.
    """
    for rows in torch.arange(len(data)).split(ROWS_AT_ONCE):
        logits = logits_of(network, data.subset(rows)).unflatten(1, (num_networks, -1))
        yield logits.mean(dim=2).double().transpose(0, 1)


class CrossLoss(nn.Module):
    """Any method's loss for networks side by side, each with its own sample in a row; a sum over the networks.

    Args:
        loss: Loss of one network's experts.
        labels: Labels, (rows, networks).
        weights: Weights, (rows, networks), 1 on average.
    """

    labels: Tensor
    weights: Tensor

    def __init__(self, loss: MethodLoss, labels: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.loss = loss
        for name, tensor in (("labels", labels), ("weights", weights)):
            self.register_buffer(name, tensor)

    def forward(self, expert_logits: Tensor, rows: Tensor, progress: Tensor | float | None = None) -> Tensor:
        """Return the loss of `expert_logits` (batch, networks * experts, classes) of some rows."""
        networks = self.labels.shape[1]
        if expert_logits.ndim != 3 or expert_logits.shape[1] % networks:
            raise UserError(
                f"the network must return expert logits of shape (batch, experts, classes) for {networks} networks, "
                f"but returned {tuple(expert_logits.shape)}"
            )
        logits = expert_logits.unflatten(1, (networks, -1)).flatten(0, 1)
        values = self.loss(logits, self.labels[rows].flatten(), progress=progress, reduction="none")
        return (values * self.weights[rows].flatten()).sum() / len(rows)


class _OneForEach(nn.Module):
    """Give each expert its network's features: one's own in training, the same for all in prediction."""

    def __init__(self, num_features: int, num_networks: int, num_experts: int) -> None:
        super().__init__()
        self.num_features, self.num_networks, self.num_experts = num_features, num_networks, num_experts

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = x.unflatten(1, (-1, 1, self.num_features))
        return features.expand(-1, self.num_networks, self.num_experts, -1).flatten(1, 2)


def can_be_repeated(network: ExpertNetwork) -> bool:
    """Return whether copies of a network can be trained side by side: if its experts share no weights."""
    shares = any(True for _ in network.trunk.parameters())
    return not shares and all(isinstance(layer, ExpertLinear) for layer in network.branches)


def repeated(network: ExpertNetwork, copies: int) -> ExpertNetwork:
    """Return a network of several copies, which begin alike: in training each copy has samples of its own.

    Args:
        network: Network for feature vectors that `can_be_repeated`.
        copies: Number of copies.

    >>> from balpoe.networks import ExpertHead
    >>> repeated(ExpertHead(4, 3, num_experts=2), 5)(torch.zeros(6, 5 * 4)).shape
    torch.Size([6, 10, 3])
    """
    whole = copy.deepcopy(network)
    branches = [layer for layer in whole.branches if isinstance(layer, ExpertLinear)]
    layers: list[ExpertLinear | CosineClassifier] = [*branches, whole.classifier]
    for layer in layers:
        layer.num_experts *= copies
        for name, tensor in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(tensor.detach().repeat(copies, *[1] * (tensor.ndim - 1))))
    num_features = layers[0].weight.shape[-1]
    return ExpertNetwork(_OneForEach(num_features, copies, network.num_experts), branches, whole.classifier)


def feature_experts(
    num_features: int,
    num_classes: int,
    num_experts: int,
    num_networks: int,
    *,
    hidden: Sequence[int],
    beside: bool = False,
    cosine_scale: float,
    generator: torch.Generator,
) -> ExpertNetwork:
    """Return networks side by side for feature vectors, in which no layer is shared.

    In training a row has the features of one sample for each network, (batch, networks * features); in prediction
    those of one sample, (batch, features). Out come expert logits, (batch, networks * experts, classes).

    First weights are small, as torch's own, and first biases are not zero: on tables of few features and samples that
    is worth some points (docs/scikit-learn.md).

    Args:
        num_features: Number of features of a sample.
        num_classes: Number of classes.
        num_experts: Number of experts of each network.
        num_networks: Number of networks.
        hidden: Units of each expert's hidden layers.
        beside: Whether a layer's output has its input beside it, so that the classifier sees the features themselves.
        cosine_scale: Scale of the cosine classifier.
        generator: Source of the first weights.

    >>> experts = feature_experts(
    ...     4, 3, 2, 5, hidden=(8, 8), cosine_scale=16.0, generator=torch.Generator().manual_seed(0)
    ... )
    >>> experts(torch.zeros(6, 5 * 4)).shape, experts(torch.zeros(6, 4)).shape
    (torch.Size([6, 10, 3]), torch.Size([6, 10, 3]))
    """
    if not hidden or min(hidden) < 1:
        raise UserError(f"hidden must name the units of one layer or more, for linear experts average to one: {hidden}")
    sizes, experts = [num_features, *hidden], num_networks * num_experts
    with first_weights(0):  # the layers' own first weights, which are replaced
        layers = [ExpertLinear(before, after, experts, beside_input=beside) for before, after in pairwise(sizes)]
        classifier = CosineClassifier(sum(sizes) if beside else sizes[-1], num_classes, experts, cosine_scale)
    with torch.no_grad():
        for layer in layers:
            bound = layer.weight.shape[-1] ** -0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-BIAS * bound, BIAS * bound, generator=generator)
        classifier.weight.normal_(generator=generator).div_(classifier.weight.norm(dim=-1, keepdim=True))
    return ExpertNetwork(_OneForEach(num_features, num_networks, num_experts), layers, classifier)
