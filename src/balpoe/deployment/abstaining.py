"""Answers that may be "I do not know": at a wanted error, and who is sent away by that.

By cost it is `balpoe.decide(logits, abstain_cost=...)` (Chow's rule).
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.data.user.class_names import some_of
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.selective_risk import RiskCoverage, lowest_threshold, risk_coverage
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.metrics import shot_groups as groups_of_classes
from balpoe.evaluation.predictions import Predictions
from balpoe.files import read_json, write_json
from balpoe.method.expert_calibration import ExpertCalibration, read_calibration
from balpoe.method.intervals import wilson_interval
from balpoe.settings import checked

__all__ = ["Abstention", "GroupAbstained", "abstained", "risk_coverage_by_group"]

SHOT_GROUPS = (20, 100)
BALANCES = ("none", "share", "error")
NEVER = 2.0  # a confidence that no answer has


@dataclass(frozen=True, eq=False)
class Abstention:
    """Answers of the most probable class where its probability reaches a threshold, else none.

    >>> generator = torch.Generator().manual_seed(0)
    >>> targets = torch.randint(2, (2000,), generator=generator)
    >>> logits = torch.randn(2000, 2, generator=generator) + 2 * torch.nn.functional.one_hot(targets)
    >>> held_out = Predictions(logits[:, None], targets, [100, 10], [0], ("oak", "ash"))
    >>> abstention = Abstention.fit(held_out, error=0.03, target_prior=[0.5, 0.5])
    >>> abstention(torch.tensor([[4.0, 0.0], [0.1, 0.0]]))  # 2: no answer
    tensor([0, 2])
    """

    class_names: tuple[str, ...]
    thresholds: Tensor
    """Least probability with which each class is answered, (classes,); 2: never."""
    target_prior: Tensor
    """Deployment prior that they are for."""
    notes: tuple[str, ...] = ()
    """What was asked for, and what came of it on the held-out samples."""
    calibration: ExpertCalibration | None = None
    """Calibration of the held-out logits, which is applied to `Predictions` instead of theirs."""

    @staticmethod
    def fit(
        held_out: Predictions,
        error: float,
        *,
        confidence: float | None = 0.95,
        target_prior: Any = None,
        balance: str = "none",
        shot_groups: tuple[int, int] = SHOT_GROUPS,
        seed: int = 0,
    ) -> "Abstention":
        """Return the thresholds that answer as much as possible with at most a share of errors.

        Args:
            held_out: Labelled predictions outside of training, also outside of the calibration for an exact promise,
                such as the second half of `balpoe.split_validation`.
            error: Largest share of wrong answers among those given, under the deployment prior.
            confidence: Probability that the promise holds for further samples; None: it holds for the held-out ones.
            target_prior: Deployment prior, in any form of `balpoe.target_prior`; None: uniform.
            balance: "none": one threshold, which may send away rare classes alone. "share": the same share of the
                answers of each shot group is kept. "error": the error is kept in each shot group's answers.
            shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
            seed: Seed of the order in which samples are looked at, where they have weights or groups.
        """
        _check_wanted(error, confidence, balance)
        posteriors = Posteriors(held_out, target_prior)
        sure, answers = _most_probable(posteriors)
        weights, right = label_weights(held_out, posteriors.target_prior), answers == held_out.targets
        parts = [mask for mask in groups_of_classes(held_out.class_counts, shot_groups).values() if bool(mask.any())]
        if balance == "none":
            parts = [torch.ones(held_out.num_classes, dtype=torch.bool)]
        members = [mask[answers] for mask in parts]  # by the answer: the truth will not be known
        doubt = None if confidence is None else (1 - confidence) / (len(parts) if balance == "error" else 1)
        samples = _Samples(sure, right, weights, held_out.groups, error, doubt, seed)
        found = (
            samples.equal_shares(members) if balance == "share" else [samples.lowest(sure, rows) for rows in members]
        )
        thresholds = torch.full((held_out.num_classes,), NEVER, dtype=torch.float64)
        for mask, threshold in zip(parts, found, strict=True):
            thresholds[mask] = NEVER if threshold is None else threshold
        given = sure >= thresholds[answers]
        notes = _notes(given, right, weights, error, confidence)
        notes += _absent(held_out, posteriors.target_prior, error, float(weights @ given.double() / weights.sum()))
        return Abstention(held_out.class_names, thresholds, posteriors.target_prior, notes, held_out.calibration)

    def __call__(self, logits: Any, *, source_prior: Any = None) -> Tensor:
        """Return the answer to each sample, int64 (samples,); the number of classes stands for no answer.

        Args:
            logits: Logits (samples, classes), a tensor or an array, also a mapped one; or predictions.
            source_prior: Prior that the logits are made for; None: uniform, or that of the predictions.
        """
        if isinstance(logits, Predictions):
            logits = replace(logits, calibration=self.calibration)
        posteriors = Posteriors(logits, self.target_prior, source_prior, len(self.class_names))
        sure, answers = _most_probable(posteriors)
        return torch.where(sure >= self.thresholds[answers], answers, len(self.class_names))

    def save(self, path: str | Path) -> None:
        """Write the thresholds as JSON."""
        parts = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        write_json(Path(path), {**parts, "calibration": self.calibration and asdict(self.calibration)})

    @staticmethod
    def load(path: str | Path) -> "Abstention":
        """Read thresholds that `save` wrote."""
        parts = read_json(Path(path))
        try:
            thresholds, prior = (
                torch.tensor(parts[name], dtype=torch.float64) for name in ("thresholds", "target_prior")
            )
            calibration = read_calibration(parts.get("calibration"))  # not in files of earlier versions
            return Abstention(tuple(parts["class_names"]), thresholds, prior, tuple(parts["notes"]), calibration)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} has no thresholds of answers ({error}); save them again") from error


@dataclass(frozen=True)
class GroupAbstained:
    """What abstaining does to the samples of some classes, under the deployment prior."""

    name: str
    samples: int
    abstained: float
    """Share of the samples without an answer."""
    interval: tuple[float, float]
    """Wilson's interval of that, at 95 %."""
    error: float | None
    """Share of wrong answers among those given; None without any."""


