"""A tree of labels in a report: how good the answers of each level are, and how many are given there."""

from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.taxonomy import Deepest, Taxonomy
from balpoe.evaluation.predictions import Predictions

__all__ = ["Level", "packed_tree", "tree_levels"]


class Level(NamedTuple):
    """One level of the tree; the last one is the root, "any", where nothing is answered."""

    name: str
    labels: int
    accuracy: float | None
    """Share of right labels if every sample gets the most probable one of this level; None at the root."""
    answered: dict[float, tuple[float, float | None]]
    """Share of the samples whose deepest label that is sure enough lies here, and how many of those are right, by the
    wanted confidence."""


def tree_levels(
    taxonomy: Taxonomy, predictions: Predictions, prior: Tensor, confidences: tuple[float, ...]
) -> list[Level]:
    """Return the levels of the tree, from the class to the root, measured under a prior, block by block.

    Args:
        taxonomy: Tree.
        predictions: Labelled predictions.
        prior: Deployment prior, (classes,).
        confidences: Wanted confidences.

    >>> taxonomy = Taxonomy.from_rows([("a", "x"), ("b", "x"), ("c", "y")], levels=("class", "group"))
    >>> logits = torch.tensor([[[2.0, 1.9, 0.0]], [[0.0, 0.0, 9.0]]])
    >>> predictions = Predictions(logits, torch.tensor([1, 2]), [9, 9, 9], [0], ("a", "b", "c"))
    >>> for level in tree_levels(taxonomy, predictions, torch.full((3,), 1 / 3), (0.9,)):
    ...     print(level.name, level.accuracy, level.answered[0.9])
    class 0.5 (0.5, 1.0)
    group 1.0 (0.5, 1.0)
    any None (0.0, None)
    """
    weights = label_weights(predictions, prior)
    counted, right = torch.zeros(2, taxonomy.height, dtype=torch.float64)
    parts: dict[float, list[Deepest]] = {confidence: [] for confidence in confidences}
    for rows, probabilities in Posteriors(predictions, prior).probabilities():
        targets, mass = predictions.targets[rows], weights[rows]
        for place, score in enumerate(taxonomy.scores(probabilities, targets, mass)):
            here = score.share * float(mass.sum())
            counted[place] += here
            right[place] += here * (score.accuracy or 0.0)
        for confidence, found in parts.items():
            found.append(taxonomy.deepest(probabilities, confidence))
    deepest = {confidence: _joined(found).scores(predictions.targets, weights) for confidence, found in parts.items()}
    accuracies = [float(hits / all_) if all_ > 0 else None for hits, all_ in zip(right, counted, strict=True)]
    sizes = torch.bincount(taxonomy.level_of, minlength=taxonomy.height + 1).tolist()
    return [
        Level(name, size, accuracy, {each: (rows[place].share, rows[place].accuracy) for each, rows in deepest.items()})
        for place, (name, size, accuracy) in enumerate(
            zip((*taxonomy.levels, taxonomy.labels[-1]), sizes, (*accuracies, None), strict=True)
        )
    ]


def packed_tree(taxonomy: Taxonomy) -> dict[str, object]:
    """Return what decide.js needs of a tree: names of the levels, and the label of each class at each level, or -1."""
    above = taxonomy.ancestors[: taxonomy.height, : len(taxonomy.class_names)]
    return {"levels": [*taxonomy.levels, taxonomy.labels[-1]], "labels": len(taxonomy.labels), "above": above.tolist()}


def _joined(parts: list[Deepest]) -> Deepest:
    labels, probability = (torch.cat([getattr(part, name) for part in parts]) for name in ("labels", "probability"))
    return Deepest(parts[0].taxonomy, labels, probability)
