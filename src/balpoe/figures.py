"""The paper's figures from measured records, as pictures in results/figures/."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from balpoe.cells import ITEMS, Cell
from balpoe.data.longtail import long_tailed_counts
from balpoe.files import write_file
from balpoe.plots import plot_boundaries, plot_cost, plot_curves, plot_priors, plot_reliability
from balpoe.presets import preset
from balpoe.priors import class_prior, tempered_prior
from balpoe.recipes import updated
from balpoe.records import records

__all__ = ["write_figures"]

Measured = tuple[Cell, list[dict[str, Any]]]

DIAGRAMS = {
    "cifar100-lt": ("cross-entropy", "cross-entropy-mixup", "logit-adjusted-no-mixup", "balpoe-no-mixup", "balpoe"),
    "cifar10-lt-100": ("cross-entropy", "cross-entropy-mixup", "balpoe-no-mixup", "balpoe"),
}
"""Folders of results, and the cells in them, of the reliability diagrams (Figures 1 and 7, and 8)."""


def write_figures(results: Path) -> None:
    """Draw what the records allow."""
    _save(_margins(), results / "figures" / "figure2.png")
    cells = {cell.folder: cell for item in ITEMS.values() for cell in item.cells}
    for folder, names in DIAGRAMS.items():
        wanted = [cells[f"{folder}/{name}"] for name in names]
        if found := _with_records(wanted, results):
            _save(_reliability(found), results / "figures" / f"reliability-{folder}.png")
    if measured := _measured("cifar100-lt", results):
        _save(_cost(measured), results / "figures" / "cost-cifar100-lt.png")
    for name, draw in (("experts", _experts), ("mean-lambda", _mean_lambda), ("alpha", _alpha)):
        # The cells of the main tables belong to these curves, too.
        items = ("cifar100-lt-long", "experts") if name == "experts" else ("cifar100-lt", "mean-lambda", "alpha")
        if _measured(name, results):
            found = [each for item in items for each in _measured(item, results)]
            _save(draw(found), results / "figures" / f"{name}.png")


def _measured(item: str, results: Path) -> list[Measured]:
    return _with_records(ITEMS[item].cells, results)


def _with_records(cells: Sequence[Cell], results: Path) -> list[Measured]:
    found = [(cell, records(cell, results)) for cell in cells]
    return [each for each in found if each[1]]


def _reliability(found: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(3.2 * len(found), 3.6), layout="constrained")
    for axes, (cell, several) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        evaluation = several[0]["evaluation"]
        plot_reliability(evaluation["reliability"], axes)
        axes.set_title(
            f"{cell.title}\nECE {100 * evaluation['ece']:.1f} % (seed {several[0]['recipe']['seed']})", fontsize=9
        )
    return figure


def _cost(found: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    costs = (("parameters", "parameters, millions"), ("multiply_adds", "multiply-adds a picture, millions"))
    for place, (key, label) in zip(axes, costs, strict=True):
        points = {
            cell.title: (several[0]["evaluation"][key] / 1e6, 100 * _mean(several, "accuracy"))
            for cell, several in found
        }
        plot_cost(points, place, label)
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _margins() -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_boundaries(0.9, (0, 1, 2), left)
    prior = class_prior(long_tailed_counts(100, 1_000_000, 100, "pareto"))
    plot_priors({f"tau = {tau}": tempered_prior(prior, 1.0 - tau).tolist() for tau in (0, 1, 2)}, right)
    return figure


def _experts(found: Sequence[Measured]) -> Figure:
    """Accuracy against the number of experts, of all classes and of the shot groups (Figure 5)."""
    names = {"accuracy": "all", "many": "many", "medium": "medium", "few": "few"}
    curves = {
        label: [(len(cell.recipe(1).expert_lambdas), 100 * _mean(several, name)) for cell, several in found]
        for name, label in names.items()
    }
    figure = Figure(figsize=(6, 4), layout="constrained")
    plot_curves(curves, figure.subplots(), "experts", "accuracy, %")
    return figure


def _mean_lambda(found: Sequence[Measured]) -> Figure:
    """Error and ECE against the mean of the lambdas, for each alpha (Figure 4)."""
    found = [each for each in found if _is_balpoe(each[0])]
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 2), (("accuracy", "error"), ("ece", "ECE")), strict=True):
        curves: dict[str, list[tuple[float, float]]] = {}
        for cell, several in found:
            recipe, value = cell.recipe(1), _mean(several, name)
            point = (fmean(recipe.expert_lambdas), 100 * (1 - value if name == "accuracy" else value))
            if recipe.mixup_alpha in (0.0, 0.2, 0.4):
                curves.setdefault(f"alpha {recipe.mixup_alpha:g}", []).append(point)
        plot_curves(dict(sorted(curves.items())), axes, "mean of the lambdas", f"{label}, %")
    return figure


def _alpha(found: Sequence[Measured]) -> Figure:
    """Accuracy of ensemble and experts, and the divergence of the experts' averages, against alpha (Figures 6, 3 a)."""
    found = [each for each in found if _is_balpoe(each[0]) and not fmean(each[0].recipe(1).expert_lambdas)]
    figure = Figure(figsize=(16, 3.8), layout="constrained")
    *groups, last = figure.subplots(1, 5)
    for axes, name in zip(groups, ("accuracy", "many", "medium", "few"), strict=True):
        curves = {"ensemble": [(cell.recipe(1).mixup_alpha, 100 * _mean(several, name)) for cell, several in found]}
        for expert, lambda_ in enumerate((1, 0, -1)):
            curves[f"lambda {lambda_}"] = [
                (cell.recipe(1).mixup_alpha, 100 * fmean(r["evaluation"]["experts"][expert][name] for r in several))
                for cell, several in found
            ]
        plot_curves(curves, axes, "alpha", f"{name}, %" if name == "accuracy" else f"accuracy, {name}, %")
    divergences = {
        name: [(cell.recipe(1).mixup_alpha, fmean(_kl(record, place) for record in several)) for cell, several in found]
        for place, name in enumerate(("ensemble", "lambda 1", "lambda 0", "lambda -1"))
    }
    plot_curves(divergences, last, "alpha", "KL of average prediction and prior")
    return figure


def _is_balpoe(cell: Cell) -> bool:
    """Three lambdas, one apart, and nothing else changed but alpha."""
    recipe, usual = cell.recipe(1), preset("cifar100-lt")
    lambdas = recipe.expert_lambdas
    spread = len(lambdas) == 3 and lambdas[0] - lambdas[1] == lambdas[1] - lambdas[2] == 1
    same = {"lambdas": usual.lambdas, "mixup_alpha": usual.mixup_alpha, "seed": usual.seed}
    return spread and updated(recipe, same).identity() == usual.identity()


def _kl(record: dict[str, Any], place: int) -> float:
    """Of the ensemble (0) or of an expert (from 1)."""
    checks = [record["evaluation"]["check"], *record["evaluation"]["expert_checks"]]
    return float(checks[place]["marginal_kl"])


def _mean(several: Sequence[dict[str, Any]], name: str) -> float:
    return fmean(record["evaluation"][name] for record in several)


def _save(figure: Figure, path: Path) -> None:
    write_file(path, lambda stream: figure.savefig(stream, format="png", dpi=100))
