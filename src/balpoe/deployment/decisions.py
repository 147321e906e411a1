"""decide(): from probabilities to the answers that cost least, or that a metric likes best."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.metric_rules import METRICS, macro_f1_rule, metric_name, recall_rule, wanted_recall
from balpoe.deployment.posteriors import Posteriors
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions

__all__ = ["decide", "fit_rule"]


def decide(
    logits: Any,
    *,
    costs: Any = None,
    metric: str | None = None,
    rule: DecisionRule | None = None,
    target_prior: Any = None,
    source_prior: Any = None,
    abstain_cost: float | None = None,
    answers: Sequence[str] | None = None,
    held_out: Predictions | None = None,
) -> Tensor:
    """Return the answer of least expected cost to each sample, int64 (samples,); of equal ones the first.

    With nothing but logits it is the most probable class under the deployment prior.

    Args:
        logits: Logits (samples, classes), posteriors under `source_prior`, which should be calibrated: a tensor, an
            array (a mapped file is read block by block), or `Predictions`.
        costs: Cost of each answer to a sample of each class, (classes, answers): first the classes in their order, then
            any others, such as "abstain". Or the cost of missing each class, (classes,).
        metric: "accuracy", "balanced_accuracy", "macro_f1" or "recall of CLASS at least R", instead of costs.
        rule: A rule of `fit_rule`, instead of either; it has its deployment prior with it.
        target_prior: Deployment prior, (classes,); None: uniform. With predictions also in the other forms of
            `balpoe.target_prior`, such as "train".
        source_prior: Prior that the logits are made for; None: uniform, as for a balanced ensemble, or that of the
            predictions.
        abstain_cost: Cost of not answering: one more answer, the last.
        answers: Names of the columns of `costs`, where they are not the classes and then others.
        held_out: Labelled predictions to fit a metric on. A recall needs them; macro F1 is fitted on the samples
            themselves without them.

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.2, 0.0]])
    >>> decide(logits)
    tensor([0, 1])
    >>> decide(logits, costs=[1, 1, 20])  # class 2 must not be missed
    tensor([2, 2])
    >>> decide(logits, abstain_cost=0.5)  # 3: no answer
    tensor([0, 3])
    >>> decide(logits, target_prior=[0.3, 0.3, 0.4])
    tensor([0, 2])
    """
    if sum(each is not None for each in (costs, metric, rule)) > 1:
        raise UserError("give one of costs, metric and rule, not several")
    if rule is not None:
        if target_prior is not None or abstain_cost is not None or answers is not None:
            raise UserError("a rule has its target prior and its answers with it; leave them out")
        return rule(logits, source_prior=source_prior)
    posteriors = Posteriors(logits, target_prior, source_prior)
    if metric is not None:
        if abstain_cost is not None or answers is not None:
            raise UserError("a metric has no cost to compare abstain_cost with; give costs instead of the metric")
        fitted_on = posteriors
        if held_out is not None:
            fitted_on = Posteriors(held_out, posteriors.target_prior, num_classes=posteriors.num_classes)
        return _metric_rule(metric, fitted_on, held_out).decided(posteriors)
    everything = torch.ones(posteriors.num_classes, dtype=torch.float64)
    rule = DecisionRule(
        posteriors.class_names,
        everything if costs is None else costs,
        abstain_cost=abstain_cost,
        answers=None if answers is None else tuple(answers),  # type: ignore[arg-type]  # completed
        target_prior=posteriors.target_prior,
    )
    return rule.decided(posteriors)


def fit_rule(
    held_out: Predictions,
    metric: str | Mapping[str, float],
    *,
    target_prior: Any = None,
    confidence: float | None = None,
) -> DecisionRule:
    """Return the decision rule for a metric, fitted on held-out predictions, to save and to use on any further logits.

    Args:
        held_out: Labelled predictions outside of training, such as those in RUN/predictions/held-out.
        metric: Metric, as `decide` takes it, or the recall wanted of each of several classes, by name.
        target_prior: Deployment prior that the answers are for, in any form of `balpoe.target_prior`; None: uniform.
        confidence: Probability with which a wanted recall holds for further samples, by the exact binomial bound; None:
            it holds for the held-out samples.

    >>> from balpoe import Predictions
    >>> logits = torch.tensor([[[4.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    >>> held_out = Predictions(logits, torch.tensor([0, 1, 1]), [90, 10], [0], ("oak", "ash"))
    >>> rule = fit_rule(held_out, "recall of ash at least 0.9")
    >>> rule(held_out), rule.notes
    (tensor([0, 1, 1]), ('recall of ash on 2 held-out samples: 1.000 (0.158 to 1.000), too few to tell',))
    """
    posteriors = Posteriors(held_out, target_prior)
    if isinstance(metric, Mapping) and not metric:
        raise UserError("no recall is wanted of any class; give the name of one and its recall")
    if not isinstance(metric, Mapping) and confidence is not None and metric_name(metric) in METRICS:
        raise UserError(f"confidence is that of a wanted recall, which {metric} has not; leave it out")
    if isinstance(metric, Mapping):
        return recall_rule(held_out, metric, posteriors, confidence)
    return _metric_rule(metric, posteriors, held_out, confidence)


def _metric_rule(
    metric: str, posteriors: Posteriors, held_out: Predictions | None, confidence: float | None = None
) -> DecisionRule:
    """The rule for a metric, fitted on samples; held-out ones come with their labels."""
    name, prior = metric_name(metric), posteriors.target_prior
    if name == "macro_f1":
        return macro_f1_rule(posteriors, held_out)
    if name in METRICS:
        inverse = torch.where(prior > 0, 1 / prior.clamp(min=1e-300), 0.0)
        costs = torch.ones_like(prior) if name == "accuracy" else inverse / inverse.max()
        return DecisionRule(posteriors.class_names, costs, target_prior=prior, metric=name)
    wanted = wanted_recall(name)
    if held_out is None:
        raise UserError(f"the metric {metric!r} is found with labelled samples; give held_out=")
    return recall_rule(held_out, dict([wanted]), posteriors, confidence)
