"""Draw the figures of pages that need no training: python docs/page_figures.py [RUNS].

The prior that each expert is made for (explanation/method.md), and the comparison of methods (compare.md) from its
record; with the folder of the runs of `balpoe demo`, also its figure (commands.md).
"""

import json
import sys
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure

import balpoe
from balpoe.cli.demo_runs import FIGURE_SIZE, NAMES, ROWS, SEEDS, demo_drawing
from balpoe.experiments.run_folder import Run
from balpoe.files import write_file
from balpoe.report.comparison_plots import plot_trade_off
from balpoe.report.drawing import Drawing, themed_file
from balpoe.report.look import method_looks

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CURVES = {  # lambda, and where the name stands: class, and points from there
    "lambda 1: the long tail": (1.0, 1, (8, 2)),
    "product, and lambda 0": (0.0, 8, (0, 5)),
    "lambda -1: turned around": (-1.0, 20, (-6, 2)),
}


def draw_priors(figure: Figure) -> None:
    """Draw the priors P^lambda of a tail of 20 classes."""
    train_prior = balpoe.class_prior((500 * 100 ** (-torch.arange(20) / 19)).long())
    axes, looks = figure.subplots(), method_looks(CURVES)
    for name, (value, place, offset) in CURVES.items():
        shares = (100 * balpoe.tempered_prior(train_prior, value)).tolist()
        axes.plot(range(1, 21), shares, color=looks[name].colour)
        side = "right" if place == 20 else "left"
        axes.annotate(
            name, (place, shares[place - 1]), offset, textcoords="offset points", color=looks[name].words, ha=side
        )
    axes.set(xlabel="class, the most frequent in training first", ylabel="expected share, %", xlim=(0.5, 20.5))
    axes.set_xticks((1, 5, 10, 15, 20))


def draw_comparison(figure: Figure) -> None:
    """Draw accuracy against ECE of the methods that were compared on digits."""
    rows = json.loads((ROOT / "results" / "compare_digits.json").read_text(encoding="utf-8"))["rows"]
    points = {
        row["title"]: (fmean(row["scores"]["ece"]), fmean(row["scores"]["balanced_accuracy"]), fmean(row["seconds"]))
        for row in rows
    }
    same = {row["title"] for row in rows[1:] if row["differences"]["balanced_accuracy"]["high"] >= 0}
    plot_trade_off(points, {rows[0]["title"], *same}, figure.subplots())


def save(name: str, draw: Drawing, size: tuple[float, float]) -> None:
    """Write a figure for light and dark pages."""
    data = themed_file(draw, size, name)
    write_file(IMAGES / f"{name}.svg", lambda stream: stream.write(data))


if __name__ == "__main__":
    save("priors-of-lambdas", draw_priors, (6.4, 3.2))
    save("compare", draw_comparison, (6.8, 4.6))
    for folder in map(Path, sys.argv[1:]):
        places = {row: folder / name for row, name in zip(ROWS, NAMES, strict=True)}
        runs = {row: [Run(place / f"seed-{seed}") for seed in SEEDS] for row, place in places.items()}
        save("demo", demo_drawing(runs), FIGURE_SIZE)