def abstained(
    predictions: Predictions,
    answers: Tensor,
    *,
    target_prior: Any = None,
    shot_groups: tuple[int, int] = SHOT_GROUPS,
) -> tuple[GroupAbstained, ...]:
    """Return how many samples have no answer, of all and of each shot group: are rare classes the ones sent away?

    Args:
        predictions: Labelled predictions.
        answers: Answers to their samples, of `decide` or `Abstention`; one that is no class is none.
        target_prior: Deployment prior, in any form of `balpoe.target_prior`; None: uniform.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.

    >>> predictions = Predictions(torch.zeros(4, 1, 2), torch.tensor([0, 0, 1, 1]), [500, 5], [0])
    >>> for row in abstained(predictions, torch.tensor([0, 0, 1, 2])):
    ...     print(row.name, row.samples, row.abstained, row.error)
    all 4 0.25 0.0
    many 2 0.0 0.0
    few 2 0.5 0.0
    """
    if answers.shape != predictions.targets.shape:
        raise UserError(f"there are {len(predictions)} samples, but answers have the shape {tuple(answers.shape)}")
    prior = Posteriors(predictions, target_prior).target_prior
    weights, none = label_weights(predictions, prior), (answers < 0) | (answers >= predictions.num_classes)
    units = torch.arange(len(answers)) if predictions.groups is None else predictions.groups
    rows = []
    for name, members in _samples_of_groups(predictions, weights, shot_groups).items():
        mass, missing = weights[members], none[members].double()
        share = float(mass @ missing / (mass @ torch.ones_like(missing)))
        unit_mass = torch.bincount(torch.unique(units[members], return_inverse=True)[1], mass)
        effective = unit_mass.sum().square() / unit_mass.square().sum()
        low, high = wilson_interval(share * effective, effective).tolist()
        given = mass * (1 - missing)
        wrong = (answers != predictions.targets)[members].double()
        error = float(given @ wrong / given.sum()) if bool(given.any()) else None
        rows.append(GroupAbstained(name, int(members.sum()), share, (low, high), error))
    return tuple(rows)


def risk_coverage_by_group(
    predictions: Predictions, *, target_prior: Any = None, shot_groups: tuple[int, int] = SHOT_GROUPS
) -> dict[str, RiskCoverage]:
    """Return the risk-coverage curve of the most probable class, of all samples and of each shot group's.

    Args:
        predictions: Labelled predictions.
        target_prior: Deployment prior, in any form of `balpoe.target_prior`; None: uniform.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.

    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.0]]])
    >>> predictions = Predictions(logits, torch.tensor([0, 1, 1]), [500, 5], [0])
    >>> {name: round(curve.area, 2) for name, curve in risk_coverage_by_group(predictions).items()}
    {'all': 0.06, 'many': 0.0, 'few': 0.25}
    """
    posteriors = Posteriors(predictions, target_prior)
    sure, answers = _most_probable(posteriors)
    weights, right = label_weights(predictions, posteriors.target_prior), answers == predictions.targets
    members = _samples_of_groups(predictions, weights, shot_groups)
    return {name: risk_coverage(sure[rows], right[rows], weights[rows]) for name, rows in members.items()}


