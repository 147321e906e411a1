"""Figures of saved numbers; each function takes numbers and axes, and saves nothing."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from balpoe.report.labels import label_ends, plot_label
from balpoe.report.look import LIGHT, Look, hue, method_looks, words

__all__ = [
    "plot_accuracy_by_class",
    "plot_accuracy_by_count",
    "plot_boundaries",
    "plot_class_counts",
    "plot_cost",
    "plot_curves",
    "plot_groups",
    "plot_marginal",
    "plot_priors",
    "plot_reliability",
    "plot_shifted",
]

SHORT_LABEL = 24  # letters of which two stand side by side
MANY_POINTS = 1000  # from here on points are drawn as a bitmap inside the drawing
SMALL_POINTS = 200  # from here on they are smaller, so that they do not cover each other
WIDTH = 5.0  # inches: on a phone a figure of a page is as wide as this, and its letters can be read
Estimate = tuple[float, float | None, float | None]
"""A value and, where it is known, its interval."""


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    """A value and the ends of its interval, which is the value alone where none is known."""
    value, low, high = estimate
    return value, value if low is None else low, value if high is None else high


def _plain_log(axis: Axis, scale: float = 1.0) -> None:
    """Give a logarithmic axis plain numbers: 1, 2, 5, 10 and not powers; fewer where it is long."""
    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if low > 0 and high / low < 500 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain_number(scale * value)))
    axis.set_minor_formatter(NullFormatter())


def _class_axis(axes: Axes, title: str) -> None:
    """Let the horizontal axis count classes: one is never between two others."""
    axes.set_xlabel(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _plain_number(value: float) -> str:
    """A number with two digits that matter, never with an exponent.

    >>> _plain_number(2000.0), _plain_number(0.05), _plain_number(0.00002)
    ('2,000', '0.05', '0.00002')
    """
    return f"{value:,.0f}" if value >= 1 else f"{value:.{1 - math.floor(math.log10(value))}f}".rstrip("0")


def plot_class_counts(class_counts: Sequence[int], groups: Mapping[str, Sequence[bool]], axes: Axes) -> None:
    """Draw the training samples of each class, most frequent first, in the colour of its shot group."""
    order = sorted(range(len(class_counts)), key=lambda label: -class_counts[label])
    for name, members in groups.items():
        places = [place for place, label in enumerate(order) if members[label]]
        if places:
            # One step for all classes of one count: of 100,000 classes there are some hundreds.
            steps = itertools.groupby(places, key=lambda place: class_counts[order[place]])
            heights, ends = zip(*((height, list(same)[-1] + 1) for height, same in steps), strict=True)
            axes.fill_between(
                [places[0], *ends], [heights[0], *heights], step="pre", linewidth=0, color=LIGHT[name],
                label=f"{name}: {len(places):,} {'class' if len(places) == 1 else 'classes'}",
            )  # fmt: skip
    axes.set(ylabel="training samples", xlim=(0, len(order)))
    _class_axis(axes, "classes, most frequent first")
    axes.grid(visible=False, axis="x")
    if min(class_counts) > 0 and max(class_counts) > 20 * min(class_counts):
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(labelcolor=[words(name) for name, members in groups.items() if any(members)])


def plot_groups(groups: Sequence[str], methods: Mapping[str, Sequence[Estimate | None]], axes: Axes) -> None:
    """Draw accuracies (fractions) with their intervals, one row per method and group of classes.

    Args:
        groups: Names of the groups of classes, from top to bottom.
        methods: Accuracy on each group, None where it has no class, by the name of the method.
        axes: Axes to draw on.
    """
    step, looks = 0.8 / len(methods), method_looks(methods)
    for number, (name, values) in enumerate(methods.items()):
        colour, colour_of_words, marker, _ = looks[name]
        shown = [(place + (number - (len(methods) - 1) / 2) * step, each) for place, each in enumerate(values) if each]
        rows = [y for y, _ in shown]
        dots, starts, ends = ([100 * _ends(each)[part] for _, each in shown] for part in range(3))
        axes.hlines(rows, starts, ends, color=colour, linewidth=1.8)
        axes.plot(dots, rows, marker=marker, color=colour, linestyle="none", label=plot_label(name))
        for y, dot, end in zip(rows, dots, ends, strict=True):
            axes.annotate(
                f"{dot:.1f}", (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8.5,
                color=colour_of_words,
            )  # fmt: skip
    for place in range(1, len(groups), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=LIGHT["field"], linewidth=0, zorder=0)
    axes.set_yticks(range(len(groups)), groups)
    axes.tick_params("y", length=0, labelcolor=LIGHT["ink"])
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="accuracy, %", ylim=(len(groups) - 0.5, -0.5))
    axes.margins(x=0.12)
    axes.set_xlim(max(0.0, axes.get_xlim()[0]), axes.get_xlim()[1])
    _legend_above(axes, looks, 1 if max(map(len, methods)) > SHORT_LABEL else 2)


def _legend_above(axes: Axes, looks: Mapping[str, Look], columns: int = 1) -> None:
    """Name the methods above the axes, where no point can be, each in its colour."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=columns, columnspacing=1.2,
        labelcolor=[look.words for look in looks.values()],
    )  # fmt: skip


