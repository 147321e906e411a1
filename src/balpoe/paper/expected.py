"""What the paper measured: of each result the recipe, how many seeds, and the paper's numbers.

Numbers are per cent, as printed, with their deviation where the paper prints one.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated

__all__ = [
    "ALL_METHODS",
    "ALSO_SHIFTED",
    "OVERVIEW",
    "PAPER_RESULTS",
    "PAPER_TABLES",
    "TABLES_AND_FIGURES",
    "Number",
    "PaperResult",
    "PaperTable",
    "ShiftedAccuracies",
]

Number = tuple[float, float | None]


@dataclass(frozen=True)
class PaperResult:
    """One row of a table: a recipe, trained with several seeds."""

    folder: str
    """Folder of its records, below results/, such as cifar100-lt/balpoe."""
    title: str
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3
    """Number of seeds; they are 1, 2, ..."""
    paper: Mapping[str, Number] = field(default_factory=dict)
    as_released: bool = False
    repeats: bool = False
    """Whether the paper's numbers are those of another row: its recipe computed or read in another way."""
    shifted: "ShiftedAccuracies | None" = None
    """The paper's accuracies on the eleven test distributions; given, the result has a table of these."""
    quoted: Mapping[str, Number] = field(default_factory=dict)
    """Numbers of another paper's own recipe that the paper quotes: to be looked at, and not reproduced by this one."""

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


def _flag(name: str, value: Any) -> str:
    if isinstance(value, Mapping):  # the method's settings
        return " ".join(f"--set {key}={setting}" for key, setting in value.items())
    text = ",".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
    return f"--{name.replace('_', '-')} {text}"


def _scores(accuracy: Number, **others: Number) -> dict[str, Number]:
    return {"accuracy": accuracy, **others}


BALPOE_100 = _scores(
    (52.0, 0.5), many=(67.7, 0.3), medium=(54.2, 0.9), few=(31.0, 0.6), ece=(4.9, 1.0), mce=(11.3, 1.6)
)
PLAIN_100 = _scores((38.8, 0.6), many=(67.6, 1.0), medium=(36.7, 1.2), few=(7.6, 0.6), ece=(32.0, 0.4), mce=(47.3, 1.8))

