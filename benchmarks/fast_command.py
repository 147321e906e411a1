"""Where the seconds of a short `balpoe train` go, phase by phase: one seed, and five seeds in one command.

    python benchmarks/fast_command.py [--recipe cifar100-lt-fast] [--seeds 1,5] [--data-root FOLDER]
    python benchmarks/fast_command.py --recipe digits-lt --epochs 2 --seeds 1,2 --out FILE     tries the script on a CPU

Each is a command of its own, in a new process, with a clock around its phases. The first is done twice, so that all
find compiled kernels on disk; the first time, *cold*, is kept as well. Of several seeds phases overlap: a phase's
seconds are those in which any seed is in it, so that they can add up to more than the whole. *Epochs* are timed by the
run itself, with what is compiled and captured in the first one: of several seeds the longest.
"""

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

FIRST_SEED = 21  # as in `balpoe reproduce fast`: seeds that no trial has had
Span = tuple[float, float]


@dataclass
class CommandTime:
    """What one command took."""

    recipe: str
    seeds: int
    cold: bool
    seconds: float
    epochs_seconds: float
    """Seconds in epochs of the seed that took longest."""
    phases: dict[str, float]
    """Seconds in which any seed was in a phase."""
    begun: dict[str, float]
    """When each phase was first entered, in seconds since the command was typed."""
    steps: list[str]
    accuracy: float
    ece: float

    def __str__(self) -> str:
        title = f"{self.recipe}, {self.seeds} seed{'s' * (self.seeds > 1)}{', cold' if self.cold else ''}"
        lines = [f"{title}: {self.seconds:.1f} s, {self.epochs_seconds:.1f} in epochs, {','.join(self.steps)}"]
        lines += [f"  {self.begun[name]:6.1f}  {name:32} {spent:6.2f}" for name, spent in self.phases.items()]
        return "\n".join([*lines, f"  accuracy {100 * self.accuracy:.2f} %, ECE {100 * self.ece:.2f} %"])


def covered(spans: list[Span]) -> float:
    """The seconds that lie in any of some spans.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


class Clock:
    """Spans of phases, in seconds since the command was typed."""

    def __init__(self, typed: float) -> None:
        self.typed = typed
        self.spans: dict[str, list[Span]] = {}

    def now(self) -> float:
        return time.time() - self.typed

    def note(self, phase: str, start: float) -> None:
        self.spans.setdefault(phase, []).append((start, self.now()))

    @contextmanager
    def during(self, phase: str) -> Generator[None, None, None]:
        start = self.now()
        try:
            yield
        finally:
            self.note(phase, start)

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Let a function or method of a module or class be timed."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*arguments: Any, **settings: Any) -> Any:
            with self.during(phase):
                return function(*arguments, **settings)

        setattr(owner, name, timed)

    def around_generator(self, owner: Any, name: str, phase: str) -> None:
        """The same for a generator, from its first step to its last."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*arguments: Any, **settings: Any) -> Generator[Any, Any, Any]:
            with self.during(phase):
                return (yield from function(*arguments, **settings))

        setattr(owner, name, timed)


def inside(typed: float, report: Path, command: list[str]) -> int:
    """Run a command of balpoe's with clocks around its phases."""
    clock = Clock(typed)
    clock.spans["start of Python"] = [(0.0, clock.now())]
    from balpoe.cli.heavy_imports import heavy_imports
    from balpoe.cli.main import main

    @contextmanager
    def timed() -> Generator[None, None, None]:
        """What the command does, torch first, and the clocks once the modules are there."""
        with heavy_imports():
            with clock.during("import torch"):
                early_gpu = importlib.import_module("balpoe.training.early_gpu")
            clock.around(early_gpu, "_first_kernels", "GPU made ready (in a thread)")
            with clock.during("import the rest"):
                yield
        _set_clocks(clock)

    with mock.patch("balpoe.cli.train.heavy_imports", timed):
        code = main(command)
    clock.spans["to the end"] = [(0.0, clock.now())]
    report.write_text(json.dumps(clock.spans))
    return code


def _set_clocks(clock: Clock) -> None:
    from balpoe.cli import train_seeds
    from balpoe.experiments import build, run_folder
    from balpoe.training import captured_step, fit, loop

    clock.around(build, "assemble", "data read, network made")
    clock.around(captured_step.CapturedStep, "_prepare", "kernels compiled, steps captured")
    clock.around_generator(loop.Trainer, "run", "training, all of it")
    clock.around_generator(loop.Trainer, "_take_mean", "mean of the weights, statistics")
    clock.around(loop.Trainer, "save", "checkpoints")
    clock.around(fit, "_predicted", "test set predicted")
    clock.around(run_folder, "_finish", "evaluated, written")
    clock.around(train_seeds, "_print_runs", "printed")


def as_for_a_user() -> dict[str, str]:
    """The environment, where modules are compiled once: some machines are set up to compile them every time."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(recipe: str, count: int, flags: list[str], cold: bool) -> CommandTime:
    """One command in an empty folder."""
    from balpoe.experiments.run_folder import runs_of

    seeds = ",".join(str(FIRST_SEED + number) for number in range(count))
    with tempfile.TemporaryDirectory() as folder:
        report, typed = Path(folder, "spans.json"), time.time()
        command = [sys.executable, __file__, "--inside", str(typed), str(report)]
        command += ["train", recipe, "--seeds", seeds, "--runs", str(Path(folder, "runs")), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=as_for_a_user())  # noqa: S603 - our own
        seconds = time.time() - typed
        spans: dict[str, list[Span]] = json.loads(report.read_text())
        runs = [run for path in Path(folder, "runs").iterdir() for run in runs_of(path)]
        (_, end) = spans.pop("to the end")[0]
        spans["end of Python"] = [(end, seconds)]
        spans = dict(sorted(spans.items(), key=lambda item: min(start for start, _ in item[1])))
        return CommandTime(
            recipe, count, cold, seconds, max(run.seconds() for run in runs),
            {name: covered(several) for name, several in spans.items()},
            {name: min(start for start, _ in several) for name, several in spans.items()},
            sorted({kind for run in runs for kind in run.steps()}),
            fmean(run.evaluation()["accuracy"] for run in runs), fmean(run.evaluation()["ece"] for run in runs),
        )  # fmt: skip


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    import torch

    from balpoe.experiments.run_folder import environment
    from balpoe.files import write_json

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="cifar100-lt-fast")
    parser.add_argument("--seeds", default="1,5", help="how many in each command")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fast_command.json"))
    arguments = parser.parse_args()
    flags = ["--data-root", os.path.abspath(arguments.data_root)] if arguments.data_root else []
    flags += ["--epochs", str(arguments.epochs)] if arguments.epochs else []
    counts = [int(count) for count in arguments.seeds.split(",")]
    print(f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'}, torch {torch.__version__}")
    rows: list[CommandTime] = []
    for number, count in enumerate([counts[0], *counts]):
        rows.append(measure(arguments.recipe, count, flags, cold=number == 0))
        print(rows[-1], flush=True)
        write_json(arguments.out, {"environment": environment(), "rows": [asdict(row) for row in rows]})
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
