"""Peace while a CUDA graph is recorded: what other threads of the process must not do meanwhile.

A kernel that is launched for the first time is loaded first, and to load one breaks a recording in another thread, and
is itself refused. So whoever may launch something new, beside trainings that record their steps, says so.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["captured", "loading"]

CHANGE = threading.Condition()
LOADERS: list[int] = []
RECORDERS: list[int] = []


@contextmanager
def loading() -> Iterator[None]:
    """For work that may launch a kernel for the first time: waits while a graph is recorded. Several may be in it."""
    with _entered(LOADERS, not_beside=(RECORDERS,)):
        yield


@contextmanager
def captured(graph: Any, pool: Any) -> Iterator[None]:
    """Record what is launched inside, while nobody is `loading`.

    Not `torch.cuda.graph`, which waits for all that the GPU has to do, for other trainings as well. Nor is garbage
    collected meanwhile: another training's graph may be among it, and is not to be freed here.
    """
    with _entered(RECORDERS, not_beside=(LOADERS, RECORDERS)), _no_collection():
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # that the recording is invalid; why it is tells more
                graph.capture_end()
            raise
        graph.capture_end()


@contextmanager
def _entered(place: list[int], not_beside: tuple[list[int], ...]) -> Iterator[None]:
    with CHANGE:
        CHANGE.wait_for(lambda: not any(not_beside))
        place.append(threading.get_ident())
    try:
        yield
    finally:
        with CHANGE:
            place.remove(threading.get_ident())
            CHANGE.notify_all()


@contextmanager
def _no_collection() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
