"""A trained model with decisions: what `balpoe.load` returns, whatever runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from balpoe.deployment.deciders import UNFITTED, unlabelled
from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.decisions import decide
from balpoe.deployment.metric_rules import metric_name
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments import model_file
from balpoe.experiments.calibrate import Choice

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model(model_file.Model):
    """A trained network with its classes, its preprocessing and the priors behind its logits.

    >>> import torch
    >>> from balpoe import Preprocessing, expert_network
    >>> from balpoe.experiments.recipe import Recipe
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> model.decide(torch.zeros(3, 4), costs=[1, 1e9])  # a rare one must not be missed
    tensor([1, 1, 1])
    """

    run: Path | None = None
    """Folder of the run that it was loaded from; None for a file by itself."""

    def decide(
        self,
        images: Any,
        *,
        costs: Any = None,
        metric: str | None = None,
        rule: DecisionRule | None = None,
        target_prior: Any = None,
        abstain_cost: float | None = None,
        answers: Sequence[str] | None = None,
        held_out: Predictions | None = None,
    ) -> Tensor:
        """Return the answer of least expected cost to each raw sample, int64 (samples,), as `balpoe.decide` does.

        Args:
            images: Images or features, as `predict` takes them.
            costs: Cost of each answer to a sample of each class, or of missing each class.
            metric: Metric that the answers are to be best for, instead of costs.
            rule: A rule of `balpoe.fit_rule`, instead of either.
            target_prior: Deployment prior, in any form of `balpoe.target_prior`; None: uniform.
            abstain_cost: Cost of not answering: one more answer, the last.
            answers: Names of the columns of `costs`, where they are not the classes and then others.
            held_out: Labelled predictions to fit a metric on; by default those of the model's run, if it has any.
        """
        if metric is not None and held_out is None and metric_name(metric) not in UNFITTED:
            held_out = self.held_out
        return decide(
            self.unlabelled(images), costs=costs, metric=metric, rule=rule, target_prior=target_prior,
            abstain_cost=abstain_cost, answers=answers, held_out=held_out,
        )  # fmt: skip

    def unlabelled(self, images: Any) -> Predictions:
        """Return what the experts say of raw samples, for all that decides on predictions; their labels say nothing.

        Args:
            images: Images or features, as `predict` takes them.
        """
        return unlabelled(self, self.expert_logits(images))

    @property
    def held_out(self) -> Predictions | None:
        """Labelled predictions of samples outside of training, for all that is fitted; None if the run kept none."""
        choice = None if self.run is None else Choice.load(self.run)
        return None if choice is None else choice.held_out
