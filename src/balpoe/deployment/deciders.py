"""All that is decided of a sample, fitted once for one deployment prior: answer, set, level of the tree, unknown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.abstaining import Abstention
from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.costs import ABSTAIN
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.decisions import fit_rule
from balpoe.deployment.metric_rules import metric_name
from balpoe.deployment.posteriors import Posteriors
from balpoe.deployment.set_inputs import resolved_prior
from balpoe.deployment.taxonomy import Deepest, Taxonomy
from balpoe.deployment.thresholds import Thresholds
from balpoe.deployment.unknown import OTHER_NETWORKS, UnknownDetector
from balpoe.deployment.validation_split import split_validation
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.calibrate import Choice
from balpoe.experiments.run_paths import run_path

__all__ = ["Decided", "Decider", "HeldOut", "Wanted", "unlabelled"]

UNFITTED = ("accuracy", "balanced_accuracy")  # metrics that need no held-out sample


class Wanted(NamedTuple):
    """What is to be decided of each sample; by default nothing."""

    costs: Tensor | None = None
    """Costs, as `balpoe.decide` takes them."""
    answers: tuple[str, ...] | None = None
    """Names of the columns of a cost matrix."""
    metric: str | None = None
    """Metric that the answers serve, instead of costs."""
    abstain_cost: float | None = None
    """Cost of no answer."""
    abstain_error: float | None = None
    """Largest share of wrong answers among those given."""
    alpha: float | None = None
    """Share of samples whose set may miss their class."""
    set_method: str = "marginal"
    taxonomy: Taxonomy | None = None
    confidence: float = 0.9
    """Probability that a label of the tree must reach."""
    unknown: str | tuple[str, ...] | None = None
    """Score of samples that are of no known class, or several."""
    unknown_keep: float = 0.95
    """Share of known samples that is not called unknown."""
    abstain_confidence: float | None = 0.95
    """Probability with which the wanted error holds for further samples."""
    abstain_balance: str = "none"
    """What is kept alike in each shot group: "none", "share" or "error", as `Abstention.fit` takes it."""
    shot_groups: tuple[int, int] = (20, 100)
    """Thresholds of the shot groups: few below the first number of training samples, many above the second."""
    thresholds: Mapping[str, Any] | None = None
    """Aim of a threshold for each class, as `Thresholds.fit` takes it: precision, recall or costs; {}: the best F1."""

    @property
    def needs_held_out(self) -> bool:
        """Whether something of it is fitted on held-out samples."""
        fitted = self.metric is not None and metric_name(self.metric) not in UNFITTED
        promised = (self.abstain_error, self.alpha, self.unknown, self.thresholds)
        return fitted or any(each is not None for each in promised)

    @property
    def answers_asked_for(self) -> bool:
        """Whether each sample is to get an answer."""
        return any(each is not None for each in (self.costs, self.metric, self.abstain_cost, self.abstain_error))


class HeldOut(NamedTuple):
    """A run's held-out samples."""

    predictions: Predictions
    """All of them, calibrated as the model is, which they fitted: for rules of metrics, and thresholds of classes."""
    validation: Predictions
    """The half that is new to its own calibration: for what makes a promise, answers at a wanted error, sets, and the
    threshold of "unknown"."""
    cross_fitted: bool = False
    """Whether networks other than the model predicted them."""

    @staticmethod
    def of_run(run: str | Path) -> "HeldOut":
        """Return the held-out samples of a run, or say why there are none.

        Args:
            run: Folder or name of the run, as `balpoe.load` takes it.
        """
        path = run_path(run)
        if path.is_file():
            raise UserError(
                f"{run} is a model's file, without the held-out predictions that this is fitted on; give its run's "
                "folder"
            )
        folders = sorted(each.parent for each in path.glob("seed-*/model.safetensors") if each.parent.suffix == "")
        choice = Choice.load(folders[0] if len(folders) == 1 else path)
        if choice is None:
            raise UserError(f"{run} has no held-out predictions to fit on; train it with --calibrate")
        return HeldOut(choice.held_out, split_validation(choice.held_out)[1], choice.cross_fitted)


