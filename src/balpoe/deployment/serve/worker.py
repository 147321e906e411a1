"""A process that works for the server, and is replaced when it dies.

The network and all decoding of strangers' images happen in such processes: whatever kills one (a crash in native code,
the kernel when memory runs out, somebody's `kill -9`), the server lives on, and with it the requests that it accepted.
"""

import atexit
import contextlib
import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from balpoe.errors import UserError

__all__ = ["Make", "Worker", "WorkerDiedError", "start_early"]

Make = Callable[..., Callable[[Any], Any]]
WAITS = (0.0, 0.1, 1.0, 2.0, 5.0)
"""Seconds until the next start, after so many that failed; a process that was ready once is replaced at once."""
GOODBYE = 5.0  # seconds for a process to end by itself
PRELOADED = "balpoe.deployment.serve.workers"


class WorkerDiedError(Exception):
    """The process died, or had to be ended, before it answered; another one is there already."""


class _Failed(NamedTuple):
    """What a process answers when its work raised an error; the error itself is in its log."""

    kind: str


class _Life(NamedTuple):
    process: BaseProcess
    connection: "Connection[Any, Any]"


class Worker:
    """Work that is done by a process of its own, one task at a time.

    Args:
        make: Function of a module, called in the process, that returns what does the work.
        arguments: What it is called with.
        seconds: Time of a task; then the process is taken for dead.
    """

    def __init__(self, make: Make, arguments: Sequence[Any], seconds: float) -> None:
        self.make, self.arguments, self.seconds = make, tuple(arguments), seconds
        self.alive = False
        """Whether the process is there, and ready."""
        self.deaths = 0
        """How many processes died."""
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._life: _Life | None = None

    def start(self) -> None:
        """Start the process, wait until it is ready, and replace it from then on; raise what is wrong with its task."""
        atexit.register(self.close)  # or the end of this process would wait for that one
        with self._lock:
            self._begin(first=True)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def __call__(self, task: Any) -> Any:
        """Return what the work makes of a task; from any thread, which waits for its turn."""
        with self._lock:
            life = self._life
            if life is None:  # it was closed, and no other could be started
                raise WorkerDiedError
            try:
                life.connection.send(task)
                if not life.connection.poll(self.seconds):
                    raise TimeoutError  # which is an OSError
                answer = life.connection.recv()
            except (EOFError, OSError):
                self._replace()
                raise WorkerDiedError from None
        if isinstance(answer, _Failed):
            raise RuntimeError(f"a worker failed with {answer.kind}")
        return answer

    def stop_replacing(self) -> None:
        """Let no further process be started, though somebody waits for one."""
        self._closing.set()

    def close(self) -> None:
        """End the process, after its task."""
        self.stop_replacing()
        with self._lock:
            self._end(GOODBYE)
        atexit.unregister(self.close)

    def _watch(self) -> None:
        """Replace a process that dies while it has nothing to do."""
        while True:
            with self._lock:
                life = self._life
            if life is None:
                return
            wait([life.process.sentinel])  # unlike join() it leaves the exit code to whoever ends this life
            with self._lock:
                if self._life is life and not self._closing.is_set():
                    self._replace()

    def _replace(self) -> None:
        life, self.deaths = self._life, self.deaths + 1
        self._end(0.0)
        code = None if life is None else life.process.exitcode
        _say(f"a worker died (exit code {code}); another starts")
        self._begin()

    def _begin(self, first: bool = False) -> None:
        """Start processes until one is ready, or the server stops."""
        failures = 0
        while not self._closing.is_set():
            try:
                self._life = _started(self.make, self.arguments)
            except UserError as error:
                if first:
                    raise
                _say(str(error))
            if self._life is not None:
                self.alive = True
                return
            failures += 1
            self._closing.wait(WAITS[min(failures, len(WAITS) - 1)])

    def _end(self, seconds: float) -> None:
        life, self._life, self.alive = self._life, None, False
        if life is None:
            return
        life.connection.close()  # at which it ends by itself
        life.process.join(seconds)
        if life.process.exitcode is None:
            life.process.kill()
            life.process.join()


def _say(sentence: str) -> None:
    print(f"balpoe: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 (this process has a command line's voice)


def start_early() -> None:
    """Begin to import what workers need, in the process that they are forked from, while this one does other things."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        resource_tracker.ensure_running()  # it would lift the block
        with _unheard():
            forkserver.ensure_running()


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Let signals wait, for ever in what is started here: who sends one to all processes means the server alone."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context() -> BaseContext:
    """Where workers come from: a process that has imported all they need, so that a new one is there at once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def _started(make: Make, arguments: tuple[Any, ...]) -> _Life | None:
    """A process that is ready; None if it died before. Raises what it says is wrong with what it was told."""
    context: Any = _context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, make, arguments), name="balpoe-worker")
    with contextlib.suppress(EOFError, OSError):
        with _unheard():
            process.start()
        theirs.close()  # so that its death is heard
        mistake = ours.recv()
        if mistake is None:
            return _Life(process, ours)
        process.join()
        ours.close()
        raise mistake
    theirs.close()
    ours.close()
    return None


def _work(connection: "Connection[Any, Any]", make: Make, arguments: tuple[Any, ...]) -> None:
    """The life of a process: say that it is ready, and work until its parent closes the connection, or dies."""
    for each in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes: the parent says when to end
        signal.signal(each, signal.SIG_IGN)
    try:
        work = make(*arguments)
    except UserError as error:
        connection.send(UserError(str(error)))
        return
    connection.send(None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            try:
                answer = work(task)
            except Exception as error:
                traceback.print_exc()
                answer = _Failed(type(error).__name__)
            connection.send(answer)
