"""What is mistaken for what: of rare classes, and with most confidence."""

import torch
from torch import Tensor

from balpoe.evaluation.metrics import rarest_third
from balpoe.evaluation.predictions import Predictions
from balpoe.report.images import SampleImages, Shown, gallery
from balpoe.report.inputs import Subject
from balpoe.report.render import Section, Table
from balpoe.report.text import group_masks, seed_name

__all__ = ["confident_errors", "confident_errors_section", "confused_pairs", "confusions_section"]

PAIRS_SHOWN, EXAMPLES = 6, 2  # pairs of classes with images, and images of each
ERRORS = 12  # confident ones


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


def confusions_section(subject: Subject, images: SampleImages) -> Section:
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
    shown = [Shown(samples[:EXAMPLES].tolist(), _words(predictions, *pair)) for *pair, samples in pairs[:PAIRS_SHOWN]]
    return Section("What rare classes are taken for", [text], [Table(headings, rows, words=2), *gallery(images, shown)])


def confident_errors(predictions: Predictions, most: int = ERRORS) -> list[tuple[int, int, float]]:
    """Return the wrong answers that were given with most confidence: sample, answer, confidence.

    >>> logits = torch.tensor([[[9.0, 0.0]], [[1.0, 0.0]], [[8.0, 0.0]]])
    >>> found = confident_errors(Predictions(logits, torch.tensor([0, 1, 1]), [50, 5], [0.0]))
    >>> [(sample, answer, round(confidence, 2)) for sample, answer, confidence in found]
    [(2, 0, 1.0), (1, 0, 0.73)]
    """
    parts = []
    for rows in predictions.blocks():
        probabilities = predictions.product(predictions.expert_logits[rows].double()).softmax(dim=1)
        parts.append(torch.stack(probabilities.max(dim=1)))
    confidence, answers = torch.cat(parts, dim=1)
    wrong = (answers.long() != predictions.targets).nonzero().flatten()
    order = wrong[torch.argsort(confidence[wrong], descending=True, stable=True)][:most]
    return [(int(row), int(answers[row]), float(confidence[row])) for row in order]


def confident_errors_section(subject: Subject, images: SampleImages) -> Section:
    """The wrong answers it was surest of, with their images."""
    title = "The most confident errors"
    predictions = subject.predictions[0]
    found = confident_errors(predictions)
    if not found:
        return Section(title, ["No test sample is mistaken."])
    names, counts = predictions.class_names, predictions.class_counts
    pairs = [(int(predictions.targets[row]), answer) for row, answer, _ in found]
    rows = [
        [names[true], names[answer], f"{100 * confidence:.1f} %", f"{int(counts[true]):,}", f"{row:,}"]
        for (true, answer), (row, _, confidence) in zip(pairs, found, strict=True)
    ]
    text = (
        f"The wrong answers it was surest of{seed_name(subject)}. Look at them first: they show wrong labels, samples "
        "of two things, and classes that are hard to tell apart."
    )
    shown = [
        Shown([row], _words(predictions, *pair), f"confidence {100 * confidence:.1f} %")
        for pair, (row, _, confidence) in zip(pairs, found, strict=True)
    ]
    table = Table(["true class", "taken for", "confidence", "training samples", "test sample, from 0"], rows, words=2)
    seen = gallery(images, shown) if images.samples is not None else []  # why not is said above
    return Section(title, [text], [*seen, table])


def _words(predictions: Predictions, true: int, answer: int) -> str:
    return f"{predictions.class_names[true]}, taken for {predictions.class_names[answer]}"
