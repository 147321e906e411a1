"""Figures of saved numbers; each function takes numbers and axes, and saves nothing."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

__all__ = [
    "figure_bytes",
    "inline_svg",
    "plot_accuracy_by_class",
    "plot_accuracy_by_count",
    "plot_boundaries",
    "plot_class_counts",
    "plot_cost",
    "plot_curves",
    "plot_groups",
    "plot_label",
    "plot_marginal",
    "plot_priors",
    "plot_reliability",
    "plot_shifted",
]

# Okabe and Ito's colours, which all kinds of colour vision can distinguish.
COLOURS = ("#999999", "#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = "osD^vP*"
METHOD_COLOURS = ("#0072B2", "#999999", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00")
LONGEST_LABEL = 45  # letters in a legend
SHORT_LABEL = 24  # letters of which two stand side by side
GROUP_COLOURS = {"many": "#0072B2", "medium": "#E69F00", "few": "#D55E00"}
INK = "#010203"  # stands for the page's own text colour in an inline drawing
MANY_POINTS = 1000  # from here on points are drawn as a bitmap inside the drawing
SMALL_POINTS = 200  # from here on they are smaller, so that they do not cover each other
WIDTH = 5.0  # inches: on a phone a figure of a page is as wide as this, and its letters can be read
Drawing = Callable[[Figure], None]
Estimate = tuple[float, float | None, float | None]
"""A value and, where it is known, its interval."""


def inline_svg(draw: Drawing, size: tuple[float, float], name: str) -> tuple[str, list[tuple[float, float]]]:
    """Return a figure as an SVG element for a page, and where its points are.

    The drawing is transparent, its text real text in the page's own colour. The points are those of its scatter plots,
    one after another, in the units of the drawing.
    """
    colours: dict[Any, str] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    )
    with rc_context({**colours, "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure, data = _drawn(draw, size, "svg")
    text = data.decode()
    text = re.sub(r"^.*?(?=<svg )|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    # A page holds several figures: names that only this one uses, and those of another must not meet.
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    width, height = (round(72 * side) for side in size)
    text = re.sub(
        r"<svg [^>]*>",
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">',
        text,
        count=1,
    )
    return text.replace(INK, "currentColor"), _points(figure)


def figure_bytes(draw: Drawing, size: tuple[float, float], kind: str) -> bytes:
    """Return a figure as a file: "png", or "svg"."""
    return _drawn(draw, size, kind)[1]


def _points(figure: Figure) -> list[tuple[float, float]]:
    """Where the points of all scatter plots are, in 1/72 inch from the upper left corner."""
    scatters = [(axes, each) for axes in figure.axes for each in axes.collections if isinstance(each, PathCollection)]
    places = [axes.transData.transform(each.get_offsets()) * 72 / figure.dpi for axes, each in scatters]
    height = 72 * figure.get_figheight()
    return [(round(x, 1), round(height - y, 1)) for part in places for x, y in part.tolist()]


def _drawn(draw: Drawing, size: tuple[float, float], kind: str) -> tuple[Figure, bytes]:
    figure = Figure(figsize=size, layout="constrained")
    stream = io.BytesIO()
    options = {"metadata": {"Date": None, "Creator": None}} if kind == "svg" else {"dpi": 120}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font does not have
        draw(figure)
        figure.savefig(stream, format=kind, transparent=kind == "svg", **options)
    return figure, stream.getvalue()


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


def plot_label(name: str) -> str:
    """Return a name for a legend: no formula between dollars, shown despite an underscore, no wider than the axes."""
    name = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 15]}…{name[-14:]}"
    name = name.encode(errors="replace").decode().replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


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
                [places[0], *ends], [heights[0], *heights], step="pre", linewidth=0,
                color=GROUP_COLOURS[name], label=f"{name}: {len(places):,} classes",
            )  # fmt: skip
    axes.set(ylabel="training samples", xlim=(0, len(order)))
    _class_axis(axes, "classes, most frequent first")
    if min(class_counts) > 0 and max(class_counts) > 20 * min(class_counts):
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)


def plot_groups(groups: Sequence[str], methods: Mapping[str, Sequence[Estimate | None]], axes: Axes) -> None:
    """Draw accuracies (fractions) with their intervals, one row per method and group of classes.

    Args:
        groups: Names of the groups of classes, from top to bottom.
        methods: Accuracy on each group, None where it has no class, by the name of the method.
        axes: Axes to draw on.
    """
    step = 0.8 / len(methods)
    for number, (name, values) in enumerate(methods.items()):
        colour, marker = METHOD_COLOURS[number % len(METHOD_COLOURS)], MARKERS[number % len(MARKERS)]
        shown = [(place + (number - (len(methods) - 1) / 2) * step, each) for place, each in enumerate(values) if each]
        rows = [y for y, _ in shown]
        dots, starts, ends = ([100 * _ends(each)[part] for _, each in shown] for part in range(3))
        axes.hlines(rows, starts, ends, color=colour, linewidth=1.6)
        axes.plot(dots, rows, marker=marker, color=colour, linestyle="none", markersize=5, label=plot_label(name))
        for y, dot, end in zip(rows, dots, ends, strict=True):
            axes.annotate(f"{dot:.1f}", (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
    for place in range(1, len(groups), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.05, linewidth=0)
    axes.set_yticks(range(len(groups)), groups)
    axes.tick_params("y", length=0)
    axes.set(xlabel="accuracy, %", ylim=(len(groups) - 0.5, -0.5))
    axes.margins(x=0.12)
    axes.set_xlim(max(0.0, axes.get_xlim()[0]), axes.get_xlim()[1])
    columns = 1 if max(map(len, methods)) > SHORT_LABEL else 2
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def plot_accuracy_by_count(
    class_counts: Sequence[int], methods: Mapping[str, Sequence[float | None]], axes: Axes
) -> None:
    """Draw the accuracy (fractions) of each class against its training samples, one kind of marker per method."""
    for number, (name, values) in enumerate(methods.items()):
        shown = [label for label, value in enumerate(values) if value is not None]
        colour, marker = (COLOURS[3], "o") if number == 0 else (COLOURS[4], "x")
        axes.scatter(
            [class_counts[label] for label in shown], [100 * (values[label] or 0) for label in shown], alpha=0.7,
            s=18 if len(shown) <= SMALL_POINTS else 7, linewidth=0.8,
            color=colour, marker=marker, label=plot_label(name), rasterized=len(shown) > MANY_POINTS,
        )  # fmt: skip
    axes.set(xlabel="training samples of the class", ylabel="accuracy, %", ylim=(-3, 103))
    if min(class_counts) > 0:
        axes.set_xscale("log")
        _plain_log(axes.xaxis)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1))


def plot_marginal(prior: Sequence[float], marginal: Sequence[float], axes: Axes) -> None:
    """Draw an average prediction over the prior it should follow; classes most frequent in training first."""
    places = range(1, len(prior) + 1)
    axes.plot(places, marginal, color=COLOURS[1], linewidth=1, label="average prediction")
    axes.plot(places, prior, color=COLOURS[3], linewidth=1.8, linestyle="--", label="its prior")
    axes.set(ylabel="share, %", yscale="log")
    _class_axis(axes, "class, most frequent first")
    _plain_log(axes.yaxis, scale=100)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def plot_shifted(names: Sequence[str], curves: Mapping[str, Sequence[Estimate]], axes: Axes) -> None:
    """Draw accuracies (fractions) on test sets of several label distributions, one line per way to predict."""
    for number, (name, values) in enumerate(curves.items()):
        middle, low, high = (100 * np.array([_ends(each)[part] for each in values]) for part in range(3))
        colour = COLOURS[(4, 3)[number % 2]]
        axes.plot(names, middle, color=colour, marker=MARKERS[number], label=name)
        axes.fill_between(names, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set(ylabel="accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def plot_accuracy_by_class(
    class_names: Sequence[str], class_counts: Sequence[int], accuracies: Mapping[str, Sequence[float]], axes: Axes
) -> None:
    """Draw the accuracy of each class, most frequent on the left, one line per method.

    Args:
        class_names: Names of all classes.
        class_counts: Training samples per class.
        accuracies: Accuracy of each class, as fractions, by the name of the method.
        axes: Axes to draw on.
    """
    order = sorted(range(len(class_names)), key=lambda label: -class_counts[label])
    positions = range(len(order))
    for number, (name, values) in enumerate(accuracies.items()):
        heights = [100 * values[label] for label in order]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(positions, heights, color=colour, marker=marker, label=plot_label(name), linewidth=1.8)
    axes.set_xticks(positions, [f"{plot_label(class_names[label])}\n{class_counts[label]}" for label in order])
    axes.set_xlabel("class, with its number of training samples below")
    axes.set_ylabel("accuracy on the test set, %")
    axes.set_ylim(0, 102)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower left")


def plot_reliability(bins: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw accuracy against confidence, bin by bin, with the gap to the diagonal, where a calibrated classifier lies.

    Args:
        bins: Field `reliability` of an evaluation: share, confidence and accuracy of each bin.
        axes: Axes to draw on.
    """
    number = len(bins["share"])
    centres = [(place + 0.5) / number for place in range(number)]
    filled = [place for place in range(number) if bins["share"][place] > 0]
    places = [centres[place] for place in filled]
    accuracy = [bins["accuracy"][place] for place in filled]
    gaps = [bins["confidence"][place] - bins["accuracy"][place] for place in filled]
    axes.bar(places, accuracy, width=1 / number, color=COLOURS[3], edgecolor="white", linewidth=0.5, label="accuracy")
    axes.bar(
        places, gaps, bottom=accuracy, width=0.55 / number, color=COLOURS[4], alpha=0.6, label="confidence - accuracy"
    )
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")


