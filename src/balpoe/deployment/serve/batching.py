"""Samples of many requests through one network, in batches that form while it is busy.

An idle network begins at once with what is there; while it works, whatever comes gathers for the next batch. So a lone
request waits for nobody, and under load the batches fill by themselves, without a delay that somebody must tune.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.serve.reading import Read
from balpoe.deployment.serve.refusals import RequestError, busy
from balpoe.deployment.serve.worker import WorkerDiedError
from balpoe.errors import UserError

__all__ = ["Batcher", "Forward", "Outcome"]

Outcome = Tensor | Read | UserError | RequestError
"""What comes of a sample, such as its expert logits, (experts, classes), or what is wrong with it."""
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


class _Place(NamedTuple):
    """One sample of a request."""

    job: _Job
    number: int
    """Its place among them."""
    again: bool = False
    """Whether a worker died at it."""


class Batcher:
    """Networks, a thread for each, and the samples that wait for them.

    A worker that dies takes no request with it: the samples that it was given are given to the next one, each by
    itself, so that one that kills whoever looks at it is refused alone.

    Args:
        forwards: Functions from samples to the outcome of each, each called by a thread of its own.
        batch: Samples that it is given at once, at most.
        queue: Samples that may wait, at most.
        seen: Called with the number of samples of each batch and its seconds.

    >>> Batcher([lambda samples: [torch.zeros(3, 2) for _ in samples]], batch=32, queue=256).waiting
    0
    """

    def __init__(
        self,
        forwards: Sequence[Forward],
        batch: int,
        queue: int,
        seen: Callable[[int, float], object] = lambda *_: None,
    ) -> None:
        self.batch, self.queue, self.seen = batch, queue, seen
        self.seconds_each = 0.0
        """Mean time of a sample of the latest batches."""
        self._waiting = deque[_Place]()
        self._ready = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(each,), name="network", daemon=True) for each in forwards
        ]
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to work, for requests of the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many samples wait."""
        return len(self._waiting)

    async def __call__(self, samples: Sequence[Any]) -> Tensor:
        """Return the tensors that come of samples, (samples, experts, classes) or the like, or refuse them."""
        return torch.stack(await self.outcomes(samples))

    async def outcomes(self, samples: Sequence[Any]) -> list[Any]:
        """Return what comes of each sample, or refuse them.

        Whoever stops waiting for it takes its samples out of the queue.
        """
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._put(_Job(samples, future))
        outcomes = await future
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, RequestError):
                raise outcome
            if isinstance(outcome, UserError):
                place = "" if len(outcomes) == 1 else f"sample {number}: "
                raise RequestError(422, f"{place}{outcome}")
        return outcomes

    def close(self) -> None:
        """Finish what waits, and end the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _put(self, job: _Job) -> None:
        with self._ready:
            waiting = len(self._waiting)
            if self._closed or (waiting and waiting + len(job.samples) > self.queue):
                raise busy("too many samples wait already", waiting * self.seconds_each)
            self._waiting.extend(_Place(job, index) for index in range(len(job.samples)))
            self._ready.notify()

    def _next(self) -> list[_Place]:
        """The next samples, of requests that are still waited for; none when all is done and no more will come."""
        with self._ready:
            while True:
                block: list[_Place] = []
                while self._waiting and len(block) < self.batch:
                    if block and (block[0].again or self._waiting[0].again):
                        break
                    place = self._waiting.popleft()
                    if not place.job.future.done():
                        block.append(place)
                if self._waiting:
                    self._ready.notify()  # for another thread
                if block or self._closed:
                    return block
                self._ready.wait()

    def _work(self, forward: Forward) -> None:
        assert self._loop is not None  # start() came first
        while block := self._next():
            start = time.perf_counter()
            outcomes: Sequence[Outcome] | Exception
            try:
                outcomes = forward([place.job.samples[place.number] for place in block])
            except WorkerDiedError:
                if not block[0].again:
                    self._put_back(block)
                    continue
                outcomes = busy("two workers of the server died at this request", 1)
            except Exception as error:  # whoever waits must hear of it, and the thread must live on
                outcomes = error
            seconds = time.perf_counter() - start
            self.seconds_each += SMOOTHING * (seconds / len(block) - self.seconds_each)
            # One call for the whole batch: each would wake the event loop.
            self._loop.call_soon_threadsafe(self._hand_out, block, outcomes, seconds)

    def _put_back(self, block: Sequence[_Place]) -> None:
        with self._ready:
            self._waiting.extendleft(place._replace(again=True) for place in reversed(block))
            self._ready.notify()

    def _hand_out(self, block: Sequence[_Place], outcomes: Sequence[Outcome] | Exception, seconds: float) -> None:
        self.seen(len(block), seconds)
        for index, (job, number, _) in enumerate(block):
            if not isinstance(outcomes, Exception):
                job.put(number, outcomes[index])
            elif not job.future.done():
                job.future.set_exception(outcomes)
