"""The sections of a report that look closely: single classes, and other label distributions."""

from collections.abc import Sequence
from statistics import fmean

from balpoe.data.user.split import evidence_lack
from balpoe.report.console import mean_and_deviation, prior_uses
from balpoe.report.inputs import Subject
from balpoe.report.plots import plot_accuracy_by_count, plot_shifted
from balpoe.report.render import Figure, Section, Table
from balpoe.report.text import per_cent, per_class, range_text, seed_name

__all__ = ["classes_section", "shifted_section"]


def classes_section(subject: Subject, baseline: Subject | None) -> Section:
    """Accuracy of each class against its training samples, and who gained and lost against the baseline."""
    predictions = subject.predictions[0]
    names, counts = predictions.class_names, predictions.class_counts.tolist()
    methods = {each.name: per_class(each) for each in (subject, *([baseline] if baseline else []))}
    ours = methods[subject.name]
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    intervals = subject.evaluations[0]["per_class_interval"]
    rows = [
        [names[label], f"{counts[label]:,}", *(per_cent(values[label]) for values in methods.values()),
         "-" if intervals[label] is None else range_text(*intervals[label])]
        for label in order
    ]  # fmt: skip
    text = "Each mark is a class: its accuracy against its number of training samples."
    figure = Figure(
        "accuracy-by-class", lambda figure: plot_accuracy_by_count(counts, methods, figure.subplots()), (8, 4), text,
        Table(["class", "training samples", *methods, f"95 % interval (Wilson){seed_name(subject)}"], rows),
    )  # fmt: skip
    texts = [text, *_without_evidence(subject)]
    if baseline is None:
        return Section("Class by class", texts, [figure])
    sentence, tables = _gains_and_losses(subject, ours, methods[baseline.name])
    texts[0] += f" Against {baseline.name}, {sentence}"
    return Section("Class by class", texts, [figure, *tables])


def _gains_and_losses(
    subject: Subject, ours: Sequence[float | None], theirs: Sequence[float | None]
) -> tuple[str, list[Table]]:
    """How many classes gained and lost, and which of them most."""
    names, counts = subject.predictions[0].class_names, subject.predictions[0].class_counts.tolist()
    change = {
        label: a - b
        for label in range(len(counts))
        if (a := ours[label]) is not None and (b := theirs[label]) is not None
    }
    ranked = sorted(change, key=lambda label: change[label])
    up, down = [label for label in ranked[::-1] if change[label] > 0], [label for label in ranked if change[label] < 0]
    tables = [
        Table(
            ["class", "training samples", "before", "after", "points"],
            [[names[label], f"{counts[label]:,}", per_cent(theirs[label]), per_cent(ours[label]),
              f"{100 * change[label]:+.1f}"] for label in chosen[:10]],
            caption,
        )
        for chosen, caption in ((up, "The classes that gained most"), (down, "The classes that lost most"))
        if chosen
    ]  # fmt: skip
    return f"{len(up):,} classes gained and {len(down):,} lost.", tables


def _without_evidence(subject: Subject) -> list[str]:
    """Say which classes have too few test samples, or groups of them, for any statement about them."""
    predictions = subject.predictions[0]
    lack = evidence_lack(predictions.evidence, predictions.class_names, grouped=predictions.groups is not None)
    return predictions.about_groups + ([f"{lack[0].upper()}{lack[1:]}."] if lack else [])


def shifted_section(subject: Subject) -> Section:
    """Accuracy under shifted label distributions."""
    every = [evaluation["shifted"] for evaluation in subject.evaluations]
    names, uses = [row["name"] for row in every[0]], prior_uses(subject.evaluations)
    curves = {
        label: [fmean(rows[number][key] for rows in every) for number in range(len(names))]
        for key, label in uses.items()
    }
    rows = [
        [row["name"], f"{row['samples']:,}",
         *(mean_and_deviation([rows[number][key] for rows in every], per_cent=True) for key in uses)]
        for number, row in enumerate(every[0])
    ]  # fmt: skip
    if len(names) == 1:
        text = "Some class has too few test samples to cut test sets of other label distributions from them."
        return Section("Where other classes are common", [text])
    text = (
        "The same model where other classes are common: forward sets are long-tailed like the training data, backward "
        "sets the other way round."
    )
    if "adjusted" in curves:
        gains = [100 * (after - before) for before, after in zip(*curves.values(), strict=True)]
        text += (
            f" Adjusting it to the label prior of each set changes accuracy by {min(gains):+.1f} to {max(gains):+.1f} "
            "points, without retraining."
        )
    figure = Figure(
        "shifted", lambda figure: plot_shifted(names, curves, figure.subplots()), (8, 3.4), text,
        Table(["test set", "samples", *(f"{label} %" for label in uses.values())], rows),
    )  # fmt: skip
    return Section("Where other classes are common", [text, *subject.predictions[0].caveats], [figure])