STANDARD_100 = (
    PaperResult(
        "cifar100-lt/cross-entropy", "cross-entropy", "cifar100-lt", {"lambdas": (1,), "mixup_alpha": 0.0}, 5,
        PLAIN_100,
    ),
    PaperResult(
        "cifar100-lt/cross-entropy-mixup", "cross-entropy with mixup", "cifar100-lt", {"lambdas": (1,)}, 5,
        _scores((40.8, 0.7), ece=(9.6, 0.8), mce=(15.9, 1.5)),
    ),
    PaperResult(
        "cifar100-lt/cross-entropy-experts", "three cross-entropy experts, mixup", "cifar100-lt",
        {"lambdas": (1, 1, 1)},
    ),
    PaperResult(
        "cifar100-lt/logit-adjusted-no-mixup", "one logit-adjusted expert without mixup", "cifar100-lt",
        {"lambdas": (0,), "mixup_alpha": 0.0}, 5,
    ),
    PaperResult(
        "cifar100-lt/logit-adjusted", "one logit-adjusted expert with mixup", "cifar100-lt", {"lambdas": (0,)}, 5,
        _scores((47.0, None)),
    ),
    PaperResult(
        "cifar100-lt/balpoe-no-mixup", "BalPoE without mixup", "cifar100-lt", {"mixup_alpha": 0.0}, 5,
        _scores((49.2, 0.5), ece=(17.6, 0.4), mce=(28.9, 0.9)),
    ),
    PaperResult(
        "cifar100-lt/uniform", "uniform ensemble", "cifar100-lt", {"lambdas": (0, 0, 0)}, 3, _scores((52.0, None)),
    ),
    PaperResult(
        "cifar100-lt/balpoe", "BalPoE", "cifar100-lt", {}, 5, BALPOE_100,
        shifted=ShiftedAccuracies(
            (65.1, 63.1, 60.8, 58.4, 54.8, 52.0, 48.6, 44.6, 41.8, 38.0, 36.1),
            (70.3, 66.8, 62.7, 59.3, 54.8, 52.0, 49.2, 46.9, 46.2, 45.4, 46.1),
        ),
    ),
    PaperResult(
        "cifar100-lt/as-released", "BalPoE, every value of the released code", "cifar100-lt", {}, 3,
        BALPOE_100, as_released=True, repeats=True,
    ),
    PaperResult(
        "cifar100-lt/reduced-width", "BalPoE at the width of RIDE and SADE", "cifar100-lt", {"width": (16, 24, 48)},
    ),
    PaperResult(
        "cifar100-lt/sade-loss", "SADE's loss, without its test-time part, with mixup", "cifar100-lt",
        {"method": "sade"},
    ),
    PaperResult(
        "cifar100-lt/sade-loss-no-mixup", "SADE's loss, without its test-time part, without mixup", "cifar100-lt",
        {"method": "sade", "mixup_alpha": 0.0},
    ),
    PaperResult(
        "cifar100-lt/effective-prior", "BalPoE, prior from the effective number", "cifar100-lt",
        {"prior_method": "effective"},
    ),
)  # fmt: skip


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
    "cb-focal": _scores((39.6, None)),
    "ldam-drw": _scores((42.0, None)),
    "lade": _scores((45.4, None), many=(58.7, None), medium=(45.8, None), few=(29.8, None)),
    "remix": _scores((41.9, None), ece=(33.6, None), mce=(51.0, None)),
    "unimix": _scores((45.5, None), ece=(23.0, None), mce=(37.4, None)),
    "cmo": _scores((46.6, None)),
    "mislas": _scores((47.0, None), many=(60.4, None), medium=(49.6, None), few=(26.6, None), ece=(4.8, None)),
    "ride": _scores((48.0, None), many=(68.1, None), medium=(49.2, None), few=(23.9, None)),
    "tlc": _scores((49.0, None), many=(70.9, None), medium=(47.9, None), few=(28.1, None), ece=(22.8, None)),
}), *_sade("cifar100-lt", "cifar100-lt",
           _scores((49.8, None), many=(65.4, None), medium=(49.3, None), few=(29.3, None))), PaperResult(
    # With 0.9999 and at most 500 images a class the weights are nearly those of inverse frequencies.
    "cifar100-lt/cb-focal-beta-0.99", "CB-Focal, beta 0.99", "cifar100-lt",
    {"method": "cb-focal", "method_settings": {"beta": 0.99}},
))  # fmt: skip

METHODS_10 = (
    PaperResult(
        "cifar10-lt-100/logit-adjusted", "one logit-adjusted expert with mixup", "cifar10-lt", {"lambdas": (0,)},
    ),
    PaperResult("cifar10-lt-100/uniform", "uniform ensemble", "cifar10-lt", {"lambdas": (0, 0, 0)}),
    *_sade("cifar10-lt-100", "cifar10-lt", _scores((83.8, None))),
    *_rivals("cifar10-lt-100", "cifar10-lt", {
        "ldam-drw": _scores((77.1, None)),
        "remix": _scores((75.4, None), ece=(15.4, None), mce=(28.0, None)),
        "unimix": _scores((82.7, None), ece=(10.2, None), mce=(25.5, None)),
        "mislas": _scores((82.1, None), ece=(3.7, None)),
        "ride": _scores((81.6, None)),
        "tlc": _scores((80.3, None), ece=(13.1, None)),
    }),
    PaperResult(  # its public recipe for CIFAR-10; for CIFAR-100 it has the preset's 5e-4
        "cifar10-lt-100/tlc-weak-decay", "TLC, weight decay 2e-4", "cifar10-lt",
        {"method": "tlc", "weight_decay": 2e-4},
    ),
)  # fmt: skip


