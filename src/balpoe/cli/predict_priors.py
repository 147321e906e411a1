"""The prior that predict adjusts an image to: none, one for all, that of its place, or that of the images before it."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from balpoe.cli.track_prior import TrackFlags
from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.prior_tables import PriorTable, unknown_keys_sentence
from balpoe.deployment.prior_tracking import PriorTracker, track_prior
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.model_file import Model
from balpoe.files import write_file
from balpoe.method.ensemble import shift_prior

__all__ = ["Adjustment", "OnePrior", "TablePrior", "TrackedPrior"]

Keys = tuple[str, ...]
NAMED = 3  # classes whose shares a note has


class Adjustment:
    """Logits as trained; those of other classes move them."""

    def __call__(self, logits: Tensor, keys: Sequence[Keys]) -> Tensor:
        """Return logits of images, in their order, under the prior of each.

        Args:
            logits: Calibrated logits, (images, classes).
            keys: Keys of each image, for a table.
        """
        return logits

    def take_counts(self) -> list[Any]:
        """Return what was counted since the last call, as JSON has it, for images that are predicted in parts."""
        return []

    def add_counts(self, counts: list[Any]) -> None:
        """Add what `take_counts` has returned, here or in another process."""

    def finish(self) -> None:
        """Say what there is to say when all images are predicted, and keep what is to be kept."""


class OnePrior(Adjustment):
    """Moves all images to one prior."""

    def __init__(self, target: Tensor, model: Model) -> None:
        self.target, self.source = target, model.source_prior

    def __call__(self, logits: Tensor, keys: Sequence[Keys]) -> Tensor:
        """Return logits under the prior."""
        return shift_prior(logits, self.target, self.source)


class TablePrior(Adjustment):
    """Moves each image to the prior of its keys, and counts the keys that the table lacks."""

    def __init__(self, table: PriorTable, model: Model) -> None:
        self.table, self.source, self.samples = table, model.source_prior, 0
        self.unknown = Counter[Keys]()

    def __call__(self, logits: Tensor, keys: Sequence[Keys]) -> Tensor:
        """Return logits, each under the prior of its keys."""
        matches = self.table.match(keys)
        self.unknown += matches.unknown
        self.samples += len(keys)
        return self.table.adjust(logits, matches.rows, self.source)

    def take_counts(self) -> list[Any]:
        """Return the number of images since the last call, and how many had which keys that the table lacks."""
        counts = [self.samples, list(self.unknown.items())]
        self.samples, self.unknown = 0, Counter()
        return counts

    def add_counts(self, counts: list[Any]) -> None:
        """Add what `take_counts` has returned."""
        samples, unknown = counts
        self.samples += samples
        self.unknown += Counter({tuple(keys): number for keys, number in unknown})

    def finish(self) -> None:
        """Say how the table was read, and which keys it lacks."""
        strengths = ", ".join(f"{each:.3g}" for each in self.table.strengths)
        read = f"counts, each mixed with {strengths} of the wider area" if strengths else "shares, as they are"
        _note(f"the table of priors was read as {read}")
        if self.unknown:
            _note(unknown_keys_sentence(self.unknown, self.samples))


class TrackedPrior(Adjustment):
    """Moves each image to the class mix of those before it, of this command and of earlier ones.

    Args:
        run: The run that the model is of, for its held-out samples.
        model: Model.
        flags: Where the state is kept, and how fast it forgets.
    """

    def __init__(self, run: str, model: Model, flags: TrackFlags) -> None:
        if model.source_prior is None:
            raise UserError("--track-prior cannot adjust logits that are no posterior of a known prior; leave it out")
        self.flags, self.class_names = flags, model.class_names
        self.tracker = self._loaded() if Path(flags.path).exists() else self._new(run, model)

    def __call__(self, logits: Tensor, keys: Sequence[Keys]) -> Tensor:
        """Return logits under the prior as it is before these images, which then have their part in it."""
        adjusted = self.tracker.adjust(logits)
        self.tracker.update(logits)
        return adjusted

    def finish(self) -> None:
        """Keep the state, draw it, and say what it has come to."""
        tracker = self.tracker
        tracker.save(self.flags.path)
        if not tracker.history:
            _note(f"{tracker.seen:,} images are too few for a first look at their class mix; the prior stays as it is")
            return
        from matplotlib.figure import Figure

        from balpoe.report.drawing import figure_bytes
        from balpoe.report.prior_tracking import plot_tracked_prior

        def draw(figure: Figure) -> None:
            plot_tracked_prior(tracker.history, self.class_names, figure.subplots(), x="images")

        write_file(self.flags.plot, lambda stream: stream.write(figure_bytes(draw, (7.0, 4.0), "png")))
        largest = tracker.prior.argsort(descending=True, stable=True)[:NAMED].tolist()
        shares = ", ".join(f"{self.class_names[label]} {100 * tracker.prior[label]:.1f} %" for label in largest)
        _note(f"after {tracker.seen:,} images the prior in use is {shares}, ...; {self.flags.plot} has its course")

    def _new(self, run: str, model: Model) -> PriorTracker:
        assert self.flags.half_life is not None  # the flags say so
        return track_prior(model.source_prior, half_life=self.flags.half_life, validation=_validation(run))

    def _loaded(self) -> PriorTracker:
        path, half_life, tracker = self.flags.path, self.flags.half_life, PriorTracker.load(self.flags.path)
        if len(tracker.prior) != len(self.class_names) or tracker.settings.in_time:
            raise UserError(f"{path} is not the state of images of this model's {len(self.class_names)} classes")
        if half_life not in (None, tracker.settings.half_life):
            raise UserError(
                f"{path} has a half-life of {tracker.settings.half_life:g}; leave out --half-life, or give another file"
            )
        return tracker


def _validation(run: str) -> Predictions | None:
    """What the run's own network said of samples outside of its training; others would move the estimate."""
    try:
        held_out = HeldOut.of_run(run)
    except UserError:
        held_out = None
    if held_out is None or held_out.cross_fitted:
        _note("the run has no held-out samples of its own network, so that nothing checks the prior that is tracked")
        return None
    return held_out.predictions


def _note(sentence: str) -> None:
    print(f"balpoe: note: {sentence}", file=sys.stderr)
