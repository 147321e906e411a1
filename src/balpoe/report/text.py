"""The numbers of a report, as text."""

from statistics import fmean

from torch import Tensor

from balpoe.evaluation.metrics import shot_groups
from balpoe.method.lambdas import expert_names
from balpoe.report.console import score_text
from balpoe.report.inputs import Subject

__all__ = [
    "group_masks",
    "lambda_names",
    "per_cent",
    "per_class",
    "points",
    "range_text",
    "seed_name",
    "seeds_score",
]


def group_masks(subject: Subject) -> dict[str, Tensor]:
    """Return which classes are many-, medium- and few-shot."""
    return shot_groups(subject.predictions[0].class_counts, subject.shot_groups)


def lambda_names(subject: Subject) -> list[str]:
    """Return a name for each expert."""
    predictions = subject.predictions[0]
    lambdas = predictions.lambdas
    if lambdas is None or lambdas.ndim > 1:
        return [f"expert {number + 1}" for number in range(predictions.num_experts)]
    return [name.removeprefix("expert, ") for name in expert_names(lambdas.tolist())]


def seed_name(subject: Subject) -> str:
    """Return which seed is looked at, where there are several: " (seed-0)"."""
    return f" ({subject.runs[0].folder.name})" if len(subject.evaluations) > 1 else ""


def per_class(subject: Subject) -> list[float | None]:
    """Return the accuracy of each class, the mean over the seeds."""
    columns = zip(*(evaluation["per_class"] for evaluation in subject.evaluations), strict=True)
    return [None if None in values else fmean(values) for values in columns]


def seeds_score(subject: Subject, name: str) -> str:
    """Return mean and deviation of a score over the seeds."""
    return score_text(subject.evaluations, name)


def per_cent(value: float | None) -> str:
    """Return a fraction in per cent."""
    return "-" if value is None else f"{100 * value:.1f}"


def range_text(low: float, high: float) -> str:
    """Return an interval of fractions in per cent."""
    return f"{100 * low:.1f} to {100 * high:.1f}"


def points(value: float, low: float, high: float) -> str:
    """Return a difference of fractions, and its interval, in points."""
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
