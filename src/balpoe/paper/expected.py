"""What the paper measured: of each result the recipe, how many seeds, and the paper's numbers.

Numbers are per cent, as printed, with their deviation where the paper prints one.
"""

import itertools

from balpoe.paper.ablations import (
    ablations,
    alphas_of_cifar10,
    recipe_search,
    rivals_without_rotation,
    without_rotation,
)
from balpoe.paper.best_columns import BEST_RESULTS, COLUMNS
from balpoe.paper.paper_result import Number, PaperResult, PaperTable, ShiftedAccuracies, scores
from balpoe.paper.rivals import METHODS_10, METHODS_100, METHODS_LONG, rivals_at

__all__ = ["ALL_METHODS", "ALSO_SHIFTED", "OVERVIEW", "PAPER_RESULTS", "PAPER_TABLES", "TABLES_AND_FIGURES"]

BALPOE_100 = scores((52.0, 0.5), many=(67.7, 0.3), medium=(54.2, 0.9), few=(31.0, 0.6), ece=(4.9, 1.0), mce=(11.3, 1.6))
PLAIN_100 = scores((38.8, 0.6), many=(67.6, 1.0), medium=(36.7, 1.2), few=(7.6, 0.6), ece=(32.0, 0.4), mce=(47.3, 1.8))

