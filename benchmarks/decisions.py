"""Decisions: seconds, and memory, of everything that docs/decisions.md has, on a mapped file of logits.

    python benchmarks/decisions.py [--rows 100000,1000000] [--classes 100] [--threads 2] [--only KIND ...] [--out FILE]

Bar: one million rows of 100 classes decided in under 10 s on two cores, in memory that does not grow with the rows.
Each number comes from a process of its own. The file is read once before, so that the disk is not measured; time is the
fastest of some runs. Runs of the most probable class stand between them: the ratio of processor times says what a
decision takes on a machine that others use, too. Memory is the most that the process held of its own during a run
beyond what it had before, looked up every 5 ms: the mapped file is not in it, what is returned is, and so is what the C
library keeps for later. What is fitted is fitted before, on 5,000 samples, but for the rule of macro F1.
"""

import argparse
import multiprocessing
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import watched

import balpoe
from balpoe.data.long_tail import long_tailed_counts
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.files import read_json, write_json

RUNS = 3
BLOCK = 10_000  # rows that are written together, or moved to their priors
HELD_OUT, SITES = 5_000, 20
PLAIN = "most probable"  # what the others are compared with


def made_logits(rows: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Logits that know something, in float32, and their targets."""
    logits, targets = rng.standard_normal((rows, classes), dtype=np.float32) * 2, rng.integers(classes, size=rows)
    logits[np.arange(rows), targets] += 6
    return logits, targets


def write_logits(path: Path, rows: int, classes: int) -> None:
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, classes))
    rng = np.random.default_rng(0)
    for start in range(0, rows, BLOCK):
        block = made_logits(min(BLOCK, rows - start), classes, rng)[0]
        table[start : start + len(block)] = block
    table.flush()


def long_tail(classes: int) -> torch.Tensor:
    return torch.tensor(long_tailed_counts(classes, 500, 100))


def decisions(classes: int) -> dict[str, Callable[[Any], Any]]:
    """Every kind of decision, each under a deployment prior."""
    generator, prior = torch.Generator().manual_seed(0), balpoe.class_prior(long_tail(classes))
    weights = torch.rand(classes, generator=generator) + 0.1
    matrix = torch.rand(classes, classes + 1, generator=generator)
    matrix[range(classes), range(classes)] = 0
    tree = Taxonomy.from_rows([(f"{label}", f"group {label // 5}") for label in range(classes)], ("class", "group"))
    return {
        PLAIN: lambda logits: balpoe.decide(logits, target_prior=prior),
        "costs of missing": lambda logits: balpoe.decide(logits, costs=weights, target_prior=prior),
        "cost matrix": lambda logits: balpoe.decide(logits, costs=matrix, target_prior=prior),
        "abstaining by cost": lambda logits: balpoe.decide(logits, abstain_cost=0.3, target_prior=prior),
        "macro F1, fitted": lambda logits: balpoe.decide(logits, metric="macro_f1", target_prior=prior),
        "deepest label": lambda logits: tree.decide(logits, 0.8, target_prior=prior),
        **fitted(classes, prior),
    }


def fitted(classes: int, prior: torch.Tensor) -> dict[str, Callable[[Any], Any]]:
    """What is fitted on held-out samples, or read from a table, and then used on the rows."""
    logits, targets = (torch.from_numpy(each) for each in made_logits(HELD_OUT, classes, np.random.default_rng(1)))
    held_out = balpoe.Predictions(logits[:, None], targets, long_tail(classes), torch.zeros(1))
    sets = balpoe.ConformalSets.fit(held_out, method="per-class", target_prior=prior)
    abstention = balpoe.Abstention.fit(held_out, error=0.1, target_prior=prior)
    thresholds = balpoe.Thresholds.fit(held_out, target_prior=prior, num_resamples=1)
    unknown = balpoe.UnknownDetector.fit(held_out)
    counts = np.random.default_rng(2).integers(100, size=(SITES, classes))
    cells = {f"{site}": dict(zip(held_out.class_names, row, strict=True)) for site, row in enumerate(counts.tolist())}
    table = balpoe.PriorTable.read(cells, held_out.class_names, ["site"])
    return {
        "abstaining at an error": abstention,
        "thresholds of classes": thresholds,
        "sets, block by block": lambda logits: sum(len(block) for block in sets.predict_blocks(logits)),
        "sets, all at once": sets.predict,
        "unknown": lambda logits: unknown.predict(logits[:, None]),
        "prior of each row, block by block": lambda logits: [
            len(table.adjust(torch.as_tensor(logits[start : start + BLOCK]), site_rows(logits[start : start + BLOCK])))
            for start in range(0, len(logits), BLOCK)
        ],
        "prior of each row, all at once": lambda logits: table.adjust(torch.as_tensor(logits), site_rows(logits)),
    }


def site_rows(logits: Any) -> torch.Tensor:
    return torch.arange(len(logits)) % SITES


def measured(path: Path, kind: str, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
    logits = np.load(path, mmap_mode="r")
    known = decisions(logits.shape[1])
    pair = (known[PLAIN], known[kind])
    for each in pair:
        each(logits[:1000])  # what is loaded on first use
    float(logits.max())  # the file is in memory now
    with watched() as seen:
        pair[1](logits)
    times = [[timed(each, logits) for each in pair] for _ in range(RUNS)]
    (seconds, processor), plain = min(each[1] for each in times), min(each[0][1] for each in times)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "ratio": min(each[1][1] for each in times) / plain,
        "rows_per_second": len(logits) / seconds,
        "mib": max(seen) - seen[0],
    }


def timed(work: Callable[[Any], Any], logits: Any) -> tuple[float, float]:
    """Seconds on the wall, and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    work(logits)
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=None, help="kinds to measure; the others of the file stay")
    parser.add_argument("--out", type=Path, default=Path("results/decisions_speed.json"))
    arguments = parser.parse_args()
    kinds = arguments.only or list(decisions(arguments.classes))
    before = read_json(arguments.out)["rows"] if arguments.only and arguments.out.exists() else []
    found = [row for row in before if row["kind"] not in kinds]
    for rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            write_logits(path, rows, arguments.classes)
            for kind in kinds:
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
                    numbers = pool.submit(measured, path, kind, arguments.threads).result()
                found.append({"kind": kind, "rows": rows, **numbers})
                print(
                    f"{kind}, {rows:,} rows: {numbers['seconds']:.2f} s, {numbers['mib']:.0f} MiB, "
                    f"{numbers['ratio']:.1f} times {PLAIN}",
                    flush=True,
                )
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