def _rivals_at(ratio: int, **accuracies: float) -> PaperTable:
    """The same methods on another ratio of CIFAR-100-LT, each as its paper prescribes."""
    quoted = {method.replace("_", "-"): _scores((accuracy, None)) for method, accuracy in accuracies.items()}
    return tuple(_rivals(f"cifar100-lt-{ratio}", "cifar100-lt", quoted, ratio=ratio, both=False))


def _methods_long() -> PaperTable:
    """The five best of the standard recipe beside BalPoE, with the long schedule and AutoAugment."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "mdcs": ("MDCS", {"method": "mdcs"}),
        "uniform": ("uniform ensemble", {"lambdas": (0, 0, 0)}),
        "tlc-mixup": ("TLC with mixup", {"method": "tlc", "mixup_alpha": 0.4}),
        "ride": ("RIDE", {"method": "ride"}),
        "sade-loss": ("SADE's loss, without its test-time part, with mixup", {"method": "sade"}),
    }
    return tuple(
        PaperResult(f"cifar100-lt-long/{name}", title, "cifar100-lt-long", changes)
        for name, (title, changes) in rows.items()
    )


def _without_rotation() -> PaperTable:
    """The rotation by 15 degrees is in the released code and not in the paper: what is it worth?"""
    rows: dict[str, tuple[str, dict[str, Any], int]] = {
        "cross-entropy": ("cross-entropy", {"lambdas": (1,), "mixup_alpha": 0.0}, 3),
        "logit-adjusted": ("one logit-adjusted expert with mixup", {"lambdas": (0,)}, 3),
        "balpoe": ("BalPoE", {}, 5),
    }
    return tuple(
        PaperResult(
            f"cifar100-lt-crop-flip/{name}", f"{title}, without the rotation", "cifar100-lt",
            {**changes, "augmentation": "crop-flip"}, seeds,
        )
        for name, (title, changes, seeds) in rows.items()
    )  # fmt: skip


ROUNDING = (
    PaperResult(
        "cifar100-lt/balpoe-eager", "bfloat16, eager", "cifar100-lt",
        {"precision": "bf16-mixed", "step": "eager"}, 5, BALPOE_100, repeats=True,
    ),
    PaperResult(
        "cifar100-lt/float32", "float32, eager", "cifar100-lt", {"precision": "32-true", "step": "eager"}, 3,
        BALPOE_100, repeats=True,
    ),
    PaperResult(
        "cifar100-lt/balpoe-fused", "bfloat16, fused kernels", "cifar100-lt",
        {"precision": "bf16-mixed", "step": "fused"}, 5, BALPOE_100, repeats=True,
    ),
    PaperResult(
        "cifar100-lt/cross-entropy-fused", "cross-entropy, bfloat16, fused kernels", "cifar100-lt",
        {"lambdas": (1,), "mixup_alpha": 0.0, "precision": "bf16-mixed", "step": "fused"}, 3, PLAIN_100,
        repeats=True,
    ),
)  # fmt: skip


def _cifar100(
    ratio: int, plain: float, standard: float, strong: float, long: float, shifted: ShiftedAccuracies
) -> PaperTable:
    """Another ratio of CIFAR-100-LT, from the paper's accuracies."""
    name, change = f"cifar100-lt-{ratio}", {"imbalance_ratio": float(ratio)}
    without = {**change, "lambdas": (1,), "mixup_alpha": 0.0}
    return (
        PaperResult(f"{name}/cross-entropy", "cross-entropy", "cifar100-lt", without, 3, _scores((plain, None))),
        PaperResult(
            f"{name}/logit-adjusted", "one logit-adjusted expert with mixup", "cifar100-lt",
            {**change, "lambdas": (0,)},
        ),
        PaperResult(
            f"{name}/balpoe", "BalPoE", "cifar100-lt", change, 3, _scores((standard, None)), shifted=shifted,
        ),
        PaperResult(
            f"{name}/balpoe-strong", "BalPoE, stronger augmentation", "cifar100-lt-strong", change, 3,
            _scores((strong, None)),
        ),
        PaperResult(
            f"{name}/balpoe-long", "BalPoE, long schedule", "cifar100-lt-long", change, 3, _scores((long, None)),
        ),
    )  # fmt: skip


