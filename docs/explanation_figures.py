"""make results: figures of explanations and how-tos, from records or computed: python docs/explanation_figures.py.

Each is light or dark as the page that shows it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from balpoe.files import write_file
from balpoe.report.drawing import themed_file
from balpoe.report.look import LIGHT

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
INK = LIGHT["soft"]
BLUE, GREY, GREEN, AMBER, RED = (LIGHT[name] for name in ("blue", "grey", "green", "orange", "red"))


def calibration(figure: Figure) -> None:
    """How far the experts of CIFAR-100-LT are from calibrated for their own priors, without mixup and with it."""
    axes = figure.subplots()
    names = ("expert, lambda 1", "expert, lambda 0", "expert, lambda -1", "the product")
    for row in range(len(names)):
        without, within = (_ece(folder, row) for folder in ("balpoe-no-mixup", "balpoe"))
        axes.plot((within, without), (row, row), color=INK, alpha=0.5, linewidth=1.5, zorder=1)
        axes.scatter((without,), (row,), color=AMBER, s=45)
        axes.scatter((within,), (row,), color=BLUE, s=45)
        _beside(axes, f"{without:.1f}", (without, row), (8, -3.5), color=AMBER)
        _beside(axes, f"{within:.1f}", (within, row), (-8, -3.5), color=BLUE, ha="right")
    _beside(axes, "with mixup", (_ece("balpoe", 0), 0), (0, 10), color=BLUE, ha="center")
    _beside(axes, "without", (_ece("balpoe-no-mixup", 0), 0), (0, 10), color=AMBER, ha="center")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="expected calibration error for each one's own prior, %", xlim=(-2, 32), ylim=(3.5, -0.9))


def _ece(folder: str, row: int) -> float:
    """Mean over the seeds of an expert's ECE for its own prior; of the product, whose prior is uniform, after them."""
    found = [record["evaluation"] for record in _records(RESULTS / "cifar100-lt" / folder)]
    return 100 * fmean(each["ece"] if row == 3 else each["expert_checks"][row]["weighted_ece"] for each in found)


def label_shift(figure: Figure) -> None:
    """Two classes by one measurement: another mix moves the threshold; classes that look different break it."""
    places = (("training, 9 to 1", 0.9, 0.0), ("deployment, 1 to 1", 0.5, 0.0), ("a class looks different", 0.5, -1.2))
    row = figure.subplots(1, 3, sharex=True, sharey=True)
    x = torch.linspace(-3, 5, 81)
    for axes, (title, share, moved) in zip(row, places, strict=True):
        for centre, weight, colour in ((0.0, share, GREY), (2.0 + moved, 1 - share, BLUE)):
            density = weight * torch.exp(-((x - centre) ** 2) / 2) / (2 * torch.pi) ** 0.5
            axes.fill_between(x.tolist(), density.tolist(), color=colour, alpha=0.35, linewidth=0)
            axes.plot(x.tolist(), density.tolist(), color=colour)
        trained, adjusted = (1 + float(torch.log(torch.tensor(each / (1 - each)))) / 2 for each in (0.9, share))
        axes.axvline(trained, color=INK, linestyle=":", linewidth=1.5)
        if share != 0.9:
            axes.axvline(adjusted, color=RED, linewidth=1.5)
        axes.set_title(title, color=INK)
        axes.set(xlabel="measurement", yticks=[])
        axes.spines["left"].set_visible(False)
    _beside(row[0], "frequent", (-0.8, 0.26), (-5, 0), color=GREY, ha="right")
    _beside(row[0], "rare", (2.4, 0.045), (6, 8), color=BLUE)
    _beside(row[0], "as trained", (2.1, 0.3), (5, 0), color=INK)
    _beside(row[1], "adjusted", (1, 0.3), (-5, 0), color=RED, ha="right")


