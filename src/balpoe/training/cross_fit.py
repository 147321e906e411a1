"""Networks side by side, each trained without a part of the samples, which then tells how far to trust them.

The networks are further groups of experts in one `ExpertNetwork`, trained by one call of `balpoe.fit`: a "sample" of
that call is one sample for each network, and its "label" is a row number, by which the loss finds labels and weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.data.dataset import Dataset
from balpoe.errors import UserError
from balpoe.evaluation.predictions import logits_of
from balpoe.method.calibration import fit_scale
from balpoe.method.ensemble import source_prior
from balpoe.method.losses import logit_adjusted_cross_entropy, warn_if_biased
from balpoe.method.priors import Lambdas, class_prior, logit_offsets
from balpoe.networks.experts import CosineClassifier, ExpertLinear, ExpertNetwork
from balpoe.training.fit import fit

__all__ = ["CrossFitted", "CrossLoss", "Parts", "Unseen", "cross_fit", "dealt", "expert_means", "feature_experts"]

BLOCK = 4096
BIAS = 3.0  # a hidden unit's bend lies anywhere in the data, not at their mean


class Parts(NamedTuple):
    """Which samples each of several networks goes without."""

    part: Tensor
    """Of each sample, (samples,): the network that does not see it, or -1."""
    rows: Tensor
    """What each network is trained on, (rows, networks): in random order, the shorter ones filled up from the start."""


def dealt(targets: Tensor, networks: int, parts: int, generator: torch.Generator) -> Parts:
    """Deal the samples of each class out into parts; the first networks go without one part each.

    Every network keeps every class: a class of one sample is seen by all.

    Args:
        targets: (samples,).
        networks: At most `parts`.
        parts: At least 2.
        generator: Of the order.

    >>> dealt(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 2, 2, torch.Generator().manual_seed(0)).part[-1]
    tensor(-1)
    """
    order = torch.randperm(len(targets), generator=generator)
    order = order[targets[order].argsort(stable=True)]
    part = torch.empty(len(targets), dtype=torch.long)
    part[order] = torch.arange(len(targets)) % parts
    alone = torch.bincount(targets)[targets] == 1
    part[alone | (part >= networks)] = -1
    shuffled = torch.randperm(len(targets), generator=generator)
    seen = [shuffled[part[shuffled] != network] for network in range(networks)]
    longest = max(map(len, seen))
    return Parts(part, torch.stack([torch.cat([rows, rows])[:longest] for rows in seen], dim=1))


class Unseen(NamedTuple):
    """What networks say about samples that they have not seen."""

    logits: Tensor
    """Of the ensemble, calibrated, (samples, classes)."""
    targets: Tensor


@dataclass(frozen=True)
class CrossFitted:
    """Trained networks side by side."""

    network: ExpertNetwork
    prior: Tensor
    """Of the training set, weights counted, (classes,), in float64."""
    scale: float
    """Logits are to be multiplied by it: one over the temperature."""
    unlikelihood: float
    """Minus the mean log-likelihood of the unseen samples' labels, calibrated; 0 if there are none."""
    unseen: Unseen
    history: list[dict[str, float]]


def cross_fit(
    network: ExpertNetwork, data: Dataset, weights: Tensor, parts: Parts, lambdas: Lambdas, **settings: Any
) -> CrossFitted:
    """Train networks side by side, each on its rows; calibrate them on the rest.

    Args:
        network: Of `feature_experts`, trained in place; or any, if there is one network.
        data: All samples.
        weights: One a sample, 1 on average.
        parts: Which samples each network goes without.
        lambdas: Of the experts of each network.
        settings: Keyword arguments of `balpoe.fit`.
    """
    rows, networks = parts.rows, parts.rows.shape[1]
    prior = class_prior(torch.bincount(data.targets, weights=weights.double())).double()
    warn_if_biased(prior, lambdas)
    loss = CrossLoss(logit_offsets(prior, lambdas).float(), data.targets[rows], weights[rows].float())
    size = data.preprocessing.size
    together = Dataset(
        data.images[rows].flatten(1, 2), torch.arange(len(rows)),
        preprocessing=replace(data.preprocessing, size=(networks * size[0], *size[1:])),
    )  # fmt: skip
    history = fit(network, loss, together, **settings)
    return _calibrated(network, data, weights, parts, prior, lambdas, history)


