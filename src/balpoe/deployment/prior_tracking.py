"""A prior that follows a stream: the most likely one of the latest samples, older ones counting less and less.

Every so many samples the most likely prior of the window is found anew, from the one before. It replaces the prior in
use only if the samples are significantly more likely under it (the test of `estimate_prior`, against the prior in use),
and if a shift of the labels alone can explain the window (the check of `estimate_target`).
"""

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.npz import read_archive
from balpoe.deployment.tracker_state import ARRAYS, PriorStep, TrackerSettings, restored_fields, state_arrays
from balpoe.errors import UserError
from balpoe.evaluation.prior_estimate import MOST_UNSEEN, best_fit_p_value
from balpoe.files import write_file
from balpoe.method.calibration import LabelledLogits
from balpoe.method.ensemble import checked_source, shift_prior
from balpoe.method.prior_families import PriorFit, prior_family
from balpoe.method.priors import checked_prior, tempered_prior
from balpoe.method.shift_evidence import ShiftEvidence, checked_logits, checked_weights
from balpoe.settings import checked

__all__ = ["PriorStep", "PriorTracker", "track_prior"]

HALF_LIVES = 5  # in the window: what is older would weigh 3 % of a new sample at most
MOST_SAMPLES = 20_000  # in a window by time, whatever the rate of the stream
HISTORY = 1000  # steps that are remembered, for the plot
GRID = 1.25  # ratio of the numbers of samples that share their null distribution, which hardly depends on it
START = 0.01  # share of the source prior in the start of a search, so that no class is stuck at zero


def track_prior(
    source_prior: Any,
    *,
    half_life: float,
    in_time: bool = False,
    validation: LabelledLogits | None = None,
    family: str = "free",
    train_prior: Any = None,
    start_prior: Any = None,
    every: int | None = None,
    most_samples: int | None = None,
    num_resamples: int = 100,
    seed: int = 0,
) -> "PriorTracker":
    """Return a prior that follows the labels of a stream of unlabelled logits.

    Args:
        source_prior: Prior that the logits are made for, such as `model.source_prior`, (classes,).
        half_life: How many samples, or how much time, until a sample counts half.
        in_time: Whether the half-life is in the units of the times that `update` is given.
        validation: Labelled predictions of the same model from before: they calibrate the logits, say how much is
            randomness, and whether a shift of the labels explains the stream. Give them whenever there are any.
        family: "free" for any prior, shrunk to the start prior by as much as it is noise; or "tempered" for P^lambda,
            one number, which needs far fewer samples.
        train_prior: Prior that "tempered" bends.
        start_prior: Prior in use until the stream speaks against it; by default the source prior.
        every: How many samples until the next look at the stream; by default a tenth of the half-life, or 100.
        most_samples: Most samples of the window; by default 5 half-lives, or 20,000 where these are in time.
        num_resamples: Number of resamples of the test and of the band.
        seed: Seed of these.

    >>> generator = torch.Generator().manual_seed(0)
    >>> def stream(share, samples):  # one Gaussian around -1, one around 1
    ...     labels = (torch.rand(samples, generator=generator) < share).float()
    ...     x = 2 * labels - 1 + torch.randn(samples, generator=generator)
    ...     return torch.stack([-x, x], dim=1)
    >>> tracker = track_prior([0.5, 0.5], half_life=300, every=100)
    >>> [round(float(tracker.update(stream(share, 2000))[1]), 1) for share in (0.5, 0.9, 0.2)]
    [0.5, 0.9, 0.2]
    """
    half_life = checked("half_life", float, {"above": 0}, half_life)
    every = every if every is not None else (100 if in_time else max(1, round(half_life / 10)))
    most = most_samples or (MOST_SAMPLES if in_time else math.ceil(HALF_LIVES * half_life))
    if every < 1 or most < 2:
        raise UserError(f"every must be at least 1 and most_samples 2, but they are {every} and {most}")
    source = checked_source(source_prior, len(source_prior))
    prior = source if start_prior is None else checked_prior(start_prior, len(source), "start_prior")
    generator = torch.Generator().manual_seed(seed)
    members = prior_family(family, train_prior, source)
    evidence = ShiftEvidence.gather(members, source, validation, num_resamples, generator)
    train = None if family == "free" else checked_prior(train_prior, len(source), "train_prior")
    settings = TrackerSettings(float(half_life), in_time, every, most, seed)
    return PriorTracker(settings, evidence, prior, prior, prior, train)


