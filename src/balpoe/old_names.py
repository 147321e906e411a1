"""Names that earlier versions had for arguments, recipe fields and keys of files: still read, never written."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from balpoe.errors import UserError

__all__ = ["OLD_METHODS", "OLD_NAMES", "OLD_SWITCHES", "current_names", "current_recipe", "reads_old_names"]

OLD_NAMES: dict[str, dict[str, str]] = {
    "recipe": {"averaged_end": "weight_average_fraction"},  # and the flags made from it
    "fit": {"averaged_end": "weight_average_fraction"},
    "evaluate": {"told": "adjust"},
    "shifted": {"told": "adjusted", "not_told": "as_trained"},  # test sets in an evaluation.json
}
"""From what has the names (a recipe, the arguments of a function, an entry of a file) to old names and present ones."""

OLD_METHODS = {"backward_tau": "sade"}
"""From fields of a recipe that asked for a method when they were above 0 to that method, whose setting they are now."""

OLD_SWITCHES = {"frozen": ("tune", {True: "head", False: "full"})}
"""From switches of a recipe to the field that has their place, and what on and off are there."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def current_names(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under the names that they have now.

    >>> current_names("shifted", {"name": "uniform", "told": 0.5})
    {'name': 'uniform', 'adjusted': 0.5}
    """
    table, found = OLD_NAMES[kind], {}
    for name, value in values.items():
        new = table.get(name, name)
        if new in found or (new != name and new in values):
            raise UserError(f"{name} is the old name of {new}, and both are given; leave {name} out")
        found[new] = value
    return found


def current_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's fields under the names that they have now.

    >>> current_recipe({"epochs": 20, "backward_tau": 2.0})
    {'epochs': 20, 'method': 'sade', 'method_settings': {'backward_tau': 2.0}}
    >>> current_recipe({"frozen": True})
    {'tune': 'head'}
    """
    found = current_names("recipe", values)
    for field, (new, meanings) in OLD_SWITCHES.items():
        if field in found:
            if new in found:
                raise UserError(f"{field} is an old name for a value of {new}, and both are given; leave {field} out")
            value = found.pop(field)
            found[new] = meanings[value] if isinstance(value, bool) else value  # which is refused
    for field, method in OLD_METHODS.items():
        if (value := found.pop(field, 0)) != 0:
            if found.get("method", method) != method:
                raise UserError(
                    f"{field} belongs to the method {method}, but method is {found['method']}; leave one out"
                )
            found |= {"method": method, "method_settings": {field: value}}
    return found


def reads_old_names(kind: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a function take keyword arguments under their old names, too."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*arguments: Arguments.args, **settings: Arguments.kwargs) -> Result:
            return function(*arguments, **current_names(kind, settings))

        return call

    return decorate