STANDARD_100 = (
    PaperResult(
        "cifar100-lt/cross-entropy", "cross-entropy", "cifar100-lt", {"lambdas": (1,), "mixup_alpha": 0.0}, 5,
        PLAIN_100,
    ),
    PaperResult(
        "cifar100-lt/cross-entropy-mixup", "cross-entropy with mixup", "cifar100-lt", {"lambdas": (1,)}, 5,
        scores((40.8, 0.7), ece=(9.6, 0.8), mce=(15.9, 1.5)),
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
        scores((47.0, None)),
    ),
    PaperResult(
        "cifar100-lt/balpoe-no-mixup", "BalPoE without mixup", "cifar100-lt", {"mixup_alpha": 0.0}, 5,
        scores((49.2, 0.5), ece=(17.6, 0.4), mce=(28.9, 0.9)),
    ),
    PaperResult(
        "cifar100-lt/uniform", "uniform ensemble", "cifar100-lt", {"lambdas": (0, 0, 0)}, 3, scores((52.0, None)),
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
        PaperResult(f"{name}/cross-entropy", "cross-entropy", "cifar100-lt", without, 3, scores((plain, None))),
        PaperResult(
            f"{name}/logit-adjusted", "one logit-adjusted expert with mixup", "cifar100-lt",
            {**change, "lambdas": (0,)},
        ),
        PaperResult(
            f"{name}/balpoe", "BalPoE", "cifar100-lt", change, 3, scores((standard, None)), shifted=shifted,
        ),
        PaperResult(
            f"{name}/balpoe-strong", "BalPoE, stronger augmentation", "cifar100-lt-strong", change, 3,
            scores((strong, None)),
        ),
        PaperResult(
            f"{name}/balpoe-long", "BalPoE, long schedule", "cifar100-lt-long", change, 3, scores((long, None)),
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


PLAIN_10 = scores((71.3, 0.9), ece=(19.1, 0.9), mce=(33.9, 2.0))
BALPOE_10 = scores((84.2, 0.3), ece=(6.3, 0.7), mce=(15.8, 4.7))
RELEASED_10 = PaperResult(
    "cifar10-lt-100/balpoe-long-as-released", "BalPoE, long schedule, as released (no AutoAugment)",
    "cifar10-lt-long", {}, 3, scores((86.8, 0.2)), as_released=True, repeats=True,
)  # fmt: skip
CIFAR10_100 = _cifar10(100, PLAIN_10, BALPOE_10, scores((86.8, 0.2)))

STRONG_100 = (PaperResult("cifar100-lt-strong/balpoe", "BalPoE", "cifar100-lt-strong", {}, 3, scores((54.7, None))),)
LONG_100 = (
    PaperResult(
        "cifar100-lt-long/balpoe", "BalPoE", "cifar100-lt-long", {}, 5,
        scores((55.9, 0.4), many=(71.4, 0.6), medium=(58.0, 0.7), few=(35.4, 0.4)),
    ),
)  # fmt: skip
BEST_100 = (
    PaperResult("cifar100-lt-best/balpoe", "BalPoE, cifar100-lt-best", "cifar100-lt-best", {}, 5),
    PaperResult(
        "cifar100-lt-best/last-weights", "the last weights, not their mean", "cifar100-lt-best",
        {"weight_average_fraction": 0.0}, 3,
    ),
)  # fmt: skip
CALIBRATION_10 = (
    CIFAR10_100[0],
    PaperResult(
        "cifar10-lt-100/cross-entropy-mixup", "cross-entropy with mixup", "cifar10-lt", {"lambdas": (1,)}, 5,
        scores((72.9, 0.7), ece=(3.7, 0.4), mce=(12.9, 4.9)),
    ),
    PaperResult(
        "cifar10-lt-100/logit-adjusted-no-mixup", "one logit-adjusted expert without mixup", "cifar10-lt",
        {"lambdas": (0,), "mixup_alpha": 0.0}, 1,
    ),
    PaperResult(
        "cifar10-lt-100/balpoe-no-mixup", "BalPoE without mixup", "cifar10-lt", {"mixup_alpha": 0.0}, 5,
        scores((80.5, 0.3), ece=(11.0, 0.3), mce=(27.7, 2.7)),
    ),
    CIFAR10_100[1],
)  # fmt: skip

RIVALS_10 = rivals_at(
    10, cb_focal=58.0, ldam_drw=58.7, lade=61.7, mislas=63.2, ride=61.8, unimix=61.3, cmo=62.3
)  # fmt: skip


# fmt: off
PAPER_TABLES: dict[str, PaperTable] = {
    "cifar100-lt": STANDARD_100,
    "methods": METHODS_100,
    "crop-flip": without_rotation(),
    "methods-long": METHODS_LONG,
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
    "best-search": recipe_search(),
    "cifar100-lt-best": BEST_100,
    "cifar10-lt-100": (*CIFAR10_100, RELEASED_10),
    "cifar10-lt-calibration": CALIBRATION_10,
    "cifar10-lt-50": _cifar10(50, scores((77.3, 0.4)), scores((86.2, 0.2)), scores((88.5, 0.2))),
    "cifar10-lt-10": _cifar10(10, scores((87.2, 0.3)), scores((90.2, 0.2)), scores((91.9, 0.1))),
    "cifar10-lt-alpha": alphas_of_cifar10(),
    "methods-cifar10": METHODS_10,
    "methods-50": rivals_at(
        50, cb_focal=45.3, ldam_drw=48.0, lade=50.5, mislas=52.3, ride=51.7, unimix=51.1, cmo=51.4,
    ),
    "methods-10": RIVALS_10,
    "methods-10-crop-flip": rivals_without_rotation(RIVALS_10),
    **dict(ablations({result.folder: result for result in (*STANDARD_100, *LONG_100)})),
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
    "our own, the `-best` presets": ("cifar100-lt/balpoe-best", "balpoe-best"),
}
_OTHERS = ("cifar100-lt-50", "cifar100-lt-10", "cifar10-lt-100", "cifar10-lt-50", "cifar10-lt-10")

_RESULTS = PAPER_RESULTS | BEST_RESULTS

OVERVIEW: dict[str, dict[str, PaperResult | None]] = {
    title: {
        "cifar100-lt-100": _RESULTS[folder],
        **{data: _RESULTS.get(f"{data}/{name}") for data in _OTHERS},
    }
    for title, (folder, name) in _METHODS.items()
}
"""As the paper's Table 1 has it: methods, data sets, and the result of both, where there is one."""

ALL_METHODS: dict[str, PaperTable] = {
    "methods": (
        *(result for result in STANDARD_100 if not result.as_released and "width" not in result.changes),
        *METHODS_100,
    ),
    "methods-long": (*LONG_100, *METHODS_LONG),
    "methods-cifar10": (*CALIBRATION_10, *METHODS_10),
    "methods-50": (*PAPER_TABLES["cifar100-lt-50"][:3], *PAPER_TABLES["methods-50"]),
    "methods-10": (*PAPER_TABLES["cifar100-lt-10"][:3], *PAPER_TABLES["methods-10"]),
}
"""Tables that are shown sorted, with every method in one recipe: CIFAR-100-LT of ratio 100, the same with the long
schedule, CIFAR-10-LT of ratio 100, and CIFAR-100-LT of the other ratios."""

ALSO_SHIFTED = {
    f"CIFAR-100-LT, {title}": PAPER_RESULTS[folder]
    for title, folder in (
        ("ratio 100, SADE, test-time weights (transductive), without mixup", "cifar100-lt/sade-test-time"),
        ("ratio 100, SADE, test-time weights (transductive), with mixup", "cifar100-lt/sade-test-time-mixup"),
        ("ratio 100, stronger augmentation", "cifar100-lt-strong/balpoe"),
        ("ratio 100, long schedule", "cifar100-lt-long/balpoe"),
        ("ratio 50, stronger augmentation", "cifar100-lt-50/balpoe-strong"),
        ("ratio 50, long schedule", "cifar100-lt-50/balpoe-long"),
        ("ratio 10, stronger augmentation", "cifar100-lt-10/balpoe-strong"),
        ("ratio 10, long schedule", "cifar100-lt-10/balpoe-long"),
    )
} | {column.result.title: column.result for column in COLUMNS}
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
