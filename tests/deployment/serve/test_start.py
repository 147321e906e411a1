"""A real server process: a network that is killed, a stop amid requests, slow and garbled heads."""

import contextlib
import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from balpoe.cli.main import main
from balpoe.deployment.serve import start
from balpoe.deployment.serve.reading import ASIDE_BYTES
from balpoe.deployment.serve.settings import ServeSettings
from balpoe.experiments.model_file import save_model
from commands import sentence
from served import FEATURES, feature_model

ROW = json.dumps({"features": [[0.0] * FEATURES]})
LARGE = ROW + " " * ASIDE_BYTES
KIND = {"Content-Type": "application/json"}
PATIENCE = 120  # seconds; on a busy machine a worker takes long to import torch


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Server:
    """A server on a port of its own."""

    def __init__(self, folder, *flags):
        save_model(folder / "model.safetensors", feature_model())
        self.log = folder / "log"
        command = [sys.executable, "-m", "balpoe", "serve", str(folder / "model.safetensors"), "--port", "0", *flags]
        with open(f"{self.log}.out", "wb") as out, open(f"{self.log}.err", "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err)
        self.wait(lambda: self.starts >= 1)
        self.port = int(self.text("out").split(":")[-1])

    def text(self, suffix):
        return Path(f"{self.log}.{suffix}").read_text()

    @property
    def starts(self):
        return self.text("out").count("serving")

    def wait(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.text("err")
            assert self.process.poll() is None, self.text("err")
            time.sleep(0.02)

    @property
    def workers(self):
        """The processes with the network, and for large bodies, in the order of their births: children of one that has
        imported everything, and only forks."""
        network, reader = (each for child in children(self.process.pid) for each in children(child))
        return network, reader

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, connection=None, row=ROW):
        if connection is None:
            with contextlib.closing(self.connection()) as connection:
                return self.ask(connection)
        connection.request("POST", "/predict", row, KIND)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())


@pytest.fixture
def server(tmp_path):
    found = Server(tmp_path, "--most-body-seconds", "1")
    yield found
    found.process.kill()
    found.process.wait()


def exchange(port, data):
    """What a server answers to bytes, until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_a_killed_worker_is_replaced_strangers_are_answered_and_a_stop_finishes_what_was_accepted(server):
    results, large, stop = [], [], threading.Event()

    def keep_asking(path=None, row=ROW):
        with contextlib.closing(server.connection()) as connection:
            while not stop.is_set():
                if path is None:
                    status, _, headers = server.ask(connection, row)
                else:
                    connection.request("GET", path)
                    response = connection.getresponse()
                    response.read()
                    status, headers = response.status, dict(response.getheaders())
                results.append((path, status))
                large.append(row == LARGE and status == 200)
                if headers.get("connection") == "close":  # the server says goodbye
                    return

    threads = [threading.Thread(target=keep_asking) for _ in range(8)]
    others = ("/readyz",), ("/healthz",), (None, LARGE)
    threads += [threading.Thread(target=keep_asking, args=each) for each in others]
    for thread in threads:
        thread.start()
    for killed in (0, 1, 0, None):  # the network, the next one, and what reads large bodies
        before = len(results)
        server.wait(lambda: results[before:].count((None, 200)) > 20 and sum(large[before:]) > 2)  # noqa: B023 (here)
        if killed is not None:
            os.kill(server.workers[killed], signal.SIGKILL)
    server.wait(lambda: ("/readyz", 200) in results[-50:])
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    # Each request is answered; only who was unlucky twice is told to ask again.
    assert {status for path, status in results if path is None} <= {200, 503}
    assert sum((path, status) == (None, 503) for path, status in results) <= 2
    assert {status for path, status in results if path == "/healthz"} == {200}
    assert {status for path, status in results if path == "/readyz"} == {200, 503}
    assert server.text("err").count("a worker died (exit code -9); another starts") == 3
    status, _, headers = server.ask()
    assert status == 200
    assert "server" not in {name.lower() for name in headers}

    garbled = exchange(server.port, b"\x16\x03\x01 nonsense\r\n\r\n")
    assert garbled.startswith(b"HTTP/1.1 400")
    assert b'{"error": "' in garbled
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
    body = head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with ThreadPoolExecutor() as at_once:  # each waits for a second
        slow_head, slow_body, nothing = at_once.map(functools.partial(exchange, server.port), (head, body, b""))
    assert slow_head.startswith(b"HTTP/1.1 408")
    assert slow_body.startswith(b"HTTP/1.1 408")
    assert nothing == b""  # a connection without a request ends, too

    results.clear()
    stop.clear()
    threads = [threading.Thread(target=keep_asking) for _ in range(8)]
    for thread in threads:
        thread.start()
    server.wait(lambda: len(results) > 20)
    below = children(server.process.pid)
    for pid in (server.process.pid, *below, *(each for child in below for each in children(child))):
        os.kill(pid, signal.SIGTERM)  # as systemd does; a container's stop or a shell's kill means the first alone
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert set(results) == {(None, 200)}
    assert server.process.wait(PATIENCE) == 0
    assert server.text("err").count("died") == 3  # as before
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_a_stop_while_the_model_is_loaded_ends_in_peace(monkeypatch):
    def loading(settings, listening):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)

    monkeypatch.setattr(start, "_run", loading)
    before = signal.getsignal(signal.SIGTERM)
    assert start.serve(ServeSettings("nothing", port=0)) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_damaged_model_ends_the_command_with_one_sentence(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"garbage")
    assert main(["serve", str(path), "--port", "0"]) == 2
    assert "model.safetensors" in sentence(capsys.readouterr().err)


def test_answers_do_not_wait_for_each_other_on_the_wire():
    """Else the end of an answer that is sent in two pieces waits 40 ms for the client's kernel."""
    with start._listening("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
