"""Results beyond the paper's tables: points of its curves, and what was tried to understand or better its numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from balpoe.paper.paper_result import Number, PaperResult, PaperTable, scores

__all__ = ["SEARCH", "ablations", "alphas_of_cifar10", "recipe_search", "rivals_without_rotation", "without_rotation"]


def without_rotation() -> PaperTable:
    """Return what the rotation by 15 degrees is worth, which is in the released code and not in the paper."""
    rows: dict[str, tuple[str, dict[str, Any], int]] = {
        "cross-entropy": ("cross-entropy", {"lambdas": (1,), "mixup_alpha": 0.0}, 3),
        "logit-adjusted": ("one logit-adjusted expert with mixup", {"lambdas": (0,)}, 3),
        "balpoe": ("BalPoE", {}, 5),
    }
    return tuple(
        PaperResult(
            f"cifar100-lt-crop-flip/{name}", f"{title}, no rotation", "cifar100-lt",
            {**changes, "augmentation": "crop-flip"}, seeds,
        )
        for name, (title, changes, seeds) in rows.items()
    )  # fmt: skip


def rivals_without_rotation(rivals: PaperTable) -> PaperTable:
    """Return, one seed each, those of the rivals that are furthest below their papers, whose recipes do not rotate.

    Args:
        rivals: Results of one ratio, by whose names the records are kept.
    """
    below = ("MiSLAS", "UniMix + Bayias", "LADE", "CB-Focal")
    return tuple(
        replace(
            rival, folder=rival.folder.replace("/", "-crop-flip/"), title=f"{rival.title}, no rotation",
            changes={**rival.changes, "augmentation": "crop-flip"}, seeds=1,
        )
        for rival in rivals if rival.title in below
    )  # fmt: skip


def alphas_of_cifar10() -> PaperTable:
    """Return results of other alphas than the paper's 0.8 for CIFAR-10: is it that which makes us underconfident?"""
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


def recipe_search() -> PaperTable:
    """Return the candidates, one seed each, measured on validation images: the test set has no part in the choice."""
    common = {"schedule": "cosine", "cutmix_probability": 0.5, "validation": 20}
    return tuple(
        PaperResult(f"best-search/{name}", name, "cifar100-lt-long", {**common, **changes}, 1)
        for name, changes in SEARCH.items()
    )


def ablations(known: Mapping[str, PaperResult]) -> Iterator[tuple[str, PaperTable]]:
    """Yield tables by name, one seed each, but for points of the main tables.

    The paper shows them as curves, almost without numbers.

    Args:
        known: Results of the main tables, by folder.
    """

    def point(folder: str, title: str, base: str, changes: dict[str, Any], paper: Mapping[str, Number]) -> PaperResult:
        if folder in known:
            return replace(known[folder], title=title, paper=paper, shifted=None)
        return PaperResult(folder, title, base, changes, 1, paper)

    in_text = {7: scores((57, None))}
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
