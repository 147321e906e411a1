"""The report's prior explorer: predictions packed into a page that recomputes the metrics for any label prior.

The page holds, for each test sample, how far each class lies below the most probable one, in 8 bits.
Small tables are held whole; of large ones the most probable classes of a stratified part of the samples.
"""

import base64
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
from balpoe.report.page_data import script_json

__all__ = ["Explorer", "asset", "explorer", "explorer_assets"]

MOST_VALUES = 2_000_000  # samples x classes that a page holds whole: 2.7 MB of text
FINE_VALUES = 500_000  # up to here in 16 bits: in a small test set every sample counts
MOST_SAMPLES = 5_000
CLASSES_OF_A_SAMPLE = 20
DEEPEST = 20.0  # nats below the most probable class: exp(-20) is nothing for all but absurd priors
COARSE, FINE = 2**8 - 1, 2**16 - 1
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
    packed = _read(predictions, approximate)
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


@dataclass(frozen=True)
class _Packed:
    """What the page knows of the predictions."""

    codes: Tensor
    """(rows, kept): the distance to the row's largest logit, square-root coded; fine where classes compete."""
    labels: Tensor | None
    """(rows, kept): the classes of the codes; None for all classes in order."""
    rest: Tensor
    """(rows,): the probability of all other classes, in units of the most probable one's."""
    spread: Tensor
    """(classes,): how `rest` is divided among the classes, on average; sums to 1, or to 0 where nothing is left."""
    targets: Tensor
    levels: int
    """The largest code."""


def _read(predictions: Predictions, approximate: bool) -> _Packed:
    """Pack the predictions, block by block."""
    classes = predictions.num_classes
    chosen = torch.ones(len(predictions), dtype=torch.bool)
    if approximate:
        chosen = _stratified(predictions.targets, _ranks(predictions), MOST_SAMPLES)
    levels = FINE if len(predictions) * classes <= FINE_VALUES else COARSE
    parts, spread = [], torch.zeros(classes, dtype=torch.float64)
    for rows in predictions.blocks():
        logits = predictions.product(predictions.calibrated(rows).double())
        depth = logits.amax(dim=1, keepdim=True) - logits
        if bool(depth.isnan().any()):
            row = rows.start + int(depth.isnan().any(dim=1).nonzero()[0])
            raise UserError(f"the logits of sample {row} are not numbers; check the network that gave them")
        parts.append(_packed(depth[chosen[rows]], levels, approximate, spread))
    codes, labels, rest = zip(*parts, strict=True)
    return _Packed(
        torch.cat(codes),
        torch.cat(labels) if approximate else None,
        torch.cat(rest),
        spread / spread.sum().clamp(min=1e-300),
        predictions.targets[chosen],
        levels,
    )


def _packed(depth: Tensor, levels: int, approximate: bool, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, labels and rest of some rows; what is left out is added to `spread`."""
    if not approximate:
        return _codes(depth, levels), torch.empty(0), torch.zeros(len(depth))
    near, labels = depth.topk(min(CLASSES_OF_A_SAMPLE, depth.shape[1]), largest=False)
    left = (-depth).exp().scatter(1, labels, 0.0)
    rest = left.sum(dim=1)
    spread += (left / (rest + (-near).exp().sum(dim=1))[:, None]).sum(dim=0)
    return _codes(near, levels), labels, rest.float()


def _codes(depth: Tensor, levels: int) -> Tensor:
    codes = (levels * (depth / DEEPEST).clamp(max=1).sqrt()).round()
    return codes.to(torch.uint8 if levels == COARSE else torch.int32)


def _largest_difference(packed: _Packed, predictions: Predictions, priors: Sequence[Tensor]) -> float:
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


def _page_accuracy(packed: _Packed, ratio: Tensor) -> Tensor:
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


def _ranks(predictions: Predictions) -> Tensor:
    """The place of each class by training count: 0 for the most frequent, ties in the order of the labels."""
    return predictions.class_counts.argsort(descending=True, stable=True).argsort()


def _tested(predictions: Predictions) -> Tensor:
    """How many test samples each class has."""
    return torch.bincount(predictions.targets, minlength=predictions.num_classes)


def _worth(predictions: Predictions) -> dict[str, list[float]]:
    """How many observations the test samples of each class are worth, if they come in groups."""
    if predictions.groups is None:
        return {}
    found = effective_counts(predictions.targets, predictions.num_classes, predictions.groups)
    return {"worth": [round(each, 3) for each in found.tolist()]}


def _stratified(targets: Tensor, ranks: Tensor, limit: int) -> Tensor:
    """Which samples to keep, (samples,): one of each class, a second one, and so on, up to the limit.

    Where not every class can have one more, classes are taken at equal distances from frequent to rare.
    """
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    shuffled = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    order = shuffled[ranks[targets[shuffled]].argsort(stable=True)]
    sizes = torch.bincount(ranks[targets], minlength=len(ranks))
    turn = torch.arange(len(targets)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    for number in range(int(sizes.max())):
        candidates = order[turn == number]
        left = limit - int(chosen.sum())
        if left < len(candidates):
            chosen[candidates[torch.arange(left) * len(candidates) // max(1, left)]] = True
            break
        chosen[candidates] = True
    return chosen


def _data(packed: _Packed, predictions: Predictions, shot_groups: tuple[int, int], num_bins: int) -> dict[str, object]:
    """What explorer.js reads; arrays as base64 of little-endian numbers."""
    wide = np.uint32 if predictions.num_classes > np.iinfo(np.uint16).max else np.uint16
    data: dict[str, object] = {
        "names": predictions.class_names,
        "counts": predictions.class_counts.tolist(),
        "tested": _tested(predictions).tolist(),
        **_worth(predictions),
        "groups": shot_groups,
        "bins": num_bins,
        "deepest": DEEPEST,
        "wide": wide is np.uint32,
        "levels": packed.levels,
        "kept": packed.codes.shape[1],
        "train": _base64(target_prior("train", predictions), np.float64),
        "source": None if (source := _source(predictions)) is None else _base64(source, np.float64),
        "targets": _base64(packed.targets, wide),
        "codes": _base64(packed.codes, np.uint8 if packed.levels == COARSE else np.uint16),
    }
    if packed.labels is not None:
        data["labels"] = _base64(packed.labels, wide)
        data["rest"] = _base64(packed.rest, np.float32)
        data["spread"] = _base64(packed.spread, np.float32)
    return data


def _base64(values: Tensor, dtype: type) -> str:
    return base64.b64encode(values.numpy().astype(np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


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


def _note(packed: _Packed, samples: int, error: float, approximate: bool) -> str:
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