def _cifar10(ratio: int, plain: dict[str, Number], standard: dict[str, Number], long: dict[str, Number]) -> PaperTable:
    """A ratio of CIFAR-10-LT, from the paper's numbers."""
    name, change = f"cifar10-lt-{ratio}", {"imbalance_ratio": float(ratio)}
    without = {**change, "lambdas": (1,), "mixup_alpha": 0.0}
    return (
        PaperResult(f"{name}/cross-entropy", "cross-entropy", "cifar10-lt", without, 5, plain),
        PaperResult(f"{name}/balpoe", "BalPoE", "cifar10-lt", change, 5, standard),
        PaperResult(f"{name}/balpoe-long", "BalPoE, long schedule, AutoAugment", "cifar10-lt-long", change, 5, long),
    )


PLAIN_10 = _scores((71.3, 0.9), ece=(19.1, 0.9), mce=(33.9, 2.0))
BALPOE_10 = _scores((84.2, 0.3), ece=(6.3, 0.7), mce=(15.8, 4.7))
RELEASED_10 = PaperResult(
    "cifar10-lt-100/balpoe-long-as-released", "BalPoE, long schedule, as released (no AutoAugment)",
    "cifar10-lt-long", {}, 3, _scores((86.8, 0.2)), as_released=True, repeats=True,
)  # fmt: skip
CIFAR10_100 = _cifar10(100, PLAIN_10, BALPOE_10, _scores((86.8, 0.2)))

STRONG_100 = (PaperResult("cifar100-lt-strong/balpoe", "BalPoE", "cifar100-lt-strong", {}, 3, _scores((54.7, None))),)
LONG_100 = (
    PaperResult(
        "cifar100-lt-long/balpoe", "BalPoE", "cifar100-lt-long", {}, 5,
        _scores((55.9, 0.4), many=(71.4, 0.6), medium=(58.0, 0.7), few=(35.4, 0.4)),
    ),
)  # fmt: skip
BEST_100 = (
    PaperResult("cifar100-lt-best/balpoe", "BalPoE, cifar100-lt-best", "cifar100-lt-best", {}, 3),
    PaperResult(
        "cifar100-lt-best/last-weights", "the last weights, not their mean", "cifar100-lt-best",
        {"weight_average_fraction": 0.0}, 3,
    ),
)  # fmt: skip
CALIBRATION_10 = (
    CIFAR10_100[0],
    PaperResult(
        "cifar10-lt-100/cross-entropy-mixup", "cross-entropy with mixup", "cifar10-lt", {"lambdas": (1,)}, 5,
        _scores((72.9, 0.7), ece=(3.7, 0.4), mce=(12.9, 4.9)),
    ),
    PaperResult(
        "cifar10-lt-100/logit-adjusted-no-mixup", "one logit-adjusted expert without mixup", "cifar10-lt",
        {"lambdas": (0,), "mixup_alpha": 0.0}, 1,
    ),
    PaperResult(
        "cifar10-lt-100/balpoe-no-mixup", "BalPoE without mixup", "cifar10-lt", {"mixup_alpha": 0.0}, 5,
        _scores((80.5, 0.3), ece=(11.0, 0.3), mce=(27.7, 2.7)),
    ),
    CIFAR10_100[1],
)  # fmt: skip


