"""Ctrl-C as a request: work stops where nothing is lost."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["Interrupt"]

PATIENCE = 1.0  # seconds within which a further signal is the same Ctrl-C, passed on by another process


class Interrupt:
    """Turns the first Ctrl-C into a request to stop cleanly; a second one stops at once.

    Args:
        then: Called with the first one.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.requested, self.when, self.then = False, 0.0, then
        self.installed = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        if self.installed:
            self.previous = signal.signal(signal.SIGINT, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        if self.installed:
            signal.signal(signal.SIGINT, self.previous)

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
