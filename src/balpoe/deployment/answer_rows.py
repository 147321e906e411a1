"""What is said of each sample: its label, its probability, and further labels."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["answer_rows"]


def answer_rows(logits: Tensor, class_names: Sequence[str], top: int) -> list[dict[str, Any]]:
    """Return label, probability and the likeliest labels of each sample, with the probability of each.

    Args:
        logits: Logits (samples, classes), under the deployment prior.
        class_names: Name of each class.
        top: Number of labels, the likeliest first.

    >>> import torch
    >>> answer_rows(torch.tensor([[0.0, 99.0]]), ("oak", "ash"), 1)
    [{'label': 'ash', 'probability': 1.0, 'top': [('ash', 1.0)]}]
    """
    probabilities, labels = logits.softmax(dim=1).topk(top, dim=1)
    return [
        {"label": names[0], "probability": values[0], "top": list(zip(names, values, strict=True))}
        for values, names in zip(
            probabilities.tolist(), ([class_names[label] for label in row] for row in labels.tolist()), strict=True
        )
    ]
