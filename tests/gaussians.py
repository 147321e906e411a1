"""Classes whose posterior is known exactly: unit Gaussians around given means."""

import torch
from torch import Tensor


class Gaussians:
    """A problem with `classes` Gaussian classes in a few dimensions; larger separation, easier problem."""

    def __init__(self, classes: int, dimensions: int = 8, separation: float = 1.0, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.means = separation * torch.randn(classes, dimensions, generator=self.generator, dtype=torch.float64)

    def sample(self, prior: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        labels = torch.multinomial(prior, samples, replacement=True, generator=self.generator)
        return self.sample_of(labels), labels

    def sample_of(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), self.means.shape[1], generator=self.generator, dtype=torch.float64)
        return self.means[labels] + noise

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log P(x | y), up to a constant, (samples, classes), summed in the open."""
        return torch.stack([-0.5 * (x - mean).square().sum(dim=1) for mean in self.means], dim=1)

    def posterior(self, x: Tensor, prior: Tensor) -> Tensor:
        """P(y | x) by Bayes' rule, written out."""
        joint = self.log_likelihood(x).exp() * prior
        return joint / joint.sum(dim=1, keepdim=True)


def random_prior(classes: int, generator: torch.Generator, temperature: float = 2.0) -> Tensor:
    return torch.softmax(temperature * torch.randn(classes, generator=generator, dtype=torch.float64), dim=0)


def long_tail(classes: int, ratio: float = 100.0) -> Tensor:
    profile = ratio ** (-torch.arange(classes, dtype=torch.float64) / (classes - 1))
    return profile / profile.sum()
