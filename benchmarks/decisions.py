"""Decisions: rows a second, and memory, of balpoe.decide on a mapped file of logits.

    python benchmarks/decisions.py [--rows 100000,1000000] [--classes 100] [--threads 2] [--out FILE]

Bar: one million rows of 100 classes in under 10 s on two cores, in memory that does not grow with the rows. Each number
comes from a process of its own. The file is read once before, so that the disk is not measured; time is the fastest of
some runs. Memory is the most that the process held of its own during a run beyond what it had before, looked up every
5 ms: the mapped file is not in it, the answers (8 bytes a row) are, and so is what the C library keeps for later.
"""

import argparse
import multiprocessing
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import balpoe
from balpoe.data.long_tail import long_tailed_counts
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.files import write_json

RUNS = 3
BLOCK = 10_000  # rows that are written together


def write_logits(path: Path, rows: int, classes: int) -> None:
    """Logits that know something, in float32."""
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, classes))
    rng = np.random.default_rng(0)
    for start in range(0, rows, BLOCK):
        block = rng.standard_normal((min(BLOCK, rows - start), classes), dtype=np.float32) * 2
        block[np.arange(len(block)), rng.integers(classes, size=len(block))] += 6
        table[start : start + len(block)] = block
    table.flush()


def decisions(classes: int) -> dict[str, Callable[[Any], Any]]:
    """Every kind of decision, each under a deployment prior."""
    generator = torch.Generator().manual_seed(0)
    prior = torch.tensor(long_tailed_counts(classes, 500, 100)).double()
    prior = prior / prior.sum()
    weights = torch.rand(classes, generator=generator) + 0.1
    matrix = torch.rand(classes, classes + 1, generator=generator)
    matrix[range(classes), range(classes)] = 0
    tree = Taxonomy.from_rows([(f"{label}", f"group {label // 5}") for label in range(classes)], ("class", "group"))
    return {
        "most probable": lambda logits: balpoe.decide(logits, target_prior=prior),
        "costs of missing": lambda logits: balpoe.decide(logits, costs=weights, target_prior=prior),
        "cost matrix": lambda logits: balpoe.decide(logits, costs=matrix, target_prior=prior),
        "abstaining by cost": lambda logits: balpoe.decide(logits, abstain_cost=0.3, target_prior=prior),
        "macro F1, fitted": lambda logits: balpoe.decide(logits, metric="macro_f1", target_prior=prior),
        "deepest label": lambda logits: tree.decide(logits, 0.8, target_prior=prior),
    }


def own_mebibytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


def measured(path: Path, kind: str, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    logits = np.load(path, mmap_mode="r")
    decide = decisions(logits.shape[1])[kind]
    decide(logits[:1000])  # what is loaded on first use
    float(logits.max())  # the file is in memory now
    seen, done = [own_mebibytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(own_mebibytes())

    thread = threading.Thread(target=watch)
    thread.start()
    times = []
    for _ in range(RUNS):
        start, used = time.perf_counter(), time.process_time()
        decide(logits)
        times.append((time.perf_counter() - start, time.process_time() - used))
    done.set()
    thread.join()
    seconds, processor = min(times)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "rows_per_second": len(logits) / seconds,
        "mib": max(seen) - seen[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/decisions_speed.json"))
    arguments = parser.parse_args()
    found = []
    for rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            write_logits(path, rows, arguments.classes)
            for kind in decisions(arguments.classes):
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
                    numbers = pool.submit(measured, path, kind, arguments.threads).result()
                found.append({"kind": kind, "rows": rows, **numbers})
                print(f"{kind}, {rows:,} rows: {numbers['seconds']:.2f} s, {numbers['mib']:.0f} MiB", flush=True)
    about = {
        "made": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "classes": arguments.classes,
    }
    write_json(arguments.out, {**about, "rows": found})
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
