"""The scores that a model card shows: all of them made from a run's saved predictions."""

from dataclasses import dataclass

from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.evaluation.evaluate import Evaluation, evaluate
from balpoe.evaluation.predictions import Predictions

__all__ = ["CardScores", "interval_text"]

STEEPEST = 50.0  # ratio of the reversed class mix, at most


@dataclass(frozen=True, eq=False)
class CardScores:
    """What a run's saved predictions say of its model.

    >>> import torch
    >>> predictions = Predictions(torch.zeros(4, 1, 2), torch.arange(4) % 2, [90, 10], [0])
    >>> scores = CardScores.of(predictions, (20, 100))
    >>> list(scores.under_priors), scores.with_interval("accuracy")
    (['all classes alike', 'as in training', 'reversed, 9 to 1'], '50.0 (0.0 to 100.0)')
    """

    predictions: Predictions
    evaluation: Evaluation
    shot_groups: tuple[int, int]
    under_priors: dict[str, tuple[Evaluation, Evaluation]]
    """By the name of a class mix, the scores under it: as trained, and adjusted to it."""
    unmeasured: str = ""
    """Why there are no scores under other class mixes."""

    @staticmethod
    def of(predictions: Predictions, shot_groups: tuple[int, int]) -> "CardScores":
        """Return the scores of predictions.

        Args:
            predictions: Saved predictions of a run.
            shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
        """
        as_measured = evaluate(predictions, shot_groups=shot_groups)
        if predictions.source_prior is None:
            return CardScores(predictions, as_measured, shot_groups, {})
        counts = predictions.class_counts.clamp(min=1)
        ratio = min(STEEPEST, float(counts.max() / counts.min()))
        mixes = {"all classes alike": "uniform", "as in training": "train"}
        if ratio > 1:
            mixes[f"reversed, {ratio:.3g} to 1"] = f"backward-{ratio:g}"
        found = {}
        try:
            for name, word in mixes.items():
                prior = parse_prior(word, predictions)
                as_trained = evaluate(predictions, prior, adjust=False, shot_groups=shot_groups)
                found[name] = as_trained, evaluate(predictions, prior, shot_groups=shot_groups)
        except UserError as error:  # a class without a test sample can stand for no share of a mix
            return CardScores(predictions, as_measured, shot_groups, {}, str(error))
        return CardScores(predictions, as_measured, shot_groups, found)

    def with_interval(self, metric: str, evaluation: Evaluation | None = None) -> str:
        """Return a metric as text, with its 95 % interval where it has one.

        Args:
            metric: Name of the metric.
            evaluation: Scores that it is of; by default those of the test samples as they are.
        """
        scores = evaluation or self.evaluation
        return interval_text(metric, scores.metrics[metric], scores.intervals.get(metric))


def interval_text(metric: str, value: float | None, interval: tuple[float, float] | None) -> str:
    """Return a value as text, with its interval where there is one.

    >>> interval_text("accuracy", 0.5, (0.4, 0.6)), interval_text("few", None, None)
    ('50.0 (40.0 to 60.0)', '-')
    """
    if value is None:
        return "-"
    shown = METRICS[metric].shown
    return shown(value) + ("" if interval is None else f" ({shown(interval[0])} to {shown(interval[1])})")
