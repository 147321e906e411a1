"""Decisions of the classifier: answers for costs or a metric, and sets, fitted on the samples that it had not seen."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.decisions import fit_rule
from balpoe.deployment.metric_rules import metric_name, wanted_recall
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import Predictions
from balpoe.training.cross_fit import Unseen

__all__ = ["Deployed", "answers", "check_decision", "fitted_sets", "predictions_of", "sets_guarantee"]

IN_COMMON = (
    "What the networks have in common (the scaling of features, and mixup_alpha where it is 'auto') counts as given, "
    "though all samples had a part in it."
)


class Deployed(NamedTuple):
    """Logits of new samples and of those that the networks had not seen, and the deployment prior of both."""

    logits: Tensor
    """Calibrated logits of the new samples, (samples, classes)."""
    unseen: Unseen
    """Those that the networks had not seen, calibrated in the same way."""
    source_prior: Tensor
    target_prior: Tensor


def check_decision(decision: Any, classes: np.ndarray) -> None:
    """Refuse a decision that means nothing for these classes, before anything is trained.

    Args:
        decision: Value of the classifier's `decision`.
        classes: Class labels.

    >>> check_decision({"oak": 1, "elm": 2}, np.array(["oak", "ash"]))
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: decision: unknown class 'elm'; known are oak, ash
    """
    if isinstance(decision, str):
        if (name := metric_name(decision)).lower().startswith("recall of "):
            _check_recall(*wanted_recall(name), classes)
    elif decision is not None:
        _rule(decision, classes, None)


def answers(decision: Any, deployed: Deployed, classes: np.ndarray) -> Tensor:
    """Return the number of each sample's answer among the classes, (samples,).

    Args:
        decision: Metric, costs, a mapping from class to the cost of missing it, or a rule.
        deployed: Logits and priors.
        classes: Class labels.
    """
    if isinstance(decision, str):
        held_out = predictions_of(deployed.unseen, deployed.source_prior, classes)
        rule = fit_rule(held_out, decision, target_prior=deployed.target_prior)
    else:
        rule = _rule(decision, classes, deployed.target_prior)
    return rule(deployed.logits, source_prior=deployed.source_prior)


def fitted_sets(
    unseen: Unseen, source_prior: Tensor, classes: np.ndarray, *, alpha: float, method: str, **known: Any
) -> ConformalSets:
    """Return sets of the networks one by one (CV+), or of the one network.

    Args:
        unseen: What each network says of the samples that it has not seen, without the temperature, which these very
            samples fitted.
        source_prior: Prior that the logits are made for.
        classes: Class labels.
        alpha: Share of samples whose set may miss their class.
        method: Method of `balpoe.ConformalSets`.
        known: Further settings of its fit: the deployment prior, and what is known of it and of the networks.
    """
    held_out = predictions_of(unseen, source_prior, classes)
    try:
        return ConformalSets.fit(held_out, alpha=alpha, method=method, folds=unseen.fold, **known)
    except UserError as error:
        raise UserError(f"{error} (the validation samples are those that fit held out, under target_prior)") from error


def sets_guarantee(sets: ConformalSets) -> str:
    """Return what the classifier's sets promise, in words."""
    return f"{sets.guarantee} {IN_COMMON}"


def predictions_of(unseen: Unseen, source_prior: Tensor, classes: np.ndarray) -> Predictions:
    """Return predictions of the ensemble, for all that is fitted on predictions or decides on them.

    Args:
        unseen: Logits and labels.
        source_prior: Prior that the logits are made for.
        classes: Class labels.
    """
    counts = torch.bincount(unseen.targets, minlength=len(classes))
    return Predictions(
        unseen.logits[:, None], unseen.targets, counts, None, _names(classes), source_prior,
        source_prior=source_prior, groups=unseen.groups,
    )  # fmt: skip


def _rule(decision: Any, classes: np.ndarray, prior: Tensor | None) -> DecisionRule:
    """The rule of costs, or the one that was given, which has its deployment prior with it."""
    if isinstance(decision, DecisionRule):
        rule = decision
    else:
        costs = decision
        if isinstance(costs, Mapping) or (hasattr(costs, "items") and getattr(costs, "ndim", 0) == 1):
            costs = _by_class(list(costs.items()), classes)  # a Series, by its index
        elif hasattr(costs, "to_numpy"):
            costs = _by_labels(costs, classes)
        rule = DecisionRule(_names(classes), costs, target_prior=prior)
    if len(rule.answers) != len(classes) or len(rule.class_names) != len(classes):
        raise UserError(
            f"decision has {len(rule.answers)} answers for {len(rule.class_names)} classes, but predict answers with "
            f"the {len(classes)} classes; for others, such as abstain, give predict_log_proba to balpoe.decide"
        )
    return rule


def _check_recall(name: str, recall: float, classes: np.ndarray) -> None:
    if name not in (names := _names(classes)):
        raise UserError(f"decision: {unknown_name('class', name, names)}")
    if not 0 < recall <= 1:
        raise UserError(f"decision: the recall of class {name!r} must lie above 0 and up to 1, but is {recall:g}")


def _by_class(costs: Sequence[tuple[Any, float]], classes: np.ndarray) -> list[float]:
    places = _places((label for label, _ in costs), classes, "cost of missing")
    return [costs[place][1] for place in places]


def _by_labels(costs: Any, classes: np.ndarray) -> np.ndarray:
    """A table's costs in the order of the classes, where its rows and columns are labelled."""
    array: np.ndarray = np.array(costs.to_numpy())
    if array.ndim != 2 or array.shape[1] > len(classes):  # other answers have labels of their own, and are refused
        return array
    for axis, (name, what) in enumerate((("index", "row of"), ("columns", "column of"))):
        labels = list(getattr(costs, name)) if hasattr(costs, "index") else []  # not all tables label their rows
        if labels != list(range(len(labels))):  # what a frame has by itself says nothing, and goes by position
            array = array.take(_places(labels, classes, what), axis=axis)
    return array


def _places(labels: Iterable[Any], classes: np.ndarray, what: str) -> list[int]:
    """Where the labels have each class, which must be there once; `what` a label stands for, in a message."""
    names = _names(classes)
    known = dict(zip(classes.tolist(), names, strict=True))  # by value: 1, 1.0 and True are one label
    places = dict.fromkeys(names, -1)
    for place, label in enumerate(labels):
        name = known.get(label, str(label))
        if name not in places:
            raise UserError(f"decision: {unknown_name('class', name, names)}")
        if places[name] >= 0:
            raise UserError(f"decision has more than one {what} class {name!r}; keep one of them")
        places[name] = place
    if missing := [name for name in names if places[name] < 0]:
        raise UserError(f"decision has no {what} class {missing[0]!r}; give one for each class")
    return [places[name] for name in names]


def _names(classes: np.ndarray) -> tuple[str, ...]:
    return tuple(map(str, classes))