def speed(figure: Figure) -> None:
    """Milliseconds of a training step of CIFAR-100-LT, three experts, batches of 128, for each kind of step."""
    record = json.loads((RESULTS / "cifar_step.json").read_text(encoding="utf-8"))
    rows = {row["kind"]: row["ms_a_step"] for row in record["rows"] if (row["experts"], row["batch"]) == (3, 128)}
    names = {"eager": "eager: plain PyTorch", "captured": "captured: one CUDA graph",
             "compiled": "compiled: torch.compile", "fused": "fused: our own kernels"}  # fmt: skip
    axes = figure.subplots()
    for place, kind in enumerate(names):
        axes.barh(place, rows[kind], color=BLUE if kind == "fused" else GREY, height=0.6)
        _beside(axes, f"{rows[kind]:.2f} ms", (rows[kind], place), (5, -3.5), color=INK)
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.set(xlabel="milliseconds a step", xlim=(0, 23))
    axes.invert_yaxis()


def places(figure: Figure) -> None:
    """Accuracy at made-up sites: as trained, with a list of classes, a table of 200 labels, the exact prior."""
    record = json.loads((RESULTS / "sites.json").read_text(encoding="utf-8"))
    ways = (("as trained", "as trained", GREY), ("yes/no list", "yes/no list", AMBER),
            ("shrunk counts", "prior table", BLUE), ("exact prior", "exact priors", GREEN))  # fmt: skip
    titles = {0.1: "a handful of classes", 0.3: "some classes", 1: "most classes"}
    row = figure.subplots(1, 3, sharey=True)
    for axes, found in zip(row, record["rows"], strict=True):
        for place, (way, _, colour) in enumerate(ways):
            value = found[way]["accuracy"][0]
            axes.barh(place, value, color=colour, height=0.65)
            _beside(axes, f"{value:.1f}", (value, place), (4, -3.5), color=INK)
        axes.set_title(titles[found["concentration"]] + " at a site", color=INK)
        axes.set(xlabel="accuracy, %", xlim=(0, 92))
        axes.set_yticks(range(len(ways)), [name for _, name, _ in ways])
    row[0].invert_yaxis()


def trials(figure: Figure) -> None:
    """The trials of a search: held-out balanced accuracy of each learning rate, by method."""
    record = json.loads((RESULTS / "tune_digits.json").read_text(encoding="utf-8"))
    axes = figure.subplots()
    for name, title, above, colour in (("cross-entropy", "cross-entropy", -17, GREY), ("balpoe", "BalPoE", 9, BLUE)):
        tried = record["trials"][name]
        for each in tried:
            look: dict[str, Any] = {"facecolors": "none", "edgecolors": colour} if each["pruned"] else {"color": colour}
            axes.scatter(each["values"]["lr"], 100 * fmean(each["scores"]), s=40, **look)
        first = tried[0]["values"]["lr"], 100 * fmean(tried[0]["scores"])
        _beside(axes, f"{title}, as it stands", first, (0, above), color=colour, ha="center")
    axes.set_xscale("log")
    axes.set_xticks((0.003, 0.01, 0.03, 0.1), ("0.003", "0.01", "0.03", "0.1"))
    axes.minorticks_off()
    axes.set(xlabel="learning rate", ylabel="held-out balanced accuracy, %", ylim=(69, 97))


FIGURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {  # what draws it, and its size in inches
    "calibration": (calibration, (6.4, 2.6)),
    "label-shift": (label_shift, (9.2, 2.7)),
    "speed": (speed, (6.4, 2.2)),
    "places": (places, (9.2, 2.4)),
    "trials": (trials, (6.4, 3.2)),
}


def draw(name: str, folder: Path) -> None:
    """Write one of the figures.

    Args:
        name: Key of `FIGURES`.
        folder: Where to write NAME.svg.
    """
    data = themed_file(*FIGURES[name], name)
    write_file(folder / f"{name}.svg", lambda stream: stream.write(data))


def _beside(axes: Any, words: str, point: tuple[float, float], points: tuple[float, float], **look: Any) -> None:
    """Words beside a point, some points of the page away."""
    axes.annotate(words, point, points, textcoords="offset points", **look)


def _records(folder: Path) -> list[Any]:
    """The records of all seeds."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("seed-*.json"))]


if __name__ == "__main__":
    for each in FIGURES:
        draw(each, HERE / "images")
