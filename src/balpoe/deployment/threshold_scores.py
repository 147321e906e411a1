"""What a yes or no to each class is worth on labelled samples."""

from typing import Any

import torch
from torch import Tensor

from balpoe.evaluation.metrics import shot_groups as groups_of_classes
from balpoe.evaluation.predictions import Predictions

__all__ = ["threshold_scores"]


def threshold_scores(
    yes: Tensor, predictions: Predictions, weights: Tensor, shot_groups: tuple[int, int] = (20, 100)
) -> dict[str, dict[str, Any]]:
    """Return precision, recall and F1, means over the classes that have samples: of all, and of each shot group.

    Args:
        yes: Whether each sample is one of each class, (samples, classes), as `Thresholds` says.
        predictions: Labelled predictions of the same samples.
        weights: Weight of each sample, (samples,), such as those that make them stand for a deployment prior.
        shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.

    >>> predictions = Predictions(torch.zeros(3, 1, 2), torch.tensor([0, 0, 1]), [500, 5], [0])
    >>> yes = torch.tensor([[True, False], [False, True], [False, True]])
    >>> for name, row in threshold_scores(yes, predictions, torch.ones(3)).items():
    ...     print(name, row["precision"], row["recall"])
    all 0.75 0.75
    many 1.0 0.5
    few 0.5 1.0
    """
    classes, targets, weights = predictions.num_classes, predictions.targets, weights.double()
    found = torch.bincount(targets, weights * yes[torch.arange(len(yes)), targets], minlength=classes)
    mass = torch.bincount(targets, weights, minlength=classes)
    said = torch.stack([weights @ column.double() for column in yes.unbind(dim=1)])  # never all of it in float64
    tested = mass > 0
    members = {"all": tested}
    members |= {name: mask & tested for name, mask in groups_of_classes(predictions.class_counts, shot_groups).items()}
    return {
        name: {
            "classes": int(mask.sum()),
            "precision": _mean((found / said)[mask & (said > 0)]),  # of the classes that have a yes
            "recall": _mean((found / mass)[mask]),
            "f1": _mean((2 * found / (said + mass))[mask]),
        }
        for name, mask in members.items()
        if bool(mask.any())
    }


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
