"""From a recipe to objects: the only place where strings become networks, losses, data and schedules."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe import schedules
from balpoe.data import Dataset, load_data
from balpoe.data.augment import AUGMENTATIONS
from balpoe.losses import BalPoELoss
from balpoe.networks import ExpertNetwork, expert_network
from balpoe.priors import backward_lambdas, class_prior
from balpoe.recipes import Recipe

__all__ = ["Assembly", "assemble", "build_network"]


FIRST_WEIGHTS = threading.Lock()  # drawn from torch's one generator, whatever other threads do


@dataclass(frozen=True)
class Assembly:
    """The objects that a recipe stands for."""

    network: ExpertNetwork
    loss: BalPoELoss
    train: Dataset
    test: Dataset
    train_prior: Tensor
    lambdas: Tensor
    fit_settings: dict[str, Any]
    """Keyword arguments of `balpoe.fit`."""


def assemble(recipe: Recipe) -> Assembly:
    """Turn a recipe's strings and numbers into objects: the only place where that happens."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    train, test = load_data(
        recipe.dataset, recipe.data_root or None,
        imbalance_ratio=recipe.imbalance_ratio, profile=recipe.profile, download=recipe.download,
        validation=recipe.validation,
    )  # fmt: skip
    prior = class_prior(train.class_counts, method=recipe.prior_method, smoothing=recipe.smoothing)
    lambdas = _lambdas(recipe, prior)
    network = build_network(recipe, len(train.class_names), train.preprocessing.size)
    kinds: dict[str, Callable[[], schedules.Schedule]] = {
        "multistep": lambda: schedules.Multistep(recipe.milestones, warmup_epochs=recipe.warmup_epochs),
        "cosine": lambda: schedules.Cosine(recipe.warmup_epochs),
        "constant": lambda: schedules.Constant(recipe.warmup_epochs),
    }
    same = (
        "epochs", "batch_size", "lr", "momentum", "nesterov", "weight_decay", "mixup_alpha", "cutmix_probability",
        "seed", "device", "devices", "precision", "step", "checkpoint_seconds",
    )  # fmt: skip
    fit_settings = {name: getattr(recipe, name) for name in same}
    fit_settings["schedule"] = kinds[recipe.schedule]()
    fit_settings["augmentation"] = AUGMENTATIONS[recipe.augmentation]
    return Assembly(network, BalPoELoss(prior, lambdas), train, test, prior, lambdas, fit_settings)


def build_network(recipe: Recipe, num_classes: int, size: tuple[int, ...]) -> ExpertNetwork:
    """Return a recipe's network with the first weights of its seed, for samples of a size."""
    settings = {"num_features": math.prod(size)} if recipe.network == "mlp" else {"in_channels": size[0]}
    with FIRST_WEIGHTS, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)
        return expert_network(
            recipe.network, num_classes=num_classes, num_experts=len(recipe.expert_lambdas),
            cosine_scale=recipe.cosine_scale, width=recipe.width, split=recipe.split, **settings,
        )  # fmt: skip


def _lambdas(recipe: Recipe, prior: Tensor) -> Tensor:
    """One number per expert, or, with SADE's backward expert, one per expert and class."""
    lambdas = torch.tensor(recipe.expert_lambdas)
    if not recipe.backward_tau:
        return lambdas
    per_class = lambdas[:, None].repeat(1, len(prior))
    per_class[-1] = backward_lambdas(prior, recipe.backward_tau)
    return per_class
