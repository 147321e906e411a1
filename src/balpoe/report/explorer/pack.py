"""The report's prior explorer: predictions packed into a page that recomputes the metrics for any label prior.

The page holds, for each test sample, how far each class lies below the most probable one (`rows.py`).
"""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.metrics import shot_groups as checked_groups
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import checked_source
from balpoe.method.intervals import effective_counts
from balpoe.report.explorer.rows import COARSE, DEEPEST, FINE, PackedRows, base64_numbers, packed_rows
from balpoe.report.page_data import script_json

__all__ = ["Explorer", "asset", "explorer", "explorer_assets"]

MOST_VALUES = 2_000_000  # samples x classes that a page holds whole: 2.7 MB of text
FINE_VALUES = 500_000  # up to here in 16 bits: in a small test set every sample counts
MOST_SAMPLES = 5_000
CLASSES_OF_A_SAMPLE = 20
KNOWN = "{ perClass, prior, members, correct, confidence, weights, bins }"  # to a metric's expression, in `measure`
BOTH_USES = (
    "<em>As trained</em> uses the model's probabilities as they are. <em>Adjusted</em> moves them to these "
    "frequencies, without retraining."
)
MEASURED = ("train", *(f"{side}-{ratio}" for side in ("forward", "backward") for ratio in (100, 50, 10)), "uniform")


@dataclass(frozen=True)
class Explorer:
    """An interactive part of a page, and how far its numbers can be trusted."""

    html: str
    """A fragment; it needs `explorer_assets` once in the page."""
    approximate: bool
    """Whether the page holds a part of the predictions only."""
    error: float
    """The largest difference in accuracy from `evaluate`, in points, over several priors, as trained and adjusted."""
    rows: int
    """How many test samples the page holds."""


def explorer(predictions: Predictions, *, shot_groups: tuple[int, int] = (20, 100), num_bins: int = 15) -> Explorer:
    """Return the part of a report in which a reader changes the deployment prior.

    Args:
        predictions: Predictions that the page will hold; read in blocks of rows.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
        num_bins: Number of calibration bins.

    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    >>> predictions = Predictions(logits, torch.tensor([0, 1, 1]), torch.tensor([90, 10]), torch.tensor([0.0]))
    >>> page = explorer(predictions)
    >>> page.approximate, page.error, page.rows
    (False, 0.0, 3)
    """
    if not len(predictions):
        raise UserError("there is no test sample to explore; predict on a test set that has some")
    checked_groups(predictions.class_counts, shot_groups)
    approximate = len(predictions) * predictions.num_classes > MOST_VALUES
    priors = _measured_priors(predictions)
    packed = packed_rows(
        predictions,
        MOST_SAMPLES if approximate else len(predictions),
        CLASSES_OF_A_SAMPLE if approximate else None,
        FINE if len(predictions) * predictions.num_classes <= FINE_VALUES else COARSE,
    )
    error = _largest_difference(packed, predictions, priors)
    template = Template(asset("explorer.html"))
    page = template.substitute(
        uses=" ".join(predictions.caveats) or BOTH_USES,
        rows=_metric_rows(),
        note=_note(packed, len(predictions), error, approximate),
        data=script_json(_data(packed, predictions, shot_groups, num_bins)),
    )
    return Explorer(page, approximate, error, len(packed.targets))


def asset(name: str) -> str:
    """Return a file that goes into the page."""
    return (resources.files("balpoe.report.explorer") / name).read_text(encoding="utf-8")


def explorer_assets() -> tuple[str, str]:
    """Return the style sheet and the script of all explorers of a page."""
    functions = "".join(
        f"\n    {name}: {{ perCent: {str(metric.per_cent).lower()}, value: ({KNOWN}) => {metric.explorer} }},"
        for name, metric in METRICS.items()
        if metric.explorer is not None
    )
    script = re.sub(r"(?<=const METRICS = \{) .* (?=\};)", lambda _: f"{functions}\n  ", asset("explorer.js"), count=1)
    return asset("explorer.css"), script


