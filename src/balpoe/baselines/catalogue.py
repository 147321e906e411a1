"""Methods by name: what each is, how many experts it has, and its settings with their limits; readable without torch.

To add a method, write its file, which ends with `METHOD = Method(...)`, and its entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from balpoe.settings import checked_table, setting

if TYPE_CHECKING:
    from balpoe.baselines.method import Method

__all__ = ["METHODS", "Entry", "checked_settings", "load_method"]


@dataclass(frozen=True)
class Entry:
    """A method as a recipe knows it."""

    parts: "str | Method"
    """Name of the module whose METHOD holds the rest; or that itself, of a method that is made at run time."""
    summary: str
    num_experts: int = 1
    """Number of experts, unless the recipe says otherwise."""
    takes_lambdas: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The method's own settings: names with default, doc line and limits, as `balpoe.settings.setting` makes them."""


METHODS = {
    "balpoe": Entry(
        "balpoe.baselines.balpoe",
        "experts with logit-adjusted losses for label distributions from frequent to rare; cross-entropy is lambdas=1",
        num_experts=3,
        takes_lambdas=True,
    ),
    "sade": Entry(
        "balpoe.baselines.sade",
        "the loss of SADE: as BalPoE, but the last expert is made for the reversed prior",
        num_experts=3,
        takes_lambdas=True,
        settings={
            "backward_tau": setting(2.0, "strength of the reversed prior; 2 in SADE's CIFAR runs", above=0, at_most=10)
        },
    ),
}


def checked_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a method, those given checked and the others with their defaults.

    >>> checked_settings("sade", {"backward_tau": 1})
    {'backward_tau': 1.0}
    """
    return checked_table(f"method {name}", METHODS[name].settings, values)


def load_method(name: str) -> "Method":
    """Return a method's parts."""
    parts = METHODS[name].parts
    method: Method = import_module(parts).METHOD if isinstance(parts, str) else parts
    return method
