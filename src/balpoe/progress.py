"""What a long training shows: a bar on a terminal, plain lines elsewhere, nothing when not wanted."""

import functools
import shutil
import sys
import time
from types import TracebackType

__all__ = ["CountProgress", "TrainingProgress"]

SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Epoch, loss, learning rate, samples per second and time left, on standard error.

    Args:
        label: What is trained, such as a run's name.
        epochs: Number of epochs.
        samples: Number of samples of an epoch.
        done: Number of samples that an earlier, interrupted call has seen.
        show: Whether to show anything.
        passes: Number of passes over the data; by default one for each epoch.
    """

    def __init__(
        self, label: str, epochs: int, samples: int, done: int = 0, show: bool = True, passes: int = 0
    ) -> None:
        # On a narrow terminal the numbers matter more than the whole name.
        label = label.rpartition("/")[2] if shutil.get_terminal_size().columns < 110 else label
        self.label, self.epochs, self.total = label, epochs, (passes or epochs) * samples
        self.samples, self.seen, self.before = samples, done, done
        show = show and sys.stderr is not None  # closed by the caller
        self.show, self.loss, self.lr = show, float("nan"), 0.0
        self.started = self.printed = time.monotonic()
        self.bar = _shared_bar() if show and sys.stderr.isatty() else None

    def __enter__(self) -> "TrainingProgress":
        if self.bar is not None:
            self.bar.start()  # does nothing if another training has started it
            self.task = self.bar.add_task(self.label, total=self.total, completed=self.seen, status="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.remove_task(self.task)
            if not self.bar.tasks:
                self.bar.stop()

    def advance(self, samples: int, lr: float) -> None:
        """Count the samples of a batch; reads nothing from the device."""
        self.seen, self.lr = self.seen + samples, lr
        if self.bar is not None:
            self.bar.update(self.task, completed=self.seen, status=self.status())
        elif self.show and time.monotonic() - self.printed > SECONDS_BETWEEN_LINES:
            self.print_line()

    def end_epoch(self, loss: float) -> None:
        """Take note of an epoch's mean loss."""
        self.loss = loss
        if self.show and self.bar is None and self.seen >= self.total:
            self.print_line()

    def status(self) -> str:
        """Return the numbers as text."""
        epoch = min(self.seen // self.samples + 1, self.epochs)
        rate = (self.seen - self.before) / max(time.monotonic() - self.started, 1e-9)
        left = (self.total - self.seen) / max(rate, 1e-9)
        loss = "loss -" if self.loss != self.loss else f"loss {self.loss:.4f}"
        return f"epoch {epoch}/{self.epochs} {loss} lr {self.lr:.3g} {rate:,.0f} samples/s {_clock(left)} left"

    def print_line(self) -> None:
        """Print one plain line."""
        self.printed = time.monotonic()
        print(f"{self.label}  {self.status()}", file=sys.stderr, flush=True)


class CountProgress:
    """How many of so many things are done, on standard error; called with the number of those done since.

    Args:
        label: What is done with them.
        total: Number of things; 0 if nobody knows.
        show: Whether to show anything.
    """

    def __init__(self, label: str, total: int, show: bool = True) -> None:
        self.label, self.total, self.done = label, total, 0
        self.show = show and sys.stderr is not None
        self.started = self.printed = time.monotonic()
        self.bar = _shared_bar() if self.show and sys.stderr.isatty() else None

    def __enter__(self) -> "CountProgress":
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.total or None, status="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (f"{self.label}, {self.done:,}" + (f" of {self.total:,}" if self.total else ""),)
        if self.bar is not None:
            self.bar.remove_task(self.task)
            if not self.bar.tasks:
                self.bar.stop()

    def __call__(self, number: int) -> None:
        """Count some more."""
        self.reach(self.done + number)

    def reach(self, done: int) -> None:
        """Take note that so many are done."""
        self.done = done
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, status=self.status())
        elif self.show and time.monotonic() - self.printed > SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            print(f"{self.label}  {self.status()}", file=sys.stderr, flush=True)

    def status(self) -> str:
        """Return the numbers as text."""
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        if not self.total:
            return f"{self.done:,}, {rate:,.0f}/s"
        left = _clock((self.total - self.done) / max(rate, 1e-9))
        return f"{self.done:,} of {self.total:,}, {rate:,.0f}/s, {left} left"


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@functools.cache
def _shared_bar():  # type: ignore[no-untyped-def]  # rich is imported when a bar is wanted
    """One display for all trainings of this process, a line for each."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[status]}"))
    return Progress(*columns, console=Console(stderr=True), transient=True)
