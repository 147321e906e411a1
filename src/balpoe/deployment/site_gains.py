"""What the priors of a table are worth at each of its places: against the classifier as trained, and a yes/no list."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.prior_tables import PriorTable
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import LEAST_EVIDENCE, bootstrap, evidence_counts, mean_difference_interval

__all__ = ["WAYS", "SiteGain", "SiteGains", "site_gains"]

WAYS = ("as trained", "yes/no list", "prior")
METRICS = ("accuracy", "nll")
OTHERS = WAYS[:2]

Estimate = tuple[float, float | None, float | None]
"""A difference and the ends of its 95 % interval, which few samples have not."""


@dataclass(frozen=True)
class SiteGain:
    """One place, or all of them."""

    name: str
    samples: int
    scores: dict[str, dict[str, float | None]]
    """Accuracy and NLL of each way to predict, by metric and way; None for an NLL that is infinite."""
    gains: dict[str, dict[str, Estimate | None]]
    """The prior's score less that of each other way, by metric and way, with a paired interval."""
    excluded: float
    """Share of the samples whose class the yes/no list excludes."""


@dataclass(frozen=True)
class SiteGains:
    """The gain at each place, the largest first, and over all samples."""

    overall: SiteGain
    sites: tuple[SiteGain, ...]
    unknown: Counter[tuple[str, ...]]
    """Keys that the table lacks, with their numbers of samples."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON."""
        unknown = [{"keys": list(keys), "samples": number} for keys, number in self.unknown.most_common()]
        return {"all": vars(self.overall), "sites": [vars(site) for site in self.sites], "unknown_keys": unknown}


def site_gains(
    predictions: Predictions, table: PriorTable, keys: Any, *, num_resamples: int = 1000, seed: int = 0
) -> SiteGains:
    """Return what each place's own prior is worth on its test samples.

    The yes/no list leaves the logits as trained, without the classes that the table has not seen at the place.

    Args:
        predictions: Predictions of the test samples.
        table: Priors by key.
        keys: Keys of each sample, as `PriorTable.match` takes them.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    >>> logits, targets = torch.zeros(40, 1, 2), torch.tensor([0] * 20 + [1] * 20)
    >>> predictions = Predictions(logits, targets, [50, 50], [0], ("oak", "elm"))
    >>> table = PriorTable.read({"a": {"oak": 30, "elm": 1}, "b": {"oak": 1, "elm": 30}}, ("oak", "elm"), ["site"])
    >>> found = site_gains(predictions, table, ["a"] * 20 + ["b"] * 20)
    >>> found.overall.scores["accuracy"]
    {'as trained': 0.5, 'yes/no list': 0.5, 'prior': 1.0}
    """
    if predictions.source_prior is None:
        raise UserError("logits that are no posterior cannot be adjusted to the priors of a table; take another method")
    if not len(predictions):
        raise UserError("there is no test sample to measure on; predict on a test set that has some")
    matches = table.match(keys)
    if len(matches.rows) != len(predictions):
        raise UserError(f"there are {len(matches.rows):,} keys for {len(predictions):,} samples; give one each")
    values = torch.cat([_values(predictions, table, matches.rows, rows) for rows in predictions.blocks()], dim=2)
    listed = table.seen[matches.rows, predictions.targets]
    places, site = torch.unique(matches.rows, return_inverse=True)
    measure = _Measure(values, listed, site, predictions.groups)
    intervals = measure.intervals(num_resamples, seed)
    known = _names(table)
    names = [*(known[row] for row in places.tolist()), "all"]
    *sites, overall = (measure.gain(number, name, intervals[..., number]) for number, name in enumerate(names))
    ordered = sorted(sites, key=lambda each: (-each.samples, each.name))
    return SiteGains(overall, tuple(ordered), matches.unknown)


