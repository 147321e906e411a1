"""The paper's figures from measured records, as SVG files for light and dark pages in results/figures/."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from balpoe.data.long_tail import long_tailed_counts
from balpoe.files import write_text
from balpoe.method.priors import class_prior, tempered_prior
from balpoe.paper.expected import PAPER_RESULTS, PAPER_TABLES
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.tables import measured_records
from balpoe.report.drawing import themed_svg
from balpoe.report.labels import label_ends
from balpoe.report.look import LIGHT, STYLE, method_looks
from balpoe.report.plots import plot_boundaries, plot_cost, plot_curves, plot_marginal, plot_priors, plot_reliability

__all__ = ["write_figures"]

Measured = tuple[PaperResult, list[dict[str, Any]]]

Diagrams = dict[str, float | None]
DIAGRAMS: dict[str, Diagrams] = {
    "cifar100-lt": {
        "cross-entropy": 31.5, "cross-entropy-mixup": 9.6, "logit-adjusted-no-mixup": 23.1,
        "sade-loss-no-mixup": None, "sade-loss": None, "balpoe-no-mixup": 16.9, "balpoe": 4.1,
    },
    "cifar10-lt-100": {
        "cross-entropy": 19.1, "cross-entropy-mixup": 3.7, "logit-adjusted-no-mixup": None, "balpoe-no-mixup": 11.0,
        "balpoe": 6.3,
    },
}  # fmt: skip
"""Folders of results, and the rows in them, of the reliability diagrams (Figures 1 and 7, and 8), each with the ECE of
the paper: what its text says of the diagram, else the mean of Tables 2 and 9."""
COMPARED = (
    "cross-entropy", "cross-entropy-mixup", "cross-entropy-experts", "logit-adjusted-no-mixup", "logit-adjusted",
    "reduced-width", "balpoe-no-mixup", "sade-loss", "uniform", "balpoe",
)  # fmt: skip
"""Cells of cifar100-lt in the figure of costs, beside our best recipe: not those that differ from BalPoE in nothing
that it costs, nor much in accuracy."""
EXPERTS = "BalPoE, long, 1 to 7 experts"
PAGE = 8.5  # inches: as wide as the text of a page, so that letters are as large
GROUPS = {"accuracy": "all", "many": "many", "medium": "medium", "few": "few"}


def write_figures(results: Path) -> None:
    """Draw what the records allow."""
    folder = results / "figures"
    with rc_context(STYLE):
        _save(_margins(), folder / "figure2.svg")
        for name, eces in DIAGRAMS.items():
            if found := _with_records([PAPER_RESULTS[f"{name}/{each}"] for each in eces], results):
                printed = {f"{name}/{each}": ece for each, ece in eces.items()}
                _save(_reliability(found, printed), folder / f"reliability-{name}.svg")
        if several := measured_records(PAPER_RESULTS["cifar100-lt/balpoe"], results):
            _save(_marginals(several), folder / "marginals-cifar100-lt.svg")
        best = PAPER_RESULTS["cifar100-lt-best/balpoe"]
        if found := _with_records([*(PAPER_RESULTS[f"cifar100-lt/{name}"] for name in COMPARED), best], results):
            _save(_cost(found, _measured("experts", results)), folder / "cost-cifar100-lt.svg")
        for name, draw in (("experts", _experts), ("mean-lambda", _mean_lambda), ("alpha", _alpha)):
            found = _measured(name, results)
            if any(each.folder.startswith(f"{name}/") for each, _ in found):  # not the points of the main tables alone
                _save(draw(found), folder / f"{name}.svg")


def _measured(table: str, results: Path) -> list[Measured]:
    return _with_records(PAPER_TABLES[table], results)


def _with_records(rows: Sequence[PaperResult], results: Path) -> list[Measured]:
    found = [(result, measured_records(result, results)) for result in rows]
    return [each for each in found if each[1]]


def _reliability(found: Sequence[Measured], printed: Diagrams) -> Figure:
    columns = min(4, math.ceil(len(found) / 2))
    rows = math.ceil(len(found) / columns)
    figure = Figure(figsize=(PAGE, 0.3 + 2.4 * rows), layout="constrained")
    for place, (result, several) in enumerate(found, 1):
        axes = figure.add_subplot(rows, columns, place)
        evaluation = several[0]["evaluation"]
        plot_reliability(evaluation["reliability"], axes, result.title)
        theirs = "" if printed[result.folder] is None else f", paper {printed[result.folder]} %"
        title = textwrap.fill(_short(result), 84 // columns)
        axes.set_title(f"{title}\nECE {100 * evaluation['ece']:.1f} %{theirs}", fontsize=9)
        axes.set_ylabel("accuracy, %" if place % columns == 1 else "")
    names = axes.get_legend_handles_labels()
    if len(found) < rows * columns:
        free = figure.add_subplot(rows, columns, rows * columns)
        free.set_axis_off()
        free.legend(*names, loc="center", fontsize=10)
    else:
        figure.legend(*names, loc="outside lower left", ncols=2)
    return figure


def _cost(found: Sequence[Measured], experts: Sequence[Measured]) -> Figure:
    """Accuracy against cost of recipes, and of more and more experts (Figure 1 a)."""
    figure = Figure(figsize=(PAGE, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    costs = (("parameters", "parameters, millions"), ("multiply_adds", "multiply-adds an image, millions"))
    printed = {_short(result): result.paper["accuracy"][0] for result, _ in found if result.paper}
    looks = method_looks([*(_short(result) for result, _ in found), EXPERTS])
    for place, (key, label) in zip(axes, costs, strict=True):
        ends = {_short(result): _cost_point(several, key) for result, several in found}
        plot_cost(ends, place, label, printed)
        if len(experts) > 1:
            curve = sorted(_cost_point(several, key) for _, several in experts)
            place.plot(*zip(*curve, strict=True), ".--", color=looks[EXPERTS].colour)
            ends[EXPERTS] = curve[-1]
        place.set(xlim=place.get_xlim(), ylim=place.get_ylim())
    axes[1].set_ylabel("")
    axes[0].scatter([], [], facecolor="none", edgecolor=LIGHT["ink"], label="open: the paper's")
    axes[0].legend(loc="center right", bbox_to_anchor=(1, 0.3), fontsize=8.5)
    label_ends(axes[1], ends, looks, size=8.5)
    return figure


def _short(result: PaperResult) -> str:
    """Title that fits beside a point."""
    return result.title.replace(", without its test-time part,", "")


def _cost_point(several: Sequence[dict[str, Any]], key: str) -> tuple[float, float]:
    return several[0]["evaluation"][key] / 1e6, 100 * _mean(several, "accuracy")


def _margins() -> Figure:
    figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_boundaries(0.9, (0, 1, 2), left)
    prior = class_prior(long_tailed_counts(100, 1_000_000, 100, "pareto"))
    plot_priors({f"tau = {tau}": tempered_prior(prior, 1.0 - tau).tolist() for tau in (0, 1, 2)}, right)
    return figure


def _marginals(several: Sequence[dict[str, Any]]) -> Figure:
    """Average predictions of BalPoE's experts, and of all together, beside their priors (Figure 3 b)."""
    prior = class_prior(long_tailed_counts(100, 500, 100))
    figure = Figure(figsize=(PAGE, 5.2), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
    for place, (axes, lambda_) in enumerate(zip(panels, (0, 1, 0, -1), strict=True)):
        marginals = [check["marginal"] for check in _checks(several, place)]
        marginal = [fmean(values) for values in zip(*marginals, strict=True)]
        name = f"lambda {lambda_}" if place else "ensemble"
        plot_marginal(tempered_prior(prior, float(lambda_)).tolist(), marginal, axes, name, legend=not place)
        axes.set_title(f"expert with {name}" if place else name)
        axes.label_outer()
    return figure


def _experts(found: Sequence[Measured]) -> Figure:
    """Accuracy against the number of experts, of all classes and of the shot groups (Figure 5)."""
    figure = Figure(figsize=(PAGE, 5.2), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(2, 2, sharex=True).flatten(), GROUPS.items(), strict=True):
        points = [(len(result.recipe(1).expert_lambdas), 100 * _mean(several, name)) for result, several in found]
        paper = [(len(result.recipe(1).expert_lambdas), value) for result, value in _printed(found, name)]
        plot_curves({label: points}, axes, "experts", f"accuracy, {label}, %", paper=paper)
        if paper and label == "all":
            axes.legend(*_last(axes), loc="lower right")
    return figure


def _mean_lambda(found: Sequence[Measured]) -> Figure:
    """Error and ECE against the mean of the lambdas, for each alpha (Figure 4)."""
    figure = Figure(figsize=(PAGE, 3.6), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 2), (("accuracy", "error"), ("ece", "ECE")), strict=True):
        curves: dict[str, list[tuple[float, float]]] = {}
        for result, several in found:
            recipe, value = result.recipe(1), _mean(several, name)
            point = (fmean(recipe.expert_lambdas), 100 * (1 - value if name == "accuracy" else value))
            curves.setdefault(f"alpha {recipe.mixup_alpha:g}", []).append(point)
        paper = [(0.0, 100 - value if name == "accuracy" else value) for _, value in _printed(found, name)]
        plot_curves(curves, axes, "mean of the lambdas", f"{label}, %", paper=paper)
        if paper and label == "ECE":
            axes.legend(*_last(axes), loc="upper left")
    return figure


