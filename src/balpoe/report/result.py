"""The opening of a report: the balanced result, its interval, the honest rival, and one figure."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import compare, evaluate
from balpoe.evaluation.experts_asked import router_notes
from balpoe.evaluation.metrics import rarest_third_is_few
from balpoe.evaluation.rival import adjusted_rival, paired_difference, rival_name, verdict
from balpoe.report.console import mean_and_deviation, score_table
from balpoe.report.inputs import Subject
from balpoe.report.plots import WIDTH, Estimate, plot_groups
from balpoe.report.render import Exhibit, Figure, Section, Table
from balpoe.report.text import group_masks, points, range_text, seed_name, seeds_score

__all__ = ["adjusted_subject", "result_section"]

DRAWN = ("balanced_accuracy", "many", "medium", "few", "rarest_third")
COMPARED = ("balanced_accuracy", "accuracy", "many", "medium", "few", "rarest_third", "ece")  # with a baseline
NO_RIVAL = (
    "Nothing is compared here. The honest rival is cross-entropy on the same data, adjusted to the same prior: train "
    "it with --lambdas 1, and give its run as --baseline."
)
OF_ALL_CLASSES = ("balanced_accuracy", "accuracy", "ece")  # also where training counts, and so the groups, differ


def adjusted_subject(subject: Subject) -> Subject | None:
    """Return the same runs adjusted to the uniform prior; None if they are made for it, or are no posterior."""
    moved = [adjusted_rival(each) for each in subject.predictions]
    predictions = tuple(each for each in moved if each is not None)
    if len(predictions) < len(moved):
        return None
    evaluations = tuple(evaluate(each, shot_groups=subject.shot_groups).to_dict() for each in predictions)
    name = rival_name(subject.name, subject.predictions[0])
    return Subject(name, predictions, evaluations, subject.shot_groups, subject.runs)


def result_section(
    subject: Subject, beside: Sequence[Subject], baseline: Subject | None, moved: Mapping[str, Subject | None]
) -> Section:
    """The balanced result in one line, whether the rival is beaten, and all scores side by side.

    Args:
        subject: What the report is about.
        beside: What stands beside it, the baseline included.
        baseline: What it is compared with, sample by sample.
        moved: Each of them adjusted to the uniform prior, by its name; None where there is nothing to adjust.
    """
    rows = [row for each in (subject, *beside) for row in (each, moved[each.name]) if row is not None]
    rivals = [] if baseline is None else [row for row in (baseline, moved[baseline.name]) if row is not None]
    at_uniform = moved[subject.name] or subject
    sentences = [
        *_headlines(subject),
        *([] if not rivals else [_verdict(at_uniform, rivals[-1])]),
        *_posthoc(subject, moved[subject.name]),
        *_other_groups(subject, beside),
        *([NO_RIVAL] if subject.runs and not beside else []),
    ]
    columns = sorted((name for name in METRICS if METRICS[name].in_tables), key=lambda name: name != DRAWN[0])
    headings, scores = score_table({each.name: each.evaluations for each in rows}, columns)
    caption = "Mean and deviation over the seeds." if any(len(each.evaluations) > 1 for each in rows) else ""
    exhibits: list[Exhibit] = [_groups_figure(subject, rows), Table(headings, scores, caption)]
    if rivals:
        exhibits.append(_differences(at_uniform, rivals))
    return Section("The result", sentences, exhibits)


def _headlines(subject: Subject) -> list[str]:
    first = subject.evaluations[0]
    bounds = first["intervals"].get("balanced_accuracy")
    interval = f" (95 % interval{seed_name(subject)} {range_text(*bounds)})" if bounds else ""
    classes = len(subject.predictions[0].targets.unique())
    return [
        f"Balanced accuracy is {seeds_score(subject, 'balanced_accuracy')} %{interval}.",
        f"That is the mean over {classes:,} classes, rare and frequent alike. Of all {first['samples']:,} test "
        f"samples, {seeds_score(subject, 'accuracy')} % are recognised.",
        *router_notes(subject.evaluations),
    ]


def _verdict(subject: Subject, rival: Subject) -> str:
    """Whether the rival is beaten on the same test samples, both adjusted to the uniform prior where they can be."""
    found = paired_difference(subject.predictions, rival.predictions, shot_groups=subject.shot_groups)
    return verdict(subject.name, rival.name, found)


def _differences(subject: Subject, rivals: Sequence[Subject]) -> Table:
    """The difference of each metric to each rival, seed by seed on the same test samples."""
    columns = {rival.name: _points(subject, rival) for rival in rivals}
    rows = [
        [METRICS[name].title, *(texts.get(name, "-") for texts in columns.values())]
        for name in COMPARED
        if name not in _repeated(subject) and any(name in texts for texts in columns.values())
    ]
    pairs = min(len(subject.predictions), *(len(rival.predictions) for rival in rivals))
    how = "with its 95 % interval (paired)" if pairs == 1 else f"mean and deviation of {pairs} seeds"
    caption = f"{subject.name} minus the others in points, on the same test samples, {how}."
    return Table(["", *columns], rows, caption)


def _points(subject: Subject, rival: Subject) -> dict[str, str]:
    pairs = list(zip(subject.predictions, rival.predictions, strict=False))
    found = [compare(ours, theirs, shot_groups=subject.shot_groups) for ours, theirs in pairs]
    names = COMPARED if _same_counts(subject, rival) else OF_ALL_CLASSES
    if len(pairs) == 1:
        return {name: points(*found[0][name]) for name in names if name in found[0]}
    return {
        name: mean_and_deviation([each[name][0] for each in found], per_cent=True, sign="+")
        for name in names
        if name in found[0]
    }


def _groups_figure(subject: Subject, rows: Sequence[Subject]) -> Figure:
    """Balanced accuracy, and that of frequent and of rare classes, of all that is compared."""
    groups = _groups(subject)
    methods = {each.name: [_estimate(each.evaluations, name) for name in groups] for each in rows}
    titles = [METRICS[name].title for name in groups]
    height = 1.0 + 0.2 * len(rows) + 0.19 * len(groups) * max(2, len(rows))
    measured = [name for name, metric in METRICS.items() if metric.resampled]
    names = [name for name in measured if any(_estimate(each.evaluations, name) for each in rows)]
    table = Table(
        ["", *(each.name for each in rows)],
        [[METRICS[name].title, *(_cell(each.evaluations, name) for each in rows)] for name in names],
        f"With 95 % intervals over the test samples{', the mean of those of the seeds' if seed_name(subject) else ''}.",
    )
    best = ", ".join(f"{METRICS[name].title} {seeds_score(subject, name)} %" for name in groups)
    alt = f"Accuracy on all classes and on groups of them, with 95 % intervals, of {len(rows)} methods. Ours: {best}."
    return Figure(
        "shot-groups", lambda figure: plot_groups(titles, methods, figure.subplots()), (WIDTH, height), alt, table
    )


def _groups(subject: Subject) -> list[str]:
    """The balanced accuracy, and the groups of classes that are there and not all of them."""
    masks = group_masks(subject)
    left_out = {name for name, mask in masks.items() if not mask.any() or mask.all()} | _repeated(subject)
    return [name for name in DRAWN if name not in left_out and subject.evaluations[0].get(name) is not None]


def _repeated(subject: Subject) -> set[str]:
    """The rarest third of the classes, where these are just the few-shot ones."""
    same = rarest_third_is_few(subject.predictions[0].class_counts, subject.shot_groups)
    return {"rarest_third"} if same else set()


def _estimate(evaluations: Sequence[Mapping[str, Any]], name: str) -> Estimate | None:
    """Mean over the seeds of a score and of the ends of its interval."""
    values = [value for each in evaluations if (value := each.get(name)) is not None]
    if len(values) < len(evaluations):
        return None
    bounds = [pair for each in evaluations if (pair := each["intervals"].get(name)) is not None]
    if len(bounds) < len(evaluations):
        return fmean(values), None, None
    return fmean(values), fmean(low for low, _ in bounds), fmean(high for _, high in bounds)


def _cell(evaluations: Sequence[Mapping[str, Any]], name: str) -> str:
    found = _estimate(evaluations, name)
    if found is None:
        return "-"
    value, *bounds = (None if each is None else METRICS[name].shown(each) for each in found)
    return f"{value}" if None in bounds else f"{value} ({bounds[0]} to {bounds[1]})"


def _other_groups(subject: Subject, beside: Sequence[Subject]) -> list[str]:
    others = [each.name for each in beside if not _same_counts(subject, each)]
    return (
        [f"Trained on other numbers of samples, with shot groups of their own: {', '.join(others)}."] if others else []
    )


def _same_counts(subject: Subject, other: Subject) -> bool:
    return torch.equal(subject.predictions[0].class_counts, other.predictions[0].class_counts)


def _posthoc(subject: Subject, moved: Subject | None) -> list[str]:
    """What moving the logits to the uniform prior gives, for a classifier that is made for another one."""
    predictions = subject.predictions[0]
    prior = predictions.source_prior
    if prior is None or moved is None:
        return predictions.caveats
    trained = torch.allclose(prior, predictions.train_prior.to(prior), atol=1e-6)
    made = "the class frequencies of the training set" if trained else "other class frequencies than equal ones"
    changes = [f"balanced accuracy {seeds_score(moved, 'balanced_accuracy')} %"]
    changes[0] += f" instead of {seeds_score(subject, 'balanced_accuracy')} %"
    if subject.evaluations[0]["few"] is not None:
        changes.append(f"few-shot classes {seeds_score(moved, 'few')} instead of {seeds_score(subject, 'few')} %")
    return [
        f"It is made for {made}. Moved to equal ones after the fact by logit adjustment, without retraining (the "
        f"explorer below does it), it has: {', '.join(changes)}."
    ]
