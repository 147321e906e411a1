"""Which launches of our own kernels are fastest: a fused step on one GPU, with one launch changed at a time.

    python benchmarks/step_launches.py [--batches 128,512] [--experts 3] [--seconds 240]
                                       [--out step_launches.json]

Experts of resnet32; steps are captured and replayed, without epochs around them. "as they are" is what
`balpoe.networks.fused.launch_table` has. Each candidate takes the place of one launch, and then those that were faster
by more than `CLEARLY` take their places together: first kernels that are launched directly, then those of them that
compute a normalisation besides, launches of larger batches, gradients of weights, and normalisations.
The kernels' microseconds, by name, and those in which so many of them ran at the same time, are of the table and of
what was found. No measurement is begun after --seconds; what is measured is written as it comes.
"""

import argparse
import functools
import itertools
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from cifar_step import Steps, profiled, random_images, with_steps

import balpoe
from balpoe.files import write_json
from balpoe.networks.fused import launch_table as table
from balpoe.networks.fused.direct import Direct
from balpoe.networks.fused.launch_table import MANY_IMAGES, Launch, launches_of
from balpoe.training.fused_loss import CHECKED

STEPS, REPEATS = 40, 7
CLEARLY = 0.004  # of the step: what two runs of the same launches differ by


class Batch(NamedTuple):
    """What a step trains: so many experts on so many images."""

    images: int
    experts: int

    def of(self, channels: int) -> int:
        """Images of layers of so many channels, each counted once for every expert: the first stage is of all."""
        return self.images * (1 if channels == 16 else self.experts)


class Change(NamedTuple):
    """A launch of a kernel for layers of so many channels, in the place of the present one."""

    channels: int
    kernel: str
    launch: Launch | Direct

    def __str__(self) -> str:
        """E.g. "16 channels, weights: block 64, programs 132, warps 2, stages 3"."""
        said = (f"{name} {value}" for name, value in self.launch._asdict().items() if value)
        return f"{self.channels} channels, {self.kernel}: {', '.join(said)}"


def direct(batch: Batch) -> Iterator[Change]:
    """Launches of `direct_kernels.cu`."""
    for channels, ways in DIRECT.items():
        for field, launches in ways._asdict().items():
            for way in launches:
                yield Change(channels, f"direct_{field}", way)


def merged(batch: Batch) -> Iterator[Change]:
    """The same of convolutions and gradients of inputs that compute a normalisation besides."""
    for change in direct(batch):
        if change.kernel != "direct_weights":
            yield change._replace(launch=cast("Direct", change.launch)._replace(merged=True))


class Ways(NamedTuple):
    """How the kernels of `direct_kernels.cu` can be launched for layers of so many channels."""

    forward: list[Direct]
    backward: list[Direct]
    weights: list[Direct]


DIRECT = {
    32: Ways(
        [Direct(256, 528, 8), Direct(256, 264, 8), Direct(128, 396, 8), Direct(256, 396, 8, at_once=3)],
        [Direct(256, 528, 8, at_once=2), Direct(256, 264, 8, at_once=2), Direct(128, 396, 8, at_once=3),
         Direct(128, 792, 8, at_once=3)],
        [Direct(256, 264, 12, shares=2, at_once=2), Direct(256, 132, 12, shares=2), Direct(256, 132, 24, shares=4)],
    ),
    64: Ways(
        [Direct(256, 4096, 8), Direct(128, 792, 8), Direct(64, 396, 4), Direct(128, 264, 8)],
        [Direct(128, 264, 4, at_once=1), Direct(128, 792, 8, at_once=2), Direct(64, 396, 4), Direct(64, 528, 4)],
        [Direct(128, 132, 12), Direct(128, 264, 12)],
    ),
    16: Ways(
        [Direct(512, 528, 8), Direct(256, 528, 4), Direct(256, 528, 8), Direct(256, 264, 16)],
        [Direct(512, 528, 8, at_once=2), Direct(256, 528, 4, at_once=2), Direct(256, 528, 8, at_once=3),
         Direct(256, 264, 16, at_once=2)],
        [Direct(256, 132, 12, shares=4), Direct(256, 528, 6, shares=2), Direct(512, 264, 12, shares=4)],
    ),
}  # fmt: skip
"""By channels."""