def _values(predictions: Predictions, table: PriorTable, node: Tensor, rows: slice) -> Tensor:
    """Whether each way is right, and its NLL, of some samples, (metrics, ways, samples)."""
    logits = predictions.product(predictions.calibrated(rows)).double()
    allowed = table.seen[node[rows]]
    allowed = allowed | ~allowed.any(dim=1, keepdim=True)  # a row of nevers alone lists nothing
    moved = table.adjust(logits, node[rows], predictions.source_prior)
    ways = (logits, logits.masked_fill(~allowed, -torch.inf), moved)
    targets = predictions.targets[rows]
    right = torch.stack([(each.argmax(dim=1) == targets).double() for each in ways])
    nll = [-each.log_softmax(dim=1).gather(1, targets[:, None]).squeeze(1) for each in ways]
    return torch.stack([right, torch.stack(nll)])


def _names(table: PriorTable) -> dict[int, str]:
    """What each row of the table is called; one that unknown keys fell back to says so."""
    return {
        row: "/".join(keys if len(keys) == len(table.keys) else (*keys, "(unknown)"))
        for keys, row in table.row_of.items()
    }


class _Measure:
    """Scores of each place, and of all as the last one."""

    def __init__(self, values: Tensor, listed: Tensor, site: Tensor, groups: Tensor | None) -> None:
        self.values, self.listed, self.site, self.groups = values, listed, site, groups
        differences = values[:, 2:] - values[:, :2]
        self.differences = differences.masked_fill(~differences.isfinite(), torch.nan)
        self.sizes = torch.bincount(site)
        self.evidence = evidence_counts(site, len(self.sizes), groups)

    def means(self, numbers: Tensor, counts: Tensor) -> Tensor:
        """Means of a number of each sample over each place and over all, (resamples, places + 1)."""
        sums = torch.zeros(len(counts), len(self.sizes), dtype=torch.float64).index_add_(1, self.site, counts * numbers)
        return torch.cat([sums / self.sizes, sums.sum(dim=1, keepdim=True) / len(self.site)], dim=1)

    def intervals(self, num_resamples: int, seed: int) -> Tensor:
        """Paired intervals of all differences, (2, metrics, others, places + 1); a resample keeps each place's size."""
        rows = self.differences.flatten(0, 1)

        def statistic(counts: Tensor) -> Tensor:
            return torch.cat([self.means(row, counts) for row in rows], dim=1)

        found = bootstrap(statistic, self.site, groups=self.groups, num_resamples=num_resamples, seed=seed)
        return found.reshape(2, *self.differences.shape[:2], -1)

    def gain(self, number: int, name: str, intervals: Tensor) -> SiteGain:
        """What the prior is worth at one place, or at all of them."""
        chosen = slice(None) if number == len(self.sizes) else self.site == number
        scores = self.values[..., chosen].mean(dim=2)
        rows = self.differences[..., chosen]
        evidence = int(self.evidence[number]) if number < len(self.sizes) else int(self.evidence.sum())
        gains = {
            metric: {
                way: self._estimate(metric, rows[first, second], intervals[:, first, second].tolist(), evidence)
                for second, way in enumerate(OTHERS)
            }
            for first, metric in enumerate(METRICS)
        }
        shown = {
            metric: {way: _finite(value) for way, value in zip(WAYS, row, strict=True)}
            for metric, row in zip(METRICS, scores.tolist(), strict=True)
        }
        return SiteGain(name, rows.shape[2], shown, gains, 1 - float(self.listed[chosen].double().mean()))

    def _estimate(self, metric: str, rows: Tensor, interval: list[float], evidence: int) -> Estimate | None:
        value = float(rows.mean())
        if not math.isfinite(value):
            return None
        if evidence < LEAST_EVIDENCE:
            return value, None, None
        if metric == "accuracy" and self.groups is None:  # resampling a few samples that agree gives the same again
            return value, *mean_difference_interval(rows, torch.zeros(len(rows), dtype=torch.int64))
        return value, interval[0], interval[1]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
