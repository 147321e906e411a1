"""Names of runs: short ones, a folder for each recipe, and what differs between two of them."""

import itertools
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from balpoe.errors import UserError
from balpoe.experiments.recipe import FIELDS, Recipe, updated
from balpoe.experiments.run_folder import Run
from balpoe.training.settings import OPTIMIZERS

__all__ = ["changed_name", "differences", "differences_text", "named_recipe", "run_folder"]

SHORT_NAME = 40
LONGEST_NAME = 150
WORDS = {"data_version": "other files or labels", "weights_version": "other weights"}
"""What is said of fields whose value tells nobody anything."""


def run_folder(
    root: Path,
    name: str,
    recipe: Recipe,
    *,
    fixed: bool = False,
    start: Recipe | None = None,
    anew: Collection[int] = (),
) -> Path:
    """Return the folder for a recipe: the one where it is training already, or a new one under a short name.

    Where the name is another recipe's, one that says what differs is taken while it is short (digits-lt-epochs-40); own
    data, and a recipe with many changes, get a number (photos-2).

    Args:
        root: Folder of all runs.
        name: Name that is wanted.
        recipe: Recipe to be trained there.
        fixed: Whether the name was asked for; then a different recipe under it is refused.
        start: Recipe that goes by this name, also where it was never trained; None for the first that comes.
        anew: Seeds that are trained anew, whatever was trained with them under a name that was asked for.
    """
    if fixed:
        _check_held(root, name, recipe, anew)
        return root / name / f"seed-{recipe.seed}"
    before = named_recipe(root, name, recipe, start)
    spelt = name if before is None else changed_name(name, recipe, before)  # what earlier versions have always taken
    for each in (name, spelt, *_numbered(root, name)):
        if (held := _held(root, each, recipe.seed)) is not None and _same(recipe, held):
            return root / each / f"seed-{recipe.seed}"
    short = recipe.dataset != "own" and len(spelt) <= SHORT_NAME
    numbers = (f"{name}-{number}" for number in itertools.count(2))
    wanted = [name] if before is None else [spelt] if short else []
    free = next(each for each in itertools.chain(wanted, numbers) if _held(root, each) is None)
    return root / free / f"seed-{recipe.seed}"


def named_recipe(root: Path, name: str, recipe: Recipe, start: Recipe | None = None) -> Recipe | None:
    """Return the recipe that a name stands for: the one to start from, if `recipe` is another, or what was trained.

    Args:
        root: Folder of all runs.
        name: Name of a run.
        recipe: Recipe that is compared.
        start: Recipe that goes by this name, also where it was never trained.
    """
    return start if start is not None and not _same(recipe, start) else _held(root, name)


def changed_name(base: str, recipe: Recipe, reference: Recipe) -> str:
    """Return a run name that says what differs from the reference, such as digits-lt-epochs-40.

    >>> changed_name("cifar100-lt", Recipe(epochs=40, lambdas=(0,)), Recipe())
    'cifar100-lt-lambdas-0-epochs-40'
    """
    values = differences(recipe, reference)
    name = "-".join((base, *(f"{name.replace('_', '-')}-{_plain(value)}" for name, value in values.items())))
    # A file system takes names of 255 bytes; a checksum stands for what is cut off.
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{zlib.crc32(name.encode()):08x}"


def differences(recipe: Recipe, reference: Recipe) -> dict[str, Any]:
    """Return the fields and settings in which a recipe differs, with its values; seeds and machines do not count.

    >>> differences(Recipe(epochs=40, seed=3), Recipe())
    {'epochs': 40}
    """
    if recipe.method != reference.method:  # what comes with a method goes without saying
        found = {"method": recipe.method, **differences(recipe, _with_method(reference, recipe.method))}
        return {name: found[name] for name in (*FIELDS, *found) if name in found}  # in the usual order
    ours, theirs = recipe.identity(), reference.identity()
    changed = [name for name in FIELDS if name in ours and name != "seed" and ours[name] != theirs[name]]
    if "lambdas" in changed and "num_experts" in changed:
        changed.remove("num_experts")  # the lambdas say it
    values = {name: ours[name] for name in changed if not isinstance(ours[name], dict)}
    usual = {name: item.default for name, item in OPTIMIZERS[recipe.optimizer].items()}
    before = usual if "optimizer" in changed else theirs["optimizer_settings"]
    for table, known in (("method_settings", theirs["method_settings"]), ("optimizer_settings", before)):
        values |= {name: value for name, value in ours[table].items() if value != known[name]}
    return values