def _largest_difference(packed: PackedRows, predictions: Predictions, priors: Sequence[Tensor]) -> float:
    """The largest difference between the accuracies of the page and the exact ones, in points."""
    targets, classes = predictions.targets, predictions.num_classes
    right = [targets[answers == targets] for answers in predictions.answers(priors)]
    exact = torch.stack([torch.bincount(labels, minlength=classes) for labels in right]) / _tested(predictions).double()
    source, unchanged = _source(predictions), torch.ones(classes, dtype=torch.float64)
    as_trained = _page_accuracy(packed, unchanged)
    differences = [0.0]
    for place, prior in enumerate(priors, start=1):
        adjusted = _page_accuracy(packed, unchanged if source is None else prior / source)
        for page, true in ((as_trained, exact[0]), (adjusted, exact[place])):
            there = ~page.isnan()
            seen = (prior[there] @ page[there]) / prior[there].sum()
            differences.append(abs(float(seen - prior @ true.nan_to_num(0.0))))
    return 100 * max(differences)


def _page_accuracy(packed: PackedRows, ratio: Tensor) -> Tensor:
    """Accuracy of each class as explorer.js computes it; NaN for a class without a row in the page.

    Args:
        packed: Data of the page.
        ratio: Target prior over source prior, (classes,).
    """
    classes = len(ratio)
    levels = (-DEEPEST * (torch.arange(packed.levels + 1, dtype=torch.float64) / packed.levels).square()).exp()
    answers = []
    for start in range(0, len(packed.codes), 1024):
        rows = slice(start, start + 1024)
        odds = ratio if packed.labels is None else ratio[packed.labels[rows]]
        place = (levels[packed.codes[rows].long()] * odds).argmax(dim=1)
        answers.append(place if packed.labels is None else packed.labels[rows].gather(1, place[:, None])[:, 0])
    right = packed.targets[torch.cat(answers) == packed.targets]
    return torch.bincount(right, minlength=classes).double() / torch.bincount(packed.targets, minlength=classes)


def _measured_priors(predictions: Predictions) -> list[Tensor]:
    """The priors on which the page's error is measured, over the classes that the test set has."""
    tested = _tested(predictions) > 0
    priors = [target_prior(word, predictions) * tested for word in MEASURED]
    return [prior / prior.sum() for prior in priors]


def _source(predictions: Predictions) -> Tensor | None:
    """The prior of the logits, checked; None if they are no posterior, and nothing is adjusted."""
    source = predictions.source_prior
    return None if source is None else checked_source(source, predictions.num_classes)


def _tested(predictions: Predictions) -> Tensor:
    """How many test samples each class has."""
    return torch.bincount(predictions.targets, minlength=predictions.num_classes)


def _worth(predictions: Predictions) -> dict[str, list[float]]:
    """How many observations the test samples of each class are worth, if they come in groups."""
    if predictions.groups is None:
        return {}
    found = effective_counts(predictions.targets, predictions.num_classes, predictions.groups)
    return {"worth": [round(each, 3) for each in found.tolist()]}


def _data(packed: PackedRows, predictions: Predictions, shot_groups: tuple[int, int], bins: int) -> dict[str, object]:
    """What explorer.js reads."""
    return {
        "names": predictions.class_names,
        "counts": predictions.class_counts.tolist(),
        "tested": _tested(predictions).tolist(),
        **_worth(predictions),
        "groups": shot_groups,
        "bins": bins,
        "train": base64_numbers(target_prior("train", predictions), np.float64),
        "source": None if (source := _source(predictions)) is None else base64_numbers(source, np.float64),
        **packed.data(),
    }


def _metric_rows() -> str:
    """The rows of the table of metrics, to be filled in by the page."""
    rows = []
    for name, metric in METRICS.items():
        if metric.explorer is not None:
            label = html.escape(metric.label[0].upper() + metric.label[1:])
            note = html.escape(metric.meaning + (", lower is better" if metric.lower_is_better else ""))
            head = f'<th scope="row">{label}<small>{note}</small></th>'
            rows.append(f'<tr data-metric="{name}">{head}<td></td>{2 * "<td data-adjusted></td>"}</tr>')
    return "\n".join(rows)


def _note(packed: PackedRows, samples: int, error: float, approximate: bool) -> str:
    """What the page says about its own numbers."""
    points = max(0.01, math.ceil(100 * error) / 100)
    if not approximate:
        return (
            f"Computed in this page from {samples:,} test samples. "
            f"Accuracy agrees with <code>balpoe evaluate</code> to {points:.2f} points. "
            "MCE is the largest gap of any bin and can differ more where a bin holds few samples."
        )
    return (
        f"<strong>Approximate:</strong> computed from {len(packed.targets):,} of {samples:,} test samples and the "
        f"{packed.codes.shape[1]} most probable classes of each. "
        f"Accuracy differs from <code>balpoe evaluate</code> by up to {points:.2f} points."
    )
