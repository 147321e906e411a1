"""A server under load: images a second, waiting times, memory, and whether each accepted request is answered.

    python benchmarks/serve_load.py [--networks resnet50,lite0,cifar] [--requests 100000] [--runtime onnx]
                                    [--workers N] [--small]

A real server process on this machine, and a client in a process of its own that shares its cores. Bars: at 64
connections with the 224-pixel networks, 80 % of what the same runtime does in batches of 32 without a server, both
measured in turns; p99 below 5 times p50. The CIFAR network makes the long run, over which memory must stay flat.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import balpoe
from balpoe import Preprocessing
from balpoe.data.cifar import CIFAR_PREPROCESSING
from balpoe.data.jpeg import jpeg
from balpoe.deployment.loaded_model import Model, load
from balpoe.experiments import presets
from balpoe.experiments.build import build_network
from balpoe.experiments.model_file import save_model
from balpoe.files import write_json

CONNECTIONS = (1, 8, 64, 256)
BATCH = 32
CLIENT = Path(__file__).with_name("load_client.py")
NETWORKS = {
    "resnet50": (presets.imagenet_lt_resnet50, 1000, 224),
    "lite0": (presets.own, 100, 224),
    "cifar": (presets.cifar100_lt, 100, 32),
}
"""Preset, number of classes, and side of the images."""


def model_of(name: str) -> Model:
    """A network as one would train it; its weights are random, for they make no difference here."""
    preset, classes, side = NETWORKS[name]
    recipe = preset()
    network = build_network(recipe, classes, (3, side, side), trained=True).eval()
    counts = torch.logspace(3, 1, classes).long()
    preprocessing = CIFAR_PREPROCESSING if side == 32 else Preprocessing((3, side, side), resize=256)
    names = tuple(f"class {number}" for number in range(classes))
    lambdas = torch.tensor(recipe.expert_lambdas)
    return Model(network, names, counts, preprocessing, counts / counts.sum(), lambdas, recipe)


def saved(name: str, folder: Path, runtime: str) -> Path:
    path = folder / f"{name}.{'safetensors' if runtime == 'torch' else 'onnx'}"
    if path.exists():
        return path
    if runtime == "torch":
        save_model(path, model_of(name))
    else:
        balpoe.export(model_of(name), path)  # type: ignore[attr-defined,unused-ignore]
    return path


def write_requests(path: Path, side: int, count: int = 64) -> None:
    """Whole requests, each with a small JPEG of its own, as the client reads them."""
    generator, small = torch.Generator().manual_seed(0), 256 if side > 32 else 40
    with path.open("wb") as file:
        for _ in range(count):
            coarse = torch.rand(1, 3, 8, 8, generator=generator)
            large = torch.nn.functional.interpolate(coarse, size=(small, small), mode="bilinear")
            body = form(jpeg((255 * large[0]).byte()))
            head = (
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            )
            request = head + body
            file.write(struct.pack("<Q", len(request)) + request)


def form(image: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    return head + image + b"\r\n--x--\r\n"


@contextlib.contextmanager
def server(path: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process and its port."""
    command = [sys.executable, "-m", "balpoe", "serve", str(path), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 (our own command)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield process, int(line.rsplit(":", 1)[1])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def client(port: int, bodies: Path, **settings: float) -> subprocess.Popen[str]:
    flags = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-S", str(CLIENT), str(port), str(bodies), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 (our own command)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    found: dict[str, Any] = json.loads(out)
    return found


def asked(port: int, bodies: Path, **settings: float) -> dict[str, Any]:
    return finished(client(port, bodies, **settings))


def offline_rate(model: Model, side: int, seconds: float) -> float:
    """Images a second of the runtime by itself, on images that are decoded already."""
    images = torch.randint(0, 256, (BATCH, 3, side, side), dtype=torch.uint8)
    model.expert_logits(images)
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        model.expert_logits(images)
        batches += 1
    return BATCH * batches / (time.perf_counter() - start)


def measured(
    name: str, folder: Path, runtime: str, seconds: float, numbers: Sequence[int], rounds: int, workers: int
) -> dict[str, Any]:
    """Rates and waiting times at each number of connections, with the offline rate before and after each."""
    side, bodies = NETWORKS[name][2], folder / "requests"
    path = saved(name, folder, runtime)
    model = load(path)
    write_requests(bodies, side)
    rows = []
    flags = "--workers", str(workers), "--most-seconds", "600"  # waiting is measured, not refused
    with server(path, *flags) as (_, port):
        asked(port, bodies, connections=8, requests=rounds * BATCH)
        before = offline_rate(model, side, seconds)
        for connections in numbers:
            most = before if connections > 1 else before / 2
            requests = max(rounds * connections, int(seconds * most))
            found = asked(port, bodies, connections=connections, requests=requests)
            after = offline_rate(model, side, seconds)
            rate = found["statuses"].get("200", 0) / found["seconds"]
            rows.append(
                {
                    "connections": connections,
                    "images_per_second": round(rate, 2),
                    "of_offline": round(rate / statistics.mean([before, after]), 3),
                    "p50_ms": round(1000 * found["p50"], 1),
                    "p99_ms": round(1000 * found["p99"], 1),
                    "p99_over_p50": round(found["p99"] / found["p50"], 2),
                    "statuses": found["statuses"],
                    "cut": found["cut"],
                }
            )
            print(f"{name:9} {rows[-1]}", flush=True)
            before = after
    about = {"network": name, "runtime": runtime, "workers": workers}
    return {**about, "offline_images_per_second": round(before, 2), "rows": rows}


def own_mebibytes(server: int) -> float:
    """Memory of the server and all processes below it, without mapped files; what they share counts once."""
    below, kibibytes = [server], 0
    while below:
        pid = below.pop()
        below += [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kibibytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
    return kibibytes / 1024


def long_run(folder: Path, runtime: str, requests: int) -> dict[str, Any]:
    """Memory over many requests of the CIFAR network."""
    bodies, path = folder / "requests", saved("cifar", folder, runtime)
    write_requests(bodies, 32)
    looks = []
    with server(path) as (process, port):
        asked(port, bodies, connections=64, requests=min(1000, requests))
        for part in range(11):
            looks.append(round(own_mebibytes(process.pid), 1))
            if part < 10:
                found = asked(port, bodies, connections=64, requests=requests // 10)
                assert found["statuses"] == {"200": requests // 10}, found
                print(f"{(part + 1) * requests // 10:,} requests, {looks[-1]} MiB before them", flush=True)
    return {"requests": requests, "mebibytes": looks, "growth": round(looks[-1] - looks[0], 1)}


def answered(folder: Path, runtime: str, requests: int) -> dict[str, Any]:
    """Whether each accepted request is answered while clients leave, and while the server stops."""
    bodies, path = folder / "requests", saved("cifar", folder, runtime)
    write_requests(bodies, 32)
    with server(path) as (process, port):
        leaving = client(port, bodies, connections=32, requests=requests, leave=7)
        staying = asked(port, bodies, connections=32, requests=requests)
        left = finished(leaving)
        stopped = client(port, bodies, connections=64, requests=10**9)
        time.sleep(3)
        start = time.perf_counter()
        os.kill(process.pid, signal.SIGTERM)
        found = finished(stopped)
        process.wait()
        seconds = time.perf_counter() - start
    return {
        "clients_that_left": left["gone"], "cut_beside_them": staying["cut"] + left["cut"],
        "statuses_beside_them": staying["statuses"], "answered_until_the_stop": found["answered"],
        "statuses_until_the_stop": found["statuses"], "cut_by_the_stop": found["cut"],
        "seconds_of_the_stop": round(seconds, 2), "exit_code": process.returncode,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--runtime", choices=("torch", "onnx"), default="torch")
    parser.add_argument("--workers", type=int, default=1, help="processes with the network, of the rates")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, about")
    parser.add_argument("--requests", type=int, default=100_000, help="of the long run")
    parser.add_argument("--small", action="store_true", help="a quick look instead")
    parser.add_argument("--out", type=Path, default=Path("results/serve_load.json"))
    arguments = parser.parse_args()
    seconds, requests = (1.0, 400) if arguments.small else (arguments.seconds, arguments.requests)
    numbers, rounds = (CONNECTIONS[:3], 1) if arguments.small else (CONNECTIONS, 3)
    record: dict[str, Any] = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "rates": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for network in filter(None, arguments.networks.split(",")):
            found = measured(network, folder, arguments.runtime, seconds, numbers, rounds, arguments.workers)
            record["rates"].append(found)
        record["answered"] = answered(folder, arguments.runtime, min(requests, 5000))
        print(record["answered"], flush=True)
        record["memory"] = long_run(folder, arguments.runtime, requests)
        print(record["memory"], flush=True)
    write_json(arguments.out, record)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
