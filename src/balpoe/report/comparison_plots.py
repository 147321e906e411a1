"""The figures of a comparison of methods, and of a search of their settings; each takes numbers and axes."""

import itertools
from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes

from balpoe.report.labels import label_ends, plot_label
from balpoe.report.look import LIGHT, Look, hue, method_looks, words

__all__ = ["plot_differences", "plot_search", "plot_trade_off"]

SMALLEST, LARGEST = 25.0, 260.0  # areas of markers, in square points


def _looks(names: Collection[str]) -> dict[str, Look]:
    """Methods in their hues; of many, those without one are grey."""
    hues = {name: hue(name) or "grey" for name in names}
    return {name: Look(LIGHT[each], words(each), "o", "-") for name, each in hues.items()}


def plot_trade_off(points: Mapping[str, tuple[float, float, float]], best: Collection[str], axes: Axes) -> None:
    """Draw accuracy against calibration error, a marker for each method, its area by its cost; names on the right.

    The best ones are filled.


    Args:
        points: ECE and balanced accuracy (fractions), and cost, by the name of the method.
        best: Names of the methods that cannot be told apart from the best.
        axes: Axes to draw on.
    """
    most, looks = max(cost for _, _, cost in points.values()) or 1.0, _looks(points)
    xs, ys = ([100 * value[part] for value in points.values()] for part in (0, 1))
    sizes = [SMALLEST + (LARGEST - SMALLEST) * cost / most for _, _, cost in points.values()]
    edges = [look.colour for look in looks.values()]
    fills = [look.colour if name in best else LIGHT["paper"] for name, look in looks.items()]
    axes.scatter(xs, ys, s=sizes, facecolor=fills, edgecolor=edges, alpha=0.85, linewidth=1.4)
    axes.margins(x=0.1, y=0.1)
    axes.set(xlabel="ECE, calibrated, %  (better: left)", ylabel="balanced accuracy, %  (better: up)")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    label_ends(axes, dict(zip(points, zip(xs, ys, strict=True), strict=True)), looks, size=8.5)


def plot_differences(differences: Mapping[str, tuple[float, float, float]], best: str, axes: Axes) -> None:
    """Draw differences (fractions) to the best method with their intervals, one row per method.

    Methods whose interval holds zero are filled.

    Args:
        differences: Difference and the ends of its interval, by the name of the method.
        best: Name of the best method.
        axes: Axes to draw on.
    """
    looks = _looks(differences)
    for row, (name, (value, low, high)) in enumerate(differences.items()):
        colour = looks[name].colour
        axes.hlines(row, 100 * low, 100 * high, color=colour, linewidth=1.8)
        axes.plot(100 * value, row, marker="o", color=colour, markerfacecolor=colour if high >= 0 else LIGHT["paper"])
    axes.axvline(0, color=LIGHT["ink"], linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(differences)), [plot_label(name) for name in differences], fontsize=9)
    axes.set_ylim(len(differences) - 0.5, -0.5)
    axes.set_title(f"minus {plot_label(best)}", fontsize=9)
    axes.set_xlabel("difference of balanced accuracy, points\n(filled: may be as good)")
    axes.grid(visible=False, axis="y")


def plot_search(trials: Mapping[str, Sequence[tuple[float, bool]]], axes: Axes) -> None:
    """Draw the score of each trial (fractions), and the best so far as a line, a colour per method.

    Args:
        trials: Score of each trial and whether it was given up, in order, by the name of the method.
        axes: Axes to draw on.
    """
    looks, ends = method_looks(trials), {}
    for name, several in trials.items():
        colour, _, marker, dash = looks[name]
        places = range(1, len(several) + 1)
        best = list(itertools.accumulate((0.0 if given_up else 100 * score for score, given_up in several), max))
        dots = [100 * score for score, _ in several]
        axes.plot(places, dots, color=colour, marker=marker, linestyle="none", markersize=3, alpha=0.5)
        axes.step(places, best, color=colour, linestyle=dash, where="post")
        ends[name] = (len(several), best[-1])
    axes.set(xlabel="trial", ylabel="held-out balanced accuracy, %")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    label_ends(axes, ends, looks)
