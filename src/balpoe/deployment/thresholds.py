"""A threshold for each class, one against the rest: is this one of them, yes or no?

A sample may be several classes' yes, or none's. Thresholds are fitted on held-out predictions, weighted so that they
stand for the deployment prior. Only below the probability of a sample of the class itself can be one: between two of
them a lower threshold adds nothing but false alarms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.files import read_json, write_json
from balpoe.method.intervals import bootstrap, effective_counts, exact_interval
from balpoe.settings import checked

__all__ = ["ClassThreshold", "Thresholds"]

LEAST_POSITIVES = 10  # held-out samples of a class, or groups of them, below which its threshold is flagged
FITTED_VALUES = 2**24  # probabilities looked at together: classes are fitted some at a time
NAMED = 3  # classes that a note names
NEVER = 2.0  # a threshold that no probability reaches

_Choice = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the mass of found samples and of all yeses, (rows, candidates), and of the class, (rows, 1), to the candidate
chosen, -1 for never, and whether that is as wanted, (rows,) each."""


@dataclass(frozen=True)
class ClassThreshold:
    """The threshold of one class, and what it rests on."""

    name: str
    threshold: float | None
    """Least probability of a yes; None: never yes."""
    interval: tuple[float, float] | None = None
    """Bootstrap interval of the threshold, with the gaps between samples at its ends; an end of 2: never."""
    precision: float | None = None
    """Share of the class among the held-out samples with a yes, under the deployment prior."""
    precision_interval: tuple[float, float] | None = None
    """Bootstrap interval of that at this threshold."""
    recall: float | None = None
    """Share of the held-out samples of the class that have a yes."""
    recall_interval: tuple[float, float] | None = None
    """Exact binomial interval of that."""
    samples: int = 0
    """Held-out samples of the class."""
    flag: str = ""
    """Why not to trust the threshold, if there is a reason."""


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Thresholds of all classes: yes where the probability under the deployment prior is at least that.

    >>> scores = torch.tensor([3.0, 2.0, 1.0, -1.0, -2.0])
    >>> logits = torch.stack([scores, -scores], dim=1)
    >>> held_out = Predictions(logits[:, None], torch.tensor([0, 0, 1, 0, 1]), [3, 2], [0], ("oak", "ash"))
    >>> thresholds = Thresholds.fit(held_out, recall=0.6, num_resamples=50)
    >>> thresholds(torch.tensor([[2.0, -2.0], [1.0, -1.0]]))
    tensor([[ True, False],
            [False,  True]])
    >>> thresholds.rows[0].recall, thresholds.rows[0].flag
    (0.6666666666666666, 'only 3 held-out samples')
    """

    rows: tuple[ClassThreshold, ...]
    aim: str
    """What they are fitted for."""
    target_prior: Tensor
    """Deployment prior that they are for."""

    @staticmethod
    def fit(
        held_out: Predictions,
        *,
        precision: float | None = None,
        recall: float | None = None,
        costs: Any = None,
        target_prior: Any = None,
        level: float = 0.95,
        num_resamples: int = 200,
        seed: int = 0,
    ) -> "Thresholds":
        """Return the threshold of each class with the best F1, unless something else is wanted.

        Args:
            held_out: Labelled predictions outside of training.
            precision: Wanted precision: the lowest threshold that has it.
            recall: Wanted recall: the highest threshold that has it.
            costs: Cost of a false alarm and of a miss, two numbers in any row of them: the threshold of least cost.
            target_prior: Deployment prior, in any form of `balpoe.target_prior`; None: uniform.
            level: Probability of the intervals.
            num_resamples: Number of resamples of the bootstrap, over samples or their groups.
            seed: Seed of the bootstrap.
        """
        aim, choose = _aim(precision, recall, costs)
        if not 0 < checked("level", float, {}, level) < 1 or checked("num_resamples", int, {}, num_resamples) < 1:
            raise UserError(
                f"level must lie in (0, 1) and num_resamples be at least 1, but are {level}, {num_resamples}"
            )
        posteriors = Posteriors(held_out, target_prior)
        fit = _Fit(held_out, label_weights(held_out, posteriors.target_prior), aim, choose, level, num_resamples, seed)
        size, rows = max(1, FITTED_VALUES // len(held_out)), []
        for first in range(0, held_out.num_classes, size):
            labels = range(first, min(first + size, held_out.num_classes))
            scores = torch.cat([block[:, labels.start : labels.stop] for _, block in posteriors.probabilities()])
            rows += fit.rows(labels, scores)
        return Thresholds(tuple(rows), aim, posteriors.target_prior)

    def __call__(self, logits: Any, *, source_prior: Any = None) -> Tensor:
        """Return whether each sample is one of each class, boolean (samples, classes).

        Args:
            logits: Logits (samples, classes), a tensor or an array, also a mapped one; or predictions.
            source_prior: Prior that the logits are made for; None: uniform, or that of the predictions.
        """
        values = self.values
        posteriors = Posteriors(logits, self.target_prior, source_prior, len(values))
        found = torch.empty(len(posteriors), len(values), dtype=torch.bool)
        for rows, probabilities in posteriors.probabilities():
            found[rows] = probabilities >= values.to(probabilities)
        return found

    @property
    def values(self) -> Tensor:
        """The thresholds, (classes,), in float64; 2 where a class is never answered."""
        values = [NEVER if row.threshold is None else row.threshold for row in self.rows]
        return torch.tensor(values, dtype=torch.float64)

    @property
    def flagged(self) -> tuple[ClassThreshold, ...]:
        """The classes whose threshold is not to be trusted, each with the reason."""
        return tuple(row for row in self.rows if row.flag)

    @property
    def notes(self) -> tuple[str, ...]:
        """How many classes are flagged and why the first ones are, in a sentence; none where none is."""
        if not self.flagged:
            return ()
        named = ", ".join(f"{row.name!r} ({row.flag})" for row in self.flagged[:NAMED])
        more = f" and {len(self.flagged) - NAMED:,} more" if len(self.flagged) > NAMED else ""
        return (f"{len(self.flagged):,} of {len(self.rows):,} thresholds are not to be trusted: {named}{more}.",)

    def save(self, path: str | Path) -> None:
        """Write the thresholds as JSON."""
        rows = [asdict(row) for row in self.rows]
        write_json(Path(path), {"aim": self.aim, "target_prior": self.target_prior.tolist(), "rows": rows})

    @staticmethod
    def load(path: str | Path) -> "Thresholds":
        """Read thresholds that `save` wrote."""
        parts = read_json(Path(path))
        try:
            rows = tuple(ClassThreshold(**row) for row in parts["rows"])
            return Thresholds(rows, parts["aim"], torch.tensor(parts["target_prior"], dtype=torch.float64))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} has no thresholds ({error}); save them again") from error


class _Curve:
    """One class against the rest: the samples by falling probability, down to the last of the class."""

    def __init__(self, scores: Tensor, positive: Tensor) -> None:
        kept = (scores >= scores[positive].min()).nonzero().squeeze(1)
        self.order = kept[scores[kept].argsort(descending=True, stable=True)]
        values, self.positive = scores[self.order], positive[self.order].double()
        ends = torch.cat([values[1:] < values[:-1], torch.tensor([True])]).nonzero().squeeze(1)  # equal ones together
        found = self.positive.cumsum(0)[ends]
        candidate = torch.diff(found, prepend=found.new_zeros(1)) > 0
        rest = scores[scores < values[-1]]
        below = torch.cat([values[ends[1:]], rest.amax(dim=0, keepdim=True) if len(rest) else values.new_zeros(1)])
        self.ends, self.found = ends[candidate], found[candidate]
        # Any threshold of a gap gives the same yeses; the one midway leaves room for others. The last one is -1.
        never = torch.tensor([NEVER], dtype=values.dtype)
        self.gaps = torch.stack([torch.cat([side[candidate], never]) for side in (below, values[ends])], dim=1)
        self.values = self.gaps.mean(dim=1)

    def masses(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mass of found samples and of yeses at each candidate, (rows, candidates), and of the class, (rows, 1)."""
        weights = weights[:, self.order]
        found = (weights * self.positive).cumsum(dim=1)[:, self.ends]
        return found, weights.cumsum(dim=1)[:, self.ends], found[:, -1:]