def plot_cost(
    points: Mapping[str, tuple[float, float]], axes: Axes, label: str, paper: Mapping[str, float] | None = None
) -> None:
    """Draw accuracy (per cent) against a cost, one marker per method, named in the legend.

    Later ones are smaller, so that no marker hides another. Accuracies of the paper are open markers, to the right.
    """
    for number, (name, (cost, accuracy)) in enumerate(points.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        size = 130 - 100 * number / len(points)
        axes.scatter(cost, accuracy, color=colour, marker=marker, s=size, label=name, edgecolor="black", linewidth=0.4)
        if paper and name in paper:
            aside = cost + 0.04 * max(each for each, _ in points.values())
            axes.scatter(aside, paper[name], facecolor="none", marker=marker, s=50, edgecolor=colour, linewidth=1.2)
    axes.set(xlabel=label, ylabel="accuracy on the test set, %")
    axes.grid(alpha=0.3)


def plot_boundaries(prior: float, taus: Sequence[float], axes: Axes) -> None:
    """Draw two Gaussian classes and where a classifier trained with each tau divides them (the paper's Figure 2 a).

    Args:
        prior: Prior of the frequent class, whose mean is -1; the other's is 1.
        taus: Margins: 0 is cross-entropy, 1 is balanced, 2 is made for the inverse prior.
        axes: Axes to draw on.
    """
    grid = [place / 100 for place in range(-450, 451)]
    for mean, share, name in ((-1, prior, "frequent class"), (1, 1 - prior, "rare class")):
        density = [share * math.exp(-((x - mean) ** 2) / 2) for x in grid]
        axes.fill_between(grid, density, alpha=0.3, color=COLOURS[2 if mean < 0 else 1], label=name)
    for number, tau in enumerate(taus):
        # Adjusted scores are equal where log p(x | frequent) - log p(x | rare) = (tau - 1) log of the prior's odds.
        boundary = (1 - tau) * math.log(prior / (1 - prior)) / 2
        axes.axvline(
            boundary, color=COLOURS[3 + number], linestyle=("-", "--", ":")[number % 3], label=f"tau = {tau:g}"
        )
    axes.set(xlabel="x", ylabel="density times prior", yticks=[])
    axes.legend(frameon=False)


def plot_priors(priors: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw label distributions over the classes, most frequent in training first (the paper's Figure 2 b)."""
    for number, (name, prior) in enumerate(priors.items()):
        colour, line = COLOURS[3 + number], ("-", "--", ":")[number % 3]
        axes.plot(range(1, len(prior) + 1), prior, label=name, color=colour, linestyle=line)
    axes.set(ylabel="probability", yscale="log")
    _class_axis(axes, "class, most frequent first")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def plot_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    axes: Axes,
    x: str,
    y: str,
    *,
    paper: Sequence[tuple[float, float]] = (),
    legend: bool = True,
) -> None:
    """Draw points (x, y) joined by lines, one curve per name, each in order of x; and points of the paper, if any."""
    for number, (name, points) in enumerate(curves.items()):
        colour, marker = COLOURS[(3 + number) % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    if paper:
        axes.plot(*zip(*paper, strict=True), "k*", markersize=11, fillstyle="none", label="the paper's number")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(frameon=False, fontsize=8)
