"""Shares that follow a stream, with their bands, as a figure."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes

from balpoe.deployment.prior_tracking import PriorStep
from balpoe.errors import UserError
from balpoe.report.labels import label_ends, plot_label
from balpoe.report.look import HUES, LIGHT, Look, words

__all__ = ["plot_tracked_prior"]

MOST_CLASSES = 6


def plot_tracked_prior(
    history: Sequence[PriorStep],
    class_names: Sequence[str],
    axes: Axes,
    *,
    x: str = "samples",
    most: int = MOST_CLASSES,
) -> None:
    """Draw the share in use of the largest classes as steps, and the band of each estimate around its points.

    Looks at which no prior explained the stream have a grey background.

    Args:
        history: Steps of a tracker, `PriorTracker.history`.
        class_names: Name of each class.
        axes: Axes to draw on.
        x: What the stream is counted in: samples, or a unit of time.
        most: Most classes that are drawn, those with the largest share at any time.
    """
    if not history:
        raise UserError("the stream was not looked at yet; update the tracker with more samples, then draw")
    at = [step.at for step in history]
    priors, estimates = (torch.stack([getattr(step, name) for step in history]) for name in ("prior", "estimate"))
    bands = torch.stack([step.band for step in history])
    looks, ends = {}, {}
    for number, label in enumerate(priors.amax(dim=0).argsort(descending=True, stable=True)[:most].tolist()):
        hue, name = HUES[number % len(HUES)], class_names[label]
        low, high = (100 * bands[:, :, label]).T
        axes.plot(at, 100 * priors[:, label], color=LIGHT[hue], drawstyle="steps-post", label=plot_label(name))
        axes.plot(at, 100 * estimates[:, label], color=LIGHT[hue], linestyle="none", marker=".", markersize=3)
        axes.fill_between(at, low, high, color=LIGHT[hue], alpha=0.15, linewidth=0)
        looks[name], ends[name] = Look(LIGHT[hue], words(hue), "", "-"), (at[-1], float(100 * priors[-1, label]))
    for step, before in zip(history, [at[0], *at], strict=False):
        if step.changed:
            axes.axvspan(before, step.at, color=LIGHT["grey"], alpha=0.25, linewidth=0)
    axes.set(xlabel=x, ylabel="share, %", ylim=(0, None), xlim=axes.get_xlim())
    label_ends(axes, ends, looks)
