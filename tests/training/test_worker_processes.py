"""Tasks in processes of their own: results as they end, a request to stop passed on, a sudden end told."""

import os
import time
from types import SimpleNamespace

import pytest
import torch

from balpoe.errors import UserError
from balpoe.training.worker_processes import in_processes
from processes import READY


def about_itself(stop):
    return os.getpid(), torch.get_num_threads(), stop.requested


def wait_for_the_request(stop):
    while not stop.requested:
        time.sleep(0.01)
    return "asked"


def sudden_end(stop):
    os._exit(3)


def failure(stop):
    raise ValueError("something else")


@pytest.fixture
def ready(monkeypatch):
    """Processes that need not import torch again; those of the first test are spawned, as they really are."""
    monkeypatch.setattr("multiprocessing.get_context", {"spawn": READY}.__getitem__)


def test_results_in_the_order_of_their_ends_and_a_request_to_stop():
    interrupt, taken = SimpleNamespace(requested=False), []

    def tasks():
        for task in (wait_for_the_request, about_itself, about_itself):
            taken.append(task)
            yield task

    results = in_processes(tasks(), 2, 1, interrupt)
    process, threads, requested = next(results)
    assert (threads, requested) == (1, False)
    assert len(taken) == 2  # the next is taken when there is room for it
    assert process != os.getpid()
    assert next(results)[0] == process  # which is kept
    interrupt.requested = True
    assert list(results) == ["asked"]


@pytest.mark.parametrize(
    ("task", "error", "words"),
    [(sudden_end, UserError, "exit code 3.*--threads 1"), (failure, RuntimeError, "ValueError: something else")],
)
def test_what_goes_wrong_is_told(ready, task, error, words):
    with pytest.raises(error, match=words):
        list(in_processes([task], 1, 1, SimpleNamespace(requested=False)))
