"""Names in figures: as they are, beside what they name, and not on each other."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from balpoe.report.look import Look

__all__ = ["label_ends", "plot_label", "spread"]

LONGEST_LABEL = 45  # letters in a legend


def plot_label(name: str) -> str:
    """Return a name for a legend: no formula between dollars, shown despite an underscore, no wider than the axes."""
    name = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 15]}…{name[-14:]}"
    name = name.encode(errors="replace").decode().replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


def label_ends(axes: Axes, ends: Mapping[str, tuple[float, float]], looks: Mapping[str, Look], size: float = 9) -> None:
    """Write names to the right of the axes, each as near to its point as the others let it, with a line to it.

    Args:
        axes: Axes whose limits are final.
        ends: Point (x, y) that each name belongs to.
        looks: Colours of the names.
        size: Size of the letters, in points.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    points = {name: to_axes.transform(point) for name, point in ends.items()}
    height = 72 * axes.bbox.height / axes.figure.dpi
    gap = min(1.35 * size / height, 1 / max(1, len(points) - 1))
    places = spread([float(point[1]) for point in points.values()], gap, 0.0, 1.0)
    for (name, (x, y)), place in zip(points.items(), places, strict=True):
        near = x > 0.9 and abs(place - y) < gap / 2
        line = {"arrowstyle": "-", "color": looks[name].words, "linewidth": 0.6, "alpha": 0.7}
        axes.annotate(
            plot_label(name), (x, y), (1.03, place), "axes fraction", annotation_clip=False, fontsize=size,
            va="center", color=looks[name].words,
            arrowprops=None if near else {**line, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)},
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
