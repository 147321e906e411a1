"""What an exported file costs against PyTorch, on two cores, in one run.

    python benchmarks/export.py [--rounds 7] [--networks resnet32,resnet50,efficientnet] [--out results/export.json]

Each network is exported, and the file is run by ONNX Runtime; PyTorch runs the same network eagerly. Both go from raw
images to probabilities, with two threads. They are timed in turn, several passes each, of which the fastest counts:
what else runs on the machine only ever makes a pass slower. The ratio is the median over the rounds. "experts" is the
time of three experts over that of one, in the same runtime, beside the same ratio of their multiply-adds.

Bars: 2 times as fast at batch 1 for the CIFAR network (goal 3), 1.2 times for ResNet-50 (goal 1.5); three experts at
most 1.1 times the ratio of multiply-adds (goal 1.0).
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from balpoe import Model, Preprocessing, expert_network, export, load
from balpoe.deployment.some_experts import with_experts
from balpoe.experiments.recipe import Recipe
from balpoe.files import write_json
from balpoe.method.ensemble import product_of_experts
from balpoe.networks.costs import multiply_adds

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet32": {"name": "resnet32", "classes": 100, "side": 32, "batches": (1, 32)},
    "resnet50": {"name": "resnet50", "classes": 1000, "side": 224, "batches": (1,), "split": 2},
    "efficientnet": {"name": "tf_efficientnet_lite0", "classes": 1000, "side": 224, "batches": (1,)},
}
THREADS = 2


def made_model(name: str, classes: int, side: int, **settings: Any) -> Model:
    """A network with random weights, and statistics that keep its activations at a usual size."""
    torch.manual_seed(0)
    counts = torch.linspace(500, 5, classes).long()
    network = expert_network(name, num_classes=classes, num_experts=3, **settings)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(4, 3, side, side))
    network.eval()
    preprocessing = Preprocessing((3, side, side), MEAN, STD)
    return Model(network, tuple(map(str, range(classes))), counts, preprocessing, counts / counts.sum(),
                 torch.tensor([1.0, 0.0, -1.0]), Recipe(network=name))  # fmt: skip


def eager(model: Model, images: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return product_of_experts(model.network(model.preprocessing.normalise(images))).softmax(dim=1)

    return run


def in_onnx_runtime(path: Path, images: torch.Tensor) -> Callable[[], object]:
    network: Any = load(path, threads=THREADS).network
    return lambda: network.outputs(images)


def fastest(task: Callable[[], object], passes: int) -> float:
    """Seconds of the fastest of several passes; the first, after another contender, is not counted."""
    task()
    found = []
    for _ in range(passes):
        start = time.perf_counter()
        task()
        found.append(time.perf_counter() - start)
    return min(found)


def measured(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round, in turn."""
    once = {name: fastest(task, 1) for name, task in tasks.items()}
    passes = {name: max(2, min(30, int(1.0 / seconds))) for name, seconds in once.items()}
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            found[name].append(fastest(task, passes[name]))
    return found


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def compared(settings: dict[str, Any], folder: Path, rounds: int) -> list[dict[str, Any]]:
    """What a network costs at each batch."""
    batches, size = settings.pop("batches"), settings["side"]
    models = {"3": made_model(**settings)}
    models["1"] = with_experts(models["3"], [1])
    files = {experts: export(model, folder / f"{experts}.onnx") for experts, model in models.items()}
    work = {e: multiply_adds(m.network, torch.zeros(1, *m.preprocessing.size)) for e, m in models.items()}
    rows = []
    for batch in batches:
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
        tasks = {f"torch {experts}": eager(model, images) for experts, model in models.items()}
        tasks |= {f"onnx {experts}": in_onnx_runtime(file.path, images) for experts, file in files.items()}
        seconds = measured(tasks, rounds)
        experts = ratio(seconds["onnx 3"], seconds["onnx 1"])
        rows.append({
            "network": settings["name"], "batch": batch, "difference": files["3"].check.difference,
            "megabytes": files["3"].path.stat().st_size / 1e6,
            "milliseconds": {name: 1e3 * min(values) for name, values in seconds.items()},
            "faster": ratio(seconds["torch 3"], seconds["onnx 3"]),
            "experts": experts, "experts in torch": ratio(seconds["torch 3"], seconds["torch 1"]),
            "multiply-adds": work["3"] / work["1"], "experts over multiply-adds": experts * work["1"] / work["3"],
        })  # fmt: skip
        print(
            {
                name: value if isinstance(value, str | int | dict) else f"{value:.3g}"  # a difference of 1e-7 is not 0
                for name, value in rows[-1].items()
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", default="results/export.json")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    rows = []
    for name in arguments.networks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows += compared(dict(NETWORKS[name]), Path(folder), arguments.rounds)
    write_json(Path(arguments.out), {
        "rows": rows, "rounds": arguments.rounds, "threads": THREADS,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__, "onnxruntime": onnxruntime.__version__,
    })  # fmt: skip


if __name__ == "__main__":
    main()
