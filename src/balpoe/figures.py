"""The paper's figures from measured records, as pictures in results/figures/."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from balpoe.cells import ITEMS, Cell
from balpoe.data.longtail import long_tailed_counts
from balpoe.files import write_file
from balpoe.plots import plot_boundaries, plot_cost, plot_priors, plot_reliability
from balpoe.priors import class_prior, tempered_prior
from balpoe.records import records

__all__ = ["write_figures"]

Measured = tuple[Cell, list[dict[str, Any]]]

DIAGRAMS = {
    "cifar100-lt": ("cross-entropy", "cross-entropy-mixup", "logit-adjusted-no-mixup", "balpoe-no-mixup", "balpoe"),
    "cifar10-lt-100": ("cross-entropy", "balpoe"),
    "cifar10-lt-calibration": ("cross-entropy-mixup", "balpoe-no-mixup"),
}
"""Item and cells of the reliability diagrams (Figures 1, 7 and 8)."""


def write_figures(results: Path) -> None:
    """Draw what the records allow."""
    _save(_margins(), results / "figures" / "figure2.png")
    for item, names in DIAGRAMS.items():
        found = [each for each in _measured(item, results) if each[0].folder.split("/")[1] in names]
        if found:
            _save(_reliability(found), results / "figures" / f"reliability-{item}.png")
    if measured := _measured("cifar100-lt", results):
        _save(_cost(measured), results / "figures" / "cost-cifar100-lt.png")


def _measured(item: str, results: Path) -> list[Measured]:
    found = [(cell, records(cell, results)) for cell in ITEMS[item].cells]
    return [each for each in found if each[1]]


def _reliability(found: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(3.2 * len(found), 3.6), layout="constrained")
    for axes, (cell, several) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        evaluation = several[0]["evaluation"]
        plot_reliability(evaluation["reliability"], axes)
        axes.set_title(f"{cell.title}\nECE {100 * evaluation['ece']:.1f} % (seed 1)", fontsize=9)
    return figure


def _cost(found: Sequence[Measured]) -> Figure:
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    costs = (("parameters", "parameters, millions"), ("multiply_adds", "multiply-adds a picture, millions"))
    for place, (key, label) in zip(axes, costs, strict=True):
        points = {cell.title: (several[0]["evaluation"][key] / 1e6, _accuracy(several)) for cell, several in found}
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


def _accuracy(several: Sequence[dict[str, Any]]) -> float:
    return 100 * fmean(record["evaluation"]["accuracy"] for record in several)


def _save(figure: Figure, path: Path) -> None:
    write_file(path, lambda stream: figure.savefig(stream, format="png", dpi=100))
