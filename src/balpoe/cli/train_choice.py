"""What `balpoe train FOLDER` trains: chosen where nobody says so, and said with its cost before it starts."""

import contextlib
import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.user.load import UserData
from balpoe.errors import UserError
from balpoe.experiments.automatic import (
    AutomaticChoice,
    Offer,
    adaptable_networks,
    all_choices,
    automatic_choice,
    what_learns,
)
from balpoe.experiments.build import with_size_of
from balpoe.experiments.cost_estimate import estimated_seconds, in_words, measured_costs
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run
from balpoe.experiments.run_names import differences
from balpoe.networks.weight_files import at_hand, get_weights
from balpoe.training.distributed import chosen_device

__all__ = ["RecipeOf", "Trainings", "choose", "say_what_is_asked"]

RecipeOf = Callable[[AutomaticChoice], Recipe]
"""The recipe of a choice, with what flags change of it."""
OTHERWISE = "--tune head, adapters or full, --network NAME and --weights FILE choose otherwise."


class Trainings(NamedTuple):
    """The trainings that a choice is for."""

    root: Path
    """Folder of all runs."""
    name: str
    """Name of the runs, or its beginning."""
    seeds: Sequence[int]
    baseline: bool
    """Whether cross-entropy is trained as well."""
    fresh: bool
    """Whether to train anew."""


def choose(out: Console, recipe_of: RecipeOf, found: UserData, trainings: Trainings) -> Recipe:
    """Return the recipe of an automatic choice, and print what was chosen, why, and about what it costs.

    A run of the same data and flags that is there goes on as it was begun, whatever this machine offers.

    Args:
        out: Where to print.
        recipe_of: What makes a recipe of a choice.
        found: Own images.
        trainings: The trainings.
    """
    begun = None if trainings.fresh else _begun(recipe_of, trainings)
    if begun is not None:
        out.print(f"Chosen: {begun.sentence}, because {begun.reason}. {OTHERWISE}")
        return recipe_of(begun)
    choice = automatic_choice(_offer(recipe_of(all_choices()[0]), found))
    recipe = recipe_of(choice)
    out.print(f"Chosen: {choice.sentence}, because {choice.reason}. {_cost(recipe, found, trainings)} {OTHERWISE}")
    return recipe


def say_what_is_asked(out: Console, recipe: Recipe, found: UserData, trainings: Trainings) -> None:
    """Print what somebody asked to train on own images, and about what it costs.

    Args:
        out: Where to print.
        recipe: What was asked for.
        found: Own images.
        trainings: The trainings.
    """
    what = what_learns(recipe.tune, recipe.network)
    out.print(f"To be trained: {what}. {_cost(recipe, found, trainings)}")


def _begun(recipe_of: RecipeOf, trainings: Trainings) -> AutomaticChoice | None:
    """The choice that a run of the same data and flags was begun with."""
    name, seed = glob.escape(trainings.name), trainings.seeds[0]
    for folder in sorted(trainings.root.glob(f"{name}*/seed-{seed}")):
        with contextlib.suppress(UserError):  # a garbled recipe is a mistake where that run is asked for
            held = Run(folder).recipe()
            for choice in all_choices():
                if not differences(recipe_of(choice), held):
                    return choice._replace(reason=f"{folder} was begun so")
    return None


def _offer(recipe: Recipe, found: UserData) -> Offer:
    """What is here; weights are fetched where there is a GPU to use them, and a way to them."""
    gpu = _gpu(recipe.device)
    offer = Offer(len(found.train), len(found.train.class_names), gpu, names := adaptable_networks(recipe.image_size))
    if automatic_choice(offer).preset == "own":  # whatever weights there are
        return offer._replace(weights=())
    here = [name for name in names if at_hand(name)]
    if not here:
        with contextlib.suppress(UserError):  # no way to the hub
            get_weights(names[0])
            here = names[:1]
    return offer._replace(weights=here)


def _gpu(device: str) -> str:
    """Name of the GPU that training would use; empty where it would use none."""
    return torch.cuda.get_device_name() if chosen_device(device) == "cuda" else ""


def _may_grow(recipe: Recipe) -> bool:
    """Whether samples that heads go without decide how many epochs there are."""
    return recipe.tune == "head" and recipe.calibrate and recipe.epochs == 0


def _cost(recipe: Recipe, found: UserData, trainings: Trainings) -> str:
    assert isinstance(found.train, PictureFiles)
    number = len(trainings.seeds) * (2 if trainings.baseline else 1)
    try:
        costs = measured_costs(recipe, with_size_of(recipe, found.train))
    except torch.OutOfMemoryError:
        return "What it costs cannot be measured: the GPU's memory is full."
    seconds = estimated_seconds(recipe, costs, train=len(found.train), test=len(found.test), trainings=number)
    size = with_size_of(recipe, found.train).preprocessing.size[-1]
    images = f"{len(found.train) + len(found.test):,} images at {size} pixels"
    times = "one training" if number == 1 else f"{number} trainings"
    alone = ", in one process" if recipe.devices != 1 or recipe.num_nodes > 1 else ""
    more = ", or a few times that where held-out samples ask for more epochs" if _may_grow(recipe) else ""
    slow = " without a GPU" if recipe.tune != "head" and chosen_device(recipe.device) == "cpu" else ""
    how = f"by the time that a few images take here{alone}"
    return f"That takes {in_words(seconds)}{slow}{more}: {images}, {times}, {how}."
