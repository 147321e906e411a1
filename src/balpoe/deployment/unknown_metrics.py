"""How well scores tell known samples from unknown ones: AUROC, and who passes where 95 % of known ones are kept."""

from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.metrics import shot_groups

__all__ = ["auroc", "auroc_interval", "fpr_at_tpr", "unknown_report"]


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return how often an unknown sample scores higher than a known one, ties counted half.

    Args:
        known: Scores of samples of known classes, (samples,).
        unknown: Scores of samples of no known class, (samples,).

    >>> auroc(torch.tensor([0.1, 0.3, 0.4, 0.6]), torch.tensor([0.5, 0.9]))
    0.875
    """
    return float(_placements(*_checked(known, unknown)).mean())


def auroc_interval(known: Tensor, unknown: Tensor, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of an AUROC by DeLong et al. (1988); at most 0 to 1.

    Args:
        known: Scores of samples of known classes, (samples,).
        unknown: Scores of samples of no known class, (samples,).
        level: Probability of the interval.

    >>> low, high = auroc_interval(torch.arange(50.0), 25 + torch.arange(50.0))
    >>> round(low, 2), round(high, 2)
    (0.81, 0.94)
    """
    known, unknown = _checked(known, unknown)
    above, below = _placements(known, unknown), 1 - _placements(unknown, known)
    variance = sum(float(each.var()) / len(each) if len(each) > 1 else 0.25 for each in (above, below))
    half = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))) * variance**0.5
    centre = float(above.mean())
    return max(0.0, centre - half), min(1.0, centre + half)


def fpr_at_tpr(known: Tensor, unknown: Tensor, tpr: float = 0.95) -> float:
    """Return the share of unknown samples that pass for known where a share of the known ones is kept.

    Args:
        known: Scores of samples of known classes, (samples,).
        unknown: Scores of samples of no known class, (samples,).
        tpr: Share of known samples that are kept.

    >>> fpr_at_tpr(torch.arange(100.0), torch.tensor([50.0, 94.0, 95.0, 200.0]))
    0.5
    """
    known, unknown = _checked(known, unknown)
    return float((unknown <= _kept_up_to(known, tpr)).double().mean())


def unknown_report(
    known: Tensor,
    targets: Tensor,
    class_counts: Any,
    unknown: Tensor,
    *,
    tpr: float = 0.95,
    threshold: float | None = None,
    groups: tuple[int, int] = (20, 100),
) -> dict[str, dict[str, Any]]:
    """Return AUROC with its interval, FPR at a TPR and the share kept: of all known samples, and by shot group.

    Rare classes are what gets confused with unknown: a threshold that keeps 95 % of all may keep far fewer of them.

    Args:
        known: Scores of samples of known classes, (samples,).
        targets: Their labels, (samples,).
        class_counts: Number of training samples of each class, (classes,).
        unknown: Scores of samples of no known class, (samples,).
        tpr: Share of known samples that are kept for `fpr`: of the group's own, by a threshold of its own.
        threshold: Score above which a sample is called unknown, for `kept`; by default what keeps `tpr` of all.
        groups: Thresholds of the shot groups, few and many.

    >>> report = unknown_report(torch.arange(4.0), torch.tensor([0, 0, 1, 1]), [500, 5], torch.tensor([2.5, 9.0]))
    >>> {name: round(row["auroc"], 2) for name, row in report.items()}
    {'all': 0.88, 'many': 1.0, 'few': 0.75}
    """
    members = shot_groups(torch.as_tensor(class_counts), groups)
    chosen = {"all": torch.ones_like(targets, dtype=torch.bool)}
    chosen |= {name: classes[targets] for name, classes in members.items()}
    limit = _kept_up_to(known.double(), tpr) if threshold is None else threshold
    return {
        name: {
            "samples": int(rows.sum()),
            "auroc": auroc(known[rows], unknown),
            "interval": auroc_interval(known[rows], unknown),
            "fpr": fpr_at_tpr(known[rows], unknown, tpr),
            "kept": float((known[rows] <= limit).double().mean()),
        }
        for name, rows in chosen.items()
        if bool(rows.any())
    }


def _checked(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    for name, scores in (("known", known), ("unknown", unknown)):
        if scores.ndim != 1 or not len(scores) or bool(scores.isnan().any()):
            raise UserError(f"scores of {name} samples must be a row of numbers, but have shape {tuple(scores.shape)}")
    return known.double(), unknown.double()


def _placements(lower: Tensor, scores: Tensor) -> Tensor:
    """For each score, the share of the others that are lower, ties counted half."""
    lower = lower.sort().values
    left, right = (torch.searchsorted(lower, scores.contiguous(), right=right) for right in (False, True))
    return (left + right).double() / (2 * len(lower))


def _kept_up_to(known: Tensor, share: float) -> float:
    """The least score up to which a share of the samples lie."""
    place = min(len(known), max(1, int(torch.tensor(share * len(known) - 1e-9).ceil())))
    return float(known.sort().values[place - 1])
