"""The methods that the paper compares with, each trained in the recipe of a preset, beside what the paper quotes."""

from collections.abc import Iterator, Mapping
from typing import Any

from balpoe.experiments.presets import preset
from balpoe.paper.paper_result import Number, PaperResult, PaperTable, scores

__all__ = ["METHODS_10", "METHODS_100", "METHODS_LONG", "rivals_at"]


def _mislas(frequent: float, lr_factor: float) -> dict[str, Any]:
    return {"smoothing_frequent": frequent, "smoothing_rare": 0.0, "classifier_lr_factor": lr_factor}


RIVALS = {  # methods that the paper compares with, and MDCS; with mixup as well where their papers prescribe none
    "cb-focal": ("CB-Focal", True),
    "ldam-drw": ("LDAM-DRW", True),
    "lade": ("LADE", True),
    "remix": ("Remix", False),
    "unimix": ("UniMix + Bayias", False),
    "cmo": ("CMO + balanced softmax", False),
    "mislas": ("MiSLAS", False),
    "ride": ("RIDE", True),
    "tlc": ("TLC", True),
    "mdcs": ("MDCS", False),
}


PRESCRIBED: dict[tuple[str, float], dict[str, dict[str, Any]]] = {  # by preset and ratio, where not the defaults
    ("cifar10-lt", 100): {
        "unimix": {"partner_power": -0.5},
        "mislas": _mislas(0.3, 0.5) | {"shift_statistics": False},
    },
    ("cifar100-lt", 50): {"mislas": _mislas(0.3, 0.1)},
    ("cifar100-lt", 10): {"mislas": _mislas(0.2, 0.1)},
}


def _rivals(
    name: str, base: str, quoted: Mapping[str, dict[str, Number]], *, ratio: float = 100.0, both: bool = True
) -> Iterator[PaperResult]:
    """The methods that the paper compares with, in the recipe of a preset.

    Args:
        name: Folder of the records.
        base: Preset that gives the recipe.
        quoted: What the paper quotes of them, from papers with other recipes.
        ratio: Imbalance ratio of the training set.
        both: Whether those whose papers prescribe no mixup are trained with the preset's, too.
    """
    data = {} if ratio == 100 else {"imbalance_ratio": ratio}
    for method, (title, without) in RIVALS.items():
        changes = {**data, "method": method}
        if method in (settings := PRESCRIBED.get((base, ratio), {})):
            changes["method_settings"] = settings[method]
        yield PaperResult(f"{name}/{method}", title, base, changes, quoted=quoted.get(method, {}))
        if without and both:
            mixed = {**changes, "mixup_alpha": preset(base).mixup_alpha}
            yield PaperResult(f"{name}/{method}-mixup", f"{title} with mixup", base, mixed)


def _sade(name: str, base: str, quoted: dict[str, Number]) -> PaperTable:
    """SADE with its test-time part: published without mixup, and with the preset's."""
    title, method = "SADE, test-time weights (transductive)", {"method": "sade-test-time"}
    without = PaperResult(
        f"{name}/sade-test-time", f"{title}, without mixup", base, {**method, "mixup_alpha": 0.0}, quoted=quoted
    )
    return without, PaperResult(f"{name}/sade-test-time-mixup", f"{title}, with mixup", base, method)


METHODS_100 = (*_rivals("cifar100-lt", "cifar100-lt", {
    "cb-focal": scores((39.6, None)),
    "ldam-drw": scores((42.0, None)),
    "lade": scores((45.4, None), many=(58.7, None), medium=(45.8, None), few=(29.8, None)),
    "remix": scores((41.9, None), ece=(33.6, None), mce=(51.0, None)),
    "unimix": scores((45.5, None), ece=(23.0, None), mce=(37.4, None)),
    "cmo": scores((46.6, None)),
    "mislas": scores((47.0, None), many=(60.4, None), medium=(49.6, None), few=(26.6, None), ece=(4.8, None)),
    "ride": scores((48.0, None), many=(68.1, None), medium=(49.2, None), few=(23.9, None)),
    "tlc": scores((49.0, None), many=(70.9, None), medium=(47.9, None), few=(28.1, None), ece=(22.8, None)),
}), *_sade("cifar100-lt", "cifar100-lt",
           scores((49.8, None), many=(65.4, None), medium=(49.3, None), few=(29.3, None))), PaperResult(
    # With 0.9999 and at most 500 images a class the weights are nearly those of inverse frequencies.
    "cifar100-lt/cb-focal-beta-0.99", "CB-Focal, beta 0.99", "cifar100-lt",
    {"method": "cb-focal", "method_settings": {"beta": 0.99}},
), PaperResult(
    "cifar100-lt/cb-focal-beta-0.9", "CB-Focal, beta 0.9", "cifar100-lt",
    {"method": "cb-focal", "method_settings": {"beta": 0.9}}, 1,
))  # fmt: skip

METHODS_10 = (
    PaperResult(
        "cifar10-lt-100/logit-adjusted", "one logit-adjusted expert with mixup", "cifar10-lt", {"lambdas": (0,)},
    ),
    PaperResult("cifar10-lt-100/uniform", "uniform ensemble", "cifar10-lt", {"lambdas": (0, 0, 0)}),
    *_sade("cifar10-lt-100", "cifar10-lt", scores((83.8, None))),
    *_rivals("cifar10-lt-100", "cifar10-lt", {
        "ldam-drw": scores((77.1, None)),
        "remix": scores((75.4, None), ece=(15.4, None), mce=(28.0, None)),
        "unimix": scores((82.7, None), ece=(10.2, None), mce=(25.5, None)),
        "mislas": scores((82.1, None), ece=(3.7, None)),
        "ride": scores((81.6, None)),
        "tlc": scores((80.3, None), ece=(13.1, None)),
    }),
    PaperResult(  # its public recipe for CIFAR-10; for CIFAR-100 it has the preset's 5e-4
        "cifar10-lt-100/tlc-weak-decay", "TLC, weight decay 2e-4", "cifar10-lt",
        {"method": "tlc", "weight_decay": 2e-4},
    ),
)  # fmt: skip


def rivals_at(ratio: int, **accuracies: float) -> PaperTable:
    """Return the same methods on another ratio of CIFAR-100-LT, each as its paper prescribes."""
    quoted = {method.replace("_", "-"): scores((accuracy, None)) for method, accuracy in accuracies.items()}
    return tuple(_rivals(f"cifar100-lt-{ratio}", "cifar100-lt", quoted, ratio=ratio, both=False))


LONG_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mdcs": ("MDCS", {"method": "mdcs"}),
    "uniform": ("uniform ensemble", {"lambdas": (0, 0, 0)}),
    "tlc-mixup": ("TLC with mixup", {"method": "tlc", "mixup_alpha": 0.4}),
    "ride": ("RIDE", {"method": "ride"}),
    "sade-loss": ("SADE's loss, without its test-time part, with mixup", {"method": "sade"}),
}
METHODS_LONG = tuple(
    PaperResult(f"cifar100-lt-long/{name}", title, "cifar100-lt-long", changes)
    for name, (title, changes) in LONG_ROWS.items()
)
"""The five best of the standard recipe beside BalPoE, with the long schedule and AutoAugment."""
