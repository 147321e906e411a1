"""balpoe data: what a data set holds, and what is wrong with it."""

import argparse
from collections.abc import Collection

from balpoe.cli.flags import Commands, add_fields, changed_fields
from balpoe.cli.train import starting_recipe
from balpoe.data.registry import DATASETS
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.presets import PRESETS, preset
from balpoe.experiments.recipe import FIELDS, FOR_OTHERS, FOR_OWN, Recipe, updated
from balpoe.files import is_user_data, is_written_as_path

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("data", help="classes, counts, imbalance and shot groups of a data set; bad files")
    sets = "; ".join(f"{name}, {entry.summary}" for name, entry in DATASETS.items())
    command.add_argument("name", metavar="NAME|FOLDER", help=f"your own data, as for train, or a data set: {sets}")
    add_fields(
        command,
        ("imbalance_ratio", "profile", "shot_groups", "data_root", "download", "test_fraction", "group", "image_size"),
    )
    command.set_defaults(work=_data)


def _data(arguments: argparse.Namespace) -> None:
    recipe, given = _recipe_of(arguments.name), changed_fields(arguments)
    _check_read(recipe.dataset, given)
    recipe = updated(recipe, given)
    from balpoe.cli.data_counts import print_data

    print_data(arguments.name, recipe)


def _recipe_of(name: str) -> Recipe:
    """The recipe that takes a data set by its name, or somebody's own data."""
    known = FIELDS["dataset"].metadata["choices"]
    if name in known and name != "own":
        return preset(name) if name in PRESETS else Recipe(dataset=name)
    if is_user_data(name):
        return starting_recipe(name, as_released=False)[0]
    if is_written_as_path(name):
        raise UserError(f"there is nothing at {name}; give a data set, or where your images are")
    raise UserError(f"there is no file or folder {name}; {unknown_name('data set', name, known)}")


def _check_read(dataset: str, given: Collection[str]) -> None:
    """Refuse settings that this data set does not have."""
    own = dataset == "own"
    if own and "data_root" in given:
        raise UserError("your own data are where you say, so that --data-root is one too many; leave it out")
    cut = () if own or DATASETS[dataset].has_ratio else ("imbalance_ratio", "profile")
    if name := next((name for name in given if name in (FOR_OTHERS if own else (*FOR_OWN, *cut))), None):
        what = "your own data, which are taken as they are" if own else dataset
        raise UserError(f"--{name.replace('_', '-')} means nothing for {what}; leave it out")
