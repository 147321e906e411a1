"""Memory that a process holds of its own: mapped files are not in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 0.005  # from one look to the next


def own_mebibytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


@contextmanager
def watched() -> Iterator[list[float]]:
    """Mebibytes: those held before the block, and those at each look during it."""
    seen, done = [own_mebibytes()], threading.Event()

    def watch() -> None:
        while not done.wait(SECONDS):
            seen.append(own_mebibytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
