"""Peace while a CUDA graph is recorded: what other threads of the process must not do meanwhile.

Whoever waits for the whole GPU breaks a recording in another thread: cuDNN, say, when it tries its algorithms. So who
may launch something new, beside trainings that record, says so.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["captured", "loading"]

CHANGE = threading.Condition()
LOADERS: list[int] = []
RECORDERS: list[int] = []
FAILED: list[Any] = []


@contextmanager
def loading() -> Iterator[None]:
    """For work that may launch a kernel for the first time: waits while a graph is recorded. Several may be in it."""
    with _entered(LOADERS, not_beside=(RECORDERS,)):
        yield


@contextmanager
def captured(graph: Any, pool: Any) -> Iterator[None]:
    """Record what is launched inside, with memory of a pool, while nobody is `loading`.

    Not `torch.cuda.graph`, which waits for all that the GPU has to do, for other trainings as well. Nor is garbage
    collected meanwhile: another training's graph may be among it, and is not to be freed here. After an error the pool
    is not to be used again: by its sources, torch then takes its host memory for recorded into still.
    """
    with _entered(RECORDERS, not_beside=(LOADERS, RECORDERS)), _no_collection(), _own_workspaces():
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")
            yield
            graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):  # that the recording is invalid, or was not begun; why tells more
                graph.capture_end()
            FAILED.append(graph)  # by its sources, torch goes on asking it which host memory is its own
            _clean_up(pool)
            raise


def _clean_up(pool: Any) -> None:
    """Undo what torch leaves behind where a recording fails.

    It would go on taking memory from the pool, and would draw no more random numbers, which it believes to be recorded
    still. A small recording that succeeds tells it otherwise; failing that, a copy of the generator's state, which
    leaves behind only earlier recordings that draw.
    """
    if not torch.cuda.is_available():
        return
    with suppress(RuntimeError, AttributeError, TypeError):  # a name of torch's own, which may change
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    try:
        graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        graph.capture_begin(capture_error_mode="thread_local")
        place.add_(1)
        graph.capture_end()
    except RuntimeError:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


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
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS take its workspaces from the graph's memory.

    Torch keeps one for each stream, and all graphs are recorded on the same one: trainings side by side would compute
    in the same workspace, and it would be freed with the first of their graphs.
    """
    clear = torch._C._cuda_clearCublasWorkspaces if torch.cuda.is_available() else lambda: None
    clear()
    try:
        yield
    finally:
        clear()


@contextmanager
def _no_collection() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
