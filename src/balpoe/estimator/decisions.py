"""Decisions of the classifier: answers for costs or a metric, and sets, fitted on the samples that it had not seen."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.decisions import fit_rule
from balpoe.deployment.metric_rules import metric_name
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.training.cross_fit import Unseen

__all__ = ["Deployed", "answers", "check_decision", "prediction_sets"]


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
    balpoe.errors.UserError: decision has a cost of 'elm', which is no class; the classes are in classes_
    """
    if isinstance(decision, str):
        metric_name(decision)
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
        rule = fit_rule(_held_out(deployed, classes), decision, target_prior=deployed.target_prior)
    else:
        rule = _rule(decision, classes, deployed.target_prior)
    return rule(deployed.logits, source_prior=deployed.source_prior)


def prediction_sets(
    deployed: Deployed, classes: np.ndarray, alpha: float, method: str, cross_fitted: bool
) -> np.ndarray:
    """Return whether each class is in each sample's set, (samples, classes).

    Args:
        deployed: Logits and priors.
        classes: Class labels.
        alpha: Share of samples whose set may miss their class.
        method: Method of `balpoe.ConformalSets`.
        cross_fitted: Whether the unseen samples were predicted by only a part of the networks.
    """
    held_out, prior = _held_out(deployed, classes), deployed.target_prior
    try:
        sets = ConformalSets.fit(held_out, alpha=alpha, method=method, target_prior=prior, cross_fitted=cross_fitted)
    except UserError as error:
        raise UserError(f"{error} (the validation samples are those that fit held out, under target_prior)") from error
    # No Predictions: their labels are not known.
    return sets.predict(deployed.logits).numpy()


def _held_out(deployed: Deployed, classes: np.ndarray) -> Predictions:
    unseen = deployed.unseen
    counts = torch.bincount(unseen.targets, minlength=len(classes))
    return Predictions(
        unseen.logits[:, None], unseen.targets, counts, None, _names(classes), deployed.source_prior,
        source_prior=deployed.source_prior,
    )  # fmt: skip


def _rule(decision: Any, classes: np.ndarray, prior: Tensor | None) -> DecisionRule:
    """The rule of costs, or the one that was given, which has its deployment prior with it."""
    if isinstance(decision, DecisionRule):
        rule = decision
    else:
        costs = decision
        if isinstance(costs, Mapping) or (hasattr(costs, "items") and getattr(costs, "ndim", 0) == 1):
            costs = _by_class(dict(costs.items()), classes)  # a Series, by its index
        elif hasattr(costs, "to_numpy"):
            costs = costs.to_numpy()
        rule = DecisionRule(_names(classes), costs, target_prior=prior)
    if len(rule.answers) != len(classes) or len(rule.class_names) != len(classes):
        raise UserError(
            f"decision has {len(rule.answers)} answers for {len(rule.class_names)} classes, but predict answers with "
            f"the {len(classes)} classes; for others, such as abstain, give predict_log_proba to balpoe.decide"
        )
    return rule


def _by_class(costs: Mapping[Any, float], classes: np.ndarray) -> list[float]:
    labels = classes.tolist()
    if unknown := [label for label in costs if label not in labels]:
        raise UserError(f"decision has a cost of {unknown[0]!r}, which is no class; the classes are in classes_")
    if missing := [label for label in labels if label not in costs]:
        raise UserError(f"decision has no cost of missing class {missing[0]!r}; give one for each class")
    return [costs[label] for label in labels]


def _names(classes: np.ndarray) -> tuple[str, ...]:
    return tuple(map(str, classes))
