"""Figures of saved numbers; each function takes numbers and axes, and saves nothing."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

__all__ = ["plot_accuracy_by_class"]

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