@dataclass(eq=False)
class PriorTracker:
    """A prior that follows a stream; `track_prior` makes one.

    >>> tracker = track_prior([0.5, 0.5], half_life=50)
    >>> tracker.update(torch.tensor([[4.0, -4.0]] * 4 + [[-4.0, 4.0]]).repeat(50, 1)).round(decimals=1)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """

    settings: TrackerSettings
    evidence: ShiftEvidence = field(repr=False)
    prior: Tensor
    """Prior in use, (classes,)."""
    start: Tensor = field(repr=False)
    """Prior in use at the start, to which noise is shrunk, (classes,)."""
    estimate: Tensor
    """Most likely prior of the window, (classes,)."""
    train: Tensor | None = field(default=None, repr=False)
    """Training prior that the estimate bends; None where its shares are free."""
    history: list[PriorStep] = field(default_factory=list, repr=False)
    """What was found at the latest looks, the newest last."""
    seen: int = 0
    """How many samples there were."""
    steps: int = 0
    """How often the stream was looked at."""
    waiting: int = 0
    """How many samples came since the latest look."""
    logits: Tensor = field(default_factory=lambda: torch.zeros(0, 0), repr=False)
    """Those of the window, and of the samples since."""
    times: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64), repr=False)
    _null: dict[int, list[float]] = field(default_factory=dict, repr=False)
    """Statistics under the prior in use, by the number of samples."""

    @property
    def band(self) -> Tensor:
        """95 % interval of each share of the estimate, (2, classes); from 0 to 1 before the first look."""
        if self.history:
            return self.history[-1].band
        return torch.stack([torch.zeros_like(self.prior), torch.ones_like(self.prior)])

    @property
    def changed(self) -> bool | None:
        """Whether no prior explains the latest samples: the prior in use stays as it was; None without a check."""
        return self.history[-1].changed if self.history else None

    def update(self, logits: Tensor, times: Any = None) -> Tensor:
        """Take the next samples of the stream, and return the prior in use, (classes,).

        How the stream is cut into updates makes no difference.

        Args:
            logits: Logits (samples, classes), in the order of the stream.
            times: Time of each sample, or one for all, never before that of an earlier sample; for a half-life in time.
        """
        logits = checked_logits(logits, "logits").detach().cpu()
        if logits.shape[1] != len(self.prior):
            raise UserError(f"logits have {logits.shape[1]} classes, but the prior has {len(self.prior)}")
        times = self._checked_times(times, len(logits))
        before = self.changed
        while len(logits):
            taken = min(self.settings.every - self.waiting, len(logits))
            self.logits = torch.cat([self.logits.reshape(-1, len(self.prior)), logits[:taken]])
            self.times = torch.cat([self.times, times[:taken]])
            logits, times = logits[taken:], times[taken:]
            self.seen, self.waiting = self.seen + taken, self.waiting + taken
            if self.waiting == self.settings.every:
                self._look()
        if self.changed and not before:
            warnings.warn(
                "no label prior explains the latest samples of the stream, so that its images themselves seem to have "
                "changed; the prior in use stays as it was",
                stacklevel=2,
            )
        return self.prior

    def adjust(self, logits: Tensor) -> Tensor:
        """Return logits calibrated and moved to the prior in use: what to predict with."""
        calibration = self.evidence.calibration
        return shift_prior(logits if calibration is None else calibration(logits), self.prior, self.evidence.source)

    def save(self, path: str | Path) -> None:
        """Write the state as a .npz, from which `load` goes on to the same numbers."""
        arrays: dict[str, Any] = state_arrays(vars(self))
        write_file(Path(path), lambda stream: np.savez(stream, **arrays))

    @staticmethod
    def load(path: str | Path) -> "PriorTracker":
        """Return a tracker as it was saved; nothing in the file is executed."""
        arrays = read_archive(Path(path), ARRAYS)
        try:
            return PriorTracker(**restored_fields(arrays))
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise UserError(f"{path} is not the state of a tracker ({error}); save it again") from error

    def _checked_times(self, times: Any, samples: int) -> Tensor:
        if (times is not None) != self.settings.in_time:
            wanted = "give times" if self.settings.in_time else "leave times out, or track with in_time=True"
            raise UserError(f"half_life is in {'time' if self.settings.in_time else 'samples'}; {wanted}")
        if times is None:
            return torch.arange(self.seen, self.seen + samples, dtype=torch.float64)
        moments = torch.as_tensor(times, dtype=torch.float64)
        moments = moments.expand(samples) if moments.ndim == 0 else moments
        if moments.shape != (samples,) or not bool(moments.isfinite().all()):
            raise UserError(f"times must be a number for each of the {samples} samples, or one for all")
        if bool((torch.cat([self.times[-1:], moments]).diff() < 0).any()):
            raise UserError("times must not go back; give the samples in the order of the stream")
        return moments

    def _look(self) -> None:
        """Find the most likely prior of the window, and use it if there is reason to."""
        self.waiting, self.steps = 0, self.steps + 1
        self._forget()
        evidence, generator = self.evidence, self._generator(self.steps)
        age = self.times[-1] - self.times
        weights = checked_weights(torch.exp2(-age / self.settings.half_life), len(age))
        ratios = evidence.ratios(self.logits)
        start = (1 - START) * self.estimate + START * evidence.source
        found = evidence.members.fit(ratios, weights, start)
        p_value = evidence.p_value(found, ratios, weights, self.prior, self._null_statistics)
        redrawn = evidence.redrawn(found, self.logits, weights, generator)
        band = self._band(found, redrawn, float(weights.sum()), generator)
        usable = evidence.usable(self._shrunk(found, redrawn), float(weights.sum()))
        fit = self._fit_p_value(found.prior, usable, weights, generator)
        at = float(self.times[-1]) if self.settings.in_time else float(self.seen)
        step = PriorStep(at, self.prior, found.prior, band, p_value, fit)
        if step.significant and not step.changed:
            self.prior, step = usable, step._replace(prior=usable)
            self._null.clear()
        self.estimate = found.prior
        self.history = [*self.history[1 - HISTORY :], step]

    def _shrunk(self, found: PriorFit, redrawn: Tensor) -> PriorFit:
        """The estimate without its noise: less far from the start prior, by the noise's share of the distance squared.

        James and Stein's rule, in which a share counts by one over its size at the start. Of 100 free shares and a
        thousand samples most of the distance may be noise, which would cost more than a shift is worth.
        """
        if found.lambda_ is not None:
            return found
        scale = self.start.clamp(min=1e-12)
        distance = float(((found.prior - self.start).square() / scale).sum())
        noise = float((redrawn.var(dim=0) / scale).sum()) if len(redrawn) > 1 else 0.0
        kept = max(0.0, 1 - noise / max(distance, 1e-300))
        return PriorFit(self.start + kept * (found.prior - self.start), None)

    def _band(self, found: PriorFit, redrawn: Tensor, samples: float, generator: torch.Generator) -> Tensor:
        """Interval of each share, also where one number bends them all."""
        if self.train is None:
            return self.evidence.interval(found, redrawn, samples, generator)
        ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
        return torch.quantile(tempered_prior(self.train, redrawn), ends, dim=0)

    def _forget(self) -> None:
        latest = self.times[-1] - HALF_LIVES * self.settings.half_life
        kept = self.times > latest
        kept[: -self.settings.most_samples] = False
        self.logits, self.times = self.logits[kept], self.times[kept]

    def _null_statistics(self, samples: int) -> list[float]:
        """Statistics of about so many samples of the prior in use, computed once."""
        size = max(2, round(GRID ** math.floor(math.log(samples) / math.log(GRID))))
        if size not in self._null:
            self._null[size] = self.evidence.null(self.prior, size, self._generator(-size))
        return self._null[size]

    def _fit_p_value(
        self, estimate: Tensor, usable: Tensor, weights: Tensor, generator: torch.Generator
    ) -> float | None:
        """Whether the prior in use or the new one explains the window, as `estimate_target` asks it."""
        known = self.evidence.validation
        if known is None:
            return None
        counts = torch.bincount(known.targets, minlength=len(estimate))
        if float(estimate[counts == 0].sum()) > MOST_UNSEEN:
            return None
        priors = self.prior, usable, estimate
        return best_fit_p_value(self.logits, known.logits, known.targets, priors, generator, weights)

    def _generator(self, number: int) -> torch.Generator:
        """A source of randomness for one purpose, so that nothing of it need be saved."""
        return torch.Generator().manual_seed((1_000_003 * self.settings.seed + number) % 2**63)
