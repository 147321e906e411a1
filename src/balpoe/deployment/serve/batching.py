"""Samples of many requests through one network, in batches that form while it is busy.

An idle network begins at once with what is there; while it works, whatever comes gathers for the next batch. So a lone
request waits for nobody, and under load the batches fill by themselves, without a delay that somebody must tune.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.serve.refusals import RequestError, busy
from balpoe.errors import UserError

__all__ = ["Batcher", "Outcome"]

Outcome = Tensor | UserError
"""Expert logits of a sample, (experts, classes), or what is wrong with it."""
Forward = Callable[[Sequence[Any]], Sequence[Outcome]]
SMOOTHING = 0.2  # share of the latest batch in the mean time of a sample


class _Job:
    """The samples of one request."""

    def __init__(self, samples: Sequence[Any], future: "asyncio.Future[list[Outcome]]") -> None:
        self.samples, self.future = samples, future
        self.outcomes: list[Outcome | None] = [None] * len(samples)
        self.left = len(samples)

    def put(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index], self.left = outcome, self.left - 1
        if not self.left and not self.future.done():
            self.future.set_result([each for each in self.outcomes if each is not None])


class Batcher:
    """A thread with the network, and the samples that wait for it.

    Args:
        forward: Function from samples to the outcome of each; only its thread calls it.
        batch: Samples that it is given at once, at most.
        queue: Samples that may wait, at most.
        seen: Called with the number of samples of each batch and its seconds.

    >>> Batcher(lambda samples: [torch.zeros(3, 2) for _ in samples], batch=32, queue=256).waiting
    0
    """

    def __init__(
        self, forward: Forward, batch: int, queue: int, seen: Callable[[int, float], object] = lambda *_: None
    ) -> None:
        self.forward, self.batch, self.queue, self.seen = forward, batch, queue, seen
        self.seconds_each = 0.0
        """Mean time of a sample of the latest batches."""
        self._waiting = deque[tuple[_Job, int]]()
        self._ready = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to work, for requests of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many samples wait."""
        return len(self._waiting)

    async def __call__(self, samples: Sequence[Any]) -> Tensor:
        """Return the expert logits of samples, (samples, experts, classes), or refuse them.

        Whoever stops waiting for it takes its samples out of the queue.
        """
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._put(_Job(samples, future))
        outcomes = await future
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, UserError):
                place = "" if len(outcomes) == 1 else f"sample {number}: "
                raise RequestError(422, f"{place}{outcome}")
        return torch.stack([each for each in outcomes if isinstance(each, Tensor)])

    def close(self) -> None:
        """Finish what waits, and end the thread."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _put(self, job: _Job) -> None:
        with self._ready:
            waiting = len(self._waiting)
            if self._closed or (waiting and waiting + len(job.samples) > self.queue):
                raise busy("too many samples wait already", waiting * self.seconds_each)
            self._waiting.extend((job, index) for index in range(len(job.samples)))
            self._ready.notify()

    def _next(self) -> list[tuple[_Job, int]]:
        """The next samples, of requests that are still waited for; none when all is done and no more will come."""
        with self._ready:
            while True:
                block: list[tuple[_Job, int]] = []
                while self._waiting and len(block) < self.batch:
                    job, index = self._waiting.popleft()
                    if not job.future.done():
                        block.append((job, index))
                if block or self._closed:
                    return block
                self._ready.wait()

    def _work(self) -> None:
        assert self._loop is not None  # start() came first
        while block := self._next():
            start = time.perf_counter()
            outcomes: Sequence[Outcome] | Exception
            try:
                outcomes = self.forward([job.samples[index] for job, index in block])
            except Exception as error:  # whoever waits must hear of it, and the thread must live on
                outcomes = error
            seconds = time.perf_counter() - start
            self.seconds_each += SMOOTHING * (seconds / len(block) - self.seconds_each)
            # One call for the whole batch: each would wake the event loop.
            self._loop.call_soon_threadsafe(self._hand_out, block, outcomes, seconds)

    def _hand_out(
        self, block: Sequence[tuple[_Job, int]], outcomes: Sequence[Outcome] | Exception, seconds: float
    ) -> None:
        self.seen(len(block), seconds)
        for place, (job, index) in enumerate(block):
            if not isinstance(outcomes, Exception):
                job.put(index, outcomes[place])
            elif not job.future.done():
                job.future.set_exception(outcomes)
