"""The trainings of a comparison: side by side where the machine allows it, as long as there is time."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from balpoe.baselines.catalogue import METHODS
from balpoe.errors import UserError
from balpoe.experiments.build import assemble
from balpoe.experiments.recipe import FOR_FEATURES, Recipe, updated
from balpoe.experiments.run_folder import Run, train_run_by_step
from balpoe.training.concurrent import TRAININGS_AT_ONCE, Work, can_share_a_gpu, complete, side_by_side
from balpoe.training.distributed import chosen_device
from balpoe.training.interrupts import Interrupt, time_limit
from balpoe.training.launchers import in_one_process
from balpoe.training.worker_processes import MOST_PROCESSES, Request, in_processes

__all__ = ["Budget", "Ended", "Job", "processes_at_once", "train_jobs"]


class Job(NamedTuple):
    """A training to be done."""

    recipe: Recipe
    folder: Path

    @property
    def label(self) -> str:
        """What lines and lists call it."""
        return f"{self.recipe.title}, seed {self.recipe.seed}"

    @property
    def done(self) -> bool:
        """Whether it is trained, calibrated and measured."""
        return Run(self.folder).finished


class Ended(NamedTuple):
    """A training that came to an end."""

    job: Job
    failure: str = ""
    """What went wrong."""
    stopped: str = ""
    """Where it stopped, if it was asked to; it goes on from there next time."""


class Budget:
    """The time that is left.

    Args:
        minutes: Time from now on.
    """

    def __init__(self, minutes: float) -> None:
        self.started, self.seconds = time.monotonic(), 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds - self.spent


def train_jobs(
    out: Console, jobs: Sequence[Job], budget: Budget, *, fresh: bool, line: Callable[[Run], str]
) -> dict[Path, str]:
    """Train what is not finished, and print a line about each; return what went wrong, by folder.

    When the time is over, trainings under way keep what they have, and go on from there next time.

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
    with Interrupt() as interrupt, time_limit(budget.left, interrupt):
        for job, failure, stopped in _ended(out, waiting, budget, fresh, interrupt):
            if failure:
                failed[job.folder] = failure
            done += not stopped
            what = f"stopped in {stopped}, goes on next time" if stopped else failure or line(Run(job.folder))
            out.print(f"{budget.spent / 60:6.1f} min  {done} of {len(jobs)}: {job.label}: {what}")
    if interrupt.requested and budget.left > 0:
        raise KeyboardInterrupt(f"training {done + 1} of {len(jobs)}")  # somebody's
    return failed


def _ended(out: Console, waiting: Sequence[Job], budget: Budget, fresh: bool, interrupt: Interrupt) -> Iterator[Ended]:
    """Do the trainings in the way that suits machine and recipe; yield them in the order in which they end."""
    if not waiting:
        return
    recipe = waiting[0].recipe
    in_time = _in_time(waiting, budget, interrupt)
    processes, threads = processes_at_once([job.recipe for job in waiting])
    if processes > 1:
        out.print(f"{processes} trainings at once, each in a process of its own")
        if recipe.tune == "head":
            assemble(recipe, progress=True)  # features are computed once, here, and read there
        tasks = (functools.partial(_train, _with_threads(job, threads), fresh) for job in in_time)
        yield from in_processes(tasks, processes, threads, interrupt)
        return
    # Several processes for one training have their own interrupts, and no use for ours.
    ours = interrupt if in_one_process(recipe.devices, recipe.num_nodes) else None
    works = (_work(job, fresh, ours) for job in in_time)
    sharing = can_share_a_gpu(recipe.device, recipe.devices)
    yield from side_by_side(works, TRAININGS_AT_ONCE) if sharing else map(complete, works)


def _in_time(jobs: Sequence[Job], budget: Budget, interrupt: Interrupt) -> Iterator[Job]:
    """The trainings that begin while there is time, each when there is room for it."""
    for job in jobs:
        if budget.left <= 0 or interrupt.requested:
            return
        yield job


def processes_at_once(recipes: Sequence[Recipe]) -> tuple[int, int]:
    """Return how many trainings to do at once in processes of their own, and the threads of each.

    It is one on a GPU, and for networks of whole images, whose steps are long enough to be split between threads.

    Args:
        recipes: What is to be trained.
    """
    first = recipes[0]
    threads = first.threads or torch.get_num_threads()
    features = first.tune == "head" or first.network in FOR_FEATURES
    alone = in_one_process(first.devices, first.num_nodes)
    known = all(isinstance(METHODS[recipe.method].parts, str) for recipe in recipes)  # a process of its own finds it
    if not (features and alone and known and chosen_device(first.device) == "cpu"):
        return 1, threads
    processes = min(threads, MOST_PROCESSES, len(recipes))
    return processes, threads // processes


def _with_threads(job: Job, threads: int) -> Job:
    """The same training with its share of the threads that were asked for."""
    return job._replace(recipe=updated(job.recipe, {"threads": threads})) if job.recipe.threads else job


def _train(job: Job, fresh: bool, stop: Request) -> Ended:
    """Do one training in this process, without a word."""
    return complete(_work(job, fresh, stop, progress=False))


def _work(job: Job, fresh: bool, stop: Request | None, progress: bool = True) -> "Work[Ended]":
    """Do one training; what is wrong with it is no reason to leave out the others."""
    try:
        yield from train_run_by_step(
            job.recipe, job.folder, fresh=fresh, progress=progress, interrupt=stop, look_longer=False
        )
    except UserError as error:
        return Ended(job, failure=str(error))
    except KeyboardInterrupt as end:
        if stop is None or not stop.requested:
            raise
        return Ended(job, stopped=str(end) or "between")
    return Ended(job)