def _alphas_of_cifar10() -> PaperTable:
    """Not in the paper, which has 0.8 for CIFAR-10 throughout: is that what makes our ensembles underconfident?"""
    rows: list[tuple[int, str, dict[str, Any], tuple[float, ...]]] = [
        (100, "cross-entropy", {"lambdas": (1,)}, (0.4,)),
        (100, "BalPoE", {}, (0.2, 0.4)),
        (10, "BalPoE", {"imbalance_ratio": 10.0}, (0.2, 0.4)),
    ]
    return tuple(
        PaperResult(
            f"cifar10-lt-alpha/{method.lower()}-{ratio}-{alpha:g}", f"ratio {ratio}, {method}, alpha {alpha:g}",
            "cifar10-lt", {**changes, "mixup_alpha": alpha},
        )
        for ratio, method, changes, alphas in rows for alpha in alphas
    )  # fmt: skip


SEARCH: dict[str, dict[str, Any]] = {
    "800-epochs": {"epochs": 800},
    "800-epochs-decay-1e-3": {"epochs": 800, "weight_decay": 1e-3},
    "multistep-mixup": {"schedule": "multistep", "cutmix_probability": 0.0},
    "mixup": {"cutmix_probability": 0.0},
    "half": {},
    "cutmix": {"cutmix_probability": 1.0},
    "cutout": {"augmentation": "autoaugment-cutout"},
    "alpha-1": {"mixup_alpha": 1.0},
    "decay-1e-3": {"weight_decay": 1e-3},
    "uniform": {"lambdas": (0, 0, 0)},
    "scale-20": {"cosine_scale": 20.0},
    "batch-256": {"batch_size": 256, "lr": 0.2},
    "1600-epochs": {"epochs": 1600},
    "800-epochs-uniform": {"epochs": 800, "lambdas": (0, 0, 0)},
    "800-epochs-lower": {"epochs": 800, "lambdas": (0.75, -0.25, -1.25)},
    "800-epochs-averaged": {"epochs": 800, "weight_average_fraction": 0.4},
    "1600-epochs-averaged": {"epochs": 1600, "weight_average_fraction": 0.4},
}
"""Candidates for a recipe beyond the paper: changes to the long schedule with a cosine and CutMix half of the time."""


def _search() -> PaperTable:
    """One seed each, measured on validation images: the test set has no part in the choice."""
    common = {"schedule": "cosine", "cutmix_probability": 0.5, "validation": 20}
    return tuple(
        PaperResult(f"best-search/{name}", name, "cifar100-lt-long", {**common, **changes}, 1)
        for name, changes in SEARCH.items()
    )


