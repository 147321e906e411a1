"""What decisions are worth on labelled samples: costs against those of the most probable class, coverage, errors."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.abstaining import abstained
from balpoe.deployment.deciders import Decided, Decider
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.taxonomy import Deepest
from balpoe.deployment.threshold_scores import threshold_scores
from balpoe.evaluation.metrics import shot_groups as groups_of_classes
from balpoe.evaluation.predictions import Predictions

__all__ = ["decision_scores"]

NORMAL_95 = 1.959964


def decision_scores(
    decider: Decider, predictions: Predictions, shot_groups: tuple[int, int] = (20, 100)
) -> dict[str, Any]:
    """Return what the decisions on labelled samples are worth, as numbers for a table or JSON.

    Samples are weighted to the decider's deployment prior; as they come if it has none.

    Args:
        decider: What decides.
        predictions: Labelled predictions of the same model, on samples that it was not fitted on.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.

    >>> from balpoe.deployment.deciders import Wanted
    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.0]]])
    >>> predictions = Predictions(logits, torch.tensor([0, 1, 1]), [500, 5], [0], ("oak", "ash"))
    >>> decider = Decider.fit(Wanted(costs=torch.tensor([1.0, 6.0])), predictions, None)
    >>> cost = decision_scores(decider, predictions)["cost"]
    >>> cost["decision"], cost["most probable class"]  # the third sample is an ash, too
    (0.0, 2.0)
    """
    decided = decider(predictions)
    shares = torch.bincount(predictions.targets, minlength=predictions.num_classes).double()
    prior = shares / shares.sum() if decider.target_prior is None else decider.target_prior
    weights = label_weights(predictions, prior)
    groups = _members(predictions, weights, shot_groups)
    found: dict[str, Any] = {"samples": len(predictions)}
    if decided.answers is not None:
        found |= _of_answers(decided, decided.answers, predictions, weights)
        names = decider.class_names
        if decider.answer_names[: len(names)] == names != decider.answer_names:
            rows = abstained(predictions, decided.answers, target_prior=prior, shot_groups=shot_groups)
            found["abstaining"] = {row.name: _answered(asdict(row)) for row in rows}
    if decided.sets is not None and decider.sets is not None:
        found["sets"] = {
            "alpha": decider.sets.alpha, "method": decider.sets.method, "promise": decider.sets.guarantee,
            **_of_sets(decided.sets, predictions, weights, groups),
        }  # fmt: skip
    if decided.levels is not None:
        found["levels"] = _of_levels(decided.levels, decider, predictions, weights)
    if decided.unknown is not None:
        called = decided.unknown.double()
        found["unknown"] = {name: _mean(called[rows], weights[rows]) for name, rows in groups.items()}
    if decided.yes is not None and decider.thresholds is not None:
        aim = {"aim": decider.thresholds.aim, "flagged": len(decider.thresholds.flagged)}
        found["thresholds"] = {**aim, **threshold_scores(decided.yes, predictions, weights, shot_groups)}
    return found


def _members(predictions: Predictions, weights: Tensor, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    """All samples, and those whose class is in each shot group, where there are any with weight."""
    groups = groups_of_classes(predictions.class_counts, shot_groups)
    members = {name: mask[predictions.targets] & (weights > 0) for name, mask in groups.items()}
    return {"all": weights > 0, **{name: rows for name, rows in members.items() if bool(rows.any())}}


def _of_answers(decided: Decided, answers: Tensor, predictions: Predictions, weights: Tensor) -> dict[str, Any]:
    """Costs, or what a metric's rule is made for, of the answers and of the most probable class."""
    rule = decided.decider.rule
    if not isinstance(rule, DecisionRule):
        return {}
    classes, targets = predictions.num_classes, predictions.targets
    plain = DecisionRule(rule.class_names, torch.ones(classes), target_prior=rule.target_prior)(predictions)
    if rule.metric is not None:
        pair = {
            "decision": _scores_of_answers(answers, targets, weights, classes),
            "most probable class": _scores_of_answers(plain, targets, weights, classes),
        }
        return {"metric": {"name": rule.metric, **pair}}
    if any(name not in rule.answers for name in rule.class_names):
        return {"cost": {"decision": _mean(_costs(rule, answers, targets), weights)}}  # no class to compare with
    ours = _costs(rule, answers, targets)
    theirs = _costs(rule, torch.tensor([rule.answers.index(name) for name in rule.class_names])[plain], targets)
    difference = _mean(ours - theirs, weights)
    margin = NORMAL_95 * _standard_error(ours - theirs, weights, predictions.groups)
    return {
        "cost": {
            "decision": _mean(ours, weights),
            "most probable class": _mean(theirs, weights),
            "difference": difference,
            "interval": [difference - margin, difference + margin],
        }
    }