def of_many_images(batch: Batch) -> Iterator[Change]:
    """Launches of larger batches."""
    for channels, launches in table.LAUNCHES_OF_MANY_IMAGES.items():
        if batch.of(channels) < MANY_IMAGES:
            for kernel, launch in launches.items():
                yield Change(channels, kernel, launch)


def gradients_of_weights(batch: Batch) -> Iterator[Change]:
    """Of layers that are not launched directly."""
    for channels, block, number, warps in GRADIENTS_OF_WEIGHTS:
        yield Change(channels, "weights", Launch(block, number, warps=warps))
    pipelines = ((4, 1), (2, 3))  # warps and stages
    for (warps, stages), block, number in itertools.product(pipelines, (64, 128), (528, 1056)):
        # A program for each tap.
        yield Change(64, "weights", Launch(block, number, warps, stages, columns=64, depth=64))


GRADIENTS_OF_WEIGHTS = (
    (64, 128, 132, 4), (64, 128, 132, 8), (64, 128, 264, 8), (64, 64, 132, 8), (64, 64, 132, 4), (64, 64, 264, 4),
    (32, 128, 264, 8), (32, 128, 264, 4), (32, 64, 264, 8),
)  # fmt: skip
"""Channels, block, programs and warps."""


def normalisations(batch: Batch) -> Iterator[Change]:
    """Launches of the kernels that take numbers one by one; each of their programs reads all sums first."""
    for channels, (numbers, programs) in itertools.product(
        (32, 16, 64), ((16384, 264), (8192, 264), (16384, 132), (8192, 528), (16384, 528), (4096, 1056))
    ):
        yield Change(channels, "elementwise", Launch(numbers // channels, programs, warps=8))


ROUNDS = (direct, merged, of_many_images, gradients_of_weights, normalisations)


def is_present(change: Change, batch: Batch) -> bool:
    """Whether such batches are launched so already."""
    launched: Launch | Direct | None = getattr(launches_of(change.channels, batch.of(change.channels)), change.kernel)
    return launched == change.launch


@contextmanager
def changed(batch: Batch, changes: list[Change]) -> Iterator[None]:
    """Let such batches be launched so; of several changes of the same launch the last one counts."""
    before = dict(table.LAUNCHES), dict(table.LAUNCHES_OF_MANY_IMAGES)
    for channels, kernel, launch in changes:
        if batch.of(channels) >= MANY_IMAGES:
            others = table.LAUNCHES_OF_MANY_IMAGES.get(channels, {})
            table.LAUNCHES_OF_MANY_IMAGES[channels] = {**others, kernel: launch}
        else:
            new: dict[str, Any] = {kernel: launch}
            table.LAUNCHES[channels] = table.LAUNCHES[channels]._replace(**new)
    try:
        yield
    finally:
        table.LAUNCHES.update(before[0])
        table.LAUNCHES_OF_MANY_IMAGES.clear()
        table.LAUNCHES_OF_MANY_IMAGES.update(before[1])


def running(spans: Iterable[tuple[float, float]]) -> dict[int, float]:
    """For how long so many kernels ran at the same time, of those that began and ended at these times.

    >>> running([(0, 4), (3, 5), (7, 8)])
    {1: 5, 2: 1, 0: 2}
    """
    found: dict[int, float] = {}
    changes = sorted((time, change) for span in spans for time, change in zip(span, (1, -1), strict=True))
    number = 0
    for (now, change), (later, _) in itertools.pairwise(changes):
        number += change
        if later > now:
            found[number] = found.get(number, 0) + later - now
    return found


def measure(data: balpoe.Dataset, batch: Batch, with_kernels: bool = False) -> dict[str, Any]:
    """Milliseconds of a step, and on wish microseconds and calls of each kernel."""
    CHECKED.clear()  # what is launched otherwise is checked anew

    def use(steps: Steps) -> dict[str, Any]:
        seconds = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            steps(STEPS)
            seconds.append(time.perf_counter() - begun)
        found: dict[str, Any] = {"ms": 1000 * statistics.median(seconds) / STEPS}
        if with_kernels:
            profile = profiled(steps, STEPS)
            spans = [(each.time_range.start, each.time_range.end) for each in profile.events()]
            found["running"] = {str(number): round(us / STEPS, 1) for number, us in running(spans).items()}
            events = [event for event in profile.key_averages() if event.self_device_time_total]
            events.sort(key=lambda event: -event.self_device_time_total)
            found["kernels"] = [
                [event.key[:60], round(event.self_device_time_total / STEPS, 1), round(event.count / STEPS, 1)]
                for event in events
            ]
        return found

    return cast("dict[str, Any]", with_steps(data, "fused", batch.images, use, batch.experts))


def attempt(batch: Batch, changes: list[Change], with_kernels: bool = False) -> dict[str, Any]:
    """The same of random images, with these launches."""
    row: dict[str, Any] = {"batch": batch.images, "experts": batch.experts, "changes": [str(each) for each in changes]}
    try:
        with changed(batch, changes), warnings.catch_warnings():
            for what in ("the fused step is replaced", "the training step cannot be captured"):
                warnings.filterwarnings("error", message=what)
            return row | measure(same_images(), batch, with_kernels)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


class Process:
    """One that makes attempts; another takes its place after an error of CUDA, behind which nothing runs any more."""

    def __init__(self) -> None:
        self.pool = self._new()

    def attempt(self, *arguments: Any, **settings: Any) -> dict[str, Any]:
        row: dict[str, Any] = self.pool.submit(attempt, *arguments, **settings).result()
        if "CUDA" in row.get("error", ""):
            self.pool.shutdown()
            self.pool = self._new()
        return row

    @staticmethod
    def _new() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


@functools.cache
def same_images() -> balpoe.Dataset:
    torch.manual_seed(0)
    return random_images()


def faster(rows: list[tuple[Change, float]], base: float) -> list[Change]:
    """The fastest launch of each kernel, where it is clearly faster than the present one.

    >>> first, second = Change(16, "weights", Launch(64, 132)), Change(16, "weights", Launch(64, 264))
    >>> faster([(first, 1.45), (second, 1.4), (Change(32, "weights", Launch(64, 132)), 1.499)], base=1.5) == [second]
    True
    """
    best: dict[tuple[int, str], tuple[float, Change]] = {}
    for change, ms in rows:
        place = change.channels, change.kernel
        if ms < (1 - CLEARLY) * base and ms < best.get(place, (base, change))[0]:
            best[place] = ms, change
    return [change for _, change in best.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", default="512,128")
    parser.add_argument("--experts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240, help="for each size of batches")
    parser.add_argument("--out", type=Path, default=Path("step_launches.json"))
    options = parser.parse_args()
    process, rows = Process(), list[dict[str, Any]]()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def keep(row: dict[str, Any]) -> float:
        rows.append(row)
        write_json(options.out, {**about, "rows": rows})
        said = row.get("error") or f"{row['ms']:.3f} ms"
        print(f"{row['batch']:4} {said}  {'; '.join(row['changes']) or 'as they are'}", flush=True)
        return float(row.get("ms", "inf"))

    for batch in (Batch(int(images), options.experts) for images in options.batches.split(",")):
        end = time.perf_counter() + options.seconds
        base, chosen = keep(process.attempt(batch, [], with_kernels=True)), list[Change]()
        for candidates in ROUNDS:
            others = [each for each in candidates(batch) if not is_present(each, batch)]
            timed = [
                (each, keep(process.attempt(batch, [*chosen, each]))) for each in others if time.perf_counter() < end
            ]
            if better := faster(timed, base):
                chosen += better
                base = keep(process.attempt(batch, chosen, with_kernels=True))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
