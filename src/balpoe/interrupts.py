"""Ctrl-C as a request: work stops where nothing is lost."""

import signal
import threading
from types import FrameType

__all__ = ["Interrupt"]


class Interrupt:
    """Turns the first Ctrl-C into a request to stop cleanly; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.installed = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        if self.installed:
            self.previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        if self.installed:
            signal.signal(signal.SIGINT, self.previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
