"""The parent of the process that answers: it holds the socket, and starts another process when that one dies.

It imports nothing heavy, so that hardly anything can happen to it. While there is no worker, connections wait.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from importlib.util import find_spec
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import FrameType

from balpoe.deployment.serve.settings import ServeSettings
from balpoe.errors import UserError, show_warning

__all__ = ["serve"]

MISTAKE = 2  # as the worker's
NOT_STARTED = 1
SHORT_LIFE = 10.0  # seconds; a worker that lives longer is restarted at once
WAITS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until the next start, after so many short lives."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(settings: ServeSettings) -> int:
    """Serve until a signal comes; return 0, or 2 if the settings will not do.

    Args:
        settings: What the server is told.
    """
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"serving needs {', '.join(lacking)}; install them with: pip install 'balpoe[serve]'")
    with contextlib.closing(_listening(settings.host, settings.port)) as listening:
        if settings.token is None and settings.host not in LOOPBACK:
            show_warning(f"others may reach {settings.host}, and no token is asked for; see --token-file")
        return _Supervisor(settings, listening).run()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections have it from here: asyncio leaves it out, and the end of each answer would wait 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error}); give another --host or --port") from error
    listening.set_inheritable(True)
    return listening


class _Supervisor:
    def __init__(self, settings: ServeSettings, listening: socket.socket) -> None:
        self.settings, self.listening = settings, listening
        self.stopped = threading.Event()
        self.worker: BaseProcess | None = None

    def run(self) -> int:
        """Keep a worker alive until a signal comes."""
        before = {each: signal.signal(each, self._signalled) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._keep()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _keep(self) -> int:
        short_lives = 0
        while not self.stopped.is_set():
            start = time.monotonic()
            code = self._one_life()
            if code == MISTAKE:
                return MISTAKE
            if self.stopped.is_set():
                break
            short_lives = short_lives + 1 if time.monotonic() - start < SHORT_LIFE else 0
            wait = WAITS[min(short_lives, len(WAITS) - 1)]
            print(f"balpoe: the worker died (exit code {code}); another starts", file=sys.stderr)  # noqa: T201
            self.stopped.wait(wait)
        return 0

    def _one_life(self) -> int | None:
        arguments = self.settings, self.listening
        worker: BaseProcess = _context().Process(target=_work, args=arguments, name="balpoe-worker")  # type: ignore[attr-defined]
        try:
            worker.start()
        except (OSError, EOFError):  # the process that forks has died; the next start begins with a new one
            return NOT_STARTED
        self.worker = worker
        if self.stopped.is_set():  # the signal came before there was anybody to pass it on to
            self._pass_on()
        worker.join()
        return worker.exitcode

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stopped.set()
        self._pass_on()

    def _pass_on(self) -> None:
        worker = self.worker
        if worker is not None and worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)


def _context() -> BaseContext:
    """Where workers come from: a process that has imported all they need, so that a new one is there at once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["balpoe.deployment.serve.worker"])
    return context


def _work(settings: ServeSettings, listening: socket.socket) -> None:
    """What a worker does; its imports are its own."""
    from balpoe.deployment.serve.worker import work

    work(settings, listening)
