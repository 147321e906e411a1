"""A real server process: a worker that is killed, a stop amid requests, slow and garbled heads."""

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
from types import SimpleNamespace

import pytest

from balpoe.deployment.serve import supervisor
from balpoe.deployment.serve.settings import ServeSettings
from balpoe.deployment.serve.worker import work
from balpoe.experiments.model_file import save_model
from served import FEATURES, feature_model

ROW = json.dumps({"features": [[0.0] * FEATURES]})
KIND = {"Content-Type": "application/json"}
PATIENCE = 120  # seconds; on a busy machine a worker takes long to import torch


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
    def worker(self):
        """The youngest process below the supervisor: its parent, which has imported everything, only forks."""
        below, found = [self.process.pid], []
        while below:
            pid = below.pop()
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            below += map(int, children)
            found += map(int, children)
        return max(found)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, connection=None):
        if connection is None:
            with contextlib.closing(self.connection()) as connection:
                return self.ask(connection)
        connection.request("POST", "/predict", ROW, KIND)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())


@pytest.fixture
def server(tmp_path):
    found = Server(tmp_path, "--most-body-seconds", "1")
    yield found
    found.process.kill()
    found.process.wait()


def exchange(port, data, wait=0.0):
    """What a server answers to bytes, until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        time.sleep(wait)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_a_killed_worker_is_replaced_strangers_are_answered_and_a_stop_finishes_what_was_accepted(server):
    assert server.ask()[0] == 200
    os.kill(server.worker, signal.SIGKILL)
    server.wait(lambda: server.starts == 2)  # the port is the same: who asks meanwhile waits
    status, _, headers = server.ask()
    assert status == 200
    assert "server" not in {name.lower() for name in headers}
    assert "exit code -9" in server.text("err")

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

    results, asking = [], threading.Event()

    def keep_asking():
        with contextlib.closing(server.connection()) as connection:
            close = None
            while close != "close":
                status, _, headers = server.ask(connection)
                results.append(status)
                asking.set()
                close = headers.get("connection")

    threads = [threading.Thread(target=keep_asking) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert asking.wait(PATIENCE)
    os.kill(server.process.pid, signal.SIGTERM)
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert set(results) == {200}
    assert server.process.wait(PATIENCE) == 0
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_a_worker_that_was_told_something_wrong_is_not_started_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"garbage")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = ServeSettings(str(path))
        with pytest.raises(SystemExit) as ended:
            work(settings, listening)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("balpoe: ")
        assert "model.safetensors" in line

        monkeypatch.setattr(supervisor, "WAITS", (0.0,))
        lives = iter([1, -9, 2, 0])
        monkeypatch.setattr(supervisor._Supervisor, "_one_life", lambda self: next(lives))
        assert supervisor._Supervisor(settings, listening).run() == 2
        assert list(lives) == [0]
    assert capsys.readouterr().err.count("another starts") == 2


def test_a_signal_ends_the_waiting_for_a_next_life(monkeypatch):
    monkeypatch.setattr(supervisor, "WAITS", (PATIENCE,))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = supervisor._Supervisor(ServeSettings("nothing"), listening)

        def one_life():
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            return -9

        monkeypatch.setattr(found, "_one_life", one_life)
        start = time.monotonic()
        assert found.run() == 0
        assert time.monotonic() - start < PATIENCE / 2


def test_a_worker_that_cannot_be_started_is_tried_again(monkeypatch, capsys):
    class Unstartable:
        tries = 0

        def __init__(self, **_):
            pass

        def start(self):
            Unstartable.tries += 1
            if Unstartable.tries == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionRefusedError

    monkeypatch.setattr(supervisor, "WAITS", (0.0,))
    monkeypatch.setattr(supervisor, "_context", lambda: SimpleNamespace(Process=Unstartable))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert supervisor._Supervisor(ServeSettings("nothing"), listening).run() == 0
    assert Unstartable.tries == 3
    assert capsys.readouterr().err.count("another starts") == 2


def test_answers_do_not_wait_for_each_other_on_the_wire():
    """Else the end of an answer that is sent in two pieces waits 40 ms for the client's kernel."""
    with supervisor._listening("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
