"""The gate that each request passes: its token, its body within size and time, and one sentence for each mistake."""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from balpoe.deployment.serve.metrics import Metrics
from balpoe.deployment.serve.refusals import RequestError, busy
from balpoe.deployment.serve.settings import Limits

__all__ = ["BodyRoom", "ClientLeftError", "Gate", "error_body", "within_time"]

OPEN = ("/", "/page.js", "/page.css", "/healthz", "/readyz", "/openapi.json")
"""Paths that need no token: they say nothing of the model or of its requests."""
PATHS = (*OPEN, "/predict", "/model", "/drift", "/metrics")
FAILED = "the server failed at this request; ask again, and tell whoever runs it if it happens again"
HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob: data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
_Value = TypeVar("_Value")
log = logging.getLogger("balpoe.serve")


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


def error_body(sentence: str) -> bytes:
    """Return the body of a refusal.

    >>> error_body("there is nothing here")
    b'{"error": "there is nothing here"}'
    """
    return json.dumps({"error": sentence}, ensure_ascii=False).encode(errors="replace")


class Gate:
    """What stands before the app.

    Args:
        app: App.
        metrics: Where requests are counted.
        token: What a request must bear; None: nothing.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None) -> None:
        self.app, self.metrics = app, metrics
        self.digest = None if token is None else _digest(token.encode())
        self.leaving = False
        """Whether the server is about to stop, so that each connection ends with its answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                last = [(b"connection", b"close")] if self.leaving else []
                message["headers"] = [*message.get("headers", []), *HEADERS, *last]
            await send(message)

        try:
            if scope["path"] not in OPEN:
                self._check_token(scope)
            await self.app(scope, receive, send_on)
        except RequestError as error:
            await _refuse(send_on, error)
        except Exception:
            log.exception("a request failed")
            if not status:
                await _refuse(send_on, RequestError(500, FAILED))
        path = scope["path"] if scope["path"] in PATHS else "other"  # strangers must not make up labels
        self.metrics.request(path, status, time.perf_counter() - start)

    def _check_token(self, scope: Scope) -> None:
        if self.digest is None:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        # Digests have one length, so that the time tells nothing of the token's.
        if not hmac.compare_digest(_digest(token.strip()), self.digest) or scheme.lower() != b"bearer":
            sentence = "the request must bear the server's token; send it as Authorization: Bearer TOKEN"
            raise RequestError(401, sentence, {"WWW-Authenticate": "Bearer"})


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


async def _refuse(send: Send, error: RequestError) -> None:
    body = error_body(error.sentence)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class BodyRoom:
    """Bytes that the bodies of all requests take together.

    Args:
        limits: Limits of bodies.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.taken = limits, 0

    async def read(self, receive: Receive, declared: str | None) -> bytes:
        """Return a whole body, or refuse it; `give_back` its size when it is done with.

        Args:
            receive: Where it comes from.
            declared: Header with its size, if there is one.
        """
        most = self.limits.body_bytes
        too_large = RequestError(413, f"the body is larger than {self.limits.megabytes:g} MB; send less at once")
        if declared is not None and declared.isdecimal() and int(declared[:20]) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeftError
                    part = message.get("body", b"")
                    size, self.taken = size + len(part), self.taken + len(part)
                    parts.append(part)
                    if size > most:
                        raise too_large
                    if self.taken > self.limits.bytes_together:
                        raise busy("the bodies of other requests fill the memory that there is for them", 1)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            self.give_back(size)
            seconds = self.limits.body_seconds
            raise RequestError(408, f"the body did not come within {seconds:g} seconds; send it faster") from None
        except BaseException:
            self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Free the room of a body."""
        self.taken -= size


async def within_time(work: Coroutine[Any, Any, _Value], receive: Receive, seconds: float) -> _Value:
    """Return what work returns, unless the client leaves before, or time is up.

    Args:
        work: What is done for a request whose body was read.
        receive: Where it is heard that the client has left.
        seconds: Time for it.
    """
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({task, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if left.done():
            raise ClientLeftError
        raise busy(f"there was no answer within {seconds:g} seconds", seconds)
    finally:
        task.cancel()
        left.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
