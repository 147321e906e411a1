"""Connections of strangers, byte by byte: too many, too slow, and such that never end."""

import contextlib
import socket
import time

import pytest

from balpoe.deployment.serve.settings import Limits
from served import feature_model, running, service_of

POST = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def port():
    with running(service_of(feature_model(), Limits(connections=3, megabytes=0.01, body_seconds=0.4))) as url:
        yield int(url.rsplit(":", 1)[1])


def connected(port):
    return contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))


def rest(connection):
    """What is sent until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def test_too_many_connections_are_told_to_come_later(port):
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(port)).sendall(b"G")
        time.sleep(0.1)
        with connected(port) as one_more:
            found = rest(one_more)
    assert found.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in found
    assert found.endswith(b'{"error": "too many connections are open; ask again later"}')


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET /hea", b"HTTP/1.1 408 "),
        (POST + b"Content-Length: 50\r\n\r\n{", b"HTTP/1.1 408 "),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{    \r\n", b"HTTP/1.1 408 "),
        (POST + b"Content-Length: 99999999\r\n\r\n{", b"HTTP/1.1 413 "),
        (POST + b"Content-Length: -1\r\n\r\n{", b"HTTP/1.1 400 "),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{", b"HTTP/1.1 400 "),
        (b"BREW / HTCPCP/1.0\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\0" * 100, b"HTTP/1.1 400 "),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000, b"HTTP/1.1 400 "),
    ],
)
def test_slow_and_garbled_requests_end(port, sent, status):
    with connected(port) as connection:
        with contextlib.suppress(ConnectionError):  # it may have ended before the last byte
            connection.sendall(sent)
        found = rest(connection)
    assert found.startswith(status)
    assert not status or b'{"error": "' in found
    assert b"server:" not in found.lower()


def test_a_connection_serves_many_requests(port):
    with connected(port) as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while not found.endswith(b'{"status":"alive"}'):
                found += connection.recv(65536)
