"""make results: accuracy on CIFAR-100-LT, ratio 100, against the GPU seconds of a training, as one SVG.

Drawn are the presets that have records in results/, the paper's numbers, and the released code. A preset's seconds are
those of its epochs alone on one H200, as measured with the kernels of then (results/whole_trainings.json,
fast_command.json, fast_command_cifar100_lt.json) or, with a tilde, as its steps take now; the released code's are from
docs/performance.md.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from rivals_figure import LOOK, place

from balpoe.experiments.presets import PRESETS, preset
from balpoe.files import write_text
from balpoe.paper.best_columns import BEST_RESULTS
from balpoe.paper.best_tables import seconds_alone
from balpoe.paper.expected import PAPER_RESULTS
from balpoe.paper.fast import FAST_TABLES
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.tables import measured_records

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "images" / "seconds.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 430, 60, 830, 60, 370
SECONDS, ACCURACIES = (6.0, 1000.0), (50.0, 60.0)
TICKS = {10: "10 s", 30: "30 s", 60: "1 min", 120: "2 min", 300: "5 min", 600: "10 min"}
RELEASED = 620.0
"""Seconds of the released code on one H200 for the paper's standard schedule."""
PRINTED = {"cifar100-lt/balpoe": "the paper, 200 epochs", "cifar100-lt-long/balpoe": "the paper, 400 epochs"}


class Point(NamedTuple):
    """A way to train: seconds, and accuracy in per cent with its deviation over seeds."""

    title: str
    seconds: float
    measured: bool
    accuracy: float
    deviation: float


def points(results: Path) -> list[Point]:
    """Return the presets for this data set and ratio that were measured, the fastest first."""
    several = (*FAST_TABLES["fast"], *BEST_RESULTS.values())  # with folders or seeds of their own
    found, own = list[Point](), {result.preset: result for result in several}
    for name in PRESETS:
        recipe, result = preset(name), own.get(name) or PaperResult(f"{name}/balpoe", name, name, {}, 5)
        if (recipe.dataset, recipe.imbalance_ratio) != ("cifar100-lt", 100):
            continue
        if values := [100 * record["evaluation"]["accuracy"] for record in measured_records(result, results)]:
            deviation = stdev(values) if len(values) > 1 else 0.0
            found.append(Point(name, *seconds_alone(result, results), fmean(values), deviation))
    return sorted(found, key=lambda point: point.seconds)


def drawing(results: Path) -> str:
    """Return the figure as SVG."""
    ours = points(results)
    best = max(ours, key=lambda point: point.accuracy)
    title = (
        f"Accuracy on CIFAR-100-LT, ratio 100, against the GPU seconds of a training: {best.title} has "
        f"{best.accuracy:.1f} % after {best.seconds:.0f} s, the released code takes {RELEASED:.0f} s for the paper's "
        f"{printed('cifar100-lt/balpoe')} %."
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
    ground = f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    parts = [head, f"<title>{title}</title>", f"<style>{LOOK}</style>", ground, *axes(), *paper()]
    for point in ours:
        parts += mark(point)
    return "\n".join([*parts, "</svg>\n"])


def axes() -> Iterator[str]:
    """Yield the grid: seconds on a logarithmic axis, accuracy on a linear one."""
    yield f'<text class="head" x="{LEFT}" y="28">accuracy, % (CIFAR-100-LT, ratio 100; ± over seeds)</text>'
    for seconds, label in TICKS.items():
        x = across(seconds)
        yield f'<path class="grid" d="M{x:.1f},{TOP} V{BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{label}</text>'
    for accuracy in range(int(ACCURACIES[0]), int(ACCURACIES[1]) + 1, 2):
        y = up(accuracy)
        yield f'<path class="grid" d="M{LEFT},{y:.1f} H{RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{accuracy}</text>'
    label = "seconds of the epochs of one training, alone on one H200 (~: steps times what one takes now)"
    yield f'<text class="head" x="{RIGHT}" y="{BOTTOM + 44}" text-anchor="end">{label}</text>'


def paper() -> Iterator[str]:
    """Yield the paper's numbers as lines, whose seconds nobody knows, and the released code as a point."""
    for folder, title in PRINTED.items():
        y = up(printed(folder))
        yield f'<path class="other" d="M{LEFT},{y:.1f} H{RIGHT}" stroke-dasharray="6 5" stroke-width="1.5"/>'
        yield f'<text x="{across(280):.1f}" y="{y - 7:.1f}" text-anchor="end">{title}: {printed(folder)}</text>'
    x, y = across(RELEASED), up(printed("cifar100-lt/balpoe"))
    yield f'<circle class="other" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    yield f'<text x="{x:.1f}" y="{y + 22:.1f}" text-anchor="middle">released code, {RELEASED:.0f} s</text>'


def mark(point: Point) -> Iterator[str]:
    """Yield a preset: a dot, the deviation over seeds, its name and its numbers."""
    x, y = across(point.seconds), up(point.accuracy)
    low, high = up(point.accuracy - point.deviation), up(point.accuracy + point.deviation)
    about = "" if point.measured else "~"
    yield f'<path class="ours" d="M{x:.1f},{low:.1f} V{high:.1f}" stroke-width="3"/>'
    yield f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    text = f"{point.title}: {point.accuracy:.1f}, {about}{point.seconds:.0f} s"
    crossed = any(0 < point.accuracy - printed(folder) < 1 for folder in PRINTED)  # by a line of the paper's, below it
    yield f'<text class="ours" x="{x + 12:.1f}" y="{y + (-7 if crossed else 15):.1f}">{text}</text>'


def printed(folder: str) -> float:
    """Return the accuracy that the paper prints of a result."""
    return PAPER_RESULTS[folder].paper["accuracy"][0]


def across(seconds: float) -> float:
    """Return where a number of seconds is drawn."""
    low, high = map(math.log, SECONDS)
    return place(math.log(seconds), LEFT, RIGHT - LEFT, low, high)


def up(accuracy: float) -> float:
    """Return where an accuracy is drawn."""
    return place(accuracy, BOTTOM, TOP - BOTTOM, *ACCURACIES)


if __name__ == "__main__":
    write_text(FIGURE, drawing(ROOT / "results"))
