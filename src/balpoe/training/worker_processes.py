"""Several pieces of work at once on a CPU: each in a process of its own, with its share of the threads.

A step on features is too short to be split well between threads. As many trainings as there are cores, with a thread
each, end earlier than one after the other with all threads; and torch's one generator is each training's own.
"""

import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from balpoe.errors import UserError, show_warning

__all__ = ["MOST_PROCESSES", "Request", "Task", "in_processes"]

MOST_PROCESSES = 8  # of half a gigabyte each, and the data
GLANCE = 0.2  # seconds between two looks at whether to stop


class Request(Protocol):
    """A request to stop, such as an `Interrupt`."""

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        ...


Task = Callable[[Request], Any]
"""Work that can be pickled, as can what it returns; called with the request that may end it early."""


def in_processes(tasks: Iterable[Task], at_once: int, threads: int, interrupt: Request) -> Iterator[Any]:
    """Do tasks, `at_once` of them at a time, in processes; yield what they return in the order in which they end.

    The next task is taken when there is room for it, so that an iterator can stop giving them. A request to stop is
    passed on, and it is up to the tasks to end. An error in one of them, which it is to catch if it is expected, stops
    the others. Scripts that get here want to be guarded with `__main__`: processes are spawned.

    Args:
        tasks: Work to do.
        at_once: Largest number of processes, which are kept for further tasks.
        threads: Number of torch's threads in each.
        interrupt: Request to stop, of this process.
    """
    context = multiprocessing.get_context("spawn")
    stop, waiting = context.Event(), iter(tasks)
    free: list[_Worker] = []
    busy: dict[Any, _Worker] = {}
    try:
        while True:
            while len(busy) < at_once and (task := next(waiting, None)) is not None:
                worker = free.pop() if free else _Worker(context, stop, threads)
                worker.pipe.send(task)
                busy[worker.pipe] = worker
            if not busy:
                return
            for pipe in wait(list(busy), timeout=GLANCE):
                answer = busy[pipe].answer()
                free.append(busy.pop(pipe))
                yield answer
            if interrupt.requested:  # not by the interrupt itself: an event's lock may be held where a signal comes
                stop.set()
    except KeyboardInterrupt:  # a second Ctrl-C
        for worker in busy.values():
            worker.process.kill()
        raise
    finally:
        stop.set()
        for worker in (*free, *busy.values()):
            worker.end()


class _Worker:
    """A process that does one task after the other."""

    def __init__(self, context: Any, stop: Any, threads: int) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, stop, threads))
        self.process.start()
        theirs.close()  # so that its end is noticed here

    def answer(self) -> Any:
        """Return what the task has returned."""
        try:
            result, error = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise UserError(
                f"a process that trains ended with exit code {self.process.exitcode}, perhaps for want of memory; "
                "--threads 1 trains one after the other"
            ) from None
        if error:
            raise RuntimeError(f"in a process that trains: {error}")
        return result

    def end(self) -> None:
        """Let it end, after the task that it is at."""
        self.pipe.close()
        self.process.join()


class _Stop:
    """The request to stop in a worker: the first process's, or that process's end."""

    def __init__(self, event: Any) -> None:
        self.event, self.parent = event, multiprocessing.parent_process()

    @property
    def requested(self) -> bool:
        return self.event.is_set() or not (self.parent is None or self.parent.is_alive())


def _serve(pipe: "Connection[Any, Any]", event: Any, threads: int) -> None:
    """Do the tasks that come, until no more can come."""
    import torch

    warnings.showwarning = show_warning
    for each in (signal.SIGINT, signal.SIGTERM):  # may reach all processes; the first one passes them on
        signal.signal(each, signal.SIG_IGN)
    torch.set_num_threads(threads)
    stop = _Stop(event)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, str]
        try:
            answer = task(stop), ""
        except BaseException:
            answer = None, traceback.format_exc()
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
