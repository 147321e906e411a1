"""The sections of a report that look closely: single classes, and other label distributions."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from balpoe.data.user.split import evidence_lack, without_evidence
from balpoe.method.intervals import effective_counts, wilson_interval
from balpoe.report.console import mean_and_deviation, prior_uses
from balpoe.report.inputs import Subject
from balpoe.report.plots import WIDTH, Estimate, plot_accuracy_by_count, plot_shifted
from balpoe.report.render import Figure, Section, Table
from balpoe.report.text import per_cent, per_class, points, range_text, seed_name

__all__ = ["class_differences", "classes_section", "shifted_section"]

MOST_NAMED = 10  # classes that a sentence names
MOST_POINTS = 10_000  # classes up to which a page names each point


def classes_section(subject: Subject, rivals: Sequence[Subject] = ()) -> Section:
    """Accuracy of each class against its training samples, and who gained and lost against the last rival.

    Args:
        subject: What is looked at.
        rivals: The baseline as trained and, if it was made for another prior, adjusted to the uniform one.
    """
    predictions = subject.predictions[0]
    names, counts = predictions.class_names, predictions.class_counts.tolist()
    methods = {each.name: per_class(each) for each in (subject, *rivals)}
    drawn = {each.name: methods[each.name] for each in (subject, *rivals[-1:])}
    tested = torch.bincount(predictions.targets, minlength=len(counts)).tolist()
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    intervals = subject.evaluations[0]["per_class_interval"]
    ranges = ["-" if bounds is None else range_text(*bounds) for bounds in intervals]
    rows = [
        [names[label], f"{counts[label]:,}", f"{tested[label]:,}",
         *(per_cent(values[label]) for values in methods.values()), ranges[label]]
        for label in order
    ]  # fmt: skip
    text = "Each mark is a class: its accuracy against its number of training samples. Point at one to see its name."
    headings = ["class", "training samples", "test samples", *(f"{name} %" for name in methods)]
    figure = Figure(
        "accuracy-by-class",
        lambda figure: plot_accuracy_by_count(counts, drawn, figure.subplots()),
        (WIDTH, 3.6),
        text,
        Table([*headings, f"{subject.name}: 95 % interval{seed_name(subject)}"], rows, search="class"),
        _point_texts(subject, drawn, ranges),
    )
    texts = [text, *_without_evidence(subject)]
    if not rivals:
        return Section("Class by class", texts, [figure])
    sentence, tables = _gains_and_losses(subject, rivals[-1])
    return Section("Class by class", [texts[0], sentence, *texts[1:]], [figure, *tables])


def _point_texts(
    subject: Subject, methods: Mapping[str, Sequence[float | None]], ranges: Sequence[str]
) -> tuple[str, ...]:
    """What each point stands for, method by method as they are drawn."""
    predictions = subject.predictions[0]
    if predictions.num_classes > MOST_POINTS:
        return ()
    names, counts = predictions.class_names, predictions.class_counts.tolist()
    texts = []
    for method, values in methods.items():
        for label, value in enumerate(values):
            if value is not None:
                text = f"{names[label]}: {counts[label]:,} training samples, {per_cent(value)} %"
                texts.append(f"{text} ({ranges[label]})" if method == subject.name else f"{text}, {method}")
    return tuple(texts)


def class_differences(subject: Subject, baseline: Subject) -> list[tuple[float, float, float] | None]:
    """Return by how much each class is recognised better than by the baseline, and the 95 % interval of that.

    Samples are compared one by one, each with the mean over the seeds. The interval is Agresti and Min's for paired
    shares, half a sample added to each kind of outcome: sound also where a class has a sample or two.

    Args:
        subject: Ours.
        baseline: Predictions of the same test samples.
    """
    predictions = subject.predictions[0]
    difference = _mean_correct(subject) - _mean_correct(baseline)
    totals, sums, squares = (
        torch.bincount(predictions.targets, weights, minlength=predictions.num_classes).double()
        for weights in (torch.ones_like(difference), difference, difference.square())
    )
    size = totals + 2
    half = 1.96 * (squares + 1 - sums.square() / size).sqrt() / size
    found = torch.stack([sums / totals, sums / size - half, sums / size + half]).T.tolist()
    return [None if math.isnan(value) else (value, max(-1.0, low), min(1.0, high)) for value, low, high in found]


def _mean_correct(subject: Subject) -> Tensor:
    """How often each test sample is recognised, over the seeds."""
    return torch.stack([(each.answers()[0] == each.targets).double() for each in subject.predictions]).mean(dim=0)


def _gains_and_losses(subject: Subject, baseline: Subject) -> tuple[str, list[Table]]:
    """How many classes gained and lost, beyond what is random, and which of them most."""
    names, counts = subject.predictions[0].class_names, subject.predictions[0].class_counts.tolist()
    before, after = per_class(baseline), per_class(subject)
    change = {label: found for label, found in enumerate(class_differences(subject, baseline)) if found is not None}
    ranked = sorted(change, key=lambda label: change[label][0])
    up, down = [x for x in ranked[::-1] if change[x][1] > 0], [x for x in ranked if change[x][2] < 0]
    tables = [
        Table(
            ["class", "training samples", f"{baseline.name} %", f"{subject.name} %", "points (95 % interval)"],
            [[names[label], f"{counts[label]:,}", per_cent(before[label]), per_cent(after[label]),
              points(*change[label])] for label in chosen[:10]],
            caption,
        )
        for chosen, caption in ((up, "The classes that gained most"), (down, "The classes that lost most"))
        if chosen
    ]  # fmt: skip
    if not up and not down:
        found = f"No class differs from {baseline.name} by more than its test samples may at random (95 % interval)."
        return found, tables
    random = round(len(change) / 40)
    even = f"up to {random:,} of each" if random else "hardly any"
    return (
        f"Against {baseline.name}, {len(up):,} of {len(change):,} classes gained and {len(down):,} lost more than the "
        f"95 % interval of their test samples tells apart; {even} would even if the two were the same. The other "
        "differences may be random.",
        tables,
    )


def _without_evidence(subject: Subject) -> list[str]:
    """Say which classes have too few test samples, or groups of them, for any statement about them."""
    predictions = subject.predictions[0]
    lack = evidence_lack(predictions.evidence, predictions.class_names, grouped=predictions.groups is not None)
    if len(without_evidence(predictions.evidence)) > MOST_NAMED:
        lack = f"{lack.split(' (')[0]}; the table has the test samples of each"
    return predictions.about_groups + ([f"{lack[0].upper()}{lack[1:]}."] if lack else [])


def shifted_section(subject: Subject) -> Section:
    """Accuracy under shifted label distributions."""
    every = [evaluation["shifted"] for evaluation in subject.evaluations]
    names, uses = [row["name"] for row in every[0]], prior_uses(subject.evaluations)
    if len(names) == 1:
        text = "Some class has too few test samples to cut test sets of other label distributions from them."
        return Section("Where other classes are common", [text])
    sets = list(zip(*every, strict=True))  # of each test set, a row of each seed
    worth = _worth(subject)
    curves = {label: [_with_wilson(rows, key, worth) for rows in sets] for key, label in uses.items()}
    rows = [
        [seeds[0]["name"], f"{seeds[0]['samples']:,}",
         *(f"{mean_and_deviation([row[key] for row in seeds], per_cent=True)} ({range_text(*curves[label][n][1:])})"
           for key, label in uses.items())]
        for n, seeds in enumerate(sets)
    ]  # fmt: skip
    text = (
        "The same model where other classes are common: forward sets are long-tailed like the training data, backward "
        "sets the other way round."
    )
    if "adjusted" in curves:
        text += f" {_gains_of_adjusting(curves)}"
    figure = Figure(
        "shifted", lambda figure: plot_shifted(names, curves, figure.subplots()), (WIDTH, 3.4), text,
        Table(["test set", "samples", *(f"{label} % (95 % interval)" for label in uses.values())], rows),
    )  # fmt: skip
    return Section("Where other classes are common", [text, *subject.predictions[0].caveats], [figure])


def _worth(subject: Subject) -> float:
    """How many observations a test sample is worth: less than one where they come in groups."""
    predictions = subject.predictions[0]
    counts = effective_counts(predictions.targets, predictions.num_classes, predictions.groups)
    return float(counts.sum()) / len(predictions)


def _with_wilson(seeds: Sequence[Mapping[str, Any]], key: str, worth: float) -> tuple[float, float, float]:
    """Mean over the seeds of an accuracy, and Wilson's interval of such a share of one test set."""
    share, samples = fmean(row[key] for row in seeds), torch.tensor(worth * seeds[0]["samples"])
    low, high = wilson_interval(share * samples, samples).tolist()
    return share, low, high


def _gains_of_adjusting(curves: Mapping[str, Sequence[Estimate]]) -> str:
    """What adjusting changes, and whether so many samples can tell."""
    before, after = curves.values()
    gains = [100 * (new[0] - old[0]) for old, new in zip(before, after, strict=True)]
    text = (
        f"Adjusting it to the label prior of each set changes accuracy by {min(gains):+.1f} to {max(gains):+.1f} points"
    )
    apart = any(not (old[1] or 0) <= new[0] <= (old[2] or 1) for old, new in zip(before, after, strict=True))
    return f"{text}, without retraining." if apart else f"{text}: on so few test samples, that may be random."
