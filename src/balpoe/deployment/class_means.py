"""How far a sample lies from the classes in feature space, where a network's classifier looks at it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.data.npz import read_archive
from balpoe.errors import UserError
from balpoe.evaluation.forward import forward_in_blocks
from balpoe.files import write_file
from balpoe.method.priors import class_counts
from balpoe.networks import ExpertNetwork

__all__ = ["ClassMeans", "classifier_features"]

ARRAYS = ("means", "counts", "centre", "whitening")
ROWS_AT_ONCE = 4096
SHRINK = 0.1  # part of the covariance that is replaced by the same variance in all directions


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """Means of the classes in feature space, and how samples spread around them; made by `ClassMeans.fit`.

    >>> features = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> means = ClassMeans.fit(features, torch.tensor([0, 0, 1, 1]))
    >>> means.cosine(torch.tensor([[1.0, 0.0], [-1.0, -1.0]])).round(decimals=2)
    tensor([0., 1.], dtype=torch.float64)
    """

    means: Tensor
    """Mean of each class, (classes, features); that of all samples for a class without any."""
    counts: Tensor
    """Number of samples of each class, (classes,)."""
    centre: Tensor
    """Mean of the class means, (features,)."""
    whitening: Tensor
    """Map that makes the spread around a class mean 1 in all directions, (features, features)."""

    @staticmethod
    def fit(features: Any, targets: Any, num_classes: int | None = None) -> "ClassMeans":
        """Return the means of labelled training samples.

        Args:
            features: Features, (samples, features).
            targets: Labels, (samples,).
            num_classes: Number of classes; by default the largest label plus one.
        """
        features, targets = _checked(features), torch.as_tensor(targets)
        if len(features) != len(targets) or not len(targets):
            raise UserError(f"there are features of {len(features)} samples, but {len(targets)} targets; give as many")
        counts = class_counts(targets, num_classes)
        sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64)
        sums.index_add_(0, targets, features.double())
        means = sums / counts.clamp(min=1)[:, None]
        centre = means[counts > 0].mean(dim=0)
        means[counts == 0] = centre
        return ClassMeans(means, counts, centre, _whitening(features, targets, means, counts))

    def save(self, path: str | Path) -> None:
        """Write the means to a .npz file."""
        arrays = {name: getattr(self, name).numpy() for name in ARRAYS}
        write_file(Path(path), lambda stream: np.savez(stream, **arrays))

    @staticmethod
    def load(path: str | Path) -> "ClassMeans":
        """Read what `save` wrote."""
        arrays = read_archive(Path(path), ARRAYS)
        if set(arrays) != set(ARRAYS):
            raise UserError(f"{path} holds no class means; write it again with ClassMeans.save")
        return ClassMeans(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    def cosine(self, features: Any) -> Tensor:
        """Return the cosine distance to the nearest class mean, seen from the centre, (samples,): 0 to 2."""
        directions = nn.functional.normalize(self.means - self.centre, dim=1)[self.counts > 0]
        blocks = _checked(features).split(ROWS_AT_ONCE)
        unit = (nn.functional.normalize(block.double() - self.centre, dim=1) for block in blocks)
        return torch.cat([1 - (each @ directions.T).amax(dim=1) for each in unit])

    def mahalanobis(self, features: Any) -> Tensor:
        """Return the distance to the nearest class mean in units of the spread within classes, squared, (samples,).

        A mean of n samples is itself uncertain: a new sample of its class lies 1 + 1/n times as far, on average.
        """
        there = self.counts > 0
        means, further = self.means[there] @ self.whitening, 1 + 1 / self.counts[there].double()
        found = []
        for block in _checked(features).split(ROWS_AT_ONCE):
            squares = torch.cdist(block.double() @ self.whitening, means).square()
            found.append((squares / further).amin(dim=1))
        return torch.cat(found)


def classifier_features(
    network: ExpertNetwork, samples: Samples, *, batch_size: int = 500, workers: int = -1
) -> Tensor:
    """Return what a network's classifier is given, all experts' features side by side, (samples, features), on the CPU.

    Args:
        network: Network, on the device to compute on.
        samples: Samples, in memory or in files.
        batch_size: Number of samples of a forward pass.
        workers: Number of processes that decode image files; -1: as the machine allows.

    >>> import balpoe
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> classifier_features(network, balpoe.Dataset(torch.randn(6, 8), [0, 0, 0, 0, 1, 1])).shape[0]
    6
    """
    training = network.training
    network.eval()
    try:
        blocks = raw_blocks(samples, batch_size, workers)
        return forward_in_blocks(_BeforeClassifier(network), samples.preprocessing, blocks)
    finally:
        network.train(training)


class _BeforeClassifier(nn.Module):
    """A network up to its classifier."""

    def __init__(self, network: ExpertNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self.network.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.network(images)
        finally:
            hook.remove()
        return nn.functional.normalize(seen[0], dim=-1).flatten(1)  # a cosine classifier sees directions


def _checked(features: Any) -> Tensor:
    found = torch.as_tensor(features)
    if found.ndim != 2 or not bool(torch.isfinite(found).all()):
        raise UserError(f"features must be numbers of shape (samples, features), but have {tuple(found.shape)}")
    return found


def _whitening(features: Tensor, targets: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """An inverse root of the covariance within classes; shrunk, as samples may be fewer than features.

    Cholesky's root, a tenth of the work of the symmetric one, which gives the same distances.
    """
    size, covariance = features.shape[1], torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for rows in torch.arange(len(features)).split(ROWS_AT_ONCE):
        left = features[rows].double() - means[targets[rows]]
        covariance += left.T @ left
    covariance /= max(1, len(features) - int((counts > 0).sum()))  # a mean of one sample leaves nothing
    variance = (covariance.diagonal().mean()).clamp(min=1e-12)
    unit = torch.eye(size, dtype=torch.float64)
    factor = torch.linalg.cholesky((1 - SHRINK) * covariance + SHRINK * variance * unit)
    whitening: Tensor = torch.linalg.solve_triangular(factor, unit, upper=False).T
    return whitening
