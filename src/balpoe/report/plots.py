"""Figures of saved numbers; each function takes numbers and axes, and saves nothing."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
GROUP_COLOURS = {"many": "#0072B2", "medium": "#E69F00", "few": "#D55E00"}
INK = "#010203"  # stands for the page's own text colour in an inline drawing
MANY_POINTS = 1000  # from here on points are drawn as a bitmap inside the drawing
Drawing = Callable[[Figure], None]


def inline_svg(draw: Drawing, size: tuple[float, float], name: str) -> str:
    """Return a figure as an SVG element for a page: transparent, its text real text in the page's own colour."""
    colours: dict[Any, str] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    )
    with rc_context({**colours, "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        text = figure_bytes(draw, size, "svg").decode()
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
    return text.replace(INK, "currentColor")


def figure_bytes(draw: Drawing, size: tuple[float, float], kind: str) -> bytes:
    """Return a figure as a file: "png", or "svg"."""
    figure = Figure(figsize=size, layout="constrained")
    stream = io.BytesIO()
    options = {"metadata": {"Date": None, "Creator": None}} if kind == "svg" else {"dpi": 120}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font does not have
        draw(figure)
        figure.savefig(stream, format=kind, transparent=kind == "svg", **options)
    return stream.getvalue()


def _label(name: str) -> str:
    """A name for a legend: no formula between dollars, not hidden for its underscore, and no wider than the axes."""
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
    axes.set(xlabel="classes, most frequent first", ylabel="training samples", xlim=(0, len(order)))
    axes.set_yscale("log") if min(class_counts) > 0 and max(class_counts) > 20 * min(class_counts) else None
    axes.legend(frameon=False)


def plot_groups(methods: Mapping[str, Sequence[float | None]], axes: Axes) -> None:
    """Draw the accuracy (fractions) on all, many-, medium- and few-shot classes as bars, one colour per method."""
    width = 0.8 / len(methods)
    for number, (name, values) in enumerate(methods.items()):
        places = [place + (number - (len(methods) - 1) / 2) * width for place in range(len(values))]
        heights = [0 if value is None else 100 * value for value in values]
        colour = METHOD_COLOURS[number % len(METHOD_COLOURS)]
        bars = axes.bar(places, heights, width=0.92 * width, color=colour, label=_label(name))
        axes.bar_label(bars, ["-" if v is None else f"{100 * v:.1f}" for v in values], fontsize=8, padding=2)
    axes.set_xticks(range(4), ["all", "many", "medium", "few"])
    axes.set(ylabel="accuracy, %", ylim=(0, 108))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)


def plot_accuracy_by_count(
    class_counts: Sequence[int], methods: Mapping[str, Sequence[float | None]], axes: Axes
) -> None:
    """Draw the accuracy (fractions) of each class against its training samples, one kind of marker per method."""
    for number, (name, values) in enumerate(methods.items()):
        shown = [label for label, value in enumerate(values) if value is not None]
        colour, marker = (COLOURS[3], "o") if number == 0 else (COLOURS[4], "x")
        axes.scatter(
            [class_counts[label] for label in shown], [100 * (values[label] or 0) for label in shown], s=18, alpha=0.7,
            color=colour, marker=marker, label=_label(name), rasterized=len(shown) > MANY_POINTS,
        )  # fmt: skip
    axes.set(xlabel="training samples of the class", ylabel="accuracy, %", ylim=(-3, 103))
    axes.set_xscale("log") if min(class_counts) > 0 else None
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def plot_marginal(prior: Sequence[float], marginal: Sequence[float], axes: Axes) -> None:
    """Draw an average prediction over the prior it should follow; classes most frequent in training first."""
    places = range(1, len(prior) + 1)
    axes.plot(places, marginal, color=COLOURS[1], linewidth=1, label="average prediction")
    axes.plot(places, prior, color=COLOURS[3], linewidth=1.8, linestyle="--", label="its prior")
    axes.set(xlabel="class, most frequent first", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def plot_shifted(names: Sequence[str], curves: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw accuracies (fractions) on test sets of several label distributions, one line per way to predict."""
    for number, (name, values) in enumerate(curves.items()):
        heights = [100 * value for value in values]
        axes.plot(names, heights, color=COLOURS[(4, 3)[number % 2]], marker=MARKERS[number], label=name)
    axes.tick_params("x", rotation=35)
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
        axes.plot(positions, heights, color=colour, marker=marker, label=_label(name), linewidth=1.8)
    axes.set_xticks(positions, [f"{_label(class_names[label])}\n{class_counts[label]}" for label in order])
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
    axes.set(xlabel="class, most frequent first", ylabel="probability", yscale="log")
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
