"""Figures of saved numbers; each function takes numbers and axes, and saves nothing."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

__all__ = ["plot_accuracy_by_class", "plot_boundaries", "plot_cost", "plot_curves", "plot_priors", "plot_reliability"]

# Okabe and Ito's colours, told apart by all kinds of colour vision.
COLOURS = ("#999999", "#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = "osD^vP*"


def plot_accuracy_by_class(
    class_names: Sequence[str], class_counts: Sequence[int], accuracies: Mapping[str, Sequence[float]], axes: Axes
) -> None:
    """Draw the accuracy of each class, most frequent on the left, one line per method.

    Args:
        class_names: Of all classes.
        class_counts: Training samples per class.
        accuracies: From a method's name to the accuracy of each class, as fractions.
        axes: Where to draw.
    """
    order = sorted(range(len(class_names)), key=lambda label: -class_counts[label])
    positions = range(len(order))
    for number, (name, values) in enumerate(accuracies.items()):
        heights = [100 * values[label] for label in order]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(positions, heights, color=colour, marker=marker, label=name, linewidth=1.8)
    axes.set_xticks(positions, [f"{class_names[label]}\n{class_counts[label]}" for label in order])
    axes.set_xlabel("class, with its number of training samples below")
    axes.set_ylabel("accuracy on the test set, %")
    axes.set_ylim(0, 102)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower left")


def plot_reliability(bins: Mapping[str, Sequence[float]], axes: Axes) -> None:
    """Draw accuracy against confidence, bin by bin, with the gap to the diagonal, where a calibrated classifier lies.

    Args:
        bins: The `reliability` of an evaluation: share, confidence and accuracy of each bin.
        axes: Where to draw.
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
    axes.plot([0, 1], [0, 1], color="#444444", linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")


def plot_cost(points: Mapping[str, tuple[float, float]], axes: Axes, label: str) -> None:
    """Draw accuracy (per cent) against a cost, one marker per method, named in the legend."""
    for number, (name, (cost, accuracy)) in enumerate(points.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        axes.scatter(cost, accuracy, color=colour, marker=marker, s=60, label=name, edgecolor="black", linewidth=0.4)
    axes.set(xlabel=label, ylabel="accuracy on the test set, %")
    axes.grid(alpha=0.3)


def plot_boundaries(prior: float, taus: Sequence[float], axes: Axes) -> None:
    """Draw two Gaussian classes and where a classifier trained with each tau divides them (the paper's Figure 2 a).

    Args:
        prior: Of the frequent class, whose mean is -1; the other's is 1.
        taus: Margins: 0 is cross-entropy, 1 is balanced, 2 is made for the inverse prior.
        axes: Where to draw.
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


def plot_curves(curves: Mapping[str, Sequence[tuple[float, float]]], axes: Axes, x: str, y: str) -> None:
    """Draw points (x, y) joined by lines, one curve per name, each in order of x."""
    for number, (name, points) in enumerate(curves.items()):
        colour, marker = COLOURS[(3 + number) % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
