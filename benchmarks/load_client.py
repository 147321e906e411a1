"""A lean client of a server: so many connections, each with one request at a time, its bytes made beforehand.

    python benchmarks/load_client.py PORT BODIES --connections 64 --requests 1000 [--leave 10]

BODIES is a file of whole requests, each after its length in eight bytes. It imports nothing but the standard library,
so that it takes little of the cores that it shares with the server, and prints one line of JSON.
"""

import argparse
import asyncio
import collections
import functools
import itertools
import json
import struct
import time
from pathlib import Path


class Load:
    """What all connections share."""

    def __init__(self, port: int, requests: list[bytes], wanted: int, leave: int, pause: float) -> None:
        self.port, self.requests, self.left = port, itertools.cycle(requests), wanted
        self.leave, self.pause = leave, pause
        self.sent = itertools.count(1)
        self.seconds: list[float] = []
        self.statuses: collections.Counter[int] = collections.Counter()
        self.cut = self.gone = self.refused = 0
        """Requests whose connection ended before their answer; those that we left; connections that were refused."""

    def next(self) -> bytes | None:
        if self.left <= 0:
            return None
        self.left -= 1
        return next(self.requests)


class Connection(asyncio.Protocol):
    """One connection, and the request that is on its way."""

    def __init__(self, load: Load, done: "asyncio.Future[bool]") -> None:
        self.load, self.done, self.start, self.answer = load, done, 0.0, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        request = self.load.next()
        if request is None:
            self.end(last=True)
            return
        self.start = time.perf_counter()
        self.transport.write(request)
        if self.load.leave and next(self.load.sent) % self.load.leave == 0:
            self.load.gone += 1
            self.start = 0.0
            asyncio.get_running_loop().call_later(self.load.pause, self.end)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        head = self.answer.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = bytes(self.answer[:head]).lower().split(b"\r\n")
        size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(self.answer) < head + 4 + size:
            return
        self.load.statuses[int(lines[0].split()[1])] += 1
        if self.start:
            self.load.seconds.append(time.perf_counter() - self.start)
        self.start, self.answer = 0.0, bytearray()
        if b"connection: close" in lines:  # the server says goodbye
            self.load.left = 0
            self.end(last=True)
        else:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.cut += bool(self.start)
        self.end(last=bool(self.start))

    def end(self, last: bool = False) -> None:
        self.start = 0.0
        if not self.transport.is_closing():
            self.transport.close()
        if not self.done.done():
            self.done.set_result(last)


async def one(load: Load) -> None:
    loop = asyncio.get_running_loop()
    while load.left > 0:
        done = loop.create_future()
        try:
            await loop.create_connection(functools.partial(Connection, load, done), "127.0.0.1", load.port)
        except OSError:
            load.refused += 1
            return
        if await done:
            return


async def run(load: Load, connections: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(one(load) for _ in range(connections)))
    return time.perf_counter() - start


def read_requests(path: Path) -> list[bytes]:
    data, requests, place = path.read_bytes(), [], 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        requests.append(data[place + 8 : place + 8 + size])
        place += 8 + size
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("bodies", type=Path)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--leave", type=int, default=0, help="leave after each so manieth request (default: never)")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds until then")
    arguments = parser.parse_args()
    load = Load(arguments.port, read_requests(arguments.bodies), arguments.requests, arguments.leave, arguments.pause)
    seconds = asyncio.run(run(load, arguments.connections))
    ranked = sorted(load.seconds) or [0.0]
    print(
        json.dumps(
            {
                "seconds": seconds, "answered": sum(load.statuses.values()), "statuses": load.statuses,
                "cut": load.cut, "gone": load.gone, "refused": load.refused,
                "p50": ranked[len(ranked) // 2], "p99": ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
