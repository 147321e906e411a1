"""The parts of a report that look closely: single classes, calibration, experts, shifted priors."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from balpoe.plots import plot_accuracy_by_count, plot_marginal, plot_reliability, plot_shifted
from balpoe.report.numbers import lambda_names, per_cent, per_class, range_text, score_text
from balpoe.report.page import Figure, Part, Table
from balpoe.report.subjects import Subject
from balpoe.tables import mean_and_deviation

__all__ = ["classes_part", "experts_part", "reliability_part", "shifted_part"]

WELL, ROUGHLY = 0.03, 0.08  # ECE up to which an expert counts as calibrated, and as roughly so


def classes_part(subject: Subject, baseline: Subject | None) -> Part:
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
        Table(["class", "training samples", *methods, "95 % interval (Wilson, first seed)"], rows),
    )  # fmt: skip
    if baseline is None:
        return Part("Class by class", [text], [figure])
    theirs = methods[baseline.name]
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
    text = f"{text} Against {baseline.name}, {len(up):,} classes gained and {len(down):,} lost."
    return Part("Class by class", [text], [figure, *tables])


def reliability_part(subject: Subject) -> Part:
    """Confidence against accuracy, of the ensemble and of each expert."""
    evaluation = subject.evaluations[0]
    predictors = {"ensemble": evaluation}
    if len(evaluation["experts"]) > 1:
        lambdas = lambda_names(subject)
        predictors |= dict(zip(lambdas, evaluation["experts"], strict=True))
    rows = [[name, *(f"{100 * scores[key]:.1f}" for key in ("ece", "mce"))] for name, scores in predictors.items()]
    ece, mce = score_text(subject, "ece"), score_text(subject, "mce")
    confident = _overconfidence(evaluation["reliability"])
    direction = "more confident than it is right" if confident > 0 else "less confident than it is right"
    text = (
        f"When it says 80 %, is it right in 80 % of the cases? On average confidence and accuracy differ by {ece} "
        f"points (ECE), at worst by {mce} (MCE, in one of 15 bins); on the whole it is {direction}."
    )

    def draw(figure: Any) -> None:
        columns = min(4, len(predictors))
        axes = figure.subplots(-(-len(predictors) // columns), columns, squeeze=False).flatten()
        for place, (name, scores) in zip(axes, predictors.items(), strict=False):
            plot_reliability(scores["reliability"], place)
            place.set_title(f"{name}\nECE {100 * scores['ece']:.1f}", fontsize=9)
        for place in axes[len(predictors) :]:
            place.remove()

    bins = evaluation["reliability"]
    numbers = zip(bins["share"], bins["confidence"], bins["accuracy"], strict=True)
    behind = [[f"{n + 1}", *(f"{100 * value:.1f}" for value in row)] for n, row in enumerate(numbers)]
    height = 2.9 * -(-len(predictors) // 4)
    figure = Figure(
        "reliability", draw, (2.6 * min(4, max(2, len(predictors))), height),
        f"Reliability diagrams: accuracy against confidence, with the diagonal of a calibrated classifier. {text}",
        Table(["bin", "share %", "confidence %", "accuracy %"], behind, "The ensemble's bins"),
    )  # fmt: skip
    return Part("Can its confidence be trusted?", [text], [figure, Table(["", "ECE %", "MCE %"], rows)])


def experts_part(subject: Subject) -> Part:
    """Whether each expert is calibrated for its own prior."""
    predictions, names = subject.predictions[0], lambda_names(subject)
    checks = [
        [evaluation["expert_checks"][expert] for evaluation in subject.evaluations] for expert in range(len(names))
    ]
    rows, errors = [], []
    for name, seeds in zip(names, checks, strict=True):
        error = [check["weighted_ece"] for check in seeds]
        errors.append(None if None in error else fmean(error))
        rows.append([
            name, mean_and_deviation([check["marginal_kl"] for check in seeds], per_cent=False),
            mean_and_deviation([check["weighted_kl"] for check in seeds], per_cent=False),
            mean_and_deviation(error, per_cent=True), _verdict(errors[-1]),
        ])  # fmt: skip
    order = torch.argsort(predictions.class_counts, descending=True, stable=True)
    priors = predictions.expert_priors[:, order].tolist()
    marginals = torch.tensor([seeds[0]["marginal"] for seeds in checks])[:, order].tolist()

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for place, name, prior, marginal in zip(axes, names, priors, marginals, strict=True):
            plot_marginal(prior, marginal, place)
            place.set_title(name, fontsize=9)

    sentences = [
        "The theory wants every expert to be calibrated for the label prior that it was trained for: then their "
        f"average is unbiased. {_theorem(errors)}",
        f"(Measured on test samples weighted to that prior; calibrated means an ECE up to {100 * WELL:g} %, roughly "
        f"up to {100 * ROUGHLY:g} %. The average prediction over the unweighted test set, drawn here, follows the "
        "prior only as far as classes overlap.)",
    ]
    behind = [
        [predictions.class_names[int(label)],
         *(f"{number:.5f}" for pair in zip(priors, marginals, strict=True) for number in (pair[0][n], pair[1][n]))]
        for n, label in enumerate(order[:300])
    ]  # fmt: skip
    headings = ["class", *(f"{name}: {kind}" for name in names for kind in ("prior", "average"))]
    figure = Figure(
        "experts", draw, (2.8 * max(2, len(names)), 3), "The average prediction of each expert beside the prior it was "
        f"trained for, over the classes. {_theorem(errors)}", Table(headings, behind),
    )  # fmt: skip
    table = Table(["", "KL, unweighted", "KL, weighted", "ECE %, weighted", ""], rows)
    return Part("Are the experts what the theory needs?", sentences, [figure, table])


def _verdict(error: float | None) -> str:
    if error is None:
        return "cannot be told: a class has no test sample"
    return "calibrated" if error <= WELL else "roughly calibrated" if error <= ROUGHLY else "not calibrated"


def _theorem(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if not known:
        return "Whether they are cannot be told, because some classes have no test sample."
    if max(known) <= WELL:
        return "They are."
    if max(known) <= ROUGHLY:
        return "They are roughly so, and the theorem holds approximately."
    return "Not all of them are, so the theorem does not hold here; mixup (mixup_alpha) usually helps."


def shifted_part(subject: Subject) -> Part:
    """Accuracy under shifted label distributions."""
    every = [evaluation["shifted"] for evaluation in subject.evaluations]
    names = [row["name"] for row in every[0]]
    curves = {
        label: [fmean(rows[number][key] for rows in every) for number in range(len(names))]
        for key, label in (("not_told", "prior not told"), ("told", "prior told"))
    }
    rows = [
        [row["name"], f"{row['samples']:,}",
         *(mean_and_deviation([rows[number][key] for rows in every], per_cent=True) for key in ("not_told", "told"))]
        for number, row in enumerate(every[0])
    ]  # fmt: skip
    gains = [100 * (told - not_told) for not_told, told in zip(*curves.values(), strict=True)]
    text = (
        "The same model where other classes are common: forward sets are long-tailed like the training data, backward "
        f"sets the other way round. Telling it the label prior of the place changes accuracy by {min(gains):+.1f} to "
        f"{max(gains):+.1f} points, without retraining."
    )
    figure = Figure(
        "shifted", lambda figure: plot_shifted(names, curves, figure.subplots()), (8, 3.4), text,
        Table(["test set", "samples", "prior not told %", "prior told %"], rows),
    )  # fmt: skip
    return Part("Where other classes are common", [text], [figure])


def _overconfidence(bins: dict[str, list[float]]) -> float:
    rows = zip(bins["share"], bins["confidence"], bins["accuracy"], strict=True)
    return sum(share * (confidence - accuracy) for share, confidence, accuracy in rows)
