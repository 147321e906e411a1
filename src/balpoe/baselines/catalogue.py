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
    "remix": Entry(
        "balpoe.baselines.remix",
        "cross-entropy; mixup whose label goes to the rarer class",
        settings={
            "alpha": setting(1.0, "alpha of the weights' Beta distribution", above=0, at_most=1e6),
            "kappa": setting(3.0, "ratio of class counts from which on labels move", at_least=1, at_most=1e12),
            "tau": setting(0.5, "largest weight of the frequent class with which they do", at_least=0, at_most=1),
        },
    ),
    "unimix": Entry(
        "balpoe.baselines.unimix",
        "balanced softmax; mixup whose partners and weights favour rare classes (UniMix + Bayias)",
        settings={
            "alpha": setting(0.8, "alpha of the weights' Beta distribution", above=0, at_most=1e6),
            "partner_power": setting(
                -0.1, "partners are drawn by class count to this power; -0.5 for CIFAR-10", at_least=-10, at_most=10
            ),
        },
    ),
    "cmo": Entry(
        "balpoe.baselines.cmo",
        "balanced softmax; patches of rare classes pasted on images as they come",
        settings={
            "probability": setting(0.5, "part of the batches that gets patches", at_least=0, at_most=1),
            "patch_power": setting(
                1.0, "patches are drawn by one over class count to this power", at_least=0, at_most=10
            ),
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