def _ablations() -> Iterator[tuple[str, PaperTable]]:
    """One seed each, but for points of the main tables; the paper shows them as curves, almost without numbers."""
    known = {result.folder: result for result in (*STANDARD_100, *LONG_100)}

    def point(folder: str, title: str, base: str, changes: dict[str, Any], paper: Mapping[str, Number]) -> PaperResult:
        if folder in known:
            return replace(known[folder], title=title, paper=paper, shifted=None)
        return PaperResult(folder, title, base, changes, 1, paper)

    in_text = {7: _scores((57, None))}
    experts = [
        point("cifar100-lt-long/balpoe" if n == 3 else f"experts/{n}", f"experts: {n}", "cifar100-lt-long",
              {"num_experts": n}, in_text.get(n, {}))
        for n in range(1, 8)
    ]  # fmt: skip
    yield "experts", tuple(experts)
    in_tables = {0.0: "cifar100-lt/balpoe-no-mixup", 0.4: "cifar100-lt/balpoe"}
    alphas = {
        alpha: point(in_tables.get(alpha, f"alpha/{alpha:g}"), f"alpha {alpha:g}", "cifar100-lt",
                     {"mixup_alpha": alpha}, {})
        for alpha in (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    }  # fmt: skip
    yield "alpha", tuple(alphas.values())
    means = [
        point(f"mean-lambda/{mean:g}-alpha-{alpha:g}", f"mean lambda {mean:g}, alpha {alpha:g}", "cifar100-lt",
              {"lambdas": (mean + 1, mean, mean - 1), "mixup_alpha": alpha}, {})
        if mean else replace(alphas[alpha], title=f"mean lambda 0, alpha {alpha:g}")
        for alpha in (0.0, 0.2, 0.4) for mean in (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
    ]  # fmt: skip
    yield "mean-lambda", tuple(means)


# fmt: off
PAPER_TABLES: dict[str, PaperTable] = {
    "cifar100-lt": STANDARD_100,
    "methods": METHODS_100,
    "crop-flip": _without_rotation(),
    "methods-long": _methods_long(),
    "rounding": ROUNDING,
    "cifar100-lt-strong": STRONG_100,
    "cifar100-lt-long": LONG_100,
    "cifar100-lt-50": _cifar100(
        50, 43.9, 56.3, 58.7, 60.1,
        ShiftedAccuracies(
            (66.5, 64.8, 62.8, 60.9, 58.3, 56.3, 53.8, 51.0, 48.9, 46.6, 45.3),
            (71.1, 68.3, 64.8, 61.8, 58.2, 56.3, 54.4, 53.4, 53.4, 53.8, 55.4),
        ),
    ),
    "cifar100-lt-10": _cifar100(
        10, 57.2, 65.1, 66.3, 68.1,
        ShiftedAccuracies(
            (69.1, 68.2, 67.4, 66.8, 65.7, 65.1, 63.8, 63.0, 62.3, 61.8, 61.3),
            (74.9, 72.4, 70.0, 68.1, 66.0, 65.1, 64.1, 64.3, 65.0, 66.3, 67.8),
        ),
    ),
    "best-search": _search(),
    "cifar100-lt-best": BEST_100,
    "cifar10-lt-100": (*CIFAR10_100, RELEASED_10),
    "cifar10-lt-calibration": CALIBRATION_10,
    "cifar10-lt-50": _cifar10(50, _scores((77.3, 0.4)), _scores((86.2, 0.2)), _scores((88.5, 0.2))),
    "cifar10-lt-10": _cifar10(10, _scores((87.2, 0.3)), _scores((90.2, 0.2)), _scores((91.9, 0.1))),
    "cifar10-lt-alpha": _alphas_of_cifar10(),
    "methods-cifar10": METHODS_10,
    "methods-50": _rivals_at(
        50, cb_focal=45.3, ldam_drw=48.0, lade=50.5, mislas=52.3, ride=51.7, unimix=51.1, cmo=51.4,
    ),
    "methods-10": _rivals_at(
        10, cb_focal=58.0, ldam_drw=58.7, lade=61.7, mislas=63.2, ride=61.8, unimix=61.3, cmo=62.3,
    ),
    **dict(_ablations()),
}
# fmt: on
"""By name, in the order in which what is missing is trained."""

PAPER_RESULTS: dict[str, PaperResult] = {}
"""By folder, each with the title that it has in the first of its tables."""
for _result in itertools.chain.from_iterable(PAPER_TABLES.values()):
    PAPER_RESULTS.setdefault(_result.folder, _result)

_METHODS = {  # the folder on CIFAR-100-LT of ratio 100, and what it is called below those of the other data sets
    "cross-entropy": ("cifar100-lt/cross-entropy", "cross-entropy"),
    "one logit-adjusted expert, mixup": ("cifar100-lt/logit-adjusted", "logit-adjusted"),
    "BalPoE": ("cifar100-lt/balpoe", "balpoe"),
    "BalPoE, stronger augmentation": ("cifar100-lt-strong/balpoe", "balpoe-strong"),
    "BalPoE, long schedule": ("cifar100-lt-long/balpoe", "balpoe-long"),
    "`cifar100-lt-best`": ("cifar100-lt-best/balpoe", "balpoe-best"),
}
_OTHERS = ("cifar100-lt-50", "cifar100-lt-10", "cifar10-lt-100", "cifar10-lt-50", "cifar10-lt-10")

OVERVIEW: dict[str, dict[str, PaperResult | None]] = {
    title: {"cifar100-lt-100": PAPER_RESULTS[folder], **{data: PAPER_RESULTS.get(f"{data}/{name}") for data in _OTHERS}}
    for title, (folder, name) in _METHODS.items()
}
"""As the paper's Table 1 has it: methods, data sets, and the result of both, where there is one."""

ALL_METHODS: dict[str, PaperTable] = {
    "methods": (
        *(result for result in STANDARD_100 if not result.as_released and "width" not in result.changes),
        *METHODS_100,
    ),
    "methods-long": (*LONG_100, *PAPER_TABLES["methods-long"]),
    "methods-cifar10": (*CALIBRATION_10, *METHODS_10),
    "methods-50": (*PAPER_TABLES["cifar100-lt-50"][:3], *PAPER_TABLES["methods-50"]),
    "methods-10": (*PAPER_TABLES["cifar100-lt-10"][:3], *PAPER_TABLES["methods-10"]),
}
"""Tables that are shown sorted, with every method in one recipe: CIFAR-100-LT of ratio 100, the same with the long
schedule, CIFAR-10-LT of ratio 100, and CIFAR-100-LT of the other ratios."""

ALSO_SHIFTED = {
    "ratio 100, SADE, test-time weights (transductive), without mixup": PAPER_RESULTS["cifar100-lt/sade-test-time"],
    "ratio 100, SADE, test-time weights (transductive), with mixup": PAPER_RESULTS["cifar100-lt/sade-test-time-mixup"],
    "ratio 100, stronger augmentation": PAPER_RESULTS["cifar100-lt-strong/balpoe"],
    "ratio 100, long schedule": PAPER_RESULTS["cifar100-lt-long/balpoe"],
    "ratio 100, cifar100-lt-best": PAPER_RESULTS["cifar100-lt-best/balpoe"],
    "ratio 50, stronger augmentation": PAPER_RESULTS["cifar100-lt-50/balpoe-strong"],
    "ratio 50, long schedule": PAPER_RESULTS["cifar100-lt-50/balpoe-long"],
    "ratio 10, stronger augmentation": PAPER_RESULTS["cifar100-lt-10/balpoe-strong"],
    "ratio 10, long schedule": PAPER_RESULTS["cifar100-lt-10/balpoe-long"],
}
"""Further results under the eleven test distributions, in one table: the paper prints none of BalPoE's among them."""

TABLES_AND_FIGURES: dict[str, tuple[str, ...]] = {
    "table1": (
        "cifar100-lt",
        "methods",
        "cifar100-lt-strong",
        "cifar100-lt-long",
        "cifar100-lt-50",
        "cifar100-lt-10",
        "imagenet-lt",
        "inaturalist",
    ),
    "table2": ("cifar100-lt",),
    "table3": ("cifar100-lt", "imagenet-lt"),
    "table4": (),
    "table5": ("cifar100-lt", "cifar100-lt-long"),
    "table6": ("imagenet-lt",),
    "table7": ("inaturalist",),
    "table8": ("cifar10-lt-100", "cifar10-lt-50", "cifar10-lt-10"),
    "table9": ("cifar10-lt-calibration",),
    "table10": ("cifar100-lt",),
    "table11": ("cifar100-lt-50",),
    "table12": ("cifar100-lt-10",),
    "table13": ("imagenet-lt",),
    "table14": ("inaturalist",),
    "figure1": ("cifar100-lt", "experts"),
    "figure2": (),
    "figure3": ("alpha",),
    "figure4": ("mean-lambda",),
    "figure5": ("experts",),
    "figure6": ("alpha",),
    "figure7": ("cifar100-lt",),
    "figure8": ("cifar10-lt-calibration",),
}
"""The paper's tables and figures, and the tables here with what they need."""
