"""What rare classes are mistaken for."""

import base64
import html
from collections.abc import Sequence

import torch
from torch import Tensor

from balpoe.data.png import png
from balpoe.data.registry import load_data
from balpoe.errors import UserError
from balpoe.evaluation.metrics import rarest_third
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.recipe import updated
from balpoe.report.inputs import Subject
from balpoe.report.render import Exhibit, Fragment, Section, Table
from balpoe.report.text import group_masks

__all__ = ["confused_pairs", "confusions_section"]

EXAMPLES = 4  # images of a confused pair


def confused_pairs(predictions: Predictions, rare: Tensor, most: int = 10) -> list[tuple[int, int, Tensor]]:
    """Return the most frequent mistakes about rare classes: true class, answer, and which samples.

    Args:
        predictions: Predictions, read in blocks; no table of classes by classes is made.
        rare: Mask of the rare classes, (classes,).
        most: Largest number of pairs.

    >>> logits = torch.eye(3)[[0, 2, 2, 2]][:, None]
    >>> wrong = Predictions(logits, torch.tensor([0, 1, 1, 2]), [50, 5, 5], [0.0])
    >>> [(true, answer, rows.tolist()) for true, answer, rows in confused_pairs(wrong, torch.arange(3) > 0)]
    [(1, 2, [1, 2])]
    """
    answers = predictions.answers()[0]
    wrong = ((answers != predictions.targets) & rare[predictions.targets]).nonzero().flatten()
    keys = predictions.targets[wrong] * predictions.num_classes + answers[wrong]
    pairs, counts = keys.unique(return_counts=True)
    first = torch.argsort(counts, descending=True, stable=True)[:most]
    return [(int(key) // predictions.num_classes, int(key) % predictions.num_classes, wrong[keys == key])
            for key in pairs[first]]  # fmt: skip


def confusions_section(subject: Subject, data_root: str) -> Section:
    """What rare classes are taken for, with images where they are at hand."""
    predictions = subject.predictions[0]
    few = group_masks(subject)["few"]
    who = "few-shot classes"
    if not bool(few.any()):
        few, who = rarest_third(predictions.class_counts), "the rarest third of the classes"
    pairs = confused_pairs(predictions, few)
    if not pairs:
        return Section("What rare classes are taken for", [f"No test sample of {who} is mistaken."])
    totals = torch.bincount(predictions.targets, minlength=predictions.num_classes)
    names, counts = predictions.class_names, predictions.class_counts
    rows = [
        [names[true], names[answer], f"{len(samples):,} of {int(totals[true]):,}", f"{int(counts[true]):,}",
         f"{int(counts[answer]):,}"]
        for true, answer, samples in pairs
    ]  # fmt: skip
    true, answer, samples = pairs[0]
    text = (
        f"The most frequent mistakes about {who}: {names[true]} is taken for {names[answer]} in {len(samples)} of "
        f"{int(totals[true])} test samples."
    )
    headings = ["true class", "taken for", "test samples", "training samples", "training samples of the other"]
    exhibits: list[Exhibit] = [Table(headings, rows), *_images(subject, pairs[:6], data_root)]
    return Section("What rare classes are taken for", [text], exhibits)


def _images(subject: Subject, pairs: Sequence[tuple[int, int, Tensor]], data_root: str) -> list[Fragment]:
    """Test images of the pairs, where the data set is at hand and is made of images."""
    if not subject.runs:
        return []
    recipe = updated(subject.runs[0].recipe(), {"data_root": data_root} if data_root else {})
    try:
        _, test = load_data(
            recipe.dataset, recipe.data_root or None, imbalance_ratio=recipe.imbalance_ratio, profile=recipe.profile,
            validation=recipe.validation,
        )  # fmt: skip
    except UserError:
        return [Fragment("<p>The test images were not at hand when this page was made.</p>")]
    predictions = subject.predictions[0]
    if test.images.ndim != 4 or not torch.equal(test.targets, predictions.targets):
        return []
    items = []
    for true, answer, samples in pairs:
        names = html.escape(f"{predictions.class_names[true]}, taken for {predictions.class_names[answer]}")
        images = "".join(
            f'<img src="data:image/png;base64,{base64.b64encode(png(test.images[row])).decode()}" alt="{names}">'
            for row in samples[:EXAMPLES].tolist()
        )
        items.append(f"<li>{images}<br><bdi>{names}</bdi></li>")
    return [Fragment(f'<ul class="images">{"".join(items)}</ul>')]
