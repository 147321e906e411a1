"""The process that answers: HTTP, priors, decisions and drift; its workers have the network."""

import functools
import gc
import logging
import signal
import socket
import sys
import threading
from dataclasses import replace
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import uvicorn

from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.loaded_model import load
from balpoe.deployment.serve.app import serve_app
from balpoe.deployment.serve.connections import connection_class
from balpoe.deployment.serve.limits import Gate
from balpoe.deployment.serve.priors import Priors
from balpoe.deployment.serve.service import Service
from balpoe.deployment.serve.settings import ServeSettings
from balpoe.deployment.serve.workers import Workers
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.experiments.model_file import model_path

__all__ = ["loaded_service", "run"]

GOODBYE = 0.5
"""Seconds after a signal in which each answer ends its connection, before idle ones are closed: a request that is on
its way then is answered, too."""


def run(settings: ServeSettings, listening: socket.socket) -> None:
    """Serve until a signal comes.

    Args:
        settings: What the server was told.
        listening: Socket that requests come to.
    """
    logging.basicConfig(format="balpoe: %(message)s", level=logging.WARNING, stream=sys.stderr)
    torch.set_num_threads(1)  # the cores are the workers'
    service = loaded_service(settings)
    try:
        gate = serve_app(service, settings.token)
        server = _Server(_config(gate, settings), gate)
        where = f"http://{settings.host}:{listening.getsockname()[1]}"
        print(f"balpoe: serving {len(service.model.class_names)} classes at {where}", flush=True)  # noqa: T201
        gc.collect()
        gc.freeze()  # all that is loaded stays, and need not be looked through again while requests wait
        server.run(sockets=[listening])
    finally:
        service.workers.close()


def loaded_service(settings: ServeSettings, here: bool = False) -> Service:
    """Return a service with all that the settings name, loaded and warmed up.

    Args:
        settings: What the server was told.
        here: Whether the network computes in this process, and not in workers.
    """
    model = load(settings.model) if here else _without_weights(load(settings.model))
    table = None if settings.table is None else settings.table.read(model.class_names, model.source_prior)
    tree = None if settings.taxonomy is None else Taxonomy.read(settings.taxonomy, model.class_names)
    priors, held_out = Priors(model, settings.prior, table), _held_out(settings)
    make = functools.partial(
        Service, model, settings.limits, priors=priors, held_out=held_out, reference=_reference(settings, held_out),
        taxonomy=tree, window=settings.window,
    )  # fmt: skip
    if here:
        return make()
    workers = Workers.started(settings, model.preprocessing, len(model.class_names))  # when all is right
    try:
        return make(workers=workers)
    except BaseException:
        workers.close()
        raise


def _without_weights(model: Any) -> Any:
    """The model without its network, which the workers have."""
    return replace(model, network=SimpleNamespace(num_experts=model.network.num_experts))


def _held_out(settings: ServeSettings) -> HeldOut | None:
    """Held-out samples of the run that is named, or else of the model's own, if it has any."""
    if settings.held_out is not None:
        return HeldOut.of_run(settings.held_out)
    try:
        return HeldOut.of_run(settings.model)
    except UserError:
        return None


def _reference(settings: ServeSettings, held_out: HeldOut | None) -> Predictions | None:
    """What the network itself said of labelled samples outside of its training: held-out ones, or else the run's test.

    Held-out samples of cross-fitting will not do: other networks, with another confidence, would move the estimate.
    """
    if held_out is not None and not held_out.cross_fitted:
        return held_out.predictions
    folder = model_path(settings.held_out or settings.model).parent
    if not (folder / "recipe.toml").is_file():
        return None
    try:
        return load_predictions(folder)
    except UserError:
        return None


def _config(gate: Gate, settings: ServeSettings) -> uvicorn.Config:
    return uvicorn.Config(
        gate, http=connection_class(settings.limits), ws="none", loop="asyncio", lifespan="on",
        server_header=False, proxy_headers=False, access_log=False, log_level="error",
        timeout_graceful_shutdown=int(settings.limits.seconds + settings.limits.body_seconds) + 1,
    )  # fmt: skip


class _Server(uvicorn.Server):
    """A server that says goodbye: after a signal each answer ends its connection, and then it stops."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self.gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.gate.leaving and sig == signal.SIGINT:
            self.force_exit = self.should_exit = True
        elif not self.gate.leaving:
            self.gate.leaving = True
            threading.Timer(GOODBYE, setattr, (self, "should_exit", True)).start()
