"""Memory of `balpoe predict` over a long list of images, in one process and in parts.

    python benchmarks/predict_memory.py [--rows 2000000] [--out results/predict_memory.json]

The list is a .csv whose rows name the same few images over and over. Everything that grows with a list is real: the
list is read, rows are made and written, parts are written, found and merged. An image is decoded once and then kept,
and the network's answer is made up, since neither has anything to do with the length of the list; with them two million
rows would take hours. Memory is what the process holds of its own, after 1 % of the rows and then at every tenth of
them; the peak is that of all it has mapped.
"""

import argparse
import functools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from memory import own_mebibytes
from PIL import Image

from balpoe import Model, Preprocessing, expert_network
from balpoe.cli import predict_parts, predict_rows
from balpoe.cli.main import main as command
from balpoe.experiments.model_file import save_model
from balpoe.experiments.recipe import Recipe
from balpoe.files import write_json

ROWS: Any = predict_rows  # whose imports are replaced here: the images are read once, the answers made up
IMAGES, CLASSES, SIDE = 64, 10, 8


def made(folder: Path, rows: int) -> tuple[Path, Path]:
    """A model's file, and a list of so many rows."""
    counts = torch.linspace(500, 5, CLASSES).long()
    network = expert_network("resnet32", num_classes=CLASSES, num_experts=3, width=1)
    names = tuple(f"class {label}" for label in range(CLASSES))
    recipe = Recipe(network="resnet32", width=(1,), lambdas=(1, 0, -1))
    lambdas = torch.tensor([1.0, 0.0, -1.0])
    model = Model(network, names, counts, Preprocessing((3, SIDE, SIDE)), counts / counts.sum(), lambdas, recipe)
    save_model(folder / "model.safetensors", model)
    for number in range(IMAGES):
        Image.new("RGB", (SIDE, SIDE), (number, 2 * number, 3 * number)).save(folder / f"{number:02}.png")
    with open(folder / "list.csv", "w") as stream:
        stream.write("path\n")
        stream.writelines(f"{row % IMAGES:02}.png\n" for row in range(rows))
    return folder / "model.safetensors", folder / "list.csv"


class Watched:
    """Images on their way into predict, with the memory at some of them."""

    def __init__(self, rows: int) -> None:
        self.marks = [rows // 100, *(rows * tenth // 10 for tenth in range(1, 10)), rows - 1]
        self.found: dict[str, float] = {}

    def __call__(self, paths: Iterator[str]) -> Iterator[str]:
        marks = iter(self.marks)
        mark = next(marks)
        for number, path in enumerate(paths):
            if number == mark:
                self.found[f"{number:,}"] = own_mebibytes()
                mark = next(marks, -1)
            yield path


def measured(model: Path, table: Path, rows: int, parts: bool) -> dict[str, Any]:
    """Memory at some rows, and its peak."""
    watched, paths = Watched(rows), ROWS.image_paths
    ROWS.image_paths = lambda inputs: watched(paths(inputs))
    start = time.perf_counter()
    flags = ["--devices", "1"] if parts else []
    out = table.with_name("rows.csv")
    code = command(["predict", str(model), str(table), "--device", "cpu", "--out", str(out), *flags])
    ROWS.image_paths = paths
    with open(out, "rb") as stream:
        lines = sum(1 for _ in stream)
    assert (code, lines) == (0, rows + 1), (code, lines)
    left = sorted(each.name for each in table.parent.iterdir() if each.name.startswith("rows.csv"))
    assert left == ["rows.csv"], left
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
    return {
        "parts": parts, "rows": rows, "mebibytes": {**watched.found, "at the end": own_mebibytes(), "peak": peak},
        "seconds": time.perf_counter() - start, "rows in a part": predict_parts.ROWS_IN_PART,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--out", default="results/predict_memory.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoded = ROWS.decoded
    ROWS.decoded = functools.lru_cache(IMAGES)(decoded)
    answer = torch.randn(1, 3, CLASSES)
    forward = lambda self, blocks: torch.cat([answer.expand(len(block), -1, -1) for block in blocks])  # noqa: E731
    ROWS.Model.logits_of_blocks = forward
    with tempfile.TemporaryDirectory() as folder:
        model, table = made(Path(folder), arguments.rows)
        found = []
        for parts in (True, False):
            found.append(measured(model, table, arguments.rows, parts))
            print(found[-1])
            write_json(Path(arguments.out), {"runs": found, "torch": torch.__version__})


if __name__ == "__main__":
    main()
