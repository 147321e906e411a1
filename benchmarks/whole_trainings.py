"""Whole trainings, as `balpoe train` does them: one seed, five seeds at once, and cifar100-lt-best.

    python benchmarks/whole_trainings.py [--trainings cifar100-lt:1,cifar100-lt:5] [--data-root FOLDER]
    python benchmarks/whole_trainings.py --trainings cifar100-lt:1 --epochs 1 --out results/cpu_training.json

Each is a command of its own, NAME:SEEDS. *Seconds* are all of it: Python's start, reading the data, compiling and
capturing, the epochs, the evaluation. The first command is done twice, so that all find compiled kernels on disk; the
first time, *cold*, is kept as well. `--trainings digits-lt:1,digits-lt:2` tries the script itself on a CPU, where
`--epochs` measures some of the epochs that would take hours.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from fast_command import as_for_a_user

from balpoe.experiments.run_folder import runs_of
from balpoe.files import write_json


@dataclass
class TrainingTime:
    """What one command took, and what came of it."""

    recipe: str
    seeds: int
    cold: bool
    seconds: float
    epochs: int
    epochs_seconds: float
    """Seconds in epochs of the seed that took longest."""
    steps: list[str]
    accuracy: float

    def __str__(self) -> str:
        title = f"{self.recipe}{', cold' if self.cold else ''}"
        numbers = f"{self.seconds:8.1f} {self.epochs_seconds:9.1f} {100 * self.accuracy:10.1f}"
        return f"{title:24} {self.seeds:5} {numbers}  {','.join(self.steps)}"


def measure(training: str, data_root: str, epochs: int, cold: bool) -> TrainingTime:
    """One command in an empty folder, with the recipe's own number of epochs where none is given."""
    name, _, number = training.partition(":")
    count = int(number or 1)
    command = [sys.executable, "-m", "balpoe", "train", name, "--seeds", ",".join(map(str, range(1, count + 1)))]
    command += ["--data-root", os.path.abspath(data_root)] if data_root else []
    command += ["--epochs", str(epochs)] if epochs else []
    with tempfile.TemporaryDirectory() as folder:
        started, own = time.monotonic(), as_for_a_user()
        subprocess.run(command, cwd=folder, env=own, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
        seconds = time.monotonic() - started
        runs = [run for path in Path(folder, "runs").iterdir() for run in runs_of(path)]
        longest = max(run.seconds() for run in runs)
        steps = sorted({kind for run in runs for kind in run.steps()})
        accuracy = fmean(run.evaluation()["accuracy"] for run in runs)
        return TrainingTime(name, count, cold, seconds, len(runs[0].losses()), longest, steps, accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trainings", default="cifar100-lt:1,cifar100-lt:5,cifar100-lt-best:1")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/whole_trainings.json"))
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"
    trainings = arguments.trainings.split(",")
    print(f"{device}, torch {torch.__version__}")
    print(f"{'':24} {'seeds':>5} {'seconds':>8} {'in epochs':>9} {'accuracy %':>10}")
    rows: list[TrainingTime] = []
    for number, training in enumerate([trainings[0], *trainings]):
        rows.append(measure(training, arguments.data_root, arguments.epochs, cold=number == 0))
        print(rows[-1], flush=True)
        result = {"device": device, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
        write_json(arguments.out, result)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
