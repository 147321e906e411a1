"""A rule from probabilities to answers, made once and used everywhere: in a file it is a few numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.costs import answer_names, checked_costs
from balpoe.deployment.posteriors import Posteriors
from balpoe.errors import UserError
from balpoe.files import read_json, write_json
from balpoe.method.priors import checked_prior
from balpoe.settings import checked

__all__ = ["DecisionRule"]

TIE = 1e-12  # costs that differ by less, as a share of the largest, differ by rounding


@dataclass(frozen=True, eq=False)
class DecisionRule:
    """The answer of least expected cost under one deployment prior; of equal ones the first.

    Args:
        class_names: Name of each class.
        costs: Cost of missing each class, (classes,), or of each answer to a sample of each class, (classes, answers).
        charges: Cost of each answer whatever the truth, (classes,), beside costs of missing; None: nothing.
        abstain_cost: Cost of not answering, the last answer (Chow's rule); None: each sample is answered.
        answers: Name of each column of the costs; None: the classes, then "abstain" if there is one more.
        target_prior: Deployment prior that the rule is for, (classes,); None: uniform.
        metric: Metric that the costs stand for, if any.
        notes: Sentences about what the rule was fitted on.

    >>> rule = DecisionRule(("oak", "ash"), [1.0, 10.0])  # to miss an ash costs ten times as much
    >>> rule(torch.tensor([[2.0, 0.0], [3.0, 0.0]]))
    tensor([1, 0])
    >>> rule = DecisionRule(("oak", "ash"), [1.0, 1.0], abstain_cost=0.2)
    >>> [rule.answers[answer] for answer in rule(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))]
    ['oak', 'abstain']
    """

    class_names: tuple[str, ...]
    costs: Tensor
    charges: Tensor | None = None
    abstain_cost: float | None = None
    answers: tuple[str, ...] = None  # type: ignore[assignment]  # completed below
    target_prior: Tensor | None = None
    metric: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen for users, completed here once
        put(self, "class_names", tuple(self.class_names))
        given: Any = self.answers
        costs = checked_costs(self.costs, self.class_names, given)
        put(self, "costs", costs)
        put(self, "answers", answer_names(self.class_names, costs, given, self.abstain_cost is not None))
        if self.abstain_cost is not None:
            put(self, "abstain_cost", checked("abstain_cost", float, {}, self.abstain_cost))
        if self.charges is not None:
            put(self, "charges", torch.as_tensor(self.charges, dtype=torch.float64))
            if costs.ndim != 1 or self.charges.shape != costs.shape or not bool(self.charges.isfinite().all()):
                raise UserError("charges must be a finite number for each class, beside the cost of missing each")
        if self.target_prior is not None:
            put(self, "target_prior", checked_prior(self.target_prior, len(self.class_names), "target_prior"))

    def __call__(self, logits: Any, *, source_prior: Any = None) -> Tensor:
        """Return the answer to each sample, int64 (samples,): a number of a class, or beyond them of another answer.

        Args:
            logits: Logits (samples, classes), a tensor or an array, also a mapped one; or predictions.
            source_prior: Prior that the logits are made for; None: uniform, or that of the predictions.
        """
        return self.decided(Posteriors(logits, self.target_prior, source_prior, len(self.class_names)))

    def decided(self, posteriors: Posteriors) -> Tensor:
        """Return the answers to samples whose posteriors are under the rule's prior."""
        found = torch.empty(len(posteriors), dtype=torch.int64)
        if self._is_weighing:  # without probabilities: the largest p w has the largest log p + log w
            weights = self.costs.log()
            for rows, block in posteriors.logits():
                found[rows] = (block + weights.to(block)).argmax(dim=1)
        else:
            for rows, probabilities in posteriors.probabilities():
                found[rows] = self._least(self.expected_costs(probabilities))
        return found

    def expected_costs(self, probabilities: Tensor) -> Tensor:
        """Return the expected cost of each answer, (samples, answers), for probabilities under the rule's prior.

        >>> DecisionRule(("oak", "ash"), [1.0, 10.0], abstain_cost=2).expected_costs(torch.tensor([[0.75, 0.25]]))
        tensor([[2.5000, 0.7500, 2.0000]], dtype=torch.float64)
        """
        p = probabilities.double()
        costs = self.costs.to(p)
        if costs.ndim == 2:
            expected = p @ costs
        else:
            weighed = p * costs
            expected = weighed.sum(dim=1, keepdim=True) - weighed
            if self.charges is not None:
                expected += self.charges.to(p)
        if self.abstain_cost is None:
            return expected
        return torch.cat([expected, torch.full_like(expected[:, :1], self.abstain_cost)], dim=1)

    @property
    def _is_weighing(self) -> bool:
        return self.costs.ndim == 1 and self.charges is None and self.abstain_cost is None

    def _least(self, expected: Tensor) -> Tensor:
        """The first of the least, where a difference by rounding is none."""
        rounding = TIE * max(float(self.costs.abs().max()), abs(self.abstain_cost or 0.0))
        return (expected <= expected.amin(dim=1, keepdim=True) + rounding).to(torch.uint8).argmax(dim=1)

    def save(self, path: str | Path) -> None:
        """Write the rule as JSON."""
        parts = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        if self.abstain_cost is not None:
            parts["answers"] = self.answers[:-1]  # the last one follows from the cost
        if self.costs.ndim == 1:
            parts["answers"] = None
        write_json(Path(path), parts)

    @staticmethod
    def load(path: str | Path) -> "DecisionRule":
        """Read a rule that `save` wrote."""
        parts = read_json(Path(path))
        try:
            return DecisionRule(**{**parts, "notes": tuple(parts["notes"])})
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a decision rule ({error}); save it again") from error
