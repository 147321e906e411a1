"""The beginning of `balpoe serve`: what must be installed, the socket, and a stop while the model is still loaded."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

from balpoe.deployment.serve.settings import ServeSettings
from balpoe.deployment.serve.worker import start_early
from balpoe.errors import UserError, show_warning

__all__ = ["serve"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(settings: ServeSettings) -> int:
    """Serve until a signal comes; return 0.

    Args:
        settings: What the server is told.
    """
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"serving needs {', '.join(lacking)}; install them with: pip install 'balpoe[serve]'")
    with contextlib.closing(_listening(settings.host, settings.port)) as listening:
        if settings.token is None and settings.host not in LOOPBACK:
            show_warning(f"others may reach {settings.host}, and no token is asked for; see --token-file")
        with _stopped_at_once():
            _run(settings, listening)
    return 0


def _run(settings: ServeSettings, listening: socket.socket) -> None:
    start_early()
    from balpoe.deployment.serve.server import run

    run(settings, listening)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections have it from here: asyncio leaves it out, and the end of each answer would wait 40 ms for an ACK.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error}); give another --host or --port") from error
    return listening


class _StoppedError(BaseException):
    """The signal to stop, before there is a server that would hear it."""


@contextlib.contextmanager
def _stopped_at_once() -> Iterator[None]:
    """End in peace at SIGTERM; the server, once it runs, has its own way."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _StoppedError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _StoppedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
