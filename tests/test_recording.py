"""Who waits for whom while a graph is recorded."""

import gc
import threading

import pytest

from balpoe.recording import LOADERS, RECORDERS, captured, loading


class Graph:
    """Notes what is asked of it."""

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def capture_begin(self, pool, capture_error_mode):
        self.calls.append((pool, capture_error_mode))

    def capture_end(self):
        self.calls.append("end")
        if self.error:
            raise self.error


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_recording_waits_for_all_that_load_and_they_for_it():
    order, loaded, recorded = [], threading.Event(), threading.Event()

    def record():
        with captured(Graph(), None):
            order.append("records")
            recorded.set()
            late = in_thread(load_late)
            late.join(0.05)
            order.append("recorded")
        late.join()

    def load_late():
        with loading():
            order.append("late")

    with loading(), loading():  # two at once
        thread = in_thread(record)
        assert not recorded.wait(0.05)
        order.append("loaded")
        loaded.set()
    thread.join()
    assert order == ["loaded", "records", "recorded", "late"]
    assert LOADERS == RECORDERS == []


def test_one_recording_at_a_time():
    inside, most = [], []

    def record():
        with captured(Graph(), None):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.01)
            inside.pop()

    threads = [in_thread(record) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_nothing_is_collected_meanwhile():
    assert gc.isenabled()
    with captured(Graph(), "pool"):
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with captured(Graph(), "pool"):
        pass
    assert not gc.isenabled()  # as its owner has it
    gc.enable()


def test_the_first_error_is_told():
    graph = Graph(RuntimeError("operation failed due to a previous error during capture"))
    with pytest.raises(ValueError, match="the cause"), captured(graph, None):
        raise ValueError("the cause")
    assert graph.calls == [(None, "thread_local"), "end"]
    with pytest.raises(RuntimeError, match="previous error"), captured(graph, None):
        pass
    assert gc.isenabled()
    assert LOADERS == RECORDERS == []
