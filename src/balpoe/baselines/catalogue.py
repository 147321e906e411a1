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

__all__ = ["METHODS", "Entry", "checked_settings", "load_method", "trained_methods"]


@dataclass(frozen=True)
class Entry:
    """A method as a recipe knows it."""

    parts: "str | Method"
    """Name of the module whose METHOD holds the rest; or that itself, of a method that is made at run time. A name
    after a colon is that of another variable: `module:NAME`."""
    summary: str
    num_experts: int = 1
    """Number of experts, unless the recipe says otherwise; a method of one expert has no other number."""
    least_experts: int = 1
    """Smallest number of experts that makes sense."""
    takes_lambdas: bool = False
    """Whether a recipe may give lambdas."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The method's own settings: names with default, doc line and limits, as `balpoe.settings.setting` makes them."""
    title: str = ""
    """What people call it, in tables; empty: its name."""
    paper: str = ""
    """Authors and year."""
    prescribes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a recipe that the method's paper decides: their values when the method is chosen, unless given."""
    evaluates: str = ""
    """Method whose run this one measures, adjusted to equally frequent classes; such a method has no training."""


NO_MIXING: dict[str, Any] = {"mixup_alpha": 0.0, "cutmix_probability": 0.0, "choose_mixup": False}
"""What methods prescribe that were published without mixup, or have a mixing of their own."""
BETA = setting(0.9999, "beta of the effective number of samples, by which classes are weighted", at_least=0, below=1)
DEFERRED = setting(0.8, "part of the training after which classes are weighted", at_least=0, at_most=1)
LARGEST_MARGIN = setting(0.5, "margin of the rarest class, on the cosine", at_least=0, at_most=2)

MARGINS_AND_WEIGHTS = {"max_margin": LARGEST_MARGIN, "beta": BETA, "reweight_from": DEFERRED}
TEMPERATURE_FACTOR = setting(
    0.05, "how much lower the diversity's temperature is for rare classes", at_least=0, at_most=1
)
RIDE_SETTINGS = {
    "diversity": setting(0.45, "weight of the diversity", at_least=0, at_most=100),
    "temperature_factor": TEMPERATURE_FACTOR,
    **MARGINS_AND_WEIGHTS,
}
BACKWARD_TAU = {
    "backward_tau": setting(2.0, "strength of the reversed prior; 2 in SADE's CIFAR runs", above=0, at_most=10)
}

