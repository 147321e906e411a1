"""Whether the class mix of the latest samples is the assumed one, and whether a class mix explains them at all.

Of what clients send nothing is kept: only the ensemble's logits of the latest samples, in memory, without their order
of arrival in time, their requests or their priors.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_estimate import CHANGE_LEVEL, MOST_UNSEEN, best_fit_p_value
from balpoe.method.prior_families import prior_family
from balpoe.method.shift_evidence import SIGNIFICANCE, ShiftEvidence

__all__ = ["Drift", "DriftReport"]

FEWEST = 50
"""Samples below which nothing is said."""
RESAMPLES = 100
GRID = 50  # numbers of samples are rounded down to so many, so that what randomness gives is computed rarely


class DriftReport(NamedTuple):
    """The class mix of the latest samples against the assumed one."""

    samples: int
    assumed: Tensor
    """Assumed deployment prior, (classes,)."""
    estimate: Tensor
    """Most likely prior, (classes,)."""
    interval: Tensor
    """95 % interval of each share, (2, classes)."""
    p_value: float
    """How often randomness alone would speak as much against the assumed prior."""
    fit_p_value: float | None
    """P-value of the best prior's explanation of the samples; None without a check."""

    @property
    def differs(self) -> bool:
        """Whether the class mix is another than the assumed one, at 5 %."""
        return self.p_value < SIGNIFICANCE

    @property
    def explained(self) -> bool | None:
        """Whether a shift of the labels explains the samples; None without labelled samples to check it by."""
        return None if self.fit_p_value is None else self.fit_p_value >= CHANGE_LEVEL

    @property
    def distance(self) -> float:
        """Total variation between estimate and assumed prior: share of samples that are of another class."""
        return 0.5 * float((self.estimate - self.assumed).abs().sum())

    @property
    def sentence(self) -> str:
        """What it comes to."""
        if self.explained is False:
            return (
                "No class mix explains the latest samples: the samples themselves seem to have changed, and the "
                "estimated prior says little."
            )
        checked = "" if self.explained is not None else " (without labelled samples, nothing checks the samples)"
        if self.differs:
            return f"The latest samples have another class mix than is assumed{checked}."
        return f"The latest samples agree with the assumed class mix{checked}."


class Drift:
    """The latest samples' logits, and what they say of the class mix.

    Args:
        model: Model; one whose logits are no posterior has no drift to show.
        assumed: Assumed deployment prior, (classes,); None: what the model is made for.
        reference: Labelled predictions of the same network on samples outside of its training, if there are any.
        window: Number of the latest samples that are looked at.

    >>> from types import SimpleNamespace
    >>> drift = Drift(SimpleNamespace(source_prior=torch.tensor([0.5, 0.5]), class_names="ab"), None, None, 200)
    >>> drift.add(torch.tensor([[4.0, -4.0]] * 150 + [[-4.0, 4.0]] * 50))
    >>> report = drift.look()
    >>> report.estimate.round(decimals=2), report.differs, report.explained
    (tensor([0.7500, 0.2500], dtype=torch.float64), True, None)
    """

    def __init__(self, model: Any, assumed: Tensor | None, reference: Predictions | None, window: int) -> None:
        self.source = None if model.source_prior is None else model.source_prior.double().cpu()
        self.assumed = self.source if assumed is None else assumed.double()
        self.reference = reference
        self.window = window
        self.seen = 0
        """How many samples there were."""
        self.blind = False
        """Whether the network was seen to know next to nothing of labelled samples."""
        self._logits = torch.zeros(window, len(model.class_names))
        self._evidence: ShiftEvidence | None = None
        self._null: dict[int, list[float]] = {}

    def add(self, logits: Tensor) -> None:
        """Take the logits of the next samples, (samples, classes), calibrated and as the model is made for them."""
        latest = logits[-self.window :]
        places = (self.seen + len(logits) - len(latest) + torch.arange(len(latest))) % self.window
        self._logits[places] = latest
        self.seen += len(logits)

    def look(self) -> DriftReport | None:
        """Return what the latest samples say; None while they are too few, or where a prior means nothing.

        It takes up to seconds, and is not for the event loop.
        """
        samples = min(self.seen, self.window)
        if self.source is None or self.assumed is None or samples < min(FEWEST, self.window):
            return None
        logits, generator = self._logits[:samples].clone(), torch.Generator().manual_seed(0)
        try:
            evidence = self._gathered()
        except UserError:  # an estimate would be confident, and wrong
            self.blind = True
            return None
        ratios, weights = evidence.ratios(logits), torch.ones(samples, dtype=torch.float64)
        found = evidence.members.fit(ratios, weights)
        p_value = evidence.p_value(found, ratios, weights, self.assumed, self._null_statistics)
        redrawn = evidence.redrawn(found, logits, weights, generator)
        interval = evidence.interval(found, redrawn, float(samples), generator)
        usable = evidence.usable(found, float(samples))
        return DriftReport(
            samples, self.assumed, found.prior, interval, p_value, self._fit_p_value(logits, found.prior, usable)
        )

    @property
    def silence(self) -> str:
        """Why there is no report."""
        if self.source is None:
            return "The model's scores belong to no known prior, so that none can be estimated."
        if self.blind:
            return "The network knows too little of its own labelled samples for an estimate of the class mix."
        return "Too few samples came for an estimate of their class mix."

    def _gathered(self) -> ShiftEvidence:
        if self._evidence is None:
            assert self.source is not None  # look() says so
            generator = torch.Generator().manual_seed(0)
            members = prior_family("free", None, self.source)
            self._evidence = ShiftEvidence.gather(members, self.source, self.reference, RESAMPLES, generator)
        return self._evidence

    def _null_statistics(self, samples: int) -> list[float]:
        size = max(2, samples // GRID * GRID)
        if size not in self._null:
            assert self.assumed is not None  # look() says so
            generator = torch.Generator().manual_seed(size)
            self._null = {size: self._gathered().null(self.assumed, size, generator)}
        return self._null[size]

    def _fit_p_value(self, logits: Tensor, estimate: Tensor, usable: Tensor) -> float | None:
        known = self.reference
        if known is None or self.assumed is None:
            return None
        counts = torch.bincount(known.targets, minlength=len(estimate))
        if float(estimate[counts == 0].sum()) > MOST_UNSEEN:
            return None
        generator = torch.Generator().manual_seed(0)
        return best_fit_p_value(logits, known.logits, known.targets, (self.assumed, usable, estimate), generator)