@dataclass(frozen=True)
class _Fit:
    """What is the same for all classes."""

    held_out: Predictions
    weights: Tensor
    aim: str
    choose: _Choice
    level: float
    num_resamples: int
    seed: int

    def rows(self, labels: Sequence[int], scores: Tensor) -> list[ClassThreshold]:
        """Thresholds of some classes, whose probabilities are (samples, these classes)."""
        targets, counts = self.held_out.targets, torch.bincount(self.held_out.targets, minlength=labels[-1] + 1)
        there = [(label, scores[:, column]) for column, label in enumerate(labels) if self._counts(label, counts)]
        curves = [_Curve(column, targets == label) for label, column in there]
        chosen = [self.choose(*curve.masses(self.weights[None])) for curve in curves]

        def statistic(drawn: Tensor) -> Tensor:
            found = []
            for curve, (index, _) in zip(curves, chosen, strict=True):
                masses = curve.masses(drawn * self.weights)
                found += [*curve.gaps[self.choose(*masses)[0]].unbind(dim=1), _precision(masses)[:, int(index)]]
            return torch.stack(found, dim=1)

        if not curves:
            return [self._without(label) for label in labels]
        resamples: dict[str, Any] = {"num_resamples": self.num_resamples, "level": self.level, "seed": self.seed}
        bounds = bootstrap(statistic, targets, groups=self.held_out.groups, **resamples)
        fitted = {
            label: self._row(label, curve, int(index), bool(reached), bounds[:, 3 * number : 3 * number + 3])
            for number, ((label, _), curve, (index, reached)) in enumerate(zip(there, curves, chosen, strict=True))
        }
        return [fitted.get(label) or self._without(label) for label in labels]

    def _counts(self, label: int, counts: Tensor) -> bool:
        return bool(counts[label]) and bool(self.weights[self.held_out.targets == label].any())

    def _without(self, label: int) -> ClassThreshold:
        return ClassThreshold(self.held_out.class_names[label], None, flag="no held-out samples under this prior")

    def _row(self, label: int, curve: _Curve, index: int, reached: bool, bounds: Tensor) -> ClassThreshold:
        name, samples = self.held_out.class_names[label], int((self.held_out.targets == label).sum())
        evidence, kind = int(self.held_out.evidence[label]), "samples" if self.held_out.groups is None else "groups"
        flag = f"only {evidence} held-out {kind}" if evidence < LEAST_POSITIVES else ""
        flag = flag if reached else "; ".join(filter(None, [f"{self.aim} is not reached", flag]))
        interval = float(bounds[0, 0]), float(bounds[1, 1])
        if index == -1:
            return ClassThreshold(name, None, interval, recall=0.0, samples=samples, flag=flag)
        masses = curve.masses(self.weights[None])
        recall = float(curve.found[index]) / samples
        total = effective_counts(self.held_out.targets, self.held_out.num_classes, self.held_out.groups)[label]
        return ClassThreshold(
            name,
            float(curve.values[index]),
            interval,
            float(_precision(masses)[0, index]),
            _pair(bounds[:, 2]),
            recall,
            _pair(exact_interval(recall * total, total, self.level)),
            samples,
            flag,
        )


