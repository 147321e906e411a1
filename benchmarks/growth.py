"""Growth: time and memory of loss, metrics and report, as the classes go to 100,000 and the experts to 8.

    python benchmarks/growth.py [--classes 10,100,...] [--experts 1,2,...] [--samples 256] [--out results/growth.json]

Each number comes from a process of its own with one thread. Time is processor time, of the fastest of the runs that
fill two seconds: the program's own, and beside it the system's, most of which is for handing out memory. Memory is the
most that the process held of its own beyond what it had before, looked up every 5 ms: neither the loss's inputs nor the
mapped predictions are in it, nor what was given back, which the C library likes to keep for later. The predictions are
made up, and saved and loaded as those of a run. Growth is the exponent from one size to the next, the logarithm of the
ratio of times over that of sizes: 1 is linear.
"""

import argparse
import ctypes
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from memory import watched

import balpoe
from balpoe.data.long_tail import long_tailed_counts
from balpoe.files import write_json
from balpoe.report.write import write_report

BATCH = 128
CLASSES, EXPERTS = (10, 100, 1_000, 10_000, 100_000), (1, 2, 4, 8)
USUAL_CLASSES, USUAL_EXPERTS = 1_000, 3
ENOUGH_SECONDS, LOOKS = 2.0, 20
M_MMAP_THRESHOLD = -3  # of mallopt: larger pieces of memory go back to the system when they are freed

Growth = dict[str, Any]


def counts(classes: int) -> torch.Tensor:
    return torch.tensor(long_tailed_counts(classes, 500, 100))


def save_predictions(folder: Path, classes: int, experts: int, samples: int) -> None:
    """Experts that know something, a long tail in training, test samples spread evenly over the classes."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(samples) * classes // samples
    logits = torch.empty(samples, experts, classes, dtype=torch.float16)
    for row, target in enumerate(targets):
        one = 2 * torch.randn(experts, classes, generator=generator)
        one[:, target] += 6
        logits[row] = one.half()
    lambdas = torch.tensor(balpoe.equidistant_lambdas(experts))
    balpoe.Predictions(logits, targets, counts(classes), lambdas).save(folder / "predictions")


def loss(folder: Path, classes: int, experts: int) -> Callable[[], object]:
    value = balpoe.BalPoELoss(counts(classes), balpoe.equidistant_lambdas(experts))
    logits = torch.randn(BATCH, experts, classes, requires_grad=True)
    targets = torch.randint(classes, (BATCH,))
    return lambda: torch.autograd.grad(value(logits, targets), logits)


def metrics(folder: Path, classes: int, experts: int) -> Callable[[], object]:
    predictions = balpoe.Predictions.load(folder / "predictions")
    return lambda: balpoe.evaluate(predictions)


def report(folder: Path, classes: int, experts: int) -> Callable[[], object]:
    return lambda: write_report([str(folder / "predictions")], folder / "report.html")


PARTS = {"loss": loss, "metrics": metrics, "report": report}


def time_of(part: str, folder: Path, classes: int, experts: int) -> Growth:
    torch.set_num_threads(1)
    work = PARTS[part](folder, classes, experts)
    before, times = resource.getrusage(resource.RUSAGE_SELF), [0.0]
    while sum(times) < ENOUGH_SECONDS:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    after, fastest = resource.getrusage(resource.RUSAGE_SELF), min(times[1:])
    own, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"seconds": fastest * own / (own + system), "system_seconds": fastest * system / (own + system)}


def memory_of(part: str, folder: Path, classes: int, experts: int) -> Growth:
    torch.set_num_threads(1)
    if ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17) != 1:
        raise RuntimeError("this C library cannot be asked to give memory back at once")
    work = PARTS[part](folder, classes, experts)
    with watched() as seen:
        while len(seen) < LOOKS:  # a step is over before it was looked at
            work()
    return {"mib": max(seen) - seen[0]}


def rows_of(classes: int, experts: int, samples: int) -> Iterator[Growth]:
    """The measurements of one size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_predictions(folder, classes, experts, samples)
        for part in PARTS:
            found: Growth = {}
            for measure in (time_of, memory_of):
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
                    found |= pool.submit(measure, part, folder, classes, experts).result()
            if part == "report":
                found["page_mb"] = (folder / "report.html").stat().st_size / 1e6
            print(part, classes, experts, {name: round(value, 5) for name, value in found.items()}, flush=True)
            yield {"part": part, "classes": classes, "experts": experts, **found}


def with_exponents(rows: Sequence[Growth], size: str) -> list[Growth]:
    """Each row, with the exponents of time and memory since the same part's row before it."""
    before: dict[str, Growth] = {}
    grown = []
    for row in rows:
        last, before[row["part"]] = before.get(row["part"]), row
        exponents = {}
        if last is not None and row["mib"] > 0 and last["mib"] > 0:
            step = math.log(row[size] / last[size])
            exponents = {f"{name}_exponent": math.log(row[name] / last[name]) / step for name in ("seconds", "mib")}
        grown.append({**row, **exponents})
    return grown


def table(rows: Sequence[Growth]) -> str:
    """One line for each size, in Markdown: time in ms, s and s, each with its memory, and the size of the page."""
    lines = []
    for classes, experts in dict.fromkeys((row["classes"], row["experts"]) for row in rows):
        found = {row["part"]: row for row in rows if (row["classes"], row["experts"]) == (classes, experts)}
        cells = [f"{classes:,}", f"{experts}"]
        for part, scale in (("loss", 1000), ("metrics", 1), ("report", 1)):
            cells += [_two_digits(scale * found[part]["seconds"]), f"{found[part]['mib']:,.0f}"]
        lines.append("| " + " | ".join([*cells, f"{found['report']['page_mb']:.1f}"]) + " |")
    return "\n".join(lines)


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _two_digits(number: float) -> str:
    return f"{number:.2g}" if number < 99.5 else f"{number:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=sizes, default=CLASSES)
    parser.add_argument("--experts", type=sizes, default=EXPERTS)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("results/growth.json"))
    arguments = parser.parse_args()
    samples = arguments.samples
    by_class = [row for classes in arguments.classes for row in rows_of(classes, USUAL_EXPERTS, samples)]
    by_expert = [row for experts in arguments.experts for row in rows_of(USUAL_CLASSES, experts, samples)]
    rows = [*with_exponents(by_class, "classes"), *with_exponents(by_expert, "experts")]
    print(table(rows))
    about = {"made": time.strftime("%Y-%m-%d"), "batch": BATCH, "samples": samples}
    write_json(arguments.out, {**about, "rows": rows})
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
