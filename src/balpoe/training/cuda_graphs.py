"""Quiet while a CUDA graph is captured: what other threads of the process must not do meanwhile.

Whoever waits for the whole GPU breaks a capture in another thread, and the first launch of anything may do so: cuDNN,
say, when it tries its algorithms. So all work of `concurrent` is done in `no_capture()`, of which several threads may
be in at once, and a thread that captures steps out of it and waits for the others.
"""

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from balpoe.private_apis import clear_cublas_workspaces, leave_memory_pool

__all__ = ["captured", "no_capture", "outside_no_capture"]

CHANGE = threading.Condition()
AT_WORK: Counter[int] = Counter()  # threads in `no_capture`, and how often each has entered
WAITING: list[int] = []  # threads that want to capture
CAPTURING: list[int] = []
FAILED: list[Any] = []


@contextmanager
def no_capture() -> Iterator[None]:
    """Let no graph be captured meanwhile; waits for the end of a capture. Several threads may be in it."""
    _go_to_work(1)
    try:
        yield
    finally:
        _leave_work(1)


@contextmanager
def outside_no_capture() -> Iterator[None]:
    """Let graphs be captured, as far as this thread is concerned, which may be in `no_capture`.

    Also for long work on the CPU alone, for which captures need not wait.
    """
    times = AT_WORK[threading.get_ident()]
    _leave_work(times)
    try:
        yield
    finally:
        _go_to_work(times)


@contextmanager
def captured(graph: Any, pool: Any) -> Iterator[None]:
    """Capture what is launched inside, with memory of a pool, while nobody is in `no_capture`.

    Not `torch.cuda.graph`, which waits for all that the GPU has to do, for other trainings as well. Nor is garbage
    collected meanwhile: another training's graph may be among it, and is not to be freed here. After an error the pool
    is not to be used again: by its sources, torch then takes its host memory for captured into still.
    """
    with outside_no_capture(), _alone(), _no_collection(), _own_workspaces():
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")
            yield
            graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):  # that the capture is invalid, or was not begun; why tells more
                graph.capture_end()
            FAILED.append(graph)  # by its sources, torch goes on asking it which host memory is its own
            _clean_up(pool)
            raise


def _go_to_work(times: int) -> None:
    if times:
        with CHANGE:
            CHANGE.wait_for(_may_go_to_work)
            AT_WORK[threading.get_ident()] += times


def _may_go_to_work() -> bool:
    """Whether no capture is under way, nor one about to begin, which turn after turn of others would keep from it."""
    if AT_WORK[threading.get_ident()]:
        return True  # whoever captures waits for this thread
    return not CAPTURING and (not WAITING or any(AT_WORK.values()))


def _leave_work(times: int) -> None:
    if times:
        with CHANGE:
            AT_WORK[threading.get_ident()] -= times
            CHANGE.notify_all()


@contextmanager
def _alone() -> Iterator[None]:
    with CHANGE:
        WAITING.append(threading.get_ident())
        try:
            CHANGE.wait_for(lambda: not CAPTURING and not any(AT_WORK.values()))
        finally:
            WAITING.remove(threading.get_ident())
        CAPTURING.append(threading.get_ident())
    try:
        yield
    finally:
        with CHANGE:
            CAPTURING.remove(threading.get_ident())
            CHANGE.notify_all()


def _clean_up(pool: Any) -> None:
    """Undo what torch leaves behind where a capture fails.

    It would go on taking memory from the pool, and would draw no more random numbers, which it believes to be captured
    still. A small capture that succeeds tells it otherwise; failing that, a copy of the generator's state, which
    leaves behind only earlier captures that draw.
    """
    if not torch.cuda.is_available():
        return
    leave_memory_pool(pool)
    try:
        graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        graph.capture_begin(capture_error_mode="thread_local")
        place.add_(1)
        graph.capture_end()
    except RuntimeError:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS take its workspaces from the graph's memory.

    Torch keeps one for each stream, and all graphs are captured on the same one: concurrent trainings would compute in
    the same workspace, and it would be freed with the first of their graphs.
    """
    clear_cublas_workspaces()
    try:
        yield
    finally:
        clear_cublas_workspaces()


@contextmanager
def _no_collection() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
