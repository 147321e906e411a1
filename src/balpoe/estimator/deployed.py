"""A fitted classifier as a model of its own, from raw features to expert logits: what is exported of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from balpoe.data.dataset import Preprocessing
from balpoe.deployment.model import Model
from balpoe.errors import UserError
from balpoe.estimator.inputs import CLIP, FeatureInputs, ImageInputs
from balpoe.estimator.normal_scores import NormalScores
from balpoe.experiments.recipe import Recipe
from balpoe.networks.experts import ExpertNetwork

__all__ = ["FeatureScaling", "NetworkMean", "deployed_model"]

LARGEST = 1e100  # its square is a number still
LEAST_SHARE = 1e-30  # of a class that a prior excludes: its logarithm is a number still


class FeatureScaling(nn.Module):
    """What `FeatureInputs` does, in torch: features (batch, features) in float32, scaled in float64.

    Args:
        inputs: What the classifier's `fit` found.

    >>> inputs = FeatureInputs(np.array([[0.0], [2.0]]), np.ones(2))
    >>> FeatureScaling(inputs)(torch.tensor([[1.0], [1e9]]))
    tensor([[0.],
            [8.]])
    """

    unit: Tensor
    mean: Tensor
    std: Tensor
    columns: Tensor
    order: Tensor
    knots: Tensor
    scores: Tensor
    first: Tensor

    def __init__(self, inputs: FeatureInputs) -> None:
        super().__init__()
        for name in ("unit", "mean", "std"):
            self.register_buffer(name, torch.from_numpy(getattr(inputs, name)).double())
        columns = sorted(inputs.scores)
        self.has_scores, features = bool(columns), len(inputs.mean)
        order = torch.arange(features)
        order[columns] = features + torch.arange(len(columns))
        longest = max((len(inputs.scores[column].values) for column in columns), default=2)
        knots, scores = (
            torch.tensor(np.array([_padded(inputs.scores[column], longest)[part] for column in columns]))
            for part in (0, 1)
        )
        first = torch.arange(len(columns)) * longest
        buffers = {"columns": torch.tensor(columns, dtype=torch.long), "order": order, "first": first}
        for name, tensor in {**buffers, "knots": knots, "scores": scores}.items():
            self.register_buffer(name, tensor)

    def forward(self, features: Tensor) -> Tensor:
        """Return features as the networks take them."""
        values = features.double() / self.unit
        if self.has_scores:
            values = torch.cat([values, self._scored(values[:, self.columns])], dim=1)[:, self.order]
        values = ((values - self.mean) / self.std).clamp(-LARGEST, LARGEST)
        return (values / (1 + (values / CLIP).square()).sqrt()).float()

    def _scored(self, values: Tensor) -> Tensor:
        """Normal scores of the columns with heavy tails: straight between knots, flat beyond the last."""
        last = self.knots.shape[1] - 2
        place = ((values[..., None] >= self.knots).long().sum(dim=2) - 1).clamp(0, last) + self.first
        knots, scores = self.knots.flatten(), self.scores.flatten()
        low, high = knots[place], knots[place + 1]
        part = ((values - low) / (high - low)).clamp(0, 1)
        return scores[place] + part * (scores[place + 1] - scores[place])


def _padded(scores: NormalScores, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Knots and scores of one length: further knots lie beyond the last, on its level."""
    missing = length - len(scores.values)
    step = max(1.0, abs(float(scores.values[-1])))
    further = scores.values[-1] + step * np.arange(1, missing + 1)
    return np.append(scores.values, further), np.append(scores.scores, np.repeat(scores.scores[-1], missing))


class NetworkMean(nn.Module):
    """Networks side by side behind their inputs: each expert's logits, the mean over the networks, calibrated.

    Args:
        inputs: From raw samples to those of the networks.
        network: Networks, (batch, networks * experts, classes).
        num_experts: Number of experts of each.
        temperature: Temperature that the logits are divided by.
    """

    def __init__(self, inputs: nn.Module, network: ExpertNetwork, num_experts: int, temperature: float) -> None:
        super().__init__()
        self.inputs, self.network = inputs, network
        self.num_experts, self.num_classes, self.temperature = num_experts, network.num_classes, temperature

    def forward(self, samples: Tensor) -> Tensor:
        """Return expert logits (batch, experts, classes)."""
        logits: Tensor = self.network(self.inputs(samples)).unflatten(1, (-1, self.num_experts))
        return logits.mean(dim=1) / self.temperature

    def some_experts(self, indices: Sequence[int]) -> "NetworkMean":
        """Return a copy that holds some experts of each network alone."""
        each, networks = self.num_experts, self.network.num_experts // self.num_experts
        kept = self.network.some_experts([each * network + index for network in range(networks) for index in indices])
        trunk: Any = kept.trunk
        if hasattr(trunk, "num_networks"):  # it gives each expert its network's features
            trunk.num_experts = len(indices)
        return NetworkMean(self.inputs, kept, len(indices), self.temperature).train(self.training)


def deployed_model(
    network: ExpertNetwork,
    inputs: Any,
    classes: np.ndarray,
    class_counts: Tensor,
    train_prior: Tensor,
    lambdas: Tensor,
    temperature: float,
    default_prior: Tensor | None,
) -> Model:
    """Return a classifier as a model: raw features in, its temperature already in the expert logits.

    Args:
        network: Trained networks side by side.
        inputs: Its `FeatureInputs` or `ImageInputs`.
        classes: Class labels.
        class_counts: Training samples of each class.
        train_prior: Prior that the loss was given.
        lambdas: Lambdas of the loss.
        temperature: Temperature of the logits.
        default_prior: Deployment prior where none is given; None: the prior that the ensemble is made for.
    """
    if isinstance(inputs, ImageInputs) and not inputs.bytes:
        raise UserError("a classifier of images in floats cannot be exported; fit it with uint8 images")
    scaling: nn.Module = FeatureScaling(inputs) if isinstance(inputs, FeatureInputs) else nn.Identity()
    preprocessing: Preprocessing = inputs.preprocessing
    whole: Any = NetworkMean(scaling, network, len(lambdas), temperature).eval()
    names = tuple(str(label) for label in classes)
    model = Model(whole, names, class_counts, preprocessing, train_prior, lambdas, Recipe(network="mlp"))
    assert model.source_prior is not None
    if default_prior is None or torch.allclose(default_prior, model.source_prior.to(default_prior), atol=1e-7):
        return model
    return replace(model, default_prior=default_prior.clamp_min(LEAST_SHARE))
