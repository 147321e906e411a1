"""The section "Decide" of a report: what it says in words and tables, and its controls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from balpoe.deployment.taxonomy import Taxonomy
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.calibrate import Choice
from balpoe.report.decide.answers import Answered, Answers, most_probable, surest, uniform_over_tested
from balpoe.report.decide.page import ROWS, USUAL_KEEP, decide_controls
from balpoe.report.decide.set_rows import set_rows
from balpoe.report.decide.sets import SetScores, set_scores, set_validation
from balpoe.report.decide.thresholds import aimed_scores
from balpoe.report.decide.tree import Level, tree_levels
from balpoe.report.decide.unknown import UnknownPart, unknown_part
from balpoe.report.inputs import Subject
from balpoe.report.render import Fragment, Section, Table
from balpoe.report.text import per_cent, seed_name

__all__ = ["decide_section"]

SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
SHOWN_SHARE = 0.8  # of which a sentence speaks
SHOWN_ALPHAS = (0.05, 0.1, 0.2)
CONFIDENCES = (0.7, 0.8, 0.9, 0.95)
NO_DECISION = (
    "The scores of this model are not probabilities for a known class mix, so no decision can rest on them, and this "
    "part is left out."
)
NO_SETS = (
    'Prediction sets and "unknown" are left out: they need samples outside of training, and there are none here, or '
    "too few; train with --calibrate."
)


def decide_section(subject: Subject, taxonomy: Taxonomy | None = None) -> Section:
    """Return what decisions come to on the test samples: abstaining, costs, prediction sets and a tree of labels.

    Args:
        subject: What the report is about; its first seed is looked at.
        taxonomy: Tree of the classes.
    """
    predictions = subject.predictions[0]
    if predictions.source_prior is None:
        return Section("Decide", [NO_DECISION])
    prior = uniform_over_tested(predictions)
    answers = most_probable(predictions, prior, subject.shot_groups)
    known = _HeldOut.of(subject)
    sets, unknown, held_out = known.sets, known.unknown, known.predictions
    tables = [_answers_table(answers), *([_sets_table(sets)] if sets else [])]
    tables += [] if unknown is None else [_unknown_table(unknown)]
    if held_out is not None:
        tables.append(_thresholds_table(aimed_scores(held_out, predictions, subject.shot_groups)))
    if taxonomy is not None:
        tables.append(_tree_table(tree_levels(taxonomy, predictions, prior, CONFIDENCES)))
    sentences = [*_sentences(answers, seed_name(subject)), *([] if sets else [NO_SETS])]
    sentences += [] if unknown is None else _unknown_sentences(unknown)
    return Section("Decide", sentences, [Fragment(decide_controls(known.rows, taxonomy, unknown)), *tables])


class _HeldOut(NamedTuple):
    """What a run's held-out samples tell; nothing where there are none."""

    sets: Sequence[SetScores] = ()
    rows: dict[str, Any] | None = None
    """What the page makes its own sets of."""
    unknown: UnknownPart | None = None
    predictions: Predictions | None = None

    @staticmethod
    def of(subject: Subject) -> "_HeldOut":
        folder = subject.runs[0].folder if subject.runs else None
        found = None if folder is None else set_validation(folder)
        choice = None if folder is None else Choice.load(folder)
        if found is None or choice is None:
            return _HeldOut()
        (validation, cross_fitted), test = found, subject.predictions[0]
        return _HeldOut(
            set_scores(validation, test, subject.shot_groups, cross_fitted=cross_fitted),
            set_rows(validation, test, cross_fitted=cross_fitted),
            unknown_part(validation, test, subject.shot_groups, cross_fitted=cross_fitted),
            choice.held_out,
        )


def _sentences(answers: Answers, seed: str) -> list[str]:
    everything = answers.from_confidence(0.0)
    some = answers.from_confidence(surest(answers, [SHOWN_SHARE])[0])
    found = [
        f"A model need not answer always{seed}. With each class alike, {per_cent(everything['all'].error)} % of all "
        f"answers are wrong, but {per_cent(some['all'].error)} % of the surest {100 * SHOWN_SHARE:.0f} %."
    ]
    groups = {name: each for name, each in some.items() if name != "all"}
    if len(groups) > 1:
        sent = ", ".join(f"{per_cent(1 - each.share)} % of the {name}-shot samples" for name, each in groups.items())
        found.append(f"Without an answer are then {sent}.")
    return found


