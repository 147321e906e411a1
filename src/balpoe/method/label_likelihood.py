"""The likelihood of labels as a function of a few numbers that correct experts' logits, and where it is highest.

Large tables are looked at in blocks that stay in the processor's cache, and few times: the function has at most one
number for each expert and one more, so that Newton's method with the exact second derivatives is at hand.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.calibration import SCALES
from balpoe.method.priors import class_counts

__all__ = ["Expansion", "Form", "LabelLikelihood", "most_likely"]

BIASES = -10.0, 10.0
DEVIATION = 0.2  # of the normal prior around no change; chosen on small data sets (docs/trust.md)
BLOCK = 1 << 14  # values of a table that are computed at a time
CLOSE = 1e-4  # last step of a search, as a part of the scale
MOST_STEPS = 100


class Form(NamedTuple):
    """One way to correct logits: fixed + sum of numbers times tables, the numbers to be found.

    A number's table is a mix of the experts' logits, plus a constant for each class.
    """

    mix: Tensor
    """Share of each expert in each table, (numbers, experts)."""
    constants: Tensor
    """What each table adds to the mix, (numbers, classes)."""
    fixed: Tensor
    """What is added to all, (classes,)."""
    usual: Tensor
    """The numbers of logits as they are, (numbers,): 1 for scales, the first of which is one, 0 for a bias."""

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the ends of each number's range: scales stay above zero, a bias may be of either sign."""
        ends = [SCALES if usual else BIASES for usual in self.usual.tolist()]
        low, high = torch.tensor(ends, dtype=torch.float64).T
        return low, high


class Expansion(NamedTuple):
    """A function around some numbers."""

    value: Tensor
    """Its value, ()."""
    slope: Tensor
    """Its first derivatives, (numbers,)."""
    curvature: Tensor
    """Its second derivatives, (numbers, numbers)."""

    @staticmethod
    def sum(several: "Iterable[Expansion]") -> "Expansion":
        """Return the expansion of a sum of functions."""
        return Expansion(*(torch.stack(terms).sum(dim=0) for terms in zip(*several, strict=True)))

    def with_prior(self, away: Tensor) -> "Expansion":
        """Return it with minus the log-density of the normal prior added.

        Args:
            away: Distance of the numbers from the prior's middle.
        """
        weight = 1 / DEVIATION**2
        value, slope = self.value + weight * (away @ away) / 2, self.slope + weight * away
        return Expansion(value, slope, self.curvature + weight * torch.eye(len(away)))

    def step(self, numbers: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the way from the numbers to where the expansion is lowest; those drawn beyond their end stay there."""
        free = torch.where(self.slope > 0, numbers > low, numbers < high).double()
        curvature = free[:, None] * self.curvature * free + torch.diag(1 - free)
        found: Tensor = -torch.linalg.solve(curvature, free * self.slope)
        return found


class LabelLikelihood:
    """The log-likelihood of labels: half as they come, half with all classes that are there alike.

    A class without a sample is left out: nothing was measured of it. Logits that are no posterior cannot be adjusted to
    a prior; they keep all classes.

    Args:
        expert_logits: Logits, (samples, experts, classes).
        targets: Labels, (samples,).
        source_prior: Prior that the ensemble's logits are made for, (classes,); None for logits that are no posterior.
    """

    def __init__(self, expert_logits: Tensor, targets: Tensor, source_prior: Tensor | None) -> None:
        counts = class_counts(targets, expert_logits.shape[2]).double()
        present = counts.nonzero()[:, 0]
        if len(present) < 2:
            raise UserError("the held-out samples are of one class alone; give labelled samples of all classes")
        alike = len(targets) / (len(present) * counts)
        self.weights = torch.stack([torch.ones_like(alike), alike], dim=1)[targets] / 2
        even, self.classes, self.move = torch.ones_like(counts), torch.arange(len(counts)), torch.zeros_like(counts)
        self.priors = torch.stack([even, even], dim=1)
        if source_prior is not None:
            self.classes, self.move = present, -source_prior.double().log()[present]
            self.priors = torch.stack([counts, even], dim=1)[present]
        self.logits = expert_logits.transpose(0, 1).index_select(2, self.classes).double()
        self.targets, self.rows = torch.searchsorted(self.classes, targets), torch.arange(len(targets))

    def log_likelihoods(self, form: Form, numbers: Tensor, rows: Tensor) -> Tensor:
        """Return what each of some samples contributes, (rows,)."""
        return torch.cat([
            self._masses(form, numbers, self._tables(form, block), block)[0] for block in self._blocks(rows)
        ])  # fmt: skip

    def expansion(self, form: Form, numbers: Tensor, rows: Tensor) -> Expansion:
        """Return minus the sum of what some samples contribute, around some numbers."""
        size = len(numbers)
        value, slope, curvature = (torch.zeros(shape, dtype=torch.float64) for shape in ((), size, (size, size)))
        for block in self._blocks(rows):
            tables, weights = self._tables(form, block), self.weights[block]
            contributions, masses, sums = self._masses(form, numbers, tables, block)
            at_labels = tables.gather(2, self.targets[block].expand(size, -1)[..., None])
            spread = tables * masses
            means = spread @ self.priors / sums
            spread *= (weights / sums) @ self.priors.T
            value -= contributions.sum()
            slope += ((means - at_labels) * weights).sum(dim=(1, 2))
            curvature += spread.flatten(1) @ tables.flatten(1).T - (means * weights).flatten(1) @ means.flatten(1).T
        return Expansion(value, slope, curvature)

    def _blocks(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, max(1, BLOCK // len(self.classes)))

    def _tables(self, form: Form, rows: Tensor) -> Tensor:
        """What each number multiplies, (numbers, rows, classes)."""
        logits = self.logits[:, rows]
        return (form.mix @ logits.flatten(1)).view(-1, *logits.shape[1:]) + form.constants[:, None]

    def _masses(self, form: Form, numbers: Tensor, tables: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each sample contributes; its classes' masses before priors and sums are applied, and the two sums."""
        logits = torch.tensordot(numbers, tables, dims=1) + (form.fixed + self.move)
        logits -= logits.amax(dim=1, keepdim=True)
        targets = self.targets[rows]
        at_labels = logits.gather(1, targets[:, None]) + self.priors.log()[targets]
        masses = logits.exp_()
        sums = masses @ self.priors
        return (self.weights[rows] * (at_labels - sums.log())).sum(dim=1), masses, sums


def most_likely(
    form: Form,
    problem: LabelLikelihood,
    rows: Tensor,
    start: Tensor,
    *,
    known: Expansion | None = None,
    close: float = CLOSE,
) -> Tensor:
    """Return the numbers under which the labels of some rows, and a normal prior around no change, are most likely.

    Newton's method, within bounds; the problem is convex.

    Args:
        form: What the numbers do.
        problem: Logits and labels.
        rows: Numbers of the samples that count.
        start: First guess.
        known: Expansion of the problem around it, if it is known.
        close: Step, as a part of the scale, that is the last one: what is left then is about its square.
    """
    low, high = form.bounds()
    numbers, here = start, (known or problem.expansion(form, start, rows)).with_prior(start - form.usual)
    step = here.step(numbers, low, high)
    for _ in range(MOST_STEPS):
        further = (numbers + step).clamp(low, high)
        if float(step.abs().max()) < close * float(numbers[0]):
            return further
        there = problem.expansion(form, further, rows).with_prior(further - form.usual)
        if there.value > here.value:  # too far
            step = step / 2
        else:
            numbers, here, step = further, there, there.step(further, low, high)
    return numbers