def _aim(precision: float | None, recall: float | None, costs: Any) -> tuple[str, _Choice]:
    """What is wanted, in words, and how to choose."""
    if sum(each is not None for each in (precision, recall, costs)) > 1:
        raise UserError("give one of precision, recall and costs, not several")
    for name, value in (("precision", precision), ("recall", recall)):
        if value is not None and not 0 < checked(f"the wanted {name}", float, {}, value) <= 1:
            raise UserError(f"the wanted {name} must lie above 0 and up to 1, but is {value}")
    if precision is not None:
        wanted = precision
        return f"precision {wanted:g}", lambda *masses: _with_precision(_precision(masses), wanted)
    if recall is not None:
        least = recall
        return f"recall {least:g}", lambda found, _, total: _first(found >= (least - 1e-9) * total)
    if costs is None:
        return "best F1", lambda found, said, total: _all_reached((2 * found / (said + total)).argmax(dim=1))
    alarm, miss = _two_costs(costs)
    return (
        f"least cost ({alarm:g} a false alarm, {miss:g} a miss)",
        lambda found, said, total: _of_least_cost(alarm * (said - found) + miss * (total - found), miss * total),
    )


def _two_costs(costs: Any) -> tuple[float, float]:
    """Costs of a false alarm and of a miss, as numbers."""
    try:
        found = torch.as_tensor(costs, dtype=torch.float64).tolist()
    except (TypeError, ValueError, RuntimeError):
        found = None
    if not isinstance(found, list) or len(found) != 2 or not any(found) or not all(_is_cost(each) for each in found):
        raise UserError(f"costs must be those of a false alarm and of a miss, from 0 and not both 0, but are {costs}")
    alarm, miss = found
    return alarm, miss


def _is_cost(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value < math.inf


def _with_precision(precision: Tensor, wanted: float) -> tuple[Tensor, Tensor]:
    """The last candidate with the wanted precision, which finds most; else the one with the best."""
    enough = precision >= wanted - 1e-9
    last = enough.shape[1] - 1 - enough.flip(1).to(torch.uint8).argmax(dim=1)
    reached = enough.any(dim=1)
    return torch.where(reached, last, precision.argmax(dim=1)), reached


def _first(enough: Tensor) -> tuple[Tensor, Tensor]:
    return enough.to(torch.uint8).argmax(dim=1), enough.any(dim=1)


def _of_least_cost(costs: Tensor, never: Tensor) -> tuple[Tensor, Tensor]:
    least, index = costs.min(dim=1)
    return _all_reached(torch.where(least < never.squeeze(1), index, -1))


def _all_reached(index: Tensor) -> tuple[Tensor, Tensor]:
    return index, torch.ones_like(index, dtype=torch.bool)


def _precision(masses: tuple[Tensor, ...]) -> Tensor:
    found, said = masses[:2]
    return found / said.clamp(min=1e-300)


def _pair(bounds: Tensor) -> tuple[float, float]:
    low, high = bounds.tolist()
    return low, high
