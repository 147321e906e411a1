"""The section "Decide" of a report: what it says in words and tables, and its controls."""

from collections.abc import Sequence
from typing import Any

from balpoe.deployment.taxonomy import Taxonomy
from balpoe.evaluation.predictions import Predictions
from balpoe.report.decide.answers import Answered, Answers, most_probable, surest, uniform_over_tested
from balpoe.report.decide.page import decide_controls
from balpoe.report.decide.set_rows import set_rows
from balpoe.report.decide.sets import SetScores, set_scores, set_validation
from balpoe.report.decide.tree import Level, tree_levels
from balpoe.report.inputs import Subject
from balpoe.report.render import Fragment, Section, Table
from balpoe.report.text import per_cent, seed_name

__all__ = ["decide_section"]

SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
SHOWN_SHARE = 0.8  # of which a sentence speaks
SHOWN_ALPHAS = (0.05, 0.1, 0.2)
CONFIDENCES = (0.7, 0.8, 0.9, 0.95)
SET_ROWS = {"held-out mix": "all, class mix of the held-out samples", "all alike": "all, each class alike"}
NO_DECISION = (
    "The scores of this model are not probabilities for a known class mix, so no decision can rest on them, and this "
    "part is left out."
)
NO_SETS = (
    "Prediction sets are left out: they need samples outside of training, and there are none here, or too few; train "
    "with --calibrate."
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
    sets, rows = _sets(subject, predictions)
    tables = [_answers_table(answers), *([_sets_table(sets)] if sets else [])]
    if taxonomy is not None:
        tables.append(_tree_table(tree_levels(taxonomy, predictions, prior, CONFIDENCES)))
    sentences = [*_sentences(answers, seed_name(subject)), *([] if sets else [NO_SETS])]
    return Section("Decide", sentences, [Fragment(decide_controls(rows, taxonomy)), *tables])


def _sets(subject: Subject, predictions: Predictions) -> tuple[list[SetScores], dict[str, Any] | None]:
    """Scores of prediction sets, and what the page makes its own of; nothing without held-out samples."""
    found = set_validation(subject.runs[0].folder) if subject.runs else None
    if found is None:
        return [], None
    validation, cross_fitted = found
    scores = set_scores(validation, predictions, subject.shot_groups, cross_fitted=cross_fitted)
    return scores, set_rows(validation, predictions, cross_fitted=cross_fitted)


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
    headings = ["method", "promised", *(SET_ROWS.get(name, f"{name}-shot") for name in names)]
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