METHODS = {
    "cross-entropy": Entry(
        "balpoe.baselines.adjusted:CROSS_ENTROPY",
        "cross-entropy, without mixup",
        title="cross-entropy",
        prescribes=NO_MIXING,
    ),
    "mixup": Entry(
        "balpoe.baselines.adjusted:CROSS_ENTROPY",
        "cross-entropy with mixup, as the recipe says",
        title="mixup",
        paper="Zhang et al. 2018",
    ),
    "logit-adjustment-after": Entry(
        "balpoe.baselines.adjusted:CROSS_ENTROPY",
        "a cross-entropy run whose logits are adjusted to equally frequent classes after training",
        title="logit adjustment after training",
        paper="Menon et al. 2021",
        prescribes=NO_MIXING,
        evaluates="cross-entropy",
    ),
    "logit-adjustment": Entry(
        "balpoe.baselines.adjusted:LOGIT_ADJUSTMENT",
        "cross-entropy of logits + tau * log prior",
        title="logit adjustment",
        paper="Menon et al. 2021",
        settings={"tau": setting(1.0, "strength of the prior in the loss; lambda = 1 - tau", at_least=-10, at_most=10)},
        prescribes=NO_MIXING,
    ),
    "balanced-softmax": Entry(
        "balpoe.baselines.adjusted:BALANCED_SOFTMAX",
        "cross-entropy of logits + log class counts",
        title="balanced softmax",
        paper="Ren et al. 2020",
        prescribes=NO_MIXING,
    ),
    "logit-adjustment-ensemble": Entry(
        "balpoe.baselines.adjusted:BALANCED_SOFTMAX",
        "experts that all have a logit-adjusted loss, lambda 0: BalPoE's uniform ensemble",
        num_experts=3,
        title="logit adjustment, ensemble",
        paper="Sanchez Aimar et al. 2023",
    ),
    "cb-focal": Entry(
        "balpoe.baselines.cb_focal",
        "a sigmoid focal loss, its classes weighted by their effective numbers of samples",
        title="CB-Focal",
        paper="Cui et al. 2019",
        settings={"gamma": setting(1.0, "power of the focal loss", at_least=0, at_most=20), "beta": BETA},
        prescribes=NO_MIXING,
    ),
    "ldam-drw": Entry(
        "balpoe.baselines.ldam",
        "a margin that is larger for rare classes; classes weighted towards the end",
        title="LDAM-DRW",
        paper="Cao et al. 2019",
        settings=MARGINS_AND_WEIGHTS,
        prescribes=NO_MIXING,
    ),
    "lade": Entry(
        "balpoe.baselines.lade",
        "balanced softmax, and a regulariser that makes logits log-ratios of densities",
        title="LADE",
        paper="Hong et al. 2021",
        settings={
            "strength": setting(0.01, "the regulariser's lambda, of its square", at_least=0, at_most=100),
            "alpha": setting(0.1, "weight of the regulariser", at_least=0, at_most=100),
        },
        prescribes=NO_MIXING,
    ),
    "ride": Entry(
        "balpoe.baselines.ride",
        "LDAM-DRW for each expert, and a term that drives the experts apart; all experts are asked",
        num_experts=3,
        least_experts=2,
        title="RIDE",
        paper="Wang et al. 2021",
        settings=RIDE_SETTINGS,
        prescribes=NO_MIXING,
    ),
    "ride-router": Entry(
        "balpoe.baselines.ride_router",
        "RIDE, and a router that asks further experts only where they may help",
        num_experts=3,
        least_experts=2,
        title="RIDE with router",
        paper="Wang et al. 2021",
        settings={
            **RIDE_SETTINGS,
            "router_weight": setting(100.0, "weight of samples for which a further expert helps", above=0, at_most=1e6),
            "router_epochs": setting(0.025, "epochs of the router, as a part of those before", above=0, at_most=10),
            "router_lr_factor": setting(0.1, "rate of the router, as a factor of lr", above=0, at_most=1e6),
            "router_hidden": setting(16, "hidden units of the router", at_least=1, at_most=65536),
            "router_logits": setting(
                30, "largest logits that the router looks at; 50 for ImageNet", at_least=1, at_most=1_000_000
            ),
        },
        prescribes=NO_MIXING,
    ),
    "tlc": Entry(
        "balpoe.baselines.tlc",
        "evidential experts, of which the later ones learn from samples that are still uncertain",
        num_experts=3,
        least_experts=2,
        title="TLC",
        paper="Li et al. 2022",
        settings={
            "threshold": setting(
                0.54,
                "share of the largest uncertainty from which on an expert learns from a sample",
                at_least=0,
                below=1,
            ),
            "evidence": setting(0.015, "weight of evidence for wrong classes, at the end", at_least=0, at_most=100),
            "diversity": setting(0.01, "weight of the diversity", at_least=0, at_most=100),
            "temperature_factor": TEMPERATURE_FACTOR,
            **MARGINS_AND_WEIGHTS,
        },
        prescribes=NO_MIXING,
    ),
    "remix": Entry(
        "balpoe.baselines.remix",
        "cross-entropy; mixup whose label goes to the rarer class",
        title="Remix",
        paper="Chou et al. 2020",
        prescribes=NO_MIXING,
        settings={
            "alpha": setting(1.0, "alpha of the weights' Beta distribution", above=0, at_most=1e6),
            "kappa": setting(3.0, "ratio of class counts from which on labels move", at_least=1, at_most=1e12),
            "tau": setting(0.5, "largest weight of the frequent class with which they do", at_least=0, at_most=1),
        },
    ),
    "unimix": Entry(
        "balpoe.baselines.unimix",
        "balanced softmax; mixup whose partners and weights favour rare classes",
        title="UniMix + Bayias",
        paper="Xu et al. 2021",
        prescribes=NO_MIXING,
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
        title="CMO + balanced softmax",
        paper="Park et al. 2022",
        prescribes=NO_MIXING,
        settings={
            "probability": setting(0.5, "part of the batches that gets patches", at_least=0, at_most=1),
            "patch_power": setting(
                1.0, "patches are drawn by one over class count to this power", at_least=0, at_most=10
            ),
        },
    ),
    "mislas": Entry(
        "balpoe.baselines.mislas",
        "mixup, then the classifier anew with balanced classes and label-aware smoothing",
        title="MiSLAS",
        paper="Zhong et al. 2021",
        settings={
            "smoothing_frequent": setting(0.4, "smoothing of the most frequent class", at_least=0, below=1),
            "smoothing_rare": setting(0.1, "smoothing of the rarest class", at_least=0, below=1),
            "classifier_lr_factor": setting(
                0.2, "rate of the classifier in the second stage, as a factor of lr", above=0, at_most=1e6
            ),
            "shift_statistics": setting(True, "whether batch normalisation follows the balanced batches"),
        },
        prescribes={"mixup_alpha": 1.0, "cutmix_probability": 0.0, "choose_mixup": False},
    ),
    "mdcs": Entry(
        "balpoe.baselines.mdcs",
        "experts of diverse lambdas; each learns from itself, from a weak view of an image to a strong one",
        num_experts=3,
        title="MDCS",
        paper="Zhao et al. 2023",
        settings={
            "weight": setting(0.6, "weight of the distillation", at_least=0, at_most=1e6),
            "temperature": setting(2.0, "temperature of the distillation", above=0, at_most=1e6),
            "warm_up": setting(0.1, "part of the training over which the weight rises", at_least=0, at_most=1),
        },
        prescribes=NO_MIXING,
    ),
    "sade": Entry(
        "balpoe.baselines.sade",
        "the loss of SADE: as BalPoE, but the last expert is made for the reversed prior",
        num_experts=3,
        least_experts=2,
        takes_lambdas=True,
        settings=BACKWARD_TAU,
        title="SADE",
        paper="Zhang et al. 2022",
    ),
    "sade-test-time": Entry(
        "balpoe.baselines.sade_test_time",
        "SADE, its experts weighted by what the unlabelled test images say (transductive)",
        num_experts=3,
        least_experts=2,
        takes_lambdas=True,
        settings=BACKWARD_TAU,
        title="SADE, test-time weights (transductive)",
        paper="Zhang et al. 2022",
    ),
    "balpoe": Entry(
        "balpoe.baselines.balpoe",
        "experts with logit-adjusted losses for label distributions from frequent to rare; cross-entropy is lambdas=1",
        num_experts=3,
        takes_lambdas=True,
        title="BalPoE",
        paper="Sanchez Aimar et al. 2023",
    ),
}


def trained_methods() -> list[str]:
    """Return the names of the methods that can be trained: all but those that evaluate another one's run."""
    return [name for name, entry in METHODS.items() if not entry.evaluates]


def checked_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a method, those given checked and the others with their defaults.

    >>> checked_settings("sade", {"backward_tau": 1})
    {'backward_tau': 1.0}
    """
    return checked_table(f"method {name}", METHODS[name].settings, values)


def load_method(name: str) -> "Method":
    """Return a method's parts."""
    parts = METHODS[name].parts
    if not isinstance(parts, str):
        return parts
    module, _, variable = parts.partition(":")
    method: Method = getattr(import_module(module), variable or "METHOD")
    return method
