"""What decisions are worth on labelled samples: costs against those of the most probable class, coverage, errors."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.abstaining import GroupAbstained, abstained
from balpoe.deployment.deciders import Decided, Decider
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.metric_scores import metric_scores
from balpoe.deployment.place_deciders import DecidersAt
from balpoe.deployment.posteriors import label_weights
from balpoe.deployment.score_intervals import ScoreIntervals, WeightedMean
from balpoe.deployment.taxonomy import Deepest
from balpoe.deployment.threshold_scores import threshold_scores
from balpoe.evaluation.metrics import shot_groups as groups_of_classes
from balpoe.evaluation.predictions import Predictions

__all__ = ["decision_scores"]

NORMAL_95 = 1.959964


def decision_scores(
    decider: Decider | DecidersAt,
    predictions: Predictions,
    shot_groups: tuple[int, int] = (20, 100),
    *,
    as_they_come: bool = False,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return what the decisions on labelled samples are worth, as numbers for a table or JSON, with 95 % intervals.

    Samples are weighted to the decider's deployment prior; as they come if it has none, or one for each place.

    Args:
        decider: What decides.
        predictions: Labelled predictions of the same model, on samples that it was not fitted on.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
        as_they_come: Whether the samples have the deployment prior already, such as one that is estimated from them.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

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
    prior = shares / shares.sum() if as_they_come or decider.target_prior is None else decider.target_prior
    weights = label_weights(predictions, prior)
    groups = _members(predictions, weights, shot_groups)
    sample = _Sample(predictions, weights, ScoreIntervals(predictions, num_resamples, seed))
    found: dict[str, Any] = {"samples": len(predictions)}
    if decided.answers is not None:
        found |= _of_answers(decided, decided.answers, decider, sample)
        names, answers = decided.decider.class_names, decided.decider.answer_names
        if answers[: len(names)] == names != answers:
            rows = abstained(predictions, decided.answers, target_prior=prior, shot_groups=shot_groups)
            found["abstaining"] = _of_abstaining(rows, decided.answers, sample, groups)
    if decided.sets is not None:
        found["sets"] = {**_about_sets(decider, decided), **_of_sets(decided.sets, sample, groups)}
    if decided.levels is not None:
        found["levels"] = _of_levels(decided.levels, decider, sample)
    if decided.unknown is not None:
        called = decided.unknown.double()
        of_group = [WeightedMean(called, weights * rows) for rows in groups.values()]
        ends = zip(of_group, sample.intervals.of_shares(of_group), strict=True)
        found["unknown"] = dict(
            zip(groups, ({"share": each.value, "interval": end} for each, end in ends), strict=True)
        )
    if decided.yes is not None and (thresholds := decided.decider.thresholds) is not None:
        aim = {"aim": thresholds.aim, "flagged": len(thresholds.flagged)}
        found["thresholds"] = {**aim, **threshold_scores(decided.yes, predictions, weights, shot_groups)}
    return found


class _Sample(NamedTuple):
    """Labelled samples, what each counts, and how sure that makes a number."""

    predictions: Predictions
    weights: Tensor
    intervals: ScoreIntervals


def _members(predictions: Predictions, weights: Tensor, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    """All samples, and those whose class is in each shot group, where there are any with weight."""
    groups = groups_of_classes(predictions.class_counts, shot_groups)
    members = {name: mask[predictions.targets] & (weights > 0) for name, mask in groups.items()}
    return {"all": weights > 0, **{name: rows for name, rows in members.items() if bool(rows.any())}}


def _of_answers(decided: Decided, answers: Tensor, decider: Decider | DecidersAt, sample: _Sample) -> dict[str, Any]:
    """Costs, or what a metric's rule is made for, of the answers and of the most probable class."""
    rule, targets = decided.decider.rule, sample.predictions.targets
    if not isinstance(rule, DecisionRule):
        return {}
    if rule.metric is None and any(name not in rule.answers for name in rule.class_names):
        # There is no class to compare with.
        return {"cost": {"decision": _mean(_costs(rule, answers, targets), sample.weights)}}
    plain = torch.cat([block.argmax(dim=1) for _, block in decider.probabilities(sample.predictions)])
    if rule.metric is not None:
        return {"metric": {"name": rule.metric, **metric_scores(answers, plain, *sample)}}
    ours = _costs(rule, answers, targets)
    theirs = _costs(rule, torch.tensor([rule.answers.index(name) for name in rule.class_names])[plain], targets)
    difference = _mean(ours - theirs, sample.weights)
    margin = NORMAL_95 * _standard_error(ours - theirs, sample.weights, sample.predictions.groups)
    return {
        "cost": {
            "decision": _mean(ours, sample.weights),
            "most probable class": _mean(theirs, sample.weights),
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


def _about_sets(decider: Decider | DecidersAt, decided: Decided) -> dict[str, Any]:
    """What was asked of the sets, and promised; those of places have a promise each, which the notes have."""
    sets = decided.decider.sets
    if sets is None:
        return {}
    promise = {"promise": sets.guarantee} if isinstance(decider, Decider) else {}
    return {"alpha": sets.alpha, "method": sets.method, **promise}


def _of_sets(sets: Tensor, sample: _Sample, groups: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Coverage and mean size of sets, of all samples and by shot group; over classes it is the mean of their means."""
    targets, weights = sample.predictions.targets, sample.weights
    inside = sets[torch.arange(len(sets)), targets].double()
    size = sets.sum(dim=1).double()
    once = (1 / torch.bincount(targets).clamp(min=1).double())[targets]
    masses = {**{name: weights * rows for name, rows in groups.items()}, "mean over classes": once}
    coverage, sizes = ([WeightedMean(values, mass) for mass in masses.values()] for values in (inside, size))
    ends = zip(sample.intervals.of_shares(coverage), sample.intervals.of_means(sizes), strict=True)
    return {
        name: {"coverage": inner.value, "interval": end, "size": outer.value, "size_interval": size_end}
        for name, inner, outer, (end, size_end) in zip(masses, coverage, sizes, ends, strict=True)
    }


def _of_levels(levels: Deepest, decider: Decider | DecidersAt, sample: _Sample) -> list[dict[str, Any]]:
    """How many answers are given at each level, how many are right, and how many would be if all were given there."""
    taxonomy, targets, weights = levels.taxonomy, sample.predictions.targets, sample.weights
    blocks = decider.probabilities(sample.predictions)
    parts = [taxonomy.right_at_levels(block, targets[rows]) for rows, block in blocks]
    counted, fine = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
    right, level = levels.right(targets).double(), taxonomy.level_of[levels.labels]
    shares = [WeightedMean((level == number).double(), weights) for number in range(taxonomy.height + 1)]
    accuracies = [WeightedMean(right, weights * (level == number)) for number in range(taxonomy.height + 1)]
    best = [WeightedMean(*each) for each in zip(fine.double(), weights * counted, strict=True)]
    nothing = WeightedMean(weights, torch.zeros_like(weights))  # of the root, which is always right
    columns = {"share": shares, "accuracy": accuracies, "most_probable": [*best, nothing]}
    ends = iter(sample.intervals.of_shares([each for column in columns.values() for each in column]))
    found: list[dict[str, Any]] = [asdict(score) for score in levels.scores(targets, weights)]
    for name, column in columns.items():
        for row, each in zip(found, column, strict=True):
            row |= {name: each.value, f"{name}_interval": next(ends)}
    found[-1]["accuracy_interval"] = None  # the root is right by definition
    return found


def _of_abstaining(
    rows: Sequence[GroupAbstained], answers: Tensor, sample: _Sample, groups: dict[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """How many samples are answered, and how many of the answers are wrong, of all and by shot group."""
    wrong = (answers != sample.predictions.targets).double()
    given = sample.weights * (answers < sample.predictions.num_classes)
    ends = sample.intervals.of_shares([WeightedMean(wrong, given * groups[row.name]) for row in rows])
    return {
        row.name: {
            "samples": row.samples,
            "answered": 1 - row.abstained,
            "interval": [1 - row.interval[1], 1 - row.interval[0]],
            "error": row.error,
            "error_interval": end,
        }
        for row, end in zip(rows, ends, strict=True)
    }


def _mean(values: Tensor, weights: Tensor) -> float:
    return float(values @ weights / weights.sum())


def _standard_error(values: Tensor, weights: Tensor, groups: Tensor | None) -> float:
    """Of a weighted mean; samples of one group are one unit."""
    off = weights * (values - _mean(values, weights))
    if groups is not None:
        off = torch.bincount(torch.unique(groups, return_inverse=True)[1], off)
    return float(off.square().sum().sqrt() / weights.sum())