@dataclass(frozen=True, eq=False)
class Decided:
    """What was decided of some samples; what was not asked for is None."""

    decider: "Decider"
    answers: Tensor | None = None
    """Number of each answer among `decider.answer_names`, (samples,)."""
    sets: Tensor | None = None
    """Whether each class is in the set, (samples, classes)."""
    levels: Deepest | None = None
    unknown: Tensor | None = None
    """Whether a sample is of no known class, (samples,)."""
    yes: Tensor | None = None
    """Whether the probability of each class reaches its own threshold, (samples, classes)."""

    def rows(self) -> list[dict[str, Any]]:
        """Return what was decided of each sample, in words."""
        columns: dict[str, list[Any]] = {}
        if self.answers is not None:
            columns["decision"] = [self.decider.answer_names[answer] for answer in self.answers.tolist()]
        if self.sets is not None:
            columns["set"] = self._named(self.sets)
        if self.levels is not None:
            columns["level"], columns["level_label"] = self.levels.levels, self.levels.names
        if self.unknown is not None:
            columns["unknown"] = self.unknown.tolist()
        if self.yes is not None:
            columns["yes"] = self._named(self.yes)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _named(self, members: Tensor) -> list[list[str]]:
        names = self.decider.class_names
        return [[names[label] for label in row.nonzero().squeeze(1).tolist()] for row in members]


@dataclass(frozen=True, eq=False)
class Decider:
    """Rule, sets, tree and detector of one deployment prior; made by `Decider.fit`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> targets = torch.randint(2, (200,), generator=generator)
    >>> logits = torch.randn(200, 1, 2, generator=generator) + 3 * torch.nn.functional.one_hot(targets)[:, None]
    >>> held_out = Predictions(logits, targets, [100, 10], [0], ("oak", "ash"))
    >>> wanted = Wanted(costs=torch.tensor([1.0, 9.0]), alpha=0.1)
    >>> decider = Decider.fit(wanted, held_out, HeldOut(held_out, held_out))
    >>> decider(held_out.subset(torch.tensor([0]))).rows()
    [{'decision': 'oak', 'set': ['oak']}]
    """

    class_names: tuple[str, ...]
    target_prior: Tensor | None
    """Deployment prior, (classes,); None: as trained, and for sets the class mix of the held-out samples."""
    rule: DecisionRule | Abstention | None = None
    sets: ConformalSets | None = None
    taxonomy: Taxonomy | None = None
    confidence: float = 0.9
    detector: UnknownDetector | None = None
    thresholds: Thresholds | None = None
    thin: Mapping[str, str] = field(default_factory=dict)
    """What the held-out samples were too few to fit for the deployment prior, and why."""

    @staticmethod
    def fit(
        wanted: Wanted,
        like: Predictions,
        held_out: HeldOut | None,
        target_prior: Any = None,
        *,
        estimated: bool = False,
        fallbacks: Sequence[Any] = (),
    ) -> "Decider":
        """Return what decides as wanted, all of it under one prior.

        Args:
            wanted: What is to be decided.
            like: Predictions of the model, of any samples or none.
            held_out: Held-out samples of its run; None where nothing is fitted on any.
            target_prior: Deployment prior, (classes,), or an estimate of it; None: what the model is made for. Sets,
                and the threshold of unknown, are then for the class mix of the held-out samples.
            estimated: Whether the prior was estimated, such as shares of counted samples.
            fallbacks: Priors to take, the first that will do, for what cannot be fitted for the deployment prior.
        """
        prior, is_estimate = resolved_prior(target_prior, like, like.num_classes)
        samples = _Samples(wanted, like, held_out, estimated or is_estimate)
        thin: dict[str, str] = {}

        def fitted(part: str, fit: Callable[[Tensor | None], Any]) -> Any:
            *tried, last = (prior, *fallbacks)
            for each in tried:
                try:
                    return fit(each)
                except UserError as error:
                    thin.setdefault(part, str(error))
            return fit(last)

        rule, sets = fitted("answers", samples.rule), fitted("sets", samples.sets)
        detector = fitted("thresholds of unknown", samples.detector)
        thresholds = fitted("thresholds of classes", samples.thresholds)
        parts = rule, sets, wanted.taxonomy, wanted.confidence, detector, thresholds, thin
        return Decider(like.class_names, prior, *parts)

    def __call__(self, samples: Predictions) -> Decided:
        """Return what is decided of samples of the same model."""
        prior = samples.source_prior if self.target_prior is None else self.target_prior
        return Decided(
            self,
            None if self.rule is None else self.rule(samples),
            None if self.sets is None else self.sets.predict(samples),
            None if self.taxonomy is None else self.taxonomy.decide(samples, self.confidence, target_prior=prior),
            None if self.detector is None else self.detector.predict(samples),
            None if self.thresholds is None else self.thresholds(samples),
        )

    def probabilities(self, samples: Predictions) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their probabilities under the deployment prior, in float64."""
        prior = samples.source_prior if self.target_prior is None else self.target_prior
        return Posteriors(samples, prior).probabilities()

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Name of each answer: the classes, then others."""
        return self.rule.answers if isinstance(self.rule, DecisionRule) else (*self.class_names, ABSTAIN)

    @property
    def notes(self) -> tuple[str, ...]:
        """What came of the fit, in sentences."""
        sets = () if self.sets is None else (self.sets.guarantee,)
        fitted = (each.notes for each in (self.rule, self.detector, self.thresholds) if each is not None)
        return (*(note for notes in fitted for note in notes), *sets)