def _calibrated(
    network: ExpertNetwork,
    data: Dataset,
    weights: Tensor,
    parts: Parts,
    prior: Tensor,
    lambdas: Lambdas,
    history: list[dict[str, float]],
) -> CrossFitted:
    """One temperature, from what each network says about the samples that it has not seen."""
    held_out = (parts.part >= 0).nonzero().squeeze(1)
    targets, scale, unlikelihood = data.targets[held_out], 1.0, 0.0
    logits = torch.zeros(0, len(prior))
    if len(held_out):
        own = logits_of(network, data.subset(held_out)).unflatten(1, (parts.rows.shape[1], -1)).mean(dim=2)
        logits = own[torch.arange(len(held_out)), parts.part[held_out]].double().log_softmax(dim=1)
        moved = prior.log() - source_prior(prior, lambdas).log()  # the labels follow the training prior
        scale = fit_scale(logits, targets, weights[held_out], moved)
        log_p = (scale * logits + moved).log_softmax(dim=1).gather(1, targets[:, None]).squeeze(1)
        unlikelihood = -float(weights[held_out].double() @ log_p / weights[held_out].sum())
    return CrossFitted(network, prior, scale, unlikelihood, Unseen(scale * logits, targets), history)


def expert_means(network: ExpertNetwork, data: Dataset, num_experts: int) -> Tensor:
    """Return each expert's logits, the mean over the networks, (samples, experts, classes), block by block."""
    blocks = torch.arange(len(data)).split(BLOCK)
    return torch.cat(
        [logits_of(network, data.subset(rows)).unflatten(1, (-1, num_experts)).mean(dim=1) for rows in blocks]
    )


class CrossLoss(nn.Module):
    """The BalPoE loss of networks side by side, each with its own sample in a row; a sum over the networks.

    Args:
        offsets: Of the experts' logits, (experts, classes); see `balpoe.logit_offsets`.
        labels: (rows, networks).
        weights: (rows, networks), 1 on average.
    """

    offsets: Tensor
    labels: Tensor
    weights: Tensor

    def __init__(self, offsets: Tensor, labels: Tensor, weights: Tensor) -> None:
        super().__init__()
        for name, tensor in (("offsets", offsets), ("labels", labels), ("weights", weights)):
            self.register_buffer(name, tensor)

    def forward(self, expert_logits: Tensor, rows: Tensor, progress: float | None = None) -> Tensor:
        """Return the loss of `expert_logits` (batch, networks * experts, classes) of some rows."""
        wanted = (self.labels.shape[1] * self.offsets.shape[0], self.offsets.shape[1])
        if expert_logits.shape[1:] != wanted:
            raise UserError(
                f"the network must return expert logits of shape (batch, {wanted[0]}, {wanted[1]}), "
                f"but returned {tuple(expert_logits.shape)}"
            )
        logits = expert_logits.reshape(-1, *self.offsets.shape)
        values = logit_adjusted_cross_entropy(logits, self.labels[rows].flatten(), self.offsets, reduction="none")
        return (values.mean(dim=1) * self.weights[rows].flatten()).sum() / len(rows)


class _OneForEach(nn.Module):
    """Give each expert its network's features: one's own in training, the same for all in prediction."""

    def __init__(self, num_features: int, num_networks: int, num_experts: int) -> None:
        super().__init__()
        self.num_features, self.num_networks, self.num_experts = num_features, num_networks, num_experts

    def forward(self, x: Tensor) -> Tensor:
        features = x.view(len(x), -1, 1, self.num_features)
        return features.expand(-1, self.num_networks, self.num_experts, -1).flatten(1, 2)


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
        num_features: Of one sample.
        num_classes: Classes.
        num_experts: Of each network.
        num_networks: How many.
        hidden: Units of each expert's layers.
        beside: Whether a layer's output has its input beside it, so that the classifier sees the features themselves.
        cosine_scale: Of the classifier.
        generator: Of the first weights.

    >>> experts = feature_experts(
    ...     4, 3, 2, 5, hidden=(8, 8), cosine_scale=16.0, generator=torch.Generator().manual_seed(0)
    ... )
    >>> experts(torch.zeros(6, 5 * 4)).shape, experts(torch.zeros(6, 4)).shape
    (torch.Size([6, 10, 3]), torch.Size([6, 10, 3]))
    """
    if not hidden or min(hidden) < 1:
        raise UserError(f"hidden must name the units of one layer or more, for linear experts average to one: {hidden}")
    sizes, experts = [num_features, *hidden], num_networks * num_experts
    with torch.random.fork_rng(devices=[]):  # the layers' own first weights, which are replaced
        layers = [ExpertLinear(before, after, experts, beside_input=beside) for before, after in pairwise(sizes)]
        classifier = CosineClassifier(sum(sizes) if beside else sizes[-1], num_classes, experts, cosine_scale)
    with torch.no_grad():
        for layer in layers:
            bound = layer.weight.shape[-1] ** -0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-BIAS * bound, BIAS * bound, generator=generator)
        classifier.weight.normal_(generator=generator).div_(classifier.weight.norm(dim=-1, keepdim=True))
    return ExpertNetwork(_OneForEach(num_features, num_networks, num_experts), layers, classifier)
