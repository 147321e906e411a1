"""Connections that may not be held open by sending nothing, or a head byte by byte.

Uvicorn limits the time between requests, but not that of a request's head, nor of what is left of a refused body.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from balpoe.deployment.serve.limits import error_body
from balpoe.deployment.serve.settings import Limits

__all__ = ["connection_class"]


class _Connection(H11Protocol):
    """A connection with a clock."""

    seconds: float
    most: int
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._answer(503, "too many connections are open; ask again later", b"retry-after: 1\r\n")
        else:
            self._wind()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()  # the head is here; the app has a clock of its own for the body

    def on_response_complete(self) -> None:
        self._wind()  # for what is left of the body, and the next head
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._answer(400, "this is no HTTP request that is understood here; send it again")

    def _wind(self) -> None:
        self._stop()
        self._clock = self.loop.call_later(self.seconds, self._late)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        began = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if began:
            self._answer(408, "the head of the request did not come in time; send it faster")
        elif not self.transport.is_closing():
            self.transport.close()

    def _answer(self, status: int, sentence: str, header: bytes = b"") -> None:
        """A whole response, past h11, which may be in no state to send one; the connection ends with it."""
        if self.transport.is_closing():
            return
        body = error_body(sentence)
        words = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n%s"
            % (status, words[status], len(body), header, body)
        )
        self.transport.close()


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """Return the class of connections under some limits, for uvicorn's setting `http`.

    >>> connection_class(Limits(connections=3)).most
    3
    """
    return type("Connection", (_Connection,), {"seconds": limits.body_seconds, "most": limits.connections})