def plot_accuracy_by_count(
    class_counts: Sequence[int], methods: Mapping[str, Sequence[float | None]], axes: Axes
) -> None:
    """Draw the accuracy (fractions) of each class against its training samples, one kind of marker per method."""
    looks = method_looks(methods)
    for number, (name, values) in enumerate(methods.items()):
        shown = [label for label, value in enumerate(values) if value is not None]
        axes.scatter(
            [class_counts[label] for label in shown], [100 * (values[label] or 0) for label in shown],
            s=24 if len(shown) <= SMALL_POINTS else 8, linewidth=1.2, alpha=0.8,
            color=looks[name].colour, marker="x" if number else "o", label=plot_label(name),
            rasterized=len(shown) > MANY_POINTS,
        )  # fmt: skip
    axes.set(xlabel="training samples of the class", ylabel="accuracy, %", ylim=(-3, 103))
    if min(class_counts) > 0:
        axes.set_xscale("log")
        _plain_log(axes.xaxis)
    _legend_above(axes, looks, 1 if max(map(len, methods)) > SHORT_LABEL else 2)


def plot_marginal(
    prior: Sequence[float], marginal: Sequence[float], axes: Axes, method: str = "BalPoE", *, legend: bool = True
) -> None:
    """Draw an average prediction over the prior it should follow; classes most frequent in training first.

    Args:
        prior: Probability of each class.
        marginal: Average predicted probability of each class.
        axes: Axes to draw on.
        method: Method, or expert, whose colour the prediction has.
        legend: Whether the two lines are named in the axes.
    """
    places = range(1, len(prior) + 1)
    axes.plot(places, marginal, color=LIGHT[hue(method) or "blue"], linewidth=1.6, label="average prediction")
    axes.plot(places, prior, color=LIGHT["ink"], linewidth=1.2, linestyle="--", label="its prior")
    axes.set(ylabel="share, %", yscale="log")
    _class_axis(axes, "class, most frequent first")
    _plain_log(axes.yaxis, scale=100)
    if legend:
        axes.legend()


def plot_shifted(names: Sequence[str], curves: Mapping[str, Sequence[Estimate]], axes: Axes) -> None:
    """Draw accuracies (fractions) on test sets of several label distributions, one line per way to predict."""
    looks = method_looks(curves)
    for name, values in curves.items():
        middle, low, high = (100 * np.array([_ends(each)[part] for each in values]) for part in range(3))
        axes.plot(names, middle, color=looks[name].colour, marker=looks[name].marker, label=plot_label(name))
        axes.fill_between(names, low, high, color=looks[name].colour, alpha=0.14, linewidth=0)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set(ylabel="accuracy, %")
    _legend_above(axes, looks, 2)


def plot_accuracy_by_class(
    class_names: Sequence[str], class_counts: Sequence[int], accuracies: Mapping[str, Sequence[float]], axes: Axes
) -> None:
    """Draw the accuracy of each class, most frequent on the left, one line per method, named at its end.

    Args:
        class_names: Names of all classes.
        class_counts: Training samples per class.
        accuracies: Accuracy of each class, as fractions, by the name of the method.
        axes: Axes to draw on.
    """
    order = sorted(range(len(class_names)), key=lambda label: -class_counts[label])
    positions, looks = range(len(order)), method_looks(accuracies)
    for name, values in accuracies.items():
        colour, _, marker, dash = looks[name]
        heights = [100 * values[label] for label in order]
        axes.plot(positions, heights, color=colour, marker=marker, linestyle=dash)
    axes.set_xticks(positions, [f"{plot_label(class_names[label])}\n{class_counts[label]}" for label in order])
    axes.set(xlabel="class, with its number of training samples below", ylabel="accuracy on the test set, %")
    axes.set(ylim=(0, 102), xlim=(-0.3, len(order) - 0.7))
    axes.grid(visible=False, axis="x")
    label_ends(axes, {name: (len(order) - 1, 100 * values[order[-1]]) for name, values in accuracies.items()}, looks)


