"""Who waits for whom while a graph is captured."""

import gc
import threading

import pytest
import torch

from balpoe.training.cuda_graphs import AT_WORK, CAPTURING, WAITING, captured, no_capture, outside_no_capture


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


class Unwilling(Graph):
    """Does not begin."""

    def capture_begin(self, pool, capture_error_mode):
        raise RuntimeError("the stream is busy")


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_capture_waits_for_all_that_load_and_they_for_it():
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
        with no_capture():
            order.append("late")

    with no_capture(), no_capture():  # two at once
        thread = in_thread(record)
        assert not recorded.wait(0.05)
        order.append("loaded")
        loaded.set()
    thread.join()
    assert order == ["loaded", "records", "recorded", "late"]
    assert WAITING == CAPTURING == []
    assert not any(AT_WORK.values())


def test_one_capture_at_a_time():
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


def test_a_thread_at_work_can_capture_itself():
    """It steps out of its own work, however deep, and is back in it afterwards."""
    with no_capture(), no_capture():
        with captured(Graph(), None):
            assert not any(AT_WORK.values())
        assert AT_WORK[threading.get_ident()] == 2
        with outside_no_capture():
            assert AT_WORK[threading.get_ident()] == 0
    assert not any(AT_WORK.values())


def test_turns_without_end_do_not_keep_a_capture_waiting():
    """One that goes to work again and again lets a capture begin, but does not wait for long work of others."""
    done, turns, late = threading.Event(), [0], []

    def take_turns():
        while not done.is_set():
            with no_capture():
                turns[0] += 1

    def capture():
        with captured(Graph(), None):
            late.append(turns[0])
            threading.Event().wait(0.02)
            late.append(turns[0])

    worker = in_thread(take_turns)
    with no_capture():
        waiting = in_thread(capture)
        before = turns[0]
        while turns[0] < before + 1000:  # turns go on beside the long work
            threading.Event().wait(0.001)
        assert not late
    waiting.join(10)
    assert not waiting.is_alive()
    assert late[0] == late[1]  # nobody is at work while it captures
    done.set()
    worker.join()


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
    with pytest.raises(RuntimeError, match="busy"), captured(Unwilling(graph.error), None):
        raise AssertionError("nothing is done where no capture has begun")
    assert gc.isenabled()
    assert WAITING == CAPTURING == []
    assert not any(AT_WORK.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_capture_that_failed_leaves_nothing_behind():
    """Earlier captures draw on, torch draws again, and the next capture succeeds, with other memory."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    drawn, place = torch.zeros(4, device="cuda"), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        with captured(graphs[0], pool):
            drawn.uniform_()
        with pytest.raises(RuntimeError, match="captur"), captured(graphs[1], pool):
            float(place)
        with captured(graphs[2], torch.cuda.graph_pool_handle()):
            place.add_(torch.ones(1, device="cuda"))
        seen = []
        for _ in range(2):
            graphs[0].replay()
            graphs[2].replay()
            seen.append(drawn.tolist())
        assert seen[0] != seen[1]
        assert float(place) == 2
        assert torch.rand(2, device="cuda").isfinite().all()
    torch.cuda.manual_seed(0)
    graphs[0].replay()
    first = drawn.tolist()
    torch.cuda.manual_seed(0)
    graphs[0].replay()
    assert drawn.tolist() == first