def unlabelled(model: Any, expert_logits: Tensor) -> Predictions:
    """Return expert logits of a model as predictions, to decide on; their labels say nothing.

    Args:
        model: Model, as `balpoe.load` gives it.
        expert_logits: Logits as its network gives them, (samples, experts, classes).
    """
    return Predictions(
        expert_logits, torch.zeros(len(expert_logits), dtype=torch.int64), model.class_counts, model.lambdas,
        model.class_names, model.train_prior, source_prior=model.source_prior, calibration=model.calibration,
    )  # fmt: skip


def _known(held_out: HeldOut | None) -> HeldOut:
    if held_out is None:
        raise UserError("this is fitted on held-out predictions; give those of the run")
    return held_out


class _Samples(NamedTuple):
    """What each part of a decider is fitted on."""

    wanted: Wanted
    like: Predictions
    held_out: HeldOut | None
    estimated: bool

    def rule(self, target: Tensor | None) -> DecisionRule | Abstention | None:
        wanted, like = self.wanted, self.like
        prior = like.source_prior if target is None else target
        if wanted.abstain_error is not None:
            known = _known(self.held_out)
            asked: dict[str, Any] = {
                "confidence": wanted.abstain_confidence,
                "balance": wanted.abstain_balance,
                "shot_groups": wanted.shot_groups,
            }
            found = Abstention.fit(known.validation, wanted.abstain_error, target_prior=prior, **asked)
            return replace(found, notes=(*found.notes, OTHER_NETWORKS)) if known.cross_fitted else found
        if wanted.metric is not None:
            samples = _known(self.held_out).predictions if wanted.needs_held_out else like
            return fit_rule(samples, wanted.metric, target_prior=prior)
        if not wanted.answers_asked_for:
            return None
        costs = torch.ones(like.num_classes, dtype=torch.float64) if wanted.costs is None else wanted.costs
        answers: Any = wanted.answers
        return DecisionRule(like.class_names, costs, None, wanted.abstain_cost, answers, prior)

    def sets(self, target: Tensor | None) -> ConformalSets | None:
        if self.wanted.alpha is None:
            return None
        known = _known(self.held_out)
        found = ConformalSets.fit(
            known.validation,
            alpha=self.wanted.alpha,
            method=self.wanted.set_method,
            target_prior=target,
            cross_fitted=known.cross_fitted,
        )
        return replace(found, estimated=self.estimated and target is not None)

    def detector(self, target: Tensor | None) -> UnknownDetector | None:
        if self.wanted.unknown is None:
            return None
        known, keep = _known(self.held_out), self.wanted.unknown_keep
        found = UnknownDetector.fit(known.validation, self.wanted.unknown, keep=keep, target_prior=target)
        return replace(found, notes=(*found.notes, OTHER_NETWORKS)) if known.cross_fitted else found

    def thresholds(self, target: Tensor | None) -> Thresholds | None:
        if self.wanted.thresholds is None:
            return None
        aim: dict[str, Any] = {"num_resamples": 1, **self.wanted.thresholds}  # nobody asks for intervals here
        prior = self.like.source_prior if target is None else target
        return Thresholds.fit(_known(self.held_out).predictions, target_prior=prior, **aim)
