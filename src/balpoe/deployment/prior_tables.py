"""Priors by place and season: a table of counts or shares, shrunk where it is thin, looked up for each image."""

import functools
import math
import reprlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from balpoe.data.user.class_names import some_of
from balpoe.deployment.prior_nodes import prior_nodes
from balpoe.deployment.prior_rows import PriorRow, frame_columns, key_text, prior_rows
from balpoe.deployment.shrinkage import CountTree, fit_strengths, shrunk_shares
from balpoe.errors import UserError, unknown_name
from balpoe.method.ensemble import at_least_float32, checked_source
from balpoe.settings import checked

__all__ = ["KeyMatches", "PriorTable", "unknown_keys_sentence"]

KINDS = ("auto", "counts", "shares")
BLOCK_VALUES = 2**19  # logits moved together: a few megabytes, which stay in the processor's cache
NAMED = 5  # unknown keys that a sentence names


class KeyMatches(NamedTuple):
    """Where the keys of some samples were found."""

    rows: Tensor
    """Row of `PriorTable.priors` for each sample, (samples,)."""
    unknown: Counter[tuple[str, ...]]
    """Keys that the table lacks, with the number of their samples, which have the prior of what they are in."""


@dataclass(frozen=True, eq=False)
class PriorTable:
    """A prior for each place and season, and for what these are in.

    `PriorTable.read` makes one. The shares of a key that the table lacks are those of the longest known part of it: of
    an unknown month those of the site, of an unknown site those of all.

    >>> counts = {"north": {"oak": 30, "ash": 10}, "south": {"oak": 0, "ash": 50}, "east": {"oak": 4, "ash": "never"}}
    >>> table = PriorTable.read(counts, ("oak", "ash", "elm"), keys=["site"], strength=5)
    >>> table.lookup(["south", "east"]).round(decimals=3)  # no elm was seen anywhere: a little, but not nothing
    tensor([[0.0330, 0.9660, 0.0020],
            [0.9750, 0.0000, 0.0250]], dtype=torch.float64)
    """

    class_names: tuple[str, ...]
    keys: tuple[str, ...]
    """Names of the keys, the widest first."""
    kind: str
    """What the table's numbers are: "counts", which are shrunk, or "shares", which are taken as they are."""
    strengths: tuple[float, ...]
    """How many counts the parent is worth, one a level from that of all places; none for shares."""
    priors: Tensor = field(repr=False)
    """The prior of each known key and of what it is in, (rows, classes); row 0 is that of all places."""
    seen: Tensor = field(repr=False)
    """Whether the table has a count or a share above zero, (rows, classes): what a yes/no list would keep."""
    row_of: Mapping[tuple[str, ...], int] = field(repr=False)
    """Row of `priors` by key; of the first keys alone, too, and of none."""
    above: Tensor = field(repr=False)
    """Row of what each row is in, (rows,); -1 for that of all places, row 0."""

    @classmethod
    def read(
        cls,
        source: Any,
        class_names: Sequence[str],
        keys: Sequence[str],
        *,
        kind: str = "auto",
        parent: str | None = None,
        strength: float | Sequence[float] | None = None,
    ) -> "PriorTable":
        """Return the priors of a table.

        Args:
            source: A .csv (commas or semicolons), .tsv or .parquet; a frame of pandas, polars or pyarrow; or a mapping
                from keys to a mapping from classes to weights. Beside the keys the table has one column for each class,
                or two, a class and its count. A cell may say `never`: the class does not occur there.
            class_names: Class names of the model.
            keys: Names of the key columns, the widest first: region, site, month.
            kind: "counts" or "shares"; "auto" takes whole numbers for counts, and any others for shares.
            parent: Name of a further column that says what the first key is in, such as the region of a site.
            strength: How many counts the parent is worth, for all levels or one a level from that of all places; None
                to fit each by the likelihood of held-out counts.
        """
        if kind not in KINDS:
            raise unknown_name("kind", kind, KINDS)
        if isinstance(keys, str) or not keys:
            raise UserError(f"keys must be a list of column names, but are {keys!r}; give one at least")
        if len(set(keys)) < len(keys):
            raise UserError(f"keys must be different columns, but are {', '.join(keys)}; leave out what is there twice")
        found = prior_rows(source, class_names, keys, parent)
        nodes = prior_nodes(found, parent, class_names)
        kind = _kind(found) if kind == "auto" else kind
        tree, strengths = nodes.tree(), tuple[float, ...]()
        if kind == "shares":
            _check_shares(found, class_names)
            priors = nodes.shares()
        else:
            strengths = _checked_strengths(strength, tree)
            priors = shrunk_shares(tree, strengths)
        return cls(
            tuple(class_names), tuple(keys), kind, strengths, priors, tree.counts > 0, nodes.by_keys, nodes.parent
        )

    def match(self, samples: Any) -> KeyMatches:
        """Return the row of `priors` for each sample, and which keys the table lacks.

        Last keys that are empty stand for all of what comes before, as in the table: a sample without its month has the
        prior of the site. One without any key is among those that the table lacks.

        Args:
            samples: Keys of each sample: texts or numbers where there is one key, tuples of them where there are
                several; or a frame with the key columns.
        """
        rows, unknown = [], Counter[tuple[str, ...]]()
        for keys in _key_rows(samples, self.keys):
            given = _without_last_empty(keys)
            size = next(size for size in range(len(given), -1, -1) if given[:size] in self.row_of)
            rows.append(self.row_of[given[:size]])
            if size < len(given) or not given:
                unknown[given or keys] += 1
        return KeyMatches(torch.tensor(rows, dtype=torch.int64), unknown)

    @property
    def estimated(self) -> bool:
        """Whether the priors are estimates: shares of counted samples are, shares that somebody knows are not."""
        return self.kind == "counts"

    def name(self, row: int) -> str:
        """Return what a row is called: its keys."""
        return "/".join(self._keys_of[row]) or "all places"

    @functools.cached_property
    def _keys_of(self) -> dict[int, tuple[str, ...]]:
        return {row: keys for keys, row in self.row_of.items()}

    def lineage(self, row: int) -> tuple[int, ...]:
        """Return the rows of what a row is in, the narrowest first, up to that of all places.

        >>> table = PriorTable.read({("n", "5"): {"x": 1}, ("n", "6"): {"y": 2}}, "xy", ["site", "month"])
        >>> table.lineage(table.row_of["n", "6"]) == (table.row_of["n",], 0)
        True
        """
        found: tuple[int, ...] = ()
        while (row := int(self.above[row])) >= 0:
            found = (*found, row)
        return found

    def lookup(self, samples: Any) -> Tensor:
        """Return the prior of each sample, (samples, classes), in float64; warn of keys that the table lacks.

        For very many samples take `match(samples).rows` instead, and their rows of `priors` block by block.

        Args:
            samples: Keys of each sample, as `match` takes them.
        """
        matches = self.match(samples)
        if matches.unknown:
            warnings.warn(unknown_keys_sentence(matches.unknown, len(matches.rows)), stacklevel=2)
        return self.priors[matches.rows]

    def adjust(self, logits: Tensor, rows: Tensor, source_prior: Any = None) -> Tensor:
        """Return logits, each row moved to its own prior; little more memory is needed than for these.

        Args:
            logits: Logits (samples, classes), posteriors under `source_prior`.
            rows: Row of `priors` of each sample, from `match`.
            source_prior: Prior that the logits are made for; by default uniform.

        >>> table = PriorTable.read({"a": {"x": 3, "y": 1}, "b": {"x": 1, "y": 3}}, "xy", ["site"], strength=1e-3)
        >>> table.adjust(torch.zeros(2, 2), table.match(["a", "b"]).rows).softmax(dim=1)
        tensor([[0.7499, 0.2501],
                [0.2501, 0.7499]])
        """
        classes = len(self.class_names)
        _check_logits(logits, classes)
        row_of = _checked_rows(rows, len(logits), len(self.priors))
        source = None if source_prior is None else checked_source(source_prior, classes).log()
        found = torch.empty_like(logits, dtype=at_least_float32(logits[:0]).dtype)
        size = max(1, BLOCK_VALUES // classes)
        for start in range(0, len(logits), size):
            block = slice(start, start + size)
            used, place = row_of[block].unique(return_inverse=True)  # samples of one place are many
            shift = self.priors[used].log()
            if source is not None:
                shift = shift - source
            found[block] = at_least_float32(logits[block]) + shift.to(found)[place.to(found.device)]
        return found


def unknown_keys_sentence(unknown: Counter[tuple[str, ...]], samples: int) -> str:
    """Return a sentence about keys that a table lacks.

    >>> unknown_keys_sentence(Counter({("north", "13"): 2}), 10)
    '2 of 10 samples have keys that the table lacks (north/13) and get the prior of their wider area'
    """
    named = ", ".join("/".join(key or "(empty)" for key in keys) for keys, _ in unknown.most_common(NAMED))
    more = f" and {len(unknown) - NAMED:,} more" if len(unknown) > NAMED else ""
    return (
        f"{unknown.total():,} of {samples:,} samples have keys that the table lacks ({named}{more}) and get the prior "
        "of their wider area"
    )


def _check_logits(logits: Any, classes: int) -> None:
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != classes:
        raise UserError(
            f"logits must be a tensor of shape (samples, {classes}), a column for each class of the table, "
            f"but are {shape}"
        )


def _checked_rows(rows: Any, samples: int, known: int) -> Tensor:
    """The row of each sample, (samples,), or what is wrong with it."""
    try:
        found = torch.as_tensor(rows, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        found = torch.zeros(0, 0)  # neither the shape nor the type that is wanted
    whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    if found.shape != (samples,) or not whole or (samples and not 0 <= int(found.min()) <= int(found.max()) < known):
        shown = f"{found.dtype} of shape {tuple(found.shape)}" if found.ndim == 1 else reprlib.repr(rows)
        raise UserError(
            f"rows must be a number from 0 to {known - 1} for each of the {samples} samples, but are {shown}; "
            "give those that match returns for the samples"
        )
    return found.long()


def _key_rows(samples: Any, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The keys of each sample as texts."""
    columns = frame_columns(samples)
    if columns is not None:
        if lacking := [name for name in names if name not in columns]:
            raise UserError(f"the samples have no column {lacking[0]!r}, only {some_of(list(columns), 10)}; add it")
        samples = zip(*(columns[name] for name in names), strict=True)
    for number, each in enumerate(samples):
        keys = (each,) if isinstance(each, str) or not isinstance(each, Iterable) else tuple(each)
        if len(keys) != len(names):
            raise UserError(f"sample {number} has {len(keys)} keys, but there are {len(names)}: {', '.join(names)}")
        yield tuple(map(key_text, keys))


def _without_last_empty(keys: tuple[str, ...]) -> tuple[str, ...]:
    return keys[: max((place + 1 for place, key in enumerate(keys) if key), default=0)]


def _kind(rows: Sequence[PriorRow]) -> str:
    """Counts are whole numbers; whoever has other numbers has shares or weights, rounded or not."""
    weights = [row.weights.clip(min=0) for row in rows]
    return "shares" if any((each != each.round()).any() for each in weights) else "counts"


def _check_shares(rows: Sequence[PriorRow], class_names: Sequence[str]) -> None:
    """In shares a zero excludes a class, so that one which no row has was forgotten, most likely."""
    for row in rows:
        if not (row.weights > 0).any():
            raise UserError(f"{row.place}: all shares are zero; give the share of each class, or remove the row")
    nowhere = np.all([row.weights == 0 for row in rows], axis=0).nonzero()[0]
    if len(nowhere):
        raise UserError(
            f"no row has a share of class {class_names[nowhere[0]]!r}, which would exclude it everywhere; give it one, "
            "or write never where it does not occur"
        )


def _checked_strengths(strength: Any, tree: CountTree) -> tuple[float, ...]:
    if strength is None:
        return fit_strengths(tree)
    values = strength.tolist() if isinstance(strength, Tensor | np.ndarray) else strength
    given: tuple[float, ...] = checked("strength", tuple[float, ...], {}, values)
    given = given if isinstance(values, list | tuple) else given * tree.depth
    if len(given) != tree.depth or not all(0 < each < math.inf for each in given):
        raise UserError(
            f"strength must be a number above 0, or one for each of the {tree.depth} levels from that of all places, "
            f"but is {strength}"
        )
    return given