def _alpha(found: Sequence[Measured]) -> Figure:
    """Accuracy of ensemble and experts, and the divergence of the experts' averages, against alpha (Figures 6, 3 a)."""
    figure = Figure(figsize=(PAGE, 5.6), layout="constrained")
    *groups, last, free = figure.subplots(2, 3).flatten()
    for axes, (name, label) in zip(groups, GROUPS.items(), strict=True):
        curves = {"ensemble": [(result.recipe(1).mixup_alpha, 100 * _mean(several, name)) for result, several in found]}
        for expert, lambda_ in enumerate((1, 0, -1)):
            curves[f"lambda {lambda_}"] = [
                (result.recipe(1).mixup_alpha, 100 * fmean(r["evaluation"]["experts"][expert][name] for r in several))
                for result, several in found
            ]
        paper = [(result.recipe(1).mixup_alpha, value) for result, value in _printed(found, name)]
        plot_curves(curves, axes, "alpha", f"accuracy, {label}, %", paper=paper, names=False)
    divergences = {
        name: [
            (result.recipe(1).mixup_alpha, fmean(check["marginal_kl"] for check in checks))
            for result, several in found
            if (checks := _checks(several, place))
        ]
        for place, name in enumerate(curves)
    }
    plot_curves(divergences, last, "alpha", "KL of average and prior", names=False)
    free.set_axis_off()
    free.legend(*groups[0].get_legend_handles_labels(), loc="center", fontsize=11)
    return figure


def _last(axes: Axes) -> tuple[Any, list[str]]:
    """What the legend has of the points drawn last, which no label stands beside."""
    handles, names = axes.get_legend_handles_labels()
    return handles[-1:], names[-1:]


def _printed(found: Sequence[Measured], name: str) -> list[tuple[PaperResult, float]]:
    """Those of some rows for which the paper prints a number, and that."""
    papers = [(result, PAPER_RESULTS[result.folder].paper) for result, _ in found]
    return [(result, paper[name][0]) for result, paper in papers if name in paper]


def _checks(several: Sequence[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    """Checks of the ensemble (0) or of an expert (from 1), where records have them: early ones lack the ensemble's."""
    checks = [[each["evaluation"]["check"], *each["evaluation"]["expert_checks"]][place] for each in several]
    return [check for check in checks if check]


def _mean(several: Sequence[dict[str, Any]], name: str) -> float:
    return fmean(record["evaluation"][name] for record in several)


def _save(figure: Figure, path: Path) -> None:
    write_text(path, themed_svg(figure, path.stem))
