"""Draw the figure of explanation/method.md: the prior that each expert is made for. python docs/method_figure.py."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import balpoe

HERE = Path(__file__).parent
CURVES = (("lambda 1: the long tail", 1.0, "C6"), ("lambda 0, and the product", 0.0, "C0"), ("lambda -1", -1.0, "C2"))


def main() -> None:
    """Draw the priors P^lambda of a tail of 20 classes, on a transparent ground, for light and dark pages."""
    train_prior = balpoe.class_prior((500 * 100 ** (-torch.arange(20) / 19)).long())
    with plt.style.context(HERE / "gallery.mplstyle"), plt.rc_context({"svg.hashsalt": "method"}):
        plt.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), "#808890"))
        figure, axes = plt.subplots(figsize=(6.4, 3.2))
        for name, value, colour in CURVES:
            shares = 100 * balpoe.tempered_prior(train_prior, value)
            axes.plot(range(1, 21), shares.tolist(), color=colour)
            side = 1 if value > 0 else 20
            axes.annotate(
                name, (side, float(shares[side - 1])), (6 if side == 1 else -6, 4), textcoords="offset points",
                color=colour, ha="left" if side == 1 else "right",
            )  # fmt: skip
        axes.set(xlabel="class, the most frequent in training first", ylabel="expected share, %", xlim=(0, 21))
        axes.set_xticks((1, 5, 10, 15, 20))
        figure.savefig(HERE / "images" / "priors-of-lambdas.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
