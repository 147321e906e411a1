"""A real process that is killed in each way there is: amid its work, while it waits, and when it takes too long."""

import functools
import operator
import os
import signal
import time

import pytest

from balpoe.deployment.serve.settings import read_token
from balpoe.deployment.serve.worker import Worker, WorkerDiedError
from balpoe.errors import UserError

PATIENCE = 120  # seconds; on a busy machine it takes long to import torch
CALL = functools.partial, (operator.call,)  # each task is a function, and is called


@pytest.fixture
def worker():
    found = Worker(*CALL, seconds=PATIENCE)
    yield found
    found.close()


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_whoever_waited_hears_of_it(worker, capfd):
    worker.start()
    assert worker(functools.partial(len, "four")) == 4
    first = worker(os.getpid)
    assert first != os.getpid()

    with pytest.raises(RuntimeError, match=r"^a worker failed with ValueError$"):  # the rest is in its log
        worker(functools.partial(int, "secret"))
    assert worker(os.getpid) == first

    with pytest.raises(WorkerDiedError):
        worker(functools.partial(os._exit, 3))
    second = worker(os.getpid)
    assert second != first
    assert "died (exit code 3)" in capfd.readouterr().err

    os.kill(second, signal.SIGTERM)  # which a container's or a terminal's stop sends to all
    os.kill(second, signal.SIGINT)
    assert worker(os.getpid) == second

    os.kill(second, signal.SIGKILL)  # while it has nothing to do
    until(lambda: worker.deaths == 2 and worker.alive)
    third = worker(os.getpid)
    assert third != second

    worker.seconds = 0.1
    with pytest.raises(WorkerDiedError):
        worker(functools.partial(time.sleep, PATIENCE))
    worker.seconds = PATIENCE
    fourth = worker(os.getpid)
    assert (worker.deaths, worker.alive) == (3, True)

    worker.close()
    until(lambda: not os.path.exists(f"/proc/{fourth}"))
    assert not worker.alive
    with pytest.raises(WorkerDiedError):
        worker(os.getpid)


@pytest.mark.slow
def test_a_process_that_was_told_something_wrong_says_so():
    worker = Worker(read_token, (None, "short"), seconds=PATIENCE)
    with pytest.raises(UserError, match="can be guessed"):
        worker.start()
    worker.close()


def test_a_stop_ends_the_waiting_for_a_process_that_cannot_be_started(worker, monkeypatch):
    tries = []

    def failing(make, arguments):
        tries.append(make)
        if len(tries) == 3:
            worker.stop_replacing()

    monkeypatch.setattr("balpoe.deployment.serve.worker._started", failing)
    monkeypatch.setattr("balpoe.deployment.serve.worker.WAITS", (0.0,))
    worker.start()
    assert len(tries) == 3
    with pytest.raises(WorkerDiedError):
        worker(os.getpid)
