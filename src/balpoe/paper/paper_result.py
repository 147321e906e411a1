"""A result of the paper: the recipe that measures it here, how many seeds, and the paper's numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import FIELDS, Recipe, updated
from balpoe.old_names import current_recipe

__all__ = ["Number", "PaperResult", "PaperTable", "ShiftedAccuracies", "recorded_recipe", "scores"]

Number = tuple[float, float | None]
"""In per cent, as printed, with its deviation where the paper prints one."""


@dataclass(frozen=True)
class PaperResult:
    """One row of a table: a recipe, trained with several seeds."""

    folder: str
    """Folder of its records, below results/, such as cifar100-lt/balpoe."""
    title: str
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3
    """Number of seeds."""
    paper: Mapping[str, Number] = field(default_factory=dict)
    as_released: bool = False
    repeats: bool = False
    """Whether the paper's numbers are those of another row: its recipe computed or read in another way."""
    shifted: "ShiftedAccuracies | None" = None
    """The paper's accuracies on the eleven test distributions; given, the result has a table of these."""
    first_seed: int = 1
    """The first of the seeds; the others follow it."""
    quoted: Mapping[str, Number] = field(default_factory=dict)
    """Numbers of another paper's own recipe that the paper quotes: to be looked at, and not reproduced by this one."""

    @property
    def seed_numbers(self) -> range:
        """The seeds.

        >>> list(PaperResult("cifar100-lt-fast/balpoe", "BalPoE", "cifar100-lt", seeds=2, first_seed=21).seed_numbers)
        [21, 22]
        """
        return range(self.first_seed, self.first_seed + self.seeds)

    def recipe(self, seed: int) -> Recipe:
        """Return the recipe to train."""
        return updated(preset(self.preset, self.as_released), {**self.changes, "seed": seed})

    def command(self) -> str:
        """Return the command line that trains it."""
        flags = [_flag(name, value) for name, value in self.changes.items()]
        released = ["--as-released"] if self.as_released else []
        return " ".join(["balpoe train", self.preset, *released, *flags])


@dataclass(frozen=True)
class ShiftedAccuracies:
    """Accuracies on the eleven test distributions, from forward-50 to backward-50."""

    as_trained: tuple[float, ...]
    adjusted: tuple[float, ...]


PaperTable = tuple[PaperResult, ...]
"""The rows of a table of the paper, or the points of a figure; some belong to several."""


def recorded_recipe(record: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a record; one of before a setting was there was made by what is its default now.

    >>> recorded_recipe({"recipe": {"epochs": 20}}).epochs
    20
    """
    values = current_recipe(record["recipe"])
    return updated(Recipe(), {key: value for key, value in values.items() if key in FIELDS})


def _flag(name: str, value: Any) -> str:
    if isinstance(value, Mapping):  # the method's or the optimiser's settings
        return " ".join(f"--set {key}={_text(setting)}" for key, setting in value.items())
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name.replace('_', '-')}"
    text = ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value)
    return f"--{name.replace('_', '-')} {text}"


def _text(value: Any) -> str:
    """A value as one would type it, in full: 10 and not 10.0, but 0.12345678."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def scores(accuracy: Number, **others: Number) -> dict[str, Number]:
    """Return numbers by metric."""
    return {"accuracy": accuracy, **others}
