"""One recipe with each of several methods: which are asked for, and what of the recipe is each one's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from balpoe.baselines.catalogue import METHODS
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.recipe import Recipe, updated
from balpoe.settings import parsed_setting
from balpoe.training.settings import OPTIMIZERS

__all__ = ["ALL", "method_names", "method_recipe", "method_recipes"]

ALL = "all"


def method_names(text: str) -> list[str]:
    """Return the methods that a text names, with commas between; "all" for the whole catalogue.

    >>> method_names("sade,balpoe")
    ['sade', 'balpoe']
    """
    if text == ALL:
        return list(METHODS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, [*METHODS, ALL])
    if len(set(names)) < len(names):
        raise UserError(f"--methods names a method twice: {text}; give each once")
    return names


def method_recipes(
    start: Recipe,
    names: Iterable[str],
    changes: Mapping[str, Any],
    settings: Sequence[tuple[str, str]] = (),
    left_out: dict[str, str] | None = None,
) -> dict[str, Recipe]:
    """Return a recipe for each method, all else being equal.

    Args:
        start: Recipe that all start from.
        names: Names of methods.
        changes: Fields that are asked for. Lambdas and the number of experts are for methods that have several, and
            what a method's paper prescribes (no mixup, say) stays so.
        settings: Settings of a method or of the optimiser with their texts, for whichever method has them.
        left_out: Where to put why a method does not go with the changes; None to refuse such a method.

    >>> list(method_recipes(Recipe(), ["balpoe", "sade"], {"epochs": 3}, [("backward_tau", "1.5")]))
    ['balpoe', 'sade']
    """
    names = list(names)
    entries = [METHODS[name] for name in names]
    if "lambdas" in changes and not any(entry.takes_lambdas for entry in entries):
        raise UserError("--lambdas: none of these methods has experts with lambdas; leave it out, or add balpoe")
    optimizer = changes.get("optimizer", start.optimizer)
    known = dict.fromkeys([*(key for entry in entries for key in entry.settings), *OPTIMIZERS.get(optimizer, {})])
    for key, _ in settings:
        if not known:
            raise UserError(f"--set {key}: neither these methods nor the optimiser has settings; leave it out")
        if key not in known:
            raise unknown_name("setting of these methods or of the optimiser", key, known)
    found = {}
    for name in names:
        try:
            found[name] = method_recipe(start, name, changes, settings)
        except UserError as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
    if left_out and not found:
        raise UserError(next(iter(left_out.values())))
    return found


def method_recipe(
    start: Recipe, name: str, changes: Mapping[str, Any], settings: Sequence[tuple[str, str]] = ()
) -> Recipe:
    """Return a recipe with another method: what that prescribes, then what of the changes and settings is for it.

    Of a method that evaluates another one's run it is that one's.
    """
    name = METHODS[name].evaluates or name
    entry = METHODS[name]
    first = start if name == start.method else updated(start, {"method": name, "lambdas": (), "num_experts": 0})
    not_for_it = {"lambdas"} if not entry.takes_lambdas else set()
    not_for_it |= {"num_experts"} if entry.num_experts == 1 else set()
    not_for_it |= set(entry.prescribes)
    recipe = updated(first, {key: value for key, value in changes.items() if key not in not_for_it})
    tables = {"method": entry.settings, "optimizer": OPTIMIZERS[recipe.optimizer]}
    given = {
        f"{owner}_settings": {
            **getattr(recipe, f"{owner}_settings"),
            **{key: parsed_setting(key, table[key], text) for key, text in settings if key in table},
        }
        for owner, table in tables.items()
    }
    return updated(recipe, given)
