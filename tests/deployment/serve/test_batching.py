import asyncio
import threading

import pytest
import torch

from balpoe.deployment.serve.batching import Batcher
from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.serve.worker import WorkerDiedError
from balpoe.errors import UserError
from served import awaited


class Gated:
    """A network that works when it is let, and remembers its batches."""

    def __init__(self):
        self.gate, self.batches, self.begun = threading.Semaphore(0), [], 0

    def __call__(self, samples):
        self.begun += 1
        self.gate.acquire()
        self.batches.append(list(samples))
        return [each if isinstance(each, UserError) else torch.full((1, 2), float(each)) for each in samples]


def run(work, batch=4, queue=100):
    """Run a coroutine with a batcher and its network, and close it."""
    network = Gated()
    batcher = Batcher([network], batch, queue)

    async def whole():
        batcher.start()
        try:
            return await asyncio.wait_for(work(batcher, network), 10)
        finally:
            network.gate.release(1000)
            await asyncio.to_thread(batcher.close)

    return awaited(whole()), network


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def numbers(logits):
    return logits[:, 0, 0].int().tolist()


def test_an_idle_network_begins_at_once_and_a_busy_one_lets_batches_form():
    async def work(batcher, network):
        first = asyncio.ensure_future(batcher([0]))
        await until(lambda: network.begun == 1)
        others = [asyncio.ensure_future(batcher([number])) for number in range(1, 7)]
        await until(lambda: batcher.waiting == 6)
        network.gate.release(10)
        return [numbers(await each) for each in (first, *others)]

    found, network = run(work)
    assert found == [[number] for number in range(7)]
    assert network.batches == [[0], [1, 2, 3, 4], [5, 6]]


def test_a_large_request_is_cut_into_batches_and_put_together_in_order():
    async def work(batcher, network):
        network.gate.release(10)
        return numbers(await batcher(range(11)))

    found, network = run(work)
    assert found == list(range(11))
    assert [len(each) for each in network.batches] == [4, 4, 3]


def test_a_full_queue_refuses_with_a_time_to_ask_again_and_takes_more_later():
    async def work(batcher, network):
        first = asyncio.ensure_future(batcher([0]))
        await until(lambda: network.begun == 1)
        waiting = asyncio.ensure_future(batcher(range(8)))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="too many samples wait") as refused:
            await batcher(range(3))
        assert refused.value.status == 503
        assert int(refused.value.headers["Retry-After"]) >= 1
        taken = asyncio.ensure_future(batcher([1, 2]))
        network.gate.release(10)
        await asyncio.gather(first, waiting, taken)
        return numbers(await batcher(range(3)))

    assert run(work, queue=10)[0] == [0, 1, 2]


def test_who_stops_waiting_is_not_computed_for():
    async def work(batcher, network):
        first = asyncio.ensure_future(batcher([0]))
        await until(lambda: network.begun == 1)
        leaves, stays = asyncio.ensure_future(batcher([1])), asyncio.ensure_future(batcher([2]))
        await until(lambda: batcher.waiting == 2)
        leaves.cancel()
        await asyncio.sleep(0)
        network.gate.release(10)
        await first
        return numbers(await stays)

    found, network = run(work)
    assert found == [2]
    assert network.batches == [[0], [2]]


def test_a_wrong_sample_is_refused_and_its_neighbours_are_not():
    async def work(batcher, network):
        first = asyncio.ensure_future(batcher([0]))
        await until(lambda: network.begun == 1)
        wrong = asyncio.ensure_future(batcher([1, UserError("it is damaged")]))
        right = asyncio.ensure_future(batcher([2]))
        await until(lambda: batcher.waiting == 3)
        network.gate.release(10)
        await first
        with pytest.raises(RequestError, match="sample 1: it is damaged") as refused:
            await wrong
        assert refused.value.status == 422
        return numbers(await right)

    assert run(work)[0] == [2]


def test_a_failing_network_is_heard_of_and_goes_on():
    calls = []

    def forward(samples):
        calls.append(samples)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return [torch.zeros(1, 2)] * len(samples)

    async def work():
        batcher = Batcher([forward], 4, 10)
        batcher.start()
        with pytest.raises(RuntimeError, match="broken"):
            await batcher([1])
        found = await batcher([2])
        await asyncio.to_thread(batcher.close)
        return found

    assert awaited(work()).shape == (1, 1, 2)


def test_closing_finishes_what_waits_and_takes_no_more():
    async def work(batcher, network):
        waiting = [asyncio.ensure_future(batcher([number])) for number in range(9)]
        await until(lambda: network.begun == 1 and batcher.waiting >= 5)
        closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
        await until(lambda: batcher._closed)
        with pytest.raises(RequestError):
            await batcher([9])
        network.gate.release(10)
        await closing
        return [numbers(await each) for each in waiting]

    assert run(work)[0] == [[number] for number in range(9)]


def test_samples_that_a_worker_died_at_go_to_the_next_one_and_the_one_that_kills_is_refused_alone():
    batches = []

    def forward(samples):
        batches.append(list(samples))
        if 3 in samples:
            raise WorkerDiedError
        return [torch.full((1, 2), float(each)) for each in samples]

    async def work():
        batcher = Batcher([forward], 4, 100)
        requests = [asyncio.ensure_future(batcher([number])) for number in range(8)]
        await asyncio.sleep(0)  # all of them wait
        batcher.start()
        found = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 10)
        await asyncio.to_thread(batcher.close)
        return found

    found = awaited(work())
    assert [numbers(each) for number, each in enumerate(found) if number != 3] == [
        [each] for each in range(8) if each != 3
    ]
    assert found[3].status == 503
    assert "Retry-After" in found[3].headers
    assert batches == [[0, 1, 2, 3], [0], [1], [2], [3], [4, 5, 6, 7]]


def test_several_networks_work_at_once():
    networks = [Gated(), Gated()]

    async def work():
        batcher = Batcher(networks, 4, 100)
        batcher.start()
        requests = [asyncio.ensure_future(batcher(range(number, number + 4))) for number in (0, 4, 8)]
        await asyncio.wait_for(until(lambda: all(each.begun for each in networks)), 10)
        for each in networks:
            each.gate.release(10)
        found = [numbers(await each) for each in requests]
        await asyncio.to_thread(batcher.close)
        return found

    assert awaited(work()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert sum(len(each.batches) for each in networks) == 3
