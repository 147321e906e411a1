"""Several pieces of work on one GPU at once: taken in turn, step by step, each on a CUDA stream of its own.

A small network leaves much of a GPU idle, even when its step is replayed as one graph; several of them fill it.
One thread launches the steps of all: threads that launch for themselves wait for each other in the driver.

Work is a generator. It yields None where another may have its turn, or a function, which is called in a thread
meanwhile, on the same stream (what takes long, or waits for the GPU); what it returns is its result. All of it is done
in `no_capture`, so that nothing it launches can break another one's capture of a CUDA graph.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

import torch

from balpoe.training.cuda_graphs import no_capture
from balpoe.training.launchers import launcher

__all__ = ["TRAININGS_AT_ONCE", "Work", "can_share_a_gpu", "complete", "side_by_side"]

TRAININGS_AT_ONCE = 5  # fill a large GPU

Result = TypeVar("Result")
Work = Generator[Callable[[], object] | None, None, Result]


def can_share_a_gpu(device: str, devices: int) -> bool:
    """Whether a training with these settings takes one CUDA device, so that several of them can share it."""
    return device in ("auto", "cuda") and devices == 1 and launcher() is None and torch.cuda.is_available()


def complete(work: "Work[Result]") -> Result:
    """Do one piece of work to its end and return its result."""
    with closing(work):  # at once: the end of work puts back what it found, such as the state of torch's generator
        while True:
            with no_capture():
                try:
                    aside = next(work)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                if aside is not None:
                    aside()


def side_by_side(works: "Iterable[Work[Result] | None]", at_once: int) -> Iterator[Result]:
    """Do pieces of work, `at_once` of them at a time, and yield their results in the order in which they end.

    The next piece is taken from `works` when there is room for it, so that an iterator can stop giving them, or give
    None where it has none yet: it is asked again after every turn, as long as any work is under way. After an
    error in one, or a Ctrl-C, no more are taken; those that have begun come to their end, and then it is raised.
    """
    waiting, error = iter(works), None
    active: list[_Turn[Result]] = []
    # Made once: torch has 32 streams in all, and gives them out again and again.
    streams = [torch.cuda.Stream() if torch.cuda.is_available() else None for _ in range(at_once)]
    with _closing(active), _short_turns(), ThreadPoolExecutor(at_once) as pool:
        while True:
            while error is None and len(active) < at_once and (work := next(waiting, None)) is not None:
                active.append(_Turn(work, streams.pop()))
            if not active:
                break
            if all(turn.future is not None for turn in active):
                wait([turn.future for turn in active if turn.future], return_when="FIRST_COMPLETED")
            for turn in list(active):
                results = []
                try:
                    if not turn.take(pool):
                        continue
                    results.append(turn.result)
                except BaseException as raised:  # a KeyboardInterrupt is how an interrupted training ends
                    # A real error tells more than the interrupt that came before it.
                    error = raised if error is None or isinstance(error, KeyboardInterrupt) else error
                    turn.work.close()
                active.remove(turn)
                streams.append(turn.stream)
                yield from results
    if error is not None:
        raise error


@contextmanager
def _closing(turns: "list[_Turn[Any]]") -> Iterator[None]:
    """End the work that is under way when its caller wants no more of it, and when nothing of it is done aside."""
    try:
        yield
    finally:
        for turn in turns:
            turn.work.close()


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let a thread that computes in Python (it compiles, say) hold up the one that launches by less than a step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Turn(Generic[Result]):
    """A piece of work under way."""

    result: Result

    def __init__(self, work: "Work[Result]", stream: torch.cuda.Stream | None) -> None:
        self.work, self.stream = work, stream
        self.future: Future[Any] | None = None

    def take(self, pool: ThreadPoolExecutor) -> bool:
        """Go on to the next yield, unless something is being done aside; return whether the work has ended."""
        if self.future is not None:
            if not self.future.done():
                return False
            self.future.result()
            self.future = None
        try:
            with no_capture(), torch.cuda.stream(self.stream):  # None: nothing
                aside = next(self.work)
        except StopIteration as end:
            self.result = end.value
            return True
        if aside is not None:
            self.future = pool.submit(self._do, aside)
        return False

    def _do(self, aside: Callable[[], object]) -> None:
        with no_capture(), torch.cuda.stream(self.stream):
            aside()
