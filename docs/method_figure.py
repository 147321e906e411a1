"""Draw the figure of explanation/method.md: the prior that each expert is made for. python docs/method_figure.py."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import balpoe
from balpoe.files import write_file
from balpoe.report.drawing import themed_file
from balpoe.report.look import method_looks

FIGURE = Path(__file__).parent / "images" / "priors-of-lambdas.svg"
CURVES = {  # lambda, and where the name stands: class, and points from there
    "lambda 1: the long tail": (1.0, 1, (8, 2)),
    "product, and lambda 0": (0.0, 8, (0, 5)),
    "lambda -1: turned around": (-1.0, 20, (-6, 2)),
}


def draw(figure: Figure) -> None:
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


if __name__ == "__main__":
    write_file(FIGURE, lambda stream: stream.write(themed_file(draw, (6.4, 3.2), FIGURE.stem)))
