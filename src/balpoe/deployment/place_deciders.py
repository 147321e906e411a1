"""What is decided of samples of many places, each with what was fitted for the prior of its own place."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from balpoe.deployment.deciders import Decided, Decider, HeldOut, Wanted
from balpoe.deployment.prior_tables import PriorTable
from balpoe.deployment.taxonomy import Deepest
from balpoe.evaluation.predictions import Predictions

__all__ = ["DecidersAt", "PlaceDeciders"]

KEPT_VALUES = 2**24  # numbers that fits of places hold together: 128 MB
LEAST_KEPT = 64
NAMED = 5  # places that a sentence names


class PlaceDeciders:
    """Rules, sets and thresholds of the places of a table, each fitted when its first sample comes.

    Where a place's prior rests on too few held-out samples for some of it, that part is the one of the area around it,
    or in the end that of the class mix of the held-out samples; `notes` names the places.

    Args:
        wanted: What is to be decided.
        like: Predictions of the model, of any samples or none.
        held_out: Held-out samples of its run; None where nothing is fitted on any.
        table: Priors of the places.

    >>> logits, targets = torch.tensor([[[1.0, 0.0]], [[0.4, 0.0]]]), torch.tensor([0, 0])
    >>> samples = Predictions(logits, targets, [9, 9], [0], ("oak", "ash"))
    >>> table = PriorTable.read({"a": {"oak": 50, "ash": 50}, "b": {"oak": 1, "ash": 99}}, ("oak", "ash"), ["site"])
    >>> deciders = PlaceDeciders(Wanted(metric="accuracy"), samples, None, table)
    >>> [row["decision"] for row in deciders(samples, table.match(["a", "b"]).rows).rows()]
    ['oak', 'ash']
    """

    def __init__(self, wanted: Wanted, like: Predictions, held_out: HeldOut | None, table: PriorTable) -> None:
        self.wanted, self.like, self.held_out, self.table = wanted, like, held_out, table
        size = like.num_classes + (0 if held_out is None else 2 * len(held_out.validation))
        self._of_place = functools.lru_cache(max(LEAST_KEPT, KEPT_VALUES // size))(self._fitted)
        self._seen: set[int] = set()
        self._notes: dict[str, dict[str, str]] = {}  # by the note without its numbers: those of each place
        self._thin: dict[str, dict[str, str]] = {}  # by what could not be fitted: why not at each place
        self.everywhere = self._of_place(0)
        """What is fitted for all places together: what cannot be fitted anywhere is refused here."""

    def __call__(self, samples: Predictions, places: Tensor) -> Decided:
        """Return what is decided of samples of the same model.

        Args:
            samples: Samples.
            places: Row of the table of each sample, (samples,), from `PriorTable.match`.
        """
        parts, order = [], places.argsort(stable=True)
        for members in order.split(places[order].unique_consecutive(return_counts=True)[1].tolist()):
            place = int(places[members[0]])
            decider = self._of_place(place)
            self._take_notes(place, decider)
            parts.append(decider(samples.subset(members)))
        return _in_order(parts, order, self.everywhere) if parts else self.everywhere(samples)

    def at(self, places: Tensor) -> "DecidersAt":
        """Return what decides of samples whose places are known, (samples,), as a `Decider` does."""
        return DecidersAt(self, places)

    @property
    def notes(self) -> tuple[str, ...]:
        """What came of the fits of the places that had samples, in sentences, each of them once."""
        return (
            *(_note(of_place, len(self._seen)) for of_place in self._notes.values()),
            *(
                f"{part} at {_named(list(reasons))} are those of a wider area, or else of the held-out class mix "
                f"({next(iter(reasons.values()))})"
                for part, reasons in self._thin.items()
            ),
        )

    def _fitted(self, place: int) -> Decider:
        priors = [self.table.priors[row] for row in (place, *self.table.lineage(place))]
        return Decider.fit(
            self.wanted, self.like, self.held_out, priors[0],
            estimated=self.table.estimated, fallbacks=[*priors[1:], None],
        )  # fmt: skip

    def _take_notes(self, place: int, decider: Decider) -> None:
        if place in self._seen:
            return
        self._seen.add(place)
        name = self.table.name(place)
        for note in decider.notes:
            self._notes.setdefault(re.sub(r"\d[\d.,]*", "0", note), {})[name] = note
        for part, reason in decider.thin.items():
            self._thin.setdefault(part, {})[name] = reason


class DecidersAt:
    """What decides of labelled samples whose places are known, to be measured by `decision_scores`.

    Args:
        deciders: Deciders of the places.
        places: Row of the table of each sample, (samples,).
    """

    target_prior = None  # samples come as they are: each is one of its own place

    def __init__(self, deciders: PlaceDeciders, places: Tensor) -> None:
        self.deciders, self.places = deciders, places

    def __call__(self, samples: Predictions) -> Decided:
        """Return what is decided of the samples."""
        return self.deciders(samples, self.places)

    @property
    def notes(self) -> tuple[str, ...]:
        """What came of the fits, in sentences."""
        return self.deciders.notes

    def probabilities(self, samples: Predictions) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their probabilities, each under the prior of its place, in float64."""
        for rows in samples.blocks():
            logits = samples.product(samples.calibrated(rows)).double()
            yield rows, self.deciders.table.adjust(logits, self.places[rows], samples.source_prior).softmax(dim=1)


def _in_order(parts: Sequence[Decided], order: Tensor, decider: Decider) -> Decided:
    """What was decided of samples place by place, in the order of the samples."""

    def joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
        known = [piece for piece in pieces if piece is not None]
        if not known:
            return None
        together = torch.cat(known)
        return torch.empty_like(together).index_copy_(0, order, together)

    levels = [part.levels for part in parts if part.levels is not None]
    labels, probability = joined([each.labels for each in levels]), joined([each.probability for each in levels])
    return Decided(
        decider,
        joined([part.answers for part in parts]),
        joined([part.sets for part in parts]),
        None if labels is None or probability is None else Deepest(levels[0].taxonomy, labels, probability),
        joined([part.unknown for part in parts]),
        joined([part.yes for part in parts]),
    )


def _note(of_place: Mapping[str, str], places: int) -> str:
    """A note of some of the places, which may differ in its numbers."""
    name, note = next(iter(of_place.items()))
    if len(set(of_place.values())) > 1:
        return f"{name} (and {len(of_place) - 1:,} more, with other numbers): {note}"
    return note if len(of_place) == places else f"{_named(list(of_place))}: {note}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
