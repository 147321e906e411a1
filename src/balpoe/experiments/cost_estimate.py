"""About how long a training on own images will take: a few images are timed, the rest is multiplied."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.data.loading.image_files import PictureFiles, decoded, default_workers
from balpoe.experiments.build import build_network, default_batch, default_epochs
from balpoe.experiments.calibrate import cross_fitted_networks
from balpoe.experiments.recipe import Recipe
from balpoe.training.distributed import chosen_device, chosen_precision

__all__ = ["UnitCosts", "estimated_seconds", "in_words", "measured_costs"]

DECODED = 16
AT_ONCE = {"cpu": 8, "cuda": 64, "mps": 32}
SEARCHED = 3
"""Trainings without some samples, in numbers of default epochs, until rate, mixup and epochs are chosen: 2.5 where the
first trials are the best ones, 18.5 where every further one is better."""


class UnitCosts(NamedTuple):
    """Seconds for one image or sample, as measured."""

    decode: float
    """To read an image, all processes together."""
    forward: float
    """To take it through the backbone."""
    step: float
    """To train on it: forward, backward and update; of heads, on its features."""
    overlap: bool = False
    """Whether images are read while the network computes, on another device."""

    def an_image(self, work: float) -> float:
        """Return the seconds of an image for which the network works so long."""
        return max(self.decode, work) if self.overlap else self.decode + work


def estimated_seconds(recipe: Recipe, costs: UnitCosts, *, train: int, test: int, trainings: int = 1) -> float:
    """Return about how many seconds some trainings of a recipe take.

    Args:
        recipe: Recipe of own images.
        costs: What an image costs.
        train: Number of training images.
        test: Number of test images.
        trainings: Number of trainings: of each seed, and of cross-entropy beside it.

    >>> heads = Recipe(dataset="own", tune="head", epochs=10, batch_size=100)
    >>> estimated_seconds(heads, UnitCosts(decode=0.1, forward=0.2, step=0.01), train=900, test=100)
    390...
    """
    heads = recipe.tune == "head"
    batch_size = default_batch(train, recipe.batch_size) if heads else recipe.batch_size
    epochs = recipe.epochs or default_epochs(train, batch_size)
    once = (train + test) * costs.an_image(costs.forward)
    if heads:  # features serve all trainings
        passes = 1 + SEARCHED * cross_fitted_networks(train) if recipe.calibrate else 1
        return once + trainings * passes * epochs * train * costs.step
    passes = 1 + SEARCHED if recipe.calibrate and recipe.choose_mixup else 1
    return trainings * (once + passes * epochs * train * costs.an_image(costs.step))


def measured_costs(recipe: Recipe, images: PictureFiles) -> UnitCosts:
    """Return what an image costs here: some are read, and a few go through a network with random weights.

    Args:
        recipe: Recipe of own images.
        images: Training images.
    """
    device = chosen_device(recipe.device)
    number, size = AT_ONCE[device], images.preprocessing.size
    network = build_network(recipe, len(images.class_names), size, trained=True)
    rows = range(0, len(images), -(-len(images) // DECODED))
    reading = _seconds(lambda: [decoded(images.paths[row], images.preprocessing) for row in rows], "cpu") / len(rows)
    workers = default_workers() if recipe.workers < 0 else max(1, recipe.workers)
    batch = torch.zeros(number, *size, device=device)
    if recipe.tune == "head":
        network.freeze_trunk()
    network.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=chosen_precision(recipe.device, "auto") == "bf16-mixed"):
        with torch.no_grad():
            features = network.eval().features(batch)
            forward = _seconds(lambda: network.features(batch), device) / number
        if recipe.tune == "head":
            samples = default_batch(len(images), recipe.batch_size)
            network, batch = network.head(), features[:1].float().expand(samples, -1)
        step = _seconds(lambda: _trained(network.train(), batch), device) / len(batch)
    return UnitCosts(reading / workers, forward, step, overlap=device != "cpu")


def in_words(seconds: float) -> str:
    """Return a time as a phrase, of two digits at most.

    >>> in_words(3), in_words(47), in_words(400), in_words(9000)
    ('about 10 seconds', 'about 50 seconds', 'about 7 minutes', 'about 2.5 hours')
    """
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} seconds"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {float(f'{seconds / 3600:.2g}'):g} hours"


def _trained(network: Any, batch: Tensor) -> None:
    network(batch).float().square().mean().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= 1e-9 * parameter.grad
                parameter.grad = None


def _seconds(work: Callable[[], object], device: str) -> float:
    """The shorter of two times, after one that warms up."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