def _samples_of_groups(predictions: Predictions, weights: Tensor, shot_groups: tuple[int, int]) -> dict[str, Tensor]:
    """All samples, and those whose class is in each shot group, where there are any with weight."""
    groups = groups_of_classes(predictions.class_counts, shot_groups)
    counted = weights > 0
    found = {"all": counted, **{name: mask[predictions.targets] & counted for name, mask in groups.items()}}
    return {name: rows for name, rows in found.items() if bool(rows.any())}


def _most_probable(posteriors: Posteriors) -> tuple[Tensor, Tensor]:
    """Probability and number of the most probable class of each sample."""
    sure, answers = torch.empty(len(posteriors), dtype=torch.float64), torch.empty(len(posteriors), dtype=torch.int64)
    for rows, probabilities in posteriors.probabilities():
        sure[rows], answers[rows] = probabilities.max(dim=1)
    return sure, answers


@dataclass(frozen=True)
class _Samples:
    """Held-out answers, and what is wanted of a threshold."""

    sure: Tensor
    right: Tensor
    weights: Tensor
    groups: Tensor | None
    error: float
    doubt: float | None
    seed: int

    def lowest(self, score: Tensor, rows: Tensor) -> float | None:
        """The lowest threshold of a score with the wanted error on some of the samples."""
        rows = rows & (self.weights > 0)
        if not bool(rows.any()):
            return None
        groups, wanted = None if self.groups is None else self.groups[rows], (self.doubt, self.seed)
        return lowest_threshold(score[rows], self.right[rows], self.error, self.weights[rows], groups, *wanted)

    def equal_shares(self, members: list[Tensor]) -> list[float | None]:
        """Thresholds of several groups that keep the same share of each: one threshold of ranks within the group."""
        ranks = torch.zeros_like(self.sure)
        for rows in members:
            values, place = torch.unique(self.sure[rows], return_inverse=True)
            mass = torch.bincount(place, self.weights[rows], minlength=len(values))
            ranks[rows] = ((mass.cumsum(0) - mass) / mass.sum().clamp(min=1e-300))[place]  # the share that is less sure
        least = self.lowest(ranks, torch.ones_like(self.right))
        kept = [rows & (self.weights > 0) & (ranks >= (NEVER if least is None else least)) for rows in members]
        return [float(self.sure[rows].min()) if bool(rows.any()) else None for rows in kept]


def _check_wanted(error: float, confidence: float | None, balance: str) -> None:
    if not 0 < checked("error", float, {}, error) < 1:
        raise UserError(f"the wanted error must lie in (0, 1), but is {error}")
    if confidence is not None and not 0 < checked("confidence", float, {}, confidence) < 1:
        raise UserError(f"confidence must lie in (0, 1), or be None for no promise, but is {confidence}")
    if balance not in BALANCES:
        raise unknown_name("balance", balance, BALANCES)


def _absent(held_out: Predictions, prior: Tensor, error: float, answered: float) -> tuple[str, ...]:
    """What classes without a held-out sample do to the promise: at worst all of them are answered, and wrongly."""
    absent = (torch.bincount(held_out.targets, minlength=held_out.num_classes) == 0) & (prior > 0)
    if not bool(absent.any()):
        return ()
    names = some_of([held_out.class_names[label] for label in absent.nonzero().squeeze(1).tolist()], 5)
    share = float(prior[absent].sum())
    note = f"no held-out sample is of {names}, {share:.1%} of the deployment prior: nothing is promised of them"
    if answered > 0:
        others = answered * (1 - share)
        worst = (error * others + share) / (others + share)
        note += f"; if all of them are answered, and wrongly, about {worst:.1%} of all answers are wrong"
    return (note,)


def _notes(answered: Tensor, right: Tensor, weights: Tensor, error: float, confidence: float | None) -> tuple[str, ...]:
    promise = "on the held-out samples" if confidence is None else f"at confidence {confidence:g}"
    given = weights * answered
    if not bool(given.any()):
        return (
            f"error at most {error:g} {promise}: no threshold has it on these samples, so that nothing is answered; "
            "allow a larger error, or hold out more samples of the classes that the deployment prior makes frequent",
        )
    share, wrong = float(given.sum() / weights.sum()), float(given @ (~right).double() / given.sum())
    return (f"error at most {error:g} {promise}: {share:.1%} of the held-out samples answered, {wrong:.2%} wrongly",)
