"""The figures of a comparison of methods, and of a search of their settings; each takes numbers and axes."""

import itertools
from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes

from balpoe.report.plots import COLOURS, INK, MARKERS, plot_label

__all__ = ["plot_differences", "plot_search", "plot_trade_off", "spread"]

BEST, OTHER = COLOURS[3], COLOURS[0]
SMALLEST, LARGEST = 25.0, 260.0  # areas of markers, in square points


def plot_trade_off(points: Mapping[str, tuple[float, float, float]], best: Collection[str], axes: Axes) -> None:
    """Draw accuracy against calibration error, a marker for each method, its area by its cost; names on the right.

    Args:
        points: ECE and balanced accuracy (fractions), and cost, by the name of the method.
        best: Names of the methods to be drawn as the best ones.
        axes: Axes to draw on.
    """
    most = max(cost for _, _, cost in points.values()) or 1.0
    xs, ys = ([100 * value[part] for value in points.values()] for part in (0, 1))
    sizes = [SMALLEST + (LARGEST - SMALLEST) * cost / most for _, _, cost in points.values()]
    colours = [BEST if name in best else OTHER for name in points]
    axes.scatter(xs, ys, s=sizes, color=colours, alpha=0.75, edgecolor="white", linewidth=0.6)
    axes.margins(x=0.1, y=0.1)
    axes.set(xlabel="ECE, calibrated, %", ylabel="balanced accuracy, %")
    axes.grid(alpha=0.3)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    places = spread(ys, (high - low) * min(0.06, 0.9 / len(ys)), low, high)
    right = axes.get_xlim()[1]
    axes.set_xlim(axes.get_xlim())
    for name, x, y, place in zip(points, xs, ys, places, strict=True):
        colour = BEST if name in best else "#767676"
        axes.annotate(
            plot_label(name), (x, y), (right + 0.03 * (right - axes.get_xlim()[0]), place), annotation_clip=False,
            fontsize=8, va="center", color=colour,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6, "shrinkB": 4, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places for labels, at the values or near them, at least a gap apart and between two limits.

    >>> spread([1.0, 1.0, 9.0], 2.0, 0.0, 10.0)
    [0.0, 2.0, 9.0]
    """
    order = sorted(range(len(values)), key=lambda index: values[index])

    def inside(middle: float, count: int) -> tuple[float, int]:
        half = gap * (count - 1) / 2
        return min(max(middle, low + half), high - half), count

    blocks: list[tuple[float, int]] = []  # middle and number of labels that stand together
    for index in order:
        blocks.append(inside(values[index], 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (first, some), (second, more) = blocks[-2:]
            blocks[-2:] = [inside((first * some + second * more) / (some + more), some + more)]
    places = [middle + gap * (place - (count - 1) / 2) for middle, count in blocks for place in range(count)]
    found = dict(zip(order, places, strict=True))
    return [found[index] for index in range(len(values))]


def plot_differences(differences: Mapping[str, tuple[float, float, float]], best: str, axes: Axes) -> None:
    """Draw differences (fractions) to the best method with their intervals, one row per method.

    Args:
        differences: Difference and the ends of its interval, by the name of the method.
        best: Name of the best method.
        axes: Axes to draw on.
    """
    for row, (value, low, high) in enumerate(differences.values()):
        colour = BEST if high >= 0 else OTHER
        axes.hlines(row, 100 * low, 100 * high, color=colour, linewidth=1.6)
        axes.plot(100 * value, row, marker="o", color=colour, markersize=5)
    axes.axvline(0, color=INK, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(differences)), [plot_label(name) for name in differences], fontsize=9)
    axes.set_ylim(len(differences) - 0.5, -0.5)
    axes.set_title(f"minus {plot_label(best)}", fontsize=9, loc="left")
    axes.set_xlabel("difference of balanced accuracy, points")
    axes.grid(axis="x", alpha=0.3)


def plot_search(trials: Mapping[str, Sequence[tuple[float, bool]]], axes: Axes) -> None:
    """Draw the score of each trial (fractions), and the best so far as a line, a colour per method.

    Args:
        trials: Score of each trial and whether it was given up, in order, by the name of the method.
        axes: Axes to draw on.
    """
    for number, (name, several) in enumerate(trials.items()):
        colour, marker = COLOURS[(3 + number) % len(COLOURS)], MARKERS[number % len(MARKERS)]
        places = range(1, len(several) + 1)
        best = list(itertools.accumulate((0.0 if given_up else 100 * score for score, given_up in several), max))
        dots = [100 * score for score, _ in several]
        axes.plot(places, dots, color=colour, marker=marker, linestyle="none", markersize=3, alpha=0.5)
        axes.step(places, best, color=colour, where="post", label=plot_label(name))
    axes.set(xlabel="trial", ylabel="held-out balanced accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
