"""A loaded model with all that answers requests: the app around it knows of HTTP alone."""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np
import torch

from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.serve.answers import response_rows
from balpoe.deployment.serve.batching import Batcher
from balpoe.deployment.serve.deciders import Deciders
from balpoe.deployment.serve.drift import Drift, DriftReport
from balpoe.deployment.serve.metrics import Metrics
from balpoe.deployment.serve.priors import Priors
from balpoe.deployment.serve.reading import ASIDE_BYTES, BodyReader, Read
from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.serve.settings import Limits
from balpoe.deployment.serve.workers import Workers
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import product_of_experts

__all__ = ["Service"]

LOOK_AGAIN = 10.0
"""Seconds until the class mix is looked at anew, however often it is asked for."""
MOST_SHOWN = 1000
"""Places of a table that /model names."""
_Value = TypeVar("_Value")


class Service:
    """A model that answers.

    Args:
        model: Model, as `balpoe.load` gives it.
        limits: How much requests may take.
        priors: What is known of priors; None: only what the model is made for is assumed.
        held_out: Held-out samples of its run, if there are any.
        reference: Labelled predictions of the very network that answers, to check drift by, if there are any.
        taxonomy: Tree of labels, if there is one.
        window: Number of samples whose class mix is estimated.
        workers: Who computes; None: this process, with the model's own network.
    """

    def __init__(
        self,
        model: Any,
        limits: Limits | None = None,
        *,
        priors: Priors | None = None,
        held_out: HeldOut | None = None,
        reference: Predictions | None = None,
        taxonomy: Taxonomy | None = None,
        window: int = 1000,
        workers: Workers | None = None,
    ) -> None:
        self.model, self.limits, self.taxonomy = model, limits or Limits(), taxonomy
        self.metrics = Metrics()
        self.priors = priors or Priors(model)
        self.num_experts = model.network.num_experts
        self.read = BodyReader(model.preprocessing, len(model.class_names), self.limits)
        self.workers = workers or Workers.here(model, self.limits)
        self.reader = Batcher([self.workers.reader], 1, self.limits.queue)
        self.batcher = Batcher(self.workers.networks, self.limits.batch, self.limits.queue, self.metrics.batch)
        self.decoder = Batcher([self.workers.decoder], 1, self.limits.queue)
        self.deciders = Deciders(model, self.num_experts, held_out, taxonomy, self._fit)
        self.drift = Drift(model, self.priors.assumed.target, reference, window)
        self._fitting = ThreadPoolExecutor(1, "fit")  # one thread, which takes one core from the network
        self._looked, self._looking = -LOOK_AGAIN, asyncio.Lock()
        self._report: DriftReport | None = None
        self._started = False

    def start(self) -> None:
        """Begin to answer, in the running event loop."""
        for each in (self.reader, self.decoder, self.batcher):
            each.start()
        self._started = True

    @property
    def ready(self) -> bool:
        """Whether requests are taken, and there is a network to answer them."""
        return self._started and self.workers.alive

    def close(self) -> None:
        """Finish what was accepted, and end all threads and workers."""
        self._started = False
        self.workers.stop_replacing()
        for each in (self.reader, self.decoder, self.batcher):
            each.close()
        self.workers.close()
        self._fitting.shutdown(cancel_futures=True)

    async def predict(self, content_type: str, body: bytes) -> bytes:
        """Return the response to a body, as JSON, or refuse it.

        Args:
            content_type: Header of the request.
            body: Whole body.
        """
        read = await self._read(content_type, body)
        asked = read.asked
        names = self.model.class_names
        if asked.top_k > len(names):
            raise RequestError(422, f"top_k must be 1 to {len(names)}, the number of classes, but is {asked.top_k}")
        prior = self.priors(asked.prior)
        samples = await self._samples(read)
        decider = await self.deciders(asked, prior)
        expert_logits = await self.batcher(samples)
        calibrated = self.model.calibrated(expert_logits)
        logits = product_of_experts(calibrated)
        rows = response_rows(self.model, asked, prior, decider, expert_logits, calibrated, logits)
        self.drift.add(logits)
        notes = [*prior.notes, *(() if decider is None else decider.notes)]
        answer = {"answers": rows, "prior": prior.name, "notes": notes}
        return json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()

    async def _read(self, content_type: str, body: bytes) -> Read:
        if len(body) <= ASIDE_BYTES:
            return self.read(content_type, body)
        (read,) = await self.reader.outcomes([(content_type, body)])
        return cast(Read, read)

    async def _samples(self, read: Read) -> list[Any]:
        """What the network is given: rows, or files of images, of which those that take long are decoded already."""
        if isinstance(read.samples, np.ndarray):
            return list(torch.from_numpy(read.samples))
        return [
            (await self.decoder([image]))[0] if is_slow else image
            for image, is_slow in zip(read.samples, read.slow, strict=True)
        ]

    async def _fit(self, work: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._fitting, work)

    async def drift_report(self) -> DriftReport | None:
        """Return the latest look at the class mix, a new one if that is due; None while samples are too few."""
        async with self._looking:
            if time.monotonic() - self._looked >= LOOK_AGAIN:
                self._report = await self._fit(self.drift.look)
                self._looked = time.monotonic()
                if self._report is not None:
                    self.metrics.drift(self._report, self.model.class_names)
            return self._report

    async def metrics_text(self) -> bytes:
        """Return the numbers for Prometheus."""
        await self.drift_report()
        self.metrics.waiting.set(self.batcher.waiting)
        self.metrics.deaths.set(self.workers.deaths)
        return self.metrics.text()

    def about(self) -> dict[str, Any]:
        """Return what a client must know of the model."""
        model, assumed, table = self.model, self.priors.assumed, self.priors.table
        shares = model.source_prior if assumed.target is None else assumed.target
        held_out, adjusts = self.deciders.held_out is not None, model.source_prior is not None
        fitted = ["abstain_error", "sets", "unknown", "thresholds"] if held_out else []
        decisions = ["costs", "metric", "abstain_cost", *fitted, *(["level"] if self.taxonomy else [])]
        return {
            "classes": list(model.class_names),
            "class_counts": model.class_counts.tolist(),
            "takes": "images" if self.read.intake.takes_images else "features",
            "size": list(self.read.intake.size),
            "experts": self.num_experts,
            "prior": {"assumed": assumed.name, "shares": None if shares is None else shares.tolist()},
            "adjusts_to_priors": adjusts,
            "table": None if table is None else {"keys": list(table.keys), "places": _places(table)},
            "decisions": decisions if adjusts else [],
            "limits": {
                "images": self.limits.images,
                "megabytes": self.limits.megabytes,
                "megapixels": self.limits.megapixels,
                "seconds": self.limits.seconds,
            },
        }


def _places(table: Any) -> list[list[str]]:
    return [list(keys) for keys in list(table.row_of)[:MOST_SHOWN] if keys]
