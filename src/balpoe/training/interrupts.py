"""Ctrl-C and SIGTERM as requests: work stops where nothing is lost."""

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from balpoe.training.launchers import launcher

__all__ = ["Interrupt", "sigterm_as_interrupt", "time_limit"]

PATIENCE = 1.0  # seconds within which a further signal is the same Ctrl-C, passed on by another process


class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a request to stop cleanly; a second one stops at once.

    Args:
        then: Called with the first one.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.requested, self.when, self.then = False, 0.0, then
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGINT, signal.SIGTERM) if _alone() else (signal.SIGINT,)
            self.previous = {each: signal.signal(each, self._signalled) for each in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self.previous.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def request(self) -> None:
        """Ask for a stop, as a Ctrl-C does."""
        if not self.requested:
            self.requested, self.when = True, time.monotonic()
            if self.then is not None:
                self.then()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.requested and time.monotonic() - self.when > PATIENCE:
            raise KeyboardInterrupt
        self.request()


@contextlib.contextmanager
def time_limit(seconds: float, interrupt: Interrupt) -> Iterator[None]:
    """Ask for a stop when some seconds have passed; never, if they are infinite.

    Args:
        seconds: Seconds from now on.
        interrupt: Interrupt that is requested then.

    >>> interrupt = Interrupt()
    >>> with time_limit(0.0, interrupt):
    ...     time.sleep(0.2)
    >>> interrupt.requested
    True
    """
    timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), interrupt.request)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, by which a system or a batch queue ends a process, be a Ctrl-C: what is kept at one is kept."""
    ours = threading.current_thread() is threading.main_thread() and _alone()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _alone() -> bool:
    """Whether nobody ends this process by SIGTERM because another one of the same training has failed."""
    return multiprocessing.parent_process() is None and launcher() is None
