"""Counts of the classes of a data set, and notes on somebody's own data, printed."""

from rich.console import Console
from torch import Tensor

from balpoe.data.loading.image_files import Samples
from balpoe.data.registry import DATASETS
from balpoe.data.user.load import NAMED
from balpoe.evaluation.metrics import shot_groups
from balpoe.experiments.build import own_data, recipe_data
from balpoe.experiments.recipe import Recipe, updated
from balpoe.method.intervals import evidence_counts
from balpoe.report.console import console, counts_table

__all__ = ["print_data"]


def print_data(name: str, recipe: Recipe) -> None:
    """Print the counts of each class, the imbalance, the shot groups, and of own data what their owner should know.

    Args:
        name: Name of the data set, or path of own data.
        recipe: Settings with which to load them.
    """
    out = console()
    if recipe.dataset != "own":
        train, test = recipe_data(recipe)
        _print_counts(out, name, train, test, recipe)
        return
    found = own_data(updated(recipe, {"skip_unreadable": True}), progress=True, look_for_series=True)
    _print_counts(out, name, found.train, found.test, recipe)
    series = [found.series.sentence()] if found.series else []
    for note in (*found.notes, *found.unreadable[NAMED:], *series):  # the first unreadable ones are among the notes
        out.print(f"Note: {note}")


def _print_counts(out: Console, name: str, train: Samples, test: Samples, recipe: Recipe) -> None:
    counts = train.class_counts
    groups = shot_groups(counts, (recipe.shot_groups[0], recipe.shot_groups[1]))
    members = {name: chosen.tolist() for name, chosen in groups.items()}
    out.print(counts_table(train.class_names, counts.tolist(), members, _group_counts(train, test)))
    sizes = ", ".join(f"{int(members.sum())} {name}" for name, members in groups.items())
    entry = DATASETS.get(recipe.dataset)
    wanted = recipe.imbalance_ratio if entry and entry.has_ratio else None
    out.print(
        f"{name}: {len(counts):,} classes, {len(train):,} training samples ({int(counts.max()):,} to "
        f"{int(counts.min()):,} a class, imbalance ratio {_ratio(counts, wanted)}), {len(test):,} "
        f"test samples; shot groups: {sizes}"
    )


def _group_counts(train: Samples, test: Samples) -> dict[str, list[int]]:
    """How many groups each class has, in training and in the test, where groups are known."""
    return {
        f"{part} groups": evidence_counts(data.targets, len(data.class_names), data.groups).tolist()
        for part, data in (("training", train), ("test", test))
        if data.groups is not None
    }


def _ratio(counts: Tensor, wanted: float | None) -> str:
    ratio = float(counts.max() / counts.min())
    rounded = wanted is not None and abs(ratio / wanted - 1) >= 0.005
    return f"{ratio:.4g}" + (f", {wanted:g} before counts are rounded to whole samples" if rounded else "")
