"""The sections of a report about calibration: of the whole, and of each expert for its own prior."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from balpoe.evaluation.random_error import RANDOM_FACTOR, random_error, random_error_notes
from balpoe.method.priors import class_counts
from balpoe.report.console import mean_and_deviation
from balpoe.report.inputs import Subject
from balpoe.report.plots import WIDTH, plot_marginal, plot_reliability
from balpoe.report.render import Figure, Section, Table
from balpoe.report.text import lambda_names, seed_name, seeds_score

__all__ = ["experts_section", "reliability_section"]

WELL, ROUGHLY = 0.03, 0.08  # ECE up to which an expert counts as calibrated, and as roughly so
CALIBRATED, ROUGH, NOT = "calibrated", "roughly calibrated", "not calibrated"
TOO_FEW, UNKNOWN = "within the random error", "unknown: a class has no test sample"


def reliability_section(subject: Subject) -> Section:
    """Confidence against accuracy, of the ensemble and of each expert."""
    predictors = _predictors(subject)
    gap, noise = _overconfidence(subject.evaluations[0]["reliability"], len(subject.predictions[0]))
    direction = "more confident than it is right" if gap > 0 else "less confident than it is right"
    text = (
        "When it says 80 %, is it right in 80 % of the cases? On average confidence and accuracy differ by "
        f"{seeds_score(subject, 'ece')} points (ECE), at worst by {seeds_score(subject, 'mce')} (MCE, "
        f"{_worst(subject)})" + (f"; on the whole it is {direction}." if abs(gap) >= max(0.005, noise) else ".")
    )

    def draw(figure: Any) -> None:
        columns = min(2, len(predictors))
        axes = figure.subplots(-(-len(predictors) // columns), columns, squeeze=False).flatten()
        for place, (name, seeds) in zip(axes, predictors.items(), strict=False):
            plot_reliability(seeds[0]["reliability"], place, name if len(predictors) > 1 else subject.name)
            place.set_title(f"{name}: ECE {100 * seeds[0]['ece']:.1f} %", fontsize=9.5)
        for place in axes[len(predictors) :]:
            place.remove()

    size = (WIDTH / 2 * min(2, len(predictors)) + 0.3 * (len(predictors) == 1), 2.8 * -(-len(predictors) // 2))
    words = (
        f"Reliability diagrams{seed_name(subject)}: bars of accuracy against confidence, in orange the gap between "
        f"the two, on the diagonal there is none. {text}"
    )
    rows = [
        [name, *(mean_and_deviation([scores[key] for scores in seeds], per_cent=True) for key in ("ece", "mce"))]
        for name, seeds in predictors.items()
    ]
    figure = Figure("reliability", draw, size, words, _bins_table(predictors))
    below = f"Drawn{seed_name(subject)}: bars are accuracy, in orange what lies between it and the confidence."
    texts = [text, *_before(subject), *random_error_notes(subject.evaluations[0]), below]
    return Section("Can its confidence be trusted?", texts, [figure, Table(["", "ECE %", "MCE %"], rows)])


def _worst(subject: Subject) -> str:
    """Where the largest gap is, and how little may be behind it."""
    bins, samples = subject.evaluations[0]["reliability"], len(subject.predictions[0])
    gaps = [abs(a - b) * (share > 0) for share, a, b in zip(*bins.values(), strict=True)]
    share = bins["share"][gaps.index(max(gaps))]
    return f"in a bin of {round(share * samples):,} of the {samples:,} test samples{seed_name(subject)}"


def _before(subject: Subject) -> list[str]:
    """What calibration has changed, if anything."""
    found = [each["calibration"] for each in subject.evaluations if "calibration" in each]
    if len(found) < len(subject.evaluations):
        return ["It is not calibrated: probabilities are as trained."]
    ece = mean_and_deviation([each["before"]["ece"] for each in found], per_cent=True)
    nll = mean_and_deviation([each["before"]["nll"] for each in found], per_cent=False)
    temperature = mean_and_deviation([fmean(each["temperatures"]) for each in found], per_cent=False)
    fitted = all(each.get("fitted", True) for each in found)
    how = "It is calibrated by samples outside of training, with" if fitted else "Its logits are divided by"
    return [
        f"{how} a temperature of {temperature}: as trained the ECE was "
        f"{ece} points and the NLL {nll}, and now they are {seeds_score(subject, 'ece')} and "
        f"{mean_and_deviation([each['nll'] for each in subject.evaluations], per_cent=False)}."
    ]


def experts_section(subject: Subject) -> Section:
    """Whether each expert is calibrated for its own prior."""
    names = lambda_names(subject)
    checks = [[each["expert_checks"][expert] for each in subject.evaluations] for expert in range(len(names))]
    errors = _random_errors(subject)
    verdicts = [_verdict(seeds, random) for seeds, random in zip(checks, errors, strict=True)]
    rows = [
        [
            name,
            mean_and_deviation([check["weighted_ece"] for check in seeds], per_cent=True),
            "-" if random is None else f"{100 * random:.1f}",
            mean_and_deviation([check["weighted_kl"] for check in seeds], per_cent=False),
            mean_and_deviation([check["marginal_kl"] for check in seeds], per_cent=False),
            verdict,
        ]
        for name, seeds, random, verdict in zip(names, checks, errors, verdicts, strict=True)
    ]
    headings = ["", "ECE %", "random error %", "KL to the prior", "KL, unweighted", "verdict"]
    table = Table(headings, rows, "On test samples weighted to each expert's prior")
    first = _first_sentence(len(names), verdicts, _hint(subject))
    second = (
        f"Calibrated means an ECE up to {100 * WELL:g} %, roughly up to {100 * ROUGHLY:g} %, on test samples weighted "
        "to the prior; the random error is the ECE that a calibrated expert has on average on so few, and up to "
        f"{RANDOM_FACTOR:g} times as much proves nothing. The average prediction over the unweighted test set, drawn "
        "here, follows the prior only as far as classes overlap."
    )
    title = (
        "Are the experts what the theory needs?"
        if len(names) > 1
        else "Is it calibrated for its own class frequencies?"
    )
    return Section(title, [first, second], [_marginals_figure(subject, names, checks, first), table])


def _random_errors(subject: Subject) -> list[float | None]:
    """The ECE that each expert would have at random if it were calibrated; None if a class has no sample."""
    predictions = subject.predictions[0]
    counts = class_counts(predictions.targets, predictions.num_classes).double()
    priors = predictions.expert_priors
    if priors is None or float(counts.min()) == 0:
        return [None] * predictions.num_experts
    sizes = (1 / (prior.double().square() / counts).sum() for prior in priors)
    experts = subject.evaluations[0]["experts"]
    return [random_error(each["reliability"], float(size)) for each, size in zip(experts, sizes, strict=True)]


def _predictors(subject: Subject) -> dict[str, list[dict[str, Any]]]:
    """The ensemble and its experts, each with the scores of all seeds."""
    names = lambda_names(subject)
    if len(names) == 1:
        return {"classifier": list(subject.evaluations)}
    experts = {name: [each["experts"][n] for each in subject.evaluations] for n, name in enumerate(names)}
    return {"ensemble": list(subject.evaluations), **experts}


def _bins_table(predictors: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    columns = [
        [_bin(seeds[0]["reliability"], key, n) for n in range(len(seeds[0]["reliability"]["share"]))]
        for seeds in predictors.values()
        for key in ("share", "confidence", "accuracy")
    ]
    headings = ["bin", *(f"{name}: {key} %" for name in predictors for key in ("share", "confidence", "accuracy"))]
    return Table(headings, [[str(n + 1), *row] for n, row in enumerate(zip(*columns, strict=True))])


def _bin(bins: Mapping[str, Sequence[float]], key: str, number: int) -> str:
    return f"{100 * bins[key][number]:.1f}" if key == "share" or bins["share"][number] > 0 else "-"


def _verdict(seeds: Sequence[Mapping[str, Any]], random: float | None) -> str:
    errors = [check["weighted_ece"] for check in seeds]
    if None in errors or random is None:
        return UNKNOWN
    error = fmean(errors)
    if error <= WELL:
        return CALIBRATED
    if error <= RANDOM_FACTOR * random:
        return TOO_FEW
    return ROUGH if error <= ROUGHLY else NOT


def _hint(subject: Subject) -> str:
    """What would make experts of a run calibrated: mixup makes those modest that are too sure, and only those."""
    if not subject.runs or "calibration" in subject.evaluations[0]:
        return ""
    gap, _ = _overconfidence(subject.evaluations[0]["reliability"], len(subject.predictions[0]))
    return "; mixup (mixup_alpha) usually helps" if gap > 0 else "; --calibrate, or less mixup, helps"


def _first_sentence(experts: int, verdicts: Sequence[str], hint: str) -> str:
    if experts == 1:
        return f"On samples with the class frequencies that it was trained for it is: {verdicts[0]}."
    start = (
        "The theory wants every expert to be calibrated for the class frequencies (the prior) that it was trained for: "
        "then their average is unbiased."
    )
    if UNKNOWN in verdicts:
        return f"{start} Whether they are is unknown, because some classes have no test sample."
    if NOT in verdicts:
        return f"{start} Not all of these experts are, so the theorem does not hold here{hint}."
    if ROUGH in verdicts:
        return f"{start} These experts are roughly so, and the theorem holds approximately."
    return f"{start} These experts are" + (", as far as so few samples tell." if TOO_FEW in verdicts else ".")


def _marginals_figure(
    subject: Subject, names: Sequence[str], checks: Sequence[Sequence[Mapping[str, Any]]], words: str
) -> Figure:
    predictions = subject.predictions[0]
    assert predictions.expert_priors is not None  # or else there would be no checks
    order = torch.argsort(predictions.class_counts, descending=True, stable=True)
    priors = predictions.expert_priors[:, order].tolist()
    marginals = torch.tensor([seeds[0]["marginal"] for seeds in checks])[:, order].tolist()

    def draw(figure: Any) -> None:
        axes = figure.subplots(-(-len(names) // 2), min(2, len(names)), squeeze=False, sharey=True).flatten()
        for place, name, prior, marginal in zip(axes, names, priors, marginals, strict=False):
            plot_marginal(prior, marginal, place, name, legend=len(names) % 2 == 0 or len(names) == 1)
            place.set(ylabel="" if place in axes[1::2] else "share, %")
            place.set_title(name, fontsize=9.5)
        for place in axes[len(names) :]:  # at most one, which has room for the names
            place.set_axis_off()
            place.legend(*axes[0].get_legend_handles_labels(), loc="center left", fontsize=10)

    columns = [column for pair in zip(priors, marginals, strict=True) for column in pair]
    rows = [
        [predictions.class_names[int(label)], *(f"{column[n]:.5f}" for column in columns)]
        for n, label in enumerate(order)
    ]
    headings = ["class", *(f"{name}: {kind}" for name in names for kind in ("prior", "average"))]
    alt = f"The average prediction of each expert{seed_name(subject)} beside the prior it was trained for. {words}"
    return Figure("experts", draw, (WIDTH, 2.5 * -(-len(names) // 2)), alt, Table(headings, rows))


def _overconfidence(bins: dict[str, list[float]], samples: int) -> tuple[float, float]:
    """Mean confidence less accuracy, and how far from 0 it is in one of 20 such samples of a calibrated classifier."""
    rows = list(zip(bins["share"], bins["confidence"], bins["accuracy"], strict=True))
    variance = sum(share * confidence * (1 - confidence) for share, confidence, _ in rows) / samples
    return sum(share * (confidence - accuracy) for share, confidence, accuracy in rows), 1.96 * math.sqrt(variance)
