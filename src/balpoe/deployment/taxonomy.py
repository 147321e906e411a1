"""A tree of labels: the genus where the species is uncertain, and costs that grow with the distance in the tree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.label_tree import ROOT, read_tree, tree_of_parents, tree_of_rows
from balpoe.deployment.posteriors import Posteriors
from balpoe.errors import UserError
from balpoe.method.priors import class_counts
from balpoe.settings import checked

__all__ = ["Deepest", "LevelScore", "Taxonomy", "cifar100_taxonomy", "tree_costs"]

BLOCK_VALUES = 2**20  # probabilities of labels that are summed together


@dataclass(frozen=True)
class LevelScore:
    """How good answers are at one level of the tree."""

    level: str
    labels: int
    """Number of labels of the level."""
    share: float
    """Share of the samples, by weight, that have a label at this level, or an answer."""
    accuracy: float | None
    """Share of those that are right; None without any."""


@dataclass(frozen=True, eq=False)
class Deepest:
    """The deepest label of each sample whose probability reaches the wanted confidence."""

    taxonomy: "Taxonomy"
    labels: Tensor
    """Number of the label among `taxonomy.labels`, int64 (samples,)."""
    probability: Tensor
    """Its probability, float64 (samples,)."""

    @property
    def names(self) -> list[str]:
        """Its name."""
        return [self.taxonomy.labels[label] for label in self.labels.tolist()]

    @property
    def levels(self) -> list[str]:
        """The name of its level; "any" for the root."""
        return [(*self.taxonomy.levels, ROOT)[level] for level in self.taxonomy.level_of[self.labels].tolist()]

    def right(self, targets: Tensor) -> Tensor:
        """Return whether each label holds the sample's class, (samples,)."""
        return self.taxonomy.ancestors[self.taxonomy.level_of[self.labels], targets] == self.labels

    def scores(self, targets: Tensor, weights: Tensor | None = None) -> tuple[LevelScore, ...]:
        """Return how many answers are given at each level, and how many of those are right."""
        level = self.taxonomy.level_of[self.labels]
        return self.taxonomy._scores(
            [level == each for each in range(self.taxonomy.height + 1)], self.right(targets), weights
        )


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """A tree whose leaves are the classes; the root, "any", is above all.

    >>> rows = [("red oak", "oak", "beech family"), ("holm oak", "oak", "beech family"), ("beech", "", "beech family")]
    >>> taxonomy = Taxonomy.from_rows([*rows, ("ash", "", "olive family")], levels=("class", "genus", "family"))
    >>> taxonomy.labels
    ('red oak', 'holm oak', 'beech', 'ash', 'oak', 'beech family', 'olive family', 'any')
    >>> found = taxonomy.deepest(torch.tensor([[0.9, 0.1, 0, 0], [0.5, 0.45, 0, 0.05], [0.3, 0, 0.3, 0.4]]), 0.8)
    >>> list(zip(found.names, found.levels))
    [('red oak', 'class'), ('oak', 'genus'), ('any', 'any')]
    """

    class_names: tuple[str, ...]
    levels: tuple[str, ...]
    """Names of the levels, from the class upwards, without the root."""
    labels: tuple[str, ...]
    """All labels: the classes in their order, then those of each level upwards, then the root."""
    parents: Tensor
    """Number of the label above each, int64 (labels,); the root is above itself."""
    level_of: Tensor
    """Level of each label, int64 (labels,): 0 for a class, `height` for the root."""

    @staticmethod
    def read(path: str | Path, class_names: Sequence[str] | None = None) -> "Taxonomy":
        """Read a tree from a .csv, separated by commas or semicolons.

        Args:
            path: File with a line of headings, and a line for each class: the class, then what it belongs to, level by
                level upwards (class, genus, family). A cell may be empty: that class has no label of the level. Or
                with the headings label and parent, and a line for each label that has another above it.
            class_names: Classes of the model, in its order; by default those of the file. The file may have more.
        """
        return Taxonomy(*read_tree(Path(path), class_names))

    @staticmethod
    def from_rows(
        rows: Iterable[Sequence[str]], levels: Sequence[str], class_names: Sequence[str] | None = None
    ) -> "Taxonomy":
        """Return the tree of rows as in a file: the class, then what it belongs to, level by level upwards.

        Args:
            rows: A row for each class, with a label, or an empty text, for each level.
            levels: Names of the levels, from the class upwards.
            class_names: Classes of the model, in its order; by default those of the rows.
        """
        return Taxonomy(*tree_of_rows(rows, levels, class_names))

    @staticmethod
    def from_parents(parents: Mapping[str, str], class_names: Sequence[str] | None = None) -> "Taxonomy":
        """Return the tree in which each label has one above it; levels are counted from the root.

        Args:
            parents: The label above each label; those at the top have none.
            class_names: Classes of the model, in its order, which must be leaves; by default all leaves.

        >>> Taxonomy.from_parents({"red oak": "oak", "oak": "tree", "ash": "tree"}).levels
        ('class', 'level 2', 'level 1')
        """
        return Taxonomy(*tree_of_parents(parents, class_names))

    @property
    def height(self) -> int:
        """Level of the root."""
        return len(self.levels)

    @property
    def ancestors(self) -> Tensor:
        """Label at each level above each label, or itself, (height + 1, labels); -1 where it has none."""
        above = torch.full((self.height + 1, len(self.labels)), -1)
        label = torch.arange(len(self.labels))
        for _ in range(self.height + 1):
            above[self.level_of[label], torch.arange(len(self.labels))] = label
            label = self.parents[label]
        return above

    def summed(self, probabilities: Tensor) -> Tensor:
        """Return the probability of every label, float64 (samples, labels): each is the sum of those right below it.

        Summed level by level, so that also with rounding no label is less probable than one below it.
        """
        if probabilities.ndim != 2 or probabilities.shape[1] != len(self.class_names):
            raise UserError(
                f"probabilities must have shape (samples, {len(self.class_names)}), a column for each class of the "
                f"tree, but have {tuple(probabilities.shape)}"
            )
        sums = torch.zeros(len(probabilities), len(self.labels), dtype=torch.float64)
        sums[:, : len(self.class_names)] = probabilities
        for level in range(1, self.height + 1):
            below = ((self.level_of[self.parents] == level) & (self.level_of < level)).nonzero().squeeze(1)
            sums.index_add_(1, self.parents[below], sums[:, below])
        return sums

    def deepest(self, probabilities: Tensor, confidence: float) -> Deepest:
        """Return the deepest label whose probability reaches the wanted confidence; of several the most probable.

        Above a confidence of 0.5 there is at most one at each level, each below the one before. The root always does.

        Args:
            probabilities: Probabilities of the classes, (samples, classes), under the deployment prior.
            confidence: Wanted probability, above 0 and up to 1.
        """
        if not 0 < checked("confidence", float, {}, confidence) <= 1:
            raise UserError(f"confidence must lie above 0 and up to 1, but is {confidence}")
        labels = torch.full((len(probabilities),), len(self.labels) - 1)
        reached = torch.ones(len(probabilities), dtype=torch.float64)
        size = max(1, BLOCK_VALUES // len(self.labels))
        for start in range(0, len(probabilities), size):
            rows = slice(start, start + size)
            labels[rows], reached[rows] = self._deepest(self.summed(probabilities[rows]), confidence)
        return Deepest(self, labels, reached)

    def decide(self, logits: Any, confidence: float, *, target_prior: Any = None, source_prior: Any = None) -> Deepest:
        """Return the deepest labels of logits under a deployment prior, read block by block.

        Args:
            logits: Logits (samples, classes), as `balpoe.decide` takes them, or predictions.
            confidence: Wanted probability.
            target_prior: Deployment prior, as `balpoe.decide` takes it.
            source_prior: Prior that the logits are made for, as `balpoe.decide` takes it.
        """
        posteriors = Posteriors(logits, target_prior, source_prior, len(self.class_names))
        found = [self.deepest(block, confidence) for _, block in posteriors.probabilities()]
        labels = torch.cat([each.labels for each in found] or [torch.zeros(0, dtype=torch.int64)])
        return Deepest(self, labels, torch.cat([each.probability for each in found] or [torch.zeros(0).double()]))

    def scores(self, probabilities: Tensor, targets: Tensor, weights: Tensor | None = None) -> tuple[LevelScore, ...]:
        """Return the accuracy at each level of its most probable label, from the class to below the root.

        Args:
            probabilities: Probabilities of the classes, (samples, classes).
            targets: Classes, (samples,); a sample whose class has no label of a level does not count there.
            weights: Weight of each sample; None: 1.

        >>> taxonomy = Taxonomy.from_rows([("a", "x"), ("b", "x"), ("c", "y")], levels=("class", "group"))
        >>> scores = taxonomy.scores(torch.tensor([[0.4, 0.6, 0.0], [0.1, 0.0, 0.9]]), torch.tensor([0, 2]))
        >>> [(score.level, score.labels, score.accuracy) for score in scores]
        [('class', 3, 0.5), ('group', 2, 1.0)]
        """
        counted, right = self.right_at_levels(probabilities, targets)
        return self._scores(list(counted), right, weights)

    def right_at_levels(self, probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether each sample counts at each level, and whether its most probable label there is right.

        Args:
            probabilities: Probabilities of the classes, (samples, classes).
            targets: Classes, (samples,).

        Returns:
            Two times (height, samples), true or false.
        """
        class_counts(targets, len(self.class_names))
        sums, counted, right = self.summed(probabilities), [], []
        for level in range(self.height):
            truth = self.ancestors[level, targets]
            labels = (self.level_of == level).nonzero().squeeze(1)
            counted.append(truth >= 0)
            right.append(labels[sums[:, labels].argmax(dim=1)] == truth)
        return torch.stack(counted), torch.stack(right)

    def _deepest(self, sums: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
        found = torch.full((len(sums),), len(self.labels) - 1)
        reached = sums[:, -1].clone()
        for level in reversed(range(self.height)):
            labels = (self.level_of == level).nonzero().squeeze(1)
            largest, place = sums[:, labels].max(dim=1)
            enough = largest >= confidence
            found, reached = torch.where(enough, labels[place], found), torch.where(enough, largest, reached)
        return found, reached

    def _scores(self, counted: list[Tensor], right: Tensor, weights: Tensor | None) -> tuple[LevelScore, ...]:
        """Scores of the levels whose samples are given, one row of right ones for all levels or one for each."""
        weights = torch.ones(right.shape[-1]).double() if weights is None else weights.double()
        rows = []
        for level, (here, fine) in enumerate(zip(counted, right.expand(len(counted), -1), strict=True)):
            mass = weights * here
            accuracy = float(mass @ fine.double() / mass.sum()) if bool(mass.any()) else None
            name, labels = (*self.levels, ROOT)[level], int((self.level_of == level).sum())
            rows.append(LevelScore(name, labels, float(mass.sum() / weights.sum()), accuracy))
        return tuple(rows)


def tree_costs(taxonomy: Taxonomy, vagueness: float | None = None) -> Tensor:
    """Return costs for `balpoe.decide` that grow with the distance in the tree, (classes, answers).

    A wrong class costs the height of what it has in common with the right one: nothing for the class itself, 1 where
    only the root is above both.

    Args:
        taxonomy: Tree.
        vagueness: With a number v from 0 to 1, all labels are answers: a right one costs v times its height, a wrong
            one as much as a wrong class, and "any" v. None: the classes alone are.

    >>> taxonomy = Taxonomy.from_rows([("a", "x"), ("b", "x"), ("c", "y")], levels=("class", "group"))
    >>> tree_costs(taxonomy)
    tensor([[0.0000, 0.5000, 1.0000],
            [0.5000, 0.0000, 1.0000],
            [1.0000, 1.0000, 0.0000]], dtype=torch.float64)
    >>> tree_costs(taxonomy, vagueness=0.5)[0]
    tensor([0.0000, 0.5000, 1.0000, 0.2500, 1.0000, 0.5000], dtype=torch.float64)
    """
    classes = len(taxonomy.class_names)
    answers = classes if vagueness is None else len(taxonomy.labels)
    if vagueness is not None and not 0 <= checked("vagueness", float, {}, vagueness) <= 1:
        raise UserError(f"vagueness must lie from 0 to 1, but is {vagueness}")
    above = taxonomy.ancestors
    costs = torch.ones(classes, answers, dtype=torch.float64)
    for level in reversed(range(taxonomy.height)):
        truth, answer = above[level, :classes, None], above[level, None, :answers]
        costs = torch.where((truth == answer) & (truth >= 0), level / taxonomy.height, costs)
    if vagueness is not None:
        holds = torch.arange(answers) == above[taxonomy.level_of, :classes].T
        costs = torch.where(holds, costs * vagueness, costs)
    return costs


def cifar100_taxonomy() -> Taxonomy:
    """Return the tree of CIFAR-100: a hundred classes in twenty superclasses of five.

    >>> taxonomy = cifar100_taxonomy()
    >>> taxonomy.class_names[0], taxonomy.labels[taxonomy.parents[0]], len(taxonomy.labels)
    ('apple', 'fruit_and_vegetables', 121)
    """
    return Taxonomy.read(Path(__file__).parents[1] / "data" / "cifar100_taxonomy.csv")