def _with_method(recipe: Recipe, method: str) -> Recipe:
    """A recipe with another method; without its own experts, where these are too few for it."""
    try:
        return updated(recipe, {"method": method})
    except UserError:
        return updated(recipe, {"method": method, "num_experts": 0, "lambdas": ()})


def differences_text(recipe: Recipe, reference: Recipe) -> str:
    """Return what differs as a phrase.

    >>> differences_text(Recipe(epochs=40, lambdas=(1, 0), data_version="1a2b3c4d"), Recipe())
    'other files or labels, lambdas 1,0, epochs 40'
    """
    return ", ".join(
        WORDS.get(name) or f"{name.replace('_', ' ')} {_plain(value, ',')}"
        for name, value in differences(recipe, reference).items()
    )


def _check_held(root: Path, name: str, recipe: Recipe, anew: Collection[int]) -> None:
    if anew:
        _check_others(root / name, recipe, anew)
        return
    held = _held(root, name, recipe.seed)
    if held is not None and not _same(recipe, held):
        raise UserError(
            f"{root / name} holds a run of another recipe (yours has {differences_text(recipe, held)}); "
            "choose another --name, or --fresh"
        )


def _check_others(folder: Path, recipe: Recipe, anew: Collection[int]) -> None:
    """Refuse seeds that stay beside those that are trained anew, and are of another recipe."""
    found = (path.parent for path in folder.glob("seed-*/recipe.toml"))
    seeds = {int(number): path for path in found if (number := path.name.removeprefix("seed-")).isdecimal()}
    left = {seed: _readable(path) for seed, path in sorted(seeds.items()) if seed not in anew}
    others = {seed: held for seed, held in left.items() if held is None or not _same(recipe, held)}
    if others:
        every, known = ",".join(map(str, sorted({*anew, *left}))), next(filter(None, others.values()), None)
        apart = f" (yours has {differences_text(recipe, known)})" if known else ", which cannot be read"
        raise UserError(
            f"{folder} also holds seed {', '.join(map(str, others))} of another recipe{apart}; choose another --name, "
            f"or train all of them anew (--seeds {every} --fresh)"
        )


def _readable(folder: Path) -> Recipe | None:
    try:
        return Run(folder).recipe()
    except UserError:
        return None


def _held(root: Path, name: str, seed: int = 0) -> Recipe | None:
    """The recipe that is trained under a name: seeds of one name are averaged, so that all of them are of one."""
    folders = (root / name / f"seed-{seed}", *sorted((root / name).glob("seed-*")))
    return next((run.recipe() for run in map(Run, folders) if run.exists), None)


def _numbered(root: Path, name: str) -> list[str]:
    """The names with a number that are there."""
    return sorted(path.name for path in root.glob("*") if re.fullmatch(rf"{re.escape(name)}-\d+", path.name))


def _same(recipe: Recipe, other: Recipe) -> bool:
    return {**recipe.identity(), "seed": None} == {**other.identity(), "seed": None}


def _plain(value: Any, between: str = "_") -> str:
    """A value as part of a file name, or of a phrase."""
    if isinstance(value, tuple):
        return between.join(_plain(part) for part in value)
    text = re.sub(r"[/\\]", "_", str(value).lower())  # a pattern on paths has slashes
    return text.removesuffix(".0").removesuffix(".safetensors") or "none"
