"""balpoe train: a preset, a recipe file or somebody's own data, with one seed or several."""

import argparse
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from balpoe.cli.flags import (
    RECIPE_FLAGS,
    Commands,
    add_fields,
    add_runs_root,
    add_settings,
    changed_fields,
    with_settings,
)
from balpoe.cli.heavy_imports import heavy_imports
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.presets import PRESETS, preset, read_recipe
from balpoe.experiments.recipe import Recipe, updated
from balpoe.files import holds_features, is_user_data, is_written_as_path

if TYPE_CHECKING:
    from balpoe.experiments.automatic import AutomaticChoice

__all__ = ["add_parser", "asked_changes", "check_name", "chosen_recipe", "chosen_seeds", "starting_recipe"]


TUNED = {"adapters": "own-adapters", "full": "own-full"}
"""Presets of own images by how much of the backbone learns; else heads alone."""

UNTRAINED = Recipe(dataset="own", calibrate=True)
"""For a network that nobody has pretrained: all of it is trained, as the paper does on CIFAR."""

SAYS_HOW_ADAPTED = ("adapter", "adapter_size", "adapter_split")
SAYS_WHAT_LEARNS = ("network", "weights", "tune", "frozen", *SAYS_HOW_ADAPTED)
"""Flags, an old one among them, with any of which nothing is chosen automatically."""


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser(
        "train", help="train a preset, a recipe file or own data; continues what was interrupted"
    )
    command.add_argument(
        "recipe",
        metavar="NAME|FILE|FOLDER",
        help="a preset, a TOML file, or own data: a folder with a subfolder of images for each class, a .csv or "
        ".parquet of paths and labels, or features in a .npz",
    )
    command.add_argument(
        "--baseline",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="train cross-entropy, too, to compare with (default: for own data)",
    )
    command.add_argument("--seeds", metavar="N,N,...", help="several seeds, one run each")
    command.add_argument("--name", help="name of the run; by default the recipe's, with what was changed")
    command.add_argument("--fresh", action="store_true", help="train anew; an earlier run is moved aside")
    command.add_argument("--as-released", action="store_true", help="start from every value of the released code")
    add_runs_root(command)
    add_settings(command)
    add_fields(command, RECIPE_FLAGS, grouped=True)
    command.set_defaults(work=_train)


def _train(arguments: argparse.Namespace) -> None:
    adapted = [name for name in SAYS_HOW_ADAPTED if getattr(arguments, name) is not None]
    tune = arguments.tune or ("adapters" if adapted else None)
    start, base = starting_recipe(arguments.recipe, arguments.as_released, tune, arguments.network)
    recipe = chosen_recipe(arguments, start)
    if adapted and recipe.tune != "adapters":
        flag = adapted[0].replace("_", "-")
        raise UserError(f"--{flag} is for adapters, but tune is {recipe.tune}; add --tune adapters, or leave it out")
    seeds, name, given = chosen_seeds(arguments, recipe), arguments.name, arguments.baseline
    check_name(name)
    with heavy_imports():  # not before the recipe is known to be right
        from balpoe.experiments.early_start import start_early

        start_early(recipe)
        from balpoe.cli.train_seeds import train

    train(
        recipe,
        seeds,
        root=Path(arguments.runs),
        base=name or base,
        start=recipe if is_user_data(arguments.recipe) else start,  # a folder's first run is called as the folder is
        fixed=bool(name),
        fresh=arguments.fresh,
        baseline=_wants_baseline(recipe) if given is None else given,
        automatic=functools.partial(_automatic_recipe, arguments) if _says_nothing(arguments) else None,
    )


def _says_nothing(arguments: argparse.Namespace) -> bool:
    """Whether what is to learn from own images is left to what is found."""
    images = is_user_data(arguments.recipe) and not holds_features(arguments.recipe)
    return images and all(getattr(arguments, name) is None for name in SAYS_WHAT_LEARNS)


def _automatic_recipe(arguments: argparse.Namespace, choice: "AutomaticChoice") -> Recipe:
    """The recipe of an automatic choice, with what the flags change of it."""
    start = updated(preset(choice.preset), {"data_root": arguments.recipe, "network": choice.network})
    return chosen_recipe(arguments, start)


def _wants_baseline(recipe: Recipe) -> bool:
    """Whether cross-entropy is trained beside it: for own data, unless it is just that, or lambdas are asked for."""
    return recipe.dataset == "own" and not recipe.lambdas and recipe.method != "cross-entropy"


def starting_recipe(
    text: str, as_released: bool, tune: str | None = None, network: str | None = None
) -> tuple[Recipe, str]:
    """Return the recipe of a preset, a file or own data, and its name.

    Args:
        text: Name of a preset, or a path.
        as_released: Whether a preset has every value of the released code.
        tune: How much of a backbone own images are to train, if that is asked for.
        network: The network, if it is asked for.
    """
    if text in PRESETS:
        return preset(text, as_released), f"{text}-as-released" if as_released else text
    path = Path(text)
    if is_user_data(path):
        own = _own_recipe(path, tune, network)
        return updated(own, {"data_root": text}), path.resolve().name if path.is_dir() else path.stem
    if path.suffix == ".toml" or path.is_file():
        return read_recipe(path, as_released), path.stem
    if is_written_as_path(text):
        raise UserError(f"there is nothing at {text}; give a preset, a recipe file, or where your images are")
    raise UserError(f"there is no file or folder {text}; {unknown_name('recipe', text, PRESETS)}")


def _own_recipe(path: Path, tune: str | None, network: str | None) -> Recipe:
    if holds_features(path):
        return preset("own-features")
    if network == "resnet32" and tune in (None, "full"):
        return UNTRAINED
    return preset(TUNED.get(tune or "", "own"))


def chosen_recipe(arguments: argparse.Namespace, start: Recipe) -> Recipe:
    """Return the recipe to train: where to start from, with what the flags change of it."""
    return with_settings(updated(start, asked_changes(arguments)), arguments.settings)


def asked_changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that flags change, of a recipe for what is to be trained on."""
    changes: dict[str, Any] = changed_fields(arguments)
    if is_user_data(arguments.recipe) and (twice := {"dataset", "data_root"} & set(changes)):
        flag = min(twice).replace("_", "-")
        raise UserError(f"{arguments.recipe} says what to train on, so that --{flag} is one too many; leave it out")
    return changes


def chosen_seeds(arguments: argparse.Namespace, recipe: Recipe) -> list[int]:
    """Return the seeds of --seeds, or the recipe's."""
    if arguments.seeds is None:
        return [recipe.seed]
    if arguments.seed is not None:
        raise UserError("give --seed or --seeds, not both")
    try:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds wants whole numbers with commas between, but is {arguments.seeds!r}") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds names a seed twice: {arguments.seeds}; give each once")
    return [updated(recipe, {"seed": seed}).seed for seed in seeds]


def check_name(name: str | None) -> None:
    """Refuse what cannot be the name of a folder."""
    if name is not None and (not re.fullmatch(r"[^/\\\0]{1,150}", name) or name in (".", "..")):
        raise UserError(
            f"--name wants the name of a folder, without slashes, but is {name!r}; --runs says where it lies"
        )