def plot_reliability(bins: Mapping[str, Sequence[float]], axes: Axes, method: str = "BalPoE") -> None:
    """Draw accuracy against confidence, bin by bin, with the gap to the diagonal, where a calibrated classifier lies.

    Args:
        bins: Field `reliability` of an evaluation: share, confidence and accuracy of each bin.
        axes: Axes to draw on.
        method: Method whose colour the bars have.
    """
    number = len(bins["share"])
    centres = [(place + 0.5) / number for place in range(number)]
    filled = [place for place in range(number) if bins["share"][place] > 0]
    places = [centres[place] for place in filled]
    accuracy = [bins["accuracy"][place] for place in filled]
    gaps = [bins["confidence"][place] - bins["accuracy"][place] for place in filled]
    edge: dict[str, Any] = {"edgecolor": LIGHT["paper"], "linewidth": 0.6}
    axes.bar(places, accuracy, 1 / number, color=LIGHT[hue(method) or "blue"], label="accuracy", **edge)
    axes.bar(places, gaps, 0.5 / number, accuracy, color=LIGHT["orange"], label="confidence - accuracy", **edge)
    axes.plot([0, 1], [0, 1], color=LIGHT["ink"], linestyle="--", linewidth=1)
    ticks, names = (0, 0.5, 1), ("0", "50", "100")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence, %", ylabel="accuracy, %", aspect="equal")
    axes.set_xticks(ticks, names)
    axes.set_yticks(ticks, names)


def plot_cost(
    points: Mapping[str, tuple[float, float]], axes: Axes, label: str, paper: Mapping[str, float] | None = None
) -> None:
    """Draw accuracy (per cent) against a cost, one marker per method; accuracies of the paper as open markers."""
    for name, look in method_looks(points).items():
        axes.scatter(*points[name], color=look.colour, marker=look.marker, s=60, linewidth=0.5, edgecolor="white")
        if paper and name in paper:
            aside = points[name][0] + 0.04 * max(each for each, _ in points.values())
            axes.scatter(aside, paper[name], facecolor="none", marker=look.marker, s=40, edgecolor=look.colour)
    axes.set(xlabel=label, ylabel="accuracy on the test set, %")


def plot_boundaries(prior: float, taus: Sequence[float], axes: Axes) -> None:
    """Draw two Gaussian classes and where a classifier trained with each tau divides them (the paper's Figure 2 a).

    Args:
        prior: Prior of the frequent class, whose mean is -1; the other's is 1.
        taus: Margins: 0 is cross-entropy, 1 is balanced, 2 is made for the inverse prior.
        axes: Axes to draw on.
    """
    grid = [place / 20 for place in range(-90, 91)]
    for mean, share, name, colour in ((-1, prior, "frequent", "many"), (1, 1 - prior, "rare class", "few")):
        density = [share * math.exp(-((x - mean) ** 2) / 2) for x in grid]
        axes.fill_between(grid, density, alpha=0.35, color=LIGHT[colour], linewidth=0)
        side: dict[str, Any] = {"ha": "right" if mean < 0 else "left", "color": words(colour)}
        axes.annotate(name, (1.9 * mean, 0.75 * share), (6 * mean, 0), textcoords="offset points", **side)
    looks = method_looks([f"tau = {tau:g}" for tau in taus])
    for tau, look in zip(taus, looks.values(), strict=True):
        # Adjusted scores are equal where log p(x | frequent) - log p(x | rare) = (tau - 1) log of the prior's odds.
        boundary = (1 - tau) * math.log(prior / (1 - prior)) / 2
        axes.axvline(boundary, color=look.colour, linestyle=look.dash)
        top = axes.get_xaxis_transform()
        axes.text(boundary, 1.01, f"tau {tau:g}", transform=top, ha="center", fontsize=9, color=look.words)
    axes.set(xlabel="x", ylabel="density times prior", yticks=[], ylim=(0, 1.05 * prior), xlim=(-4.5, 4.5))


def plot_priors(priors: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw label distributions over the classes, most frequent in training first (the paper's Figure 2 b)."""
    looks = method_looks(priors)
    for name, prior in priors.items():
        axes.plot(range(1, len(prior) + 1), prior, label=name, color=looks[name].colour, linestyle=looks[name].dash)
    axes.set(ylabel="share, %", yscale="log", xlim=(1, max(map(len, priors.values()))))
    _plain_log(axes.yaxis, scale=100)
    _class_axis(axes, "class, most frequent first")
    label_ends(axes, {name: (len(prior), prior[-1]) for name, prior in priors.items()}, looks)


def plot_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    axes: Axes,
    x: str,
    y: str,
    *,
    paper: Sequence[tuple[float, float]] = (),
    names: bool = True,
) -> None:
    """Draw points (x, y) joined by lines, one curve per name, each in order of x; and points of the paper, if any.

    Args:
        curves: Points of each curve.
        axes: Axes to draw on.
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        paper: Points of the paper, drawn as stars.
        names: Whether the curves are named at their ends.
    """
    looks = method_looks(curves)
    for name, points in curves.items():
        colour, _, marker, dash = looks[name]
        axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, linestyle=dash, label=name)
    if paper:
        star: dict[str, Any] = {"color": LIGHT["ink"], "marker": "*", "linestyle": "none", "fillstyle": "none"}
        axes.plot(*zip(*paper, strict=True), markersize=11, label="the paper's number", **star)
    axes.set(xlabel=x, ylabel=y)
    if names and len(curves) > 1:
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
        label_ends(axes, {name: max(points) for name, points in curves.items()}, looks)
