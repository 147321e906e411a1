"""What the threshold of "unknown" rests on: samples that fitted nothing else, and the classes that they are of."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.data.user.class_names import some_of
from balpoe.deployment.class_means import ClassMeans
from balpoe.deployment.class_pools import least_samples
from balpoe.deployment.set_thresholds import ROUNDING, label_weights
from balpoe.errors import UserError

__all__ = ["Basis", "coverage_notes"]

NAMED = 5  # classes that a note names


class Basis(NamedTuple):
    """Which held-out samples serve what."""

    reference: Tensor
    """Whether a sample fits class means and the units of scores, (samples,)."""
    threshold: Tensor
    """Whether it sets the threshold, (samples,): none does both, unless nothing but the threshold is fitted."""
    labels: Tensor | None
    """Label of each sample, (samples,), where they are known."""
    prior: Tensor | None
    """Class mix that the samples of the threshold are weighted to, (classes,); None: they stand for themselves."""

    @staticmethod
    def whole(samples: int, labels: Tensor | None, prior: Tensor | None) -> "Basis":
        """Return what all samples are enough for: one score, and class means of other samples."""
        everything = torch.ones(samples, dtype=torch.bool)
        return Basis(everything, everything, labels, prior)

    @staticmethod
    def split(
        samples: int, labels: Tensor | None, prior: Tensor | None, classes: int, groups: Tensor | None, seed: int,
        *, for_means: bool,
    ) -> "Basis":  # fmt: skip
        """Return samples apart: class means take half of each class, and those of one sample; units of scores a fifth.

        Splitting class by class changes the class mix, so that the rest is weighted back to it.

        Args:
            samples: Number of samples.
            labels: Their labels, where they are known.
            prior: Deployment prior, (classes,); None: the class mix of all samples.
            classes: Number of classes.
            groups: Group of each sample, which is not split.
            seed: Seed of the split.
            for_means: Whether class means are fitted.
        """
        from balpoe.training.cross_fit import split_folds  # which knows of training

        known = torch.zeros(samples, dtype=torch.long) if labels is None else labels
        fold = split_folds(known, 1, 2 if for_means else 5, torch.Generator().manual_seed(seed), groups).fold
        reference = fold < 0 if for_means else fold == 0
        if int(reference.sum()) < 2:
            raise UserError(
                f"{samples} held-out samples are too few: some are set apart for class means and for the units of "
                "several scores; hold out more, or take one score"
            )
        if prior is None and labels is not None:
            prior = torch.bincount(labels, minlength=classes) / samples
        return Basis(reference, ~reference, labels, prior)

    def limit(self, scores: Tensor, keep: float, classes: int) -> float:
        """Return the score up to which a share of the samples lie, where the new one is counted among those above.

        Args:
            scores: Score of each sample, (samples,).
            keep: Share that is to lie there.
            classes: Number of classes.
        """
        scores = scores[self.threshold]
        if len(scores) < least_samples(1 - keep):
            raise UserError(
                f"there are {len(scores)} held-out samples, but to keep {100 * keep:g} % takes at least "
                f"{least_samples(1 - keep)}; hold out more, or keep less"
            )
        weights = self._weights(classes)
        values, order = scores.sort()
        sums = weights[order].cumsum(0)
        needed = keep * (sums[-1] + weights.max()) * (1 - ROUNDING)  # its class, and so its weight, is not known
        place = int(torch.searchsorted(sums, needed))
        if place == len(values):
            raise UserError(
                f"target_prior rests on so few held-out samples that no threshold keeps {100 * keep:g} %; hold out "
                "more samples of the classes that it makes frequent, or keep less"
            )
        return float(values[place])

    def _weights(self, classes: int) -> Tensor:
        """Weight of each sample that sets the threshold."""
        if self.prior is None or self.labels is None:
            return torch.ones(int(self.threshold.sum()), dtype=torch.float64)
        labels = self.labels[self.threshold]
        return label_weights(self.prior, torch.bincount(labels, minlength=classes) / len(labels))[labels]

    def uncovered(self, prior: Tensor | None, classes: int) -> Tensor:
        """Return the numbers of the classes that occur, and of which no sample sets the threshold."""
        if self.labels is None:
            return torch.zeros(0, dtype=torch.long)
        absent = torch.bincount(self.labels[self.threshold], minlength=classes) == 0
        return (absent if prior is None else absent & (prior > 0)).nonzero().squeeze(1)


def coverage_notes(
    uncovered: Tensor, class_names: Sequence[str], prior: Tensor | None, keep: float, means: ClassMeans | None
) -> tuple[str, ...]:
    """Return sentences about the classes of which nothing is promised, if there are any.

    Args:
        uncovered: Numbers of the classes of which no sample sets the threshold.
        class_names: Name of each class.
        prior: Class mix in which samples come, (classes,), where it is known.
        keep: Share of known samples that is kept.
        means: Class means, where the score is a distance to them.

    >>> prior = torch.tensor([0.6, 0.3, 0.1])
    >>> print(*coverage_notes(torch.tensor([2]), ("oak", "ash", "elm"), prior, 0.95, None))
    No held-out sample of 'elm' set the threshold: it may be called unknown too often. Of all samples at least 85.5 % \
are kept, if none of these (10.0 %) is.
    """
    notes = []
    if len(uncovered):
        named = some_of([class_names[label] for label in uncovered.tolist()], NAMED)
        it = "it" if len(uncovered) == 1 else "they"
        note = f"No held-out sample of {named} set the threshold: {it} may be called unknown too often."
        if prior is not None:
            share = float(prior[uncovered].sum())
            least = 100 * keep * (1 - share)
            note += f" Of all samples at least {least:.1f} % are kept, if none of these ({100 * share:.1f} %) is."
        notes.append(note)
    if means is not None and bool((means.counts == 0).any()):
        lacking = [class_names[label] for label in (means.counts == 0).nonzero().squeeze(1).tolist()]
        notes.append(f"There is no class mean of {some_of(lacking, NAMED)}: such samples look unknown by distance.")
    return tuple(notes)