def _costs(rule: DecisionRule, answers: Tensor, targets: Tensor) -> Tensor:
    """What each answer cost."""
    table = rule.costs
    if table.ndim == 1:
        table = table[:, None] * (1 - torch.eye(len(table), dtype=table.dtype))
    if rule.abstain_cost is not None:
        table = torch.cat([table, torch.full_like(table[:, :1], rule.abstain_cost)], dim=1)
    return table[targets, answers]


def _scores_of_answers(answers: Tensor, targets: Tensor, weights: Tensor, classes: int) -> dict[str, Any]:
    """Accuracy, balanced accuracy and macro F1 under the weights, and the recall of each class."""
    right = (answers == targets).double() * weights
    mass, given, hits = (
        torch.bincount(labels, values, minlength=classes)
        for labels, values in ((targets, weights), (answers, weights), (targets, right))
    )
    there = mass > 0
    recall = hits[there] / mass[there]
    f1 = 2 * hits[there] / (mass + given)[there]
    recalls: list[float | None] = [None] * classes  # None: no test sample
    for place, value in zip(there.nonzero().squeeze(1).tolist(), recall.tolist(), strict=True):
        recalls[place] = value
    return {
        "accuracy": float(right.sum() / weights.sum()),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
        "recall": recalls,
    }


def _of_sets(
    sets: Tensor, predictions: Predictions, weights: Tensor, groups: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    """Coverage and mean size of sets, of all samples and by shot group; over classes it is the mean of their means."""
    inside = sets[torch.arange(len(sets)), predictions.targets].double()
    size = sets.sum(dim=1).double()
    found = {
        name: {"coverage": _mean(inside[rows], weights[rows]), "size": _mean(size[rows], weights[rows])}
        for name, rows in groups.items()
    }
    counts = torch.bincount(predictions.targets, minlength=predictions.num_classes)
    once = (1 / counts.clamp(min=1).double())[predictions.targets]
    return {**found, "mean over classes": {"coverage": _mean(inside, once), "size": _mean(size, once)}}


def _of_levels(levels: Deepest, decider: Decider, predictions: Predictions, weights: Tensor) -> list[dict[str, Any]]:
    """How many answers are given at each level, how many are right, and how many would be if all were given there."""
    taxonomy, targets = levels.taxonomy, predictions.targets
    prior = predictions.source_prior if decider.target_prior is None else decider.target_prior
    right, mass = torch.zeros(2, taxonomy.height + 1, dtype=torch.float64)
    for rows, block in Posteriors(predictions, prior).probabilities():
        for level, score in enumerate(taxonomy.scores(block, targets[rows], weights[rows])):
            here = score.share * float(weights[rows].sum())
            mass[level] += here
            right[level] += here * (score.accuracy or 0.0)
    best = [float(hits / total) if total else None for hits, total in zip(right, mass, strict=True)]
    scores = levels.scores(targets, weights)
    return [{**asdict(score), "most_probable": share} for score, share in zip(scores, best, strict=True)]


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row["interval"]
    answered = {"answered": 1 - row["abstained"], "interval": [1 - high, 1 - low], "error": row["error"]}
    return {"samples": row["samples"], **answered}


def _mean(values: Tensor, weights: Tensor) -> float:
    return float(values @ weights / weights.sum())


def _standard_error(values: Tensor, weights: Tensor, groups: Tensor | None) -> float:
    """Of a weighted mean; samples of one group are one unit."""
    off = weights * (values - _mean(values, weights))
    if groups is not None:
        off = torch.bincount(torch.unique(groups, return_inverse=True)[1], off)
    return float(off.square().sum().sqrt() / weights.sum())