def _answers_table(answers: Answers) -> Table:
    groups = [name for name in answers.weights if name != "all"]
    headings = ["answered", "from confidence", "wrong of the answers", *(f"no answer, {name}-shot" for name in groups)]
    rows = []
    for threshold in surest(answers, SHARES):
        found = answers.from_confidence(threshold)
        rows.append(
            [per_cent(found["all"].share), per_cent(threshold), per_cent(found["all"].error), *_without(found, groups)]
        )
    areas = ", ".join(f"{name} {100 * area:.1f}" for name, area in answers.areas().items())
    caption = (
        "If only the surest samples are answered, each class alike; per cent. Area under the risk-coverage curve "
        f"(mean error over all shares answered, smaller is better): {areas}."
    )
    return Table(headings, rows, caption)


def _without(found: dict[str, Answered], groups: Sequence[str]) -> list[str]:
    return [per_cent(1 - found[name].share) for name in groups]


def _sets_table(sets: Sequence[SetScores]) -> Table:
    names = list(sets[0].groups)
    shown = [each for each in sets if each.alpha in SHOWN_ALPHAS] or sets
    headings = ["method", "promised", *(ROWS.get(name, f"{name}-shot") for name in names)]
    rows = [
        [
            each.method,
            f"{100 * (1 - each.alpha):g}",
            *(f"{per_cent(group.coverage)} ({group.size:.1f})" for group in each.groups.values()),
        ]
        for each in shown
    ]
    caption = (
        "Prediction sets from the run's held-out samples: per cent of the test samples' sets that hold the class, and "
        "in brackets how many classes are in a set. The promise is for the class mix of the held-out samples, or "
        "(per-class) for each class that has enough of them."
    )
    return Table(headings, rows, caption)


def _unknown_table(part: UnknownPart) -> Table:
    names = list(part.scores[0].groups)
    headings = [
        "kept",
        "score above",
        *(ROWS.get(name, f"{name}-shot") for name in names),
        "of right answers",
        "of wrong",
    ]
    rows = [
        [
            f"{100 * each.keep:g}",
            f"{each.threshold:.3f}",
            *(per_cent(group.all) for group in each.groups.values()),
            *map(per_cent, each.groups[names[0]][1:]),
        ]
        for each in part.scores
    ]
    caption = (
        "Test samples of known classes that would be called unknown, in per cent, by thresholds of the run's held-out "
        "samples that keep a share of known samples (score: 1 less the largest probability). How many samples of no "
        "known class are found cannot be said without some."
    )
    return Table(headings, rows, caption)


def _thresholds_table(scores: dict[str, dict[str, dict[str, Any]]]) -> Table:
    groups = list(next(iter(scores.values())))
    headings = ["thresholds for", *("all" if name == "all" else f"{name}-shot" for name in groups)]
    rows = [[aim, *(" / ".join(_measures(row[name])) for name in groups)] for aim, row in scores.items()]
    caption = (
        "A yes or no to each class by itself, with a threshold of the run's held-out samples for each: precision / "
        "recall / F1 on the test samples in per cent, means over classes, each class alike."
    )
    return Table(headings, rows, caption)


def _measures(row: dict[str, Any]) -> list[str]:
    return [per_cent(row[name]) for name in ("precision", "recall", "f1")]


def _unknown_sentences(part: UnknownPart) -> list[str]:
    usual = min(part.scores, key=lambda each: abs(each.keep - USUAL_KEEP))
    (_, mixed), *groups = usual.groups.items()
    shots = ", ".join(f"{per_cent(each.all)} % of the {name}-shot samples" for name, each in groups)
    first = (
        f'If "unknown" is to keep {100 * usual.keep:g} % of the samples of known classes, {per_cent(mixed.all)} % of '
        f"the test samples are called unknown in the class mix of the held-out samples: {shots}."
    )
    return [first, *part.notes]


def _tree_table(levels: Sequence[Level]) -> Table:
    *labelled, none = levels
    headings = ["level", "labels", "accuracy", *(f"confidence {100 * each:.0f} %" for each in CONFIDENCES)]
    rows = [
        [each.name, f"{each.labels:,}", per_cent(each.accuracy), *map(_share, each.answered.values())]
        for each in labelled
    ]
    rows.append(["none", "", "", *(per_cent(share) for share, _ in none.answered.values())])
    caption = (
        "The tree of labels, each class alike: accuracy of the most probable label of a level; then, in per cent of "
        "the samples, how many have their deepest label of at least that confidence there, and in brackets how many of "
        "those are right."
    )
    return Table(headings, rows, caption)


def _share(answered: tuple[float, float | None]) -> str:
    share, right = answered
    return per_cent(share) if right is None else f"{per_cent(share)} ({per_cent(right)})"
