"""About how long a training on own images will take: a few images are timed, the rest is multiplied."""

import functools
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
LONG_ENOUGH = 0.25  # seconds, beside which what a step costs whatever its size, a small network's most, is little
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
    """Return what an image costs here: some are read, and a few go through its network.

    Its first weights are read or fetched for that, so that what is wrong with them is said first.

    Args:
        recipe: Recipe of own images.
        images: Training images.
    """
    device = chosen_device(recipe.device)
    size = images.preprocessing.size
    network = build_network(recipe, len(images.class_names), size)
    rows = range(0, len(images), -(-len(images) // DECODED))
    reading = _seconds(lambda: [decoded(images.paths[row], images.preprocessing) for row in rows], "cpu") / len(rows)
    workers = default_workers() if recipe.workers < 0 else max(1, recipe.workers)
    if recipe.tune == "head":
        network.freeze_trunk()
    network.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=chosen_precision(recipe.device, "auto") == "bf16-mixed"):
        zeros = torch.zeros(1, *size, device=device)
        at_once = max(1, min(recipe.batch_size // recipe.accumulate, len(images)))
        with torch.no_grad():
            features = network.eval().features(zeros).float()
            forward = _each(network.features, zeros, at_once)
        if recipe.tune == "head":
            network, zeros, at_once = network.head(), features, default_batch(len(images), recipe.batch_size)
        step = _each(functools.partial(_trained, network.train()), zeros, at_once)
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


def _each(work: Callable[[Tensor], object], sample: Tensor, at_once: int) -> float:
    """Seconds for one sample of as many as are taken at once, or of fewer, if these take long enough to be timed."""
    number, seconds = 0, 0.0
    while number < at_once and seconds < LONG_ENOUGH:
        number = min(4 * number or AT_ONCE[sample.device.type], at_once)
        batch = sample.expand(number, *sample.shape[1:]).contiguous()
        seconds = _seconds(functools.partial(work, batch), sample.device.type)
    return seconds / number


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
