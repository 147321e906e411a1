"""The trainings of a comparison: side by side on a GPU, one after the other elsewhere, as long as there is time."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console

from balpoe.errors import UserError
from balpoe.experiments.held_out_scores import is_judged, train_judged_by_step
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run
from balpoe.files import read_text
from balpoe.training.concurrent import TRAININGS_AT_ONCE, Work, can_share_a_gpu, complete, side_by_side
from balpoe.training.interrupts import Interrupt

__all__ = ["Budget", "Job", "train_jobs"]


class Job(NamedTuple):
    """A training to be done."""

    recipe: Recipe
    folder: Path
    posterior: bool = True
    """Whether the method's scores are posteriors."""

    @property
    def label(self) -> str:
        """What lines and lists call it."""
        return f"{self.recipe.title}, seed {self.recipe.seed}"

    @property
    def done(self) -> bool:
        """Whether it is trained, calibrated and measured."""
        return is_judged(self.recipe, self.folder)


class Budget:
    """The time that is left, and how long a training is expected to take: as long as others of its method took.

    Args:
        minutes: Time from now on.
        folder: Folder in which durations are kept, for the next command.
    """

    def __init__(self, minutes: float, folder: Path) -> None:
        self.started, self.seconds, self.file = time.monotonic(), 60 * minutes, folder / "durations.jsonl"
        lines = read_text(self.file).splitlines() if self.file.exists() else []
        self.durations: list[tuple[str, float]] = [tuple(json.loads(line)) for line in lines]

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def fits(self, method: str) -> bool:
        """Return whether a training of a method is expected to end in time; nothing is known before the first."""
        return self.spent + self.expected(method) <= self.seconds

    def expected(self, method: str) -> float:
        """Return the mean time of the method's trainings, or of all before its first, in seconds."""
        own = [seconds for name, seconds in self.durations if name == method]
        others = [seconds for _, seconds in self.durations]
        return fmean(own or others or [0.0])

    def add(self, method: str, seconds: float) -> None:
        """Remember how long a training took."""
        self.durations.append((method, seconds))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps([method, round(seconds, 3)]) + "\n")


def train_jobs(
    out: Console, jobs: Sequence[Job], budget: Budget, *, fresh: bool, line: Callable[[Run], str]
) -> dict[Path, str]:
    """Train what is not finished, and print a line about each; return what went wrong, by folder.

    Args:
        out: Console to print on.
        jobs: Trainings, the first ones first.
        budget: Time that is left.
        fresh: Whether to train anew.
        line: From a finished run to what is printed about it.
    """
    waiting = [job for job in jobs if fresh or not job.done]
    if done := len(jobs) - len(waiting):
        out.print(f"{done} of {len(jobs)} trainings are finished already")
    failed: dict[Path, str] = {}
    if not waiting:
        return failed
    sharing = can_share_a_gpu(jobs[0].recipe.device, jobs[0].recipe.devices)
    with Interrupt() if sharing else nullcontext() as interrupt:  # a training by itself has one of its own
        works = (_work(job, budget, failed, fresh, interrupt) for job in _in_time(waiting, budget))
        ended = side_by_side(works, TRAININGS_AT_ONCE) if sharing else map(complete, works)
        for job in ended:
            what = failed.get(job.folder) or line(Run(job.folder))
            out.print(f"{budget.spent / 60:6.1f} min  {job.label}: {what}")
    return failed


def _in_time(jobs: Sequence[Job], budget: Budget) -> Iterator[Job]:
    """The trainings that are expected to end in time, each when there is room for it."""
    return (job for job in jobs if budget.fits(job.recipe.method))


def _work(job: Job, budget: Budget, failed: dict[Path, str], fresh: bool, interrupt: Interrupt | None) -> "Work[Job]":
    """Do one training; what is wrong with it is no reason to leave out the others."""
    begun = time.monotonic()
    try:
        yield from train_judged_by_step(
            job.recipe, job.folder, fresh=fresh, interrupt=interrupt, posterior=job.posterior
        )
        budget.add(job.recipe.method, time.monotonic() - begun)
    except UserError as error:
        failed[job.folder] = str(error)
    return job
