"""The process that answers: it loads the model, and serves on a socket that its parent holds open."""

import gc
import logging
import multiprocessing
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

import uvicorn

from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.loaded_model import load
from balpoe.deployment.serve.app import serve_app
from balpoe.deployment.serve.connections import connection_class
from balpoe.deployment.serve.limits import Gate
from balpoe.deployment.serve.priors import Priors
from balpoe.deployment.serve.service import Service
from balpoe.deployment.serve.settings import ServeSettings
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.errors import UserError
from balpoe.training.distributed import chosen_device

__all__ = ["loaded_service", "work"]

MISTAKE = 2
"""Exit code of a worker that was told something wrong: another one would fail alike."""
GOODBYE = 0.5
"""Seconds after a signal in which each answer ends its connection, before idle ones are closed: a request that is on
its way then is answered, too."""


def work(settings: ServeSettings, listening: socket.socket) -> None:
    """Serve until a signal comes or the parent dies, and exit.

    Args:
        settings: What the server was told.
        listening: Socket that requests come to.
    """
    logging.basicConfig(format="balpoe: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        service = loaded_service(settings)
    except UserError as error:
        print(f"balpoe: {error}", file=sys.stderr)  # noqa: T201 (this process has a command line's voice)
        sys.exit(MISTAKE)
    gate = serve_app(service, settings.token)
    server = _Server(_config(gate, settings), gate)
    _stop_with_parent(server)
    where = f"http://{settings.host}:{listening.getsockname()[1]}"
    print(f"balpoe: serving {len(service.model.class_names)} classes at {where}", flush=True)  # noqa: T201
    gc.collect()
    gc.freeze()  # all that is loaded stays, and need not be looked through again while requests wait
    server.run(sockets=[listening])


def loaded_service(settings: ServeSettings) -> Service:
    """Return a service with all that the settings name, loaded and warmed up."""
    runtime: dict[str, Any] = {"threads": settings.threads} if settings.model.endswith(".onnx") else {}
    model = load(settings.model, **runtime)
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    if hasattr(model, "network"):  # a model of ONNX Runtime has none
        model.network.to(chosen_device(settings.device))
    table = None if settings.table is None else settings.table.read(model.class_names, model.source_prior)
    tree = None if settings.taxonomy is None else Taxonomy.read(settings.taxonomy, model.class_names)
    return Service(
        model, settings.limits, priors=Priors(model, settings.prior, table), held_out=_held_out(settings),
        taxonomy=tree, window=settings.window,
    )  # fmt: skip


def _held_out(settings: ServeSettings) -> HeldOut | None:
    """Held-out samples of the run that is named, or else of the model's own, if it has any."""
    if settings.held_out is not None:
        return HeldOut.of_run(settings.held_out)
    try:
        return HeldOut.of_run(settings.model)
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
            self.leave()

    def leave(self) -> None:
        self.gate.leaving = True
        threading.Timer(GOODBYE, setattr, (self, "should_exit", True)).start()


def _stop_with_parent(server: _Server) -> None:
    """Leave when the parent is gone: nobody would restart this process, nor stop it."""
    parent: Any = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        server.leave()

    threading.Thread(target=wait, name="parent", daemon=True).start()
