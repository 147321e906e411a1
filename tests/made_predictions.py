"""Predictions of imperfect experts, and class names that a page must survive."""

import torch

from balpoe import Predictions
from balpoe.data.long_tail import long_tailed_counts
from gaussians import Gaussians

HOSTILE = (
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "quote \" and ' and & and \u2028",
    "\u05db\u05dc\u05d1",  # from right to left
    "\U0001f98a fox",
)


def make(samples=3000, classes=20, lambdas=(1, 0, -1), separation=0.7, noise=0.3, seed=0):
    """Predictions of imperfect experts for Gaussian classes, with as many test samples of each class."""
    problem = Gaussians(classes, separation=separation, seed=seed)
    targets = torch.arange(samples) % classes
    counts = torch.as_tensor(long_tailed_counts(classes, 500, 100))
    likelihood = problem.log_likelihood(problem.sample_of(targets))
    log_prior = (counts / counts.sum()).double().log()
    experts = torch.stack([likelihood + value * log_prior for value in lambdas], dim=1)
    experts = 0.8 * experts + noise * torch.randn(experts.shape, generator=problem.generator, dtype=torch.float64)
    return Predictions(experts.float(), targets, counts, torch.tensor(lambdas, dtype=torch.float64))
