"""A training step at CIFAR's size on one GPU: eager, captured, compiled, fused; 1, 3, 7 experts; batches of 128, 512.

    python benchmarks/cifar_step.py [--kernels] [--kinds fused,captured] [--experts 3] [--batches 128] [--at-once 1,5]
                                    [--widths 16,64]

Images are random and as many as in CIFAR-100-LT of ratio 100; the loop is `balpoe.fit`'s own. "ms a step" is
in all: an epoch's seconds, augmentation and reading of the losses included, over its steps. What is measured is
written as it comes.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import balpoe
from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.epoch_plan import plan_epoch
from balpoe.data.loading.in_memory import ResidentData
from balpoe.data.long_tail import long_tailed_counts
from balpoe.files import write_json
from balpoe.training.concurrent import Work, side_by_side
from balpoe.training.distributed import chosen_precision, launch
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.interrupts import Interrupt
from balpoe.training.learner import Learner
from balpoe.training.optimizers import make_optimizer
from balpoe.training.settings import FitSettings
from balpoe.training.step import training_step

StepTime = dict[str, object]
Steps = Callable[[int], None]
WARM_UP = 2  # epochs that each of several trains before it waits for the others
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def random_images() -> balpoe.Dataset:
    counts = torch.tensor(long_tailed_counts(100, 500, 100))
    targets = torch.repeat_interleave(torch.arange(100), counts)
    images = torch.randint(0, 256, (len(targets), 3, 32, 32), dtype=torch.uint8)
    return balpoe.Dataset(images, targets, preprocessing=Preprocessing((3, 32, 32), MEAN, STD))


def measure(
    data: balpoe.Dataset, kind: str, experts: int, batch_size: int, width: int, device: str, epochs: int
) -> dict[str, object]:
    """One short training through `fit`; the first epoch holds the preparation, the others are timed."""
    network = balpoe.expert_network("resnet32", num_classes=100, num_experts=experts, width=width)
    loss = balpoe.BalPoELoss(data.class_counts, balpoe.equidistant_lambdas(experts))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        balpoe.fit(
            network, loss, data, epochs=epochs, batch_size=batch_size, augmentation=AUGMENTATIONS["standard"], seed=0,
            run=folder, checkpoint_seconds=1e9, device=device, step=kind, progress=False,
        )  # fmt: skip
        seconds = epoch_seconds(Path(folder))
    epoch, steps = statistics.median(seconds[1:]), -(-len(data) // batch_size)
    memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {
        "kind": kind,
        "width": width,
        "experts": experts,
        "batch": batch_size,
        "ms_a_step": 1000 * epoch / steps,
        "images_per_second": len(data) / epoch,
        "preparation_s": seconds[0] - epoch,
        "peak_mib": memory,
    }


def epoch_seconds(run: Path) -> list[float]:
    return [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]


def together(data: balpoe.Dataset, at_once: int, augment: str, epochs: int = 24) -> dict[str, object]:
    """So many trainings of three experts side by side, as `balpoe train --seeds` has them: once all are captured."""
    few = balpoe.Dataset(data.images[:100], data.targets[:100], preprocessing=data.preprocessing)
    turns = 1 + -(-len(data) // 128)  # of an epoch: its steps, and the reading of its losses
    ready: list[float] = []
    ended: list[float] = []

    def training(seed: int) -> Work[None]:
        work = fit_and_predict_by_step(
            balpoe.expert_network("resnet32", num_classes=100, num_experts=3), balpoe.BalPoELoss(data.class_counts),
            data, few,
            FitSettings(
                epochs=epochs, augmentation=AUGMENTATIONS[augment], seed=seed, device="cuda", progress=False
            ),
            Interrupt(),
        )  # fmt: skip
        try:
            for turn, aside in enumerate(work):
                yield aside
                if turn == WARM_UP * turns:
                    ready.append(time.perf_counter())
                    while len(ready) < at_once:
                        yield lambda: time.sleep(0.01)
                if turn == (epochs - 1) * turns:
                    torch.cuda.current_stream().synchronize()
                    ended.append(time.perf_counter())
        except BaseException:
            ready.extend([0.0] * at_once)  # nobody is to wait for this one
            raise

    list(side_by_side(map(training, range(at_once)), at_once))
    milliseconds = 1000 * (max(ended) - max(ready)) / ((epochs - 1 - WARM_UP) * (turns - 1))
    return {"at_once": at_once, "augmentation": augment, "ms_a_step_of_all": milliseconds}


def augmentation(data: balpoe.Dataset, name: str, device: str) -> float:
    """Milliseconds to plan, augment, normalise and mix an epoch, without any step."""
    resident = ResidentData(data, torch.device(device), AUGMENTATIONS[name], seed=0)
    times = []
    for epoch in range(6):
        start = time.perf_counter()
        plan = plan_epoch(0, epoch, len(data), 128, mixup_alpha=0.4)
        for _ in resident.batches(plan, epoch):
            pass
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[1:])


GROUPS = {
    "weight gradients": ("wgrad", "weight_gradient", "sum_partials"),
    "input gradients": ("dgrad", "input_gradient", "pool_backward"),
    "convolutions forward": ("fprop", "implicit", "convolve", "conv2d", "conv"),
    "layout copies": ("nchwtonhwc", "nhwctonchw", "transpose", "copy"),
    "batch normalisation": ("batch_norm", "bn_", "welford", "native_batch", "norm_forward", "norm_backward"),
    "fused element-wise (Triton)": ("triton",),
    "matrix products": ("gemm", "cutlass", "cublas"),
    "optimizer": ("multi_tensor", "fused_sgd"),
}


def with_steps(data: balpoe.Dataset, kind: str, batch_size: int, use: Callable[[Steps], Any], experts: int = 3) -> Any:
    """What is made of so many steps, captured and warm, one after the other."""
    network = balpoe.expert_network("resnet32", num_classes=100, num_experts=experts)
    loss = balpoe.BalPoELoss(data.class_counts, balpoe.equidistant_lambdas(experts)).cuda()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def work(engine, network):  # type: ignore[no-untyped-def]
        learner = Learner(network, loss, make_optimizer(network, FitSettings(weight_decay=0.0), engine.device))
        step = training_step(engine, learner, kind, chosen_precision("cuda", "auto"))
        resident = ResidentData(data, engine.device, (), seed=0)
        batches = list(resident.batches(plan_epoch(0, 0, len(data), batch_size, mixup_alpha=0.4), 0))[:20]

        def steps(count: int) -> None:
            for batch in itertools.islice(itertools.cycle(batches), count):
                step(batch, 0.01, 0.0)
            torch.cuda.synchronize()

        steps(4)
        return use(steps)

    return launch(work, network, device="cuda", devices=1, precision="auto")


def profiled(steps: Steps, count: int) -> Any:
    """What torch's profiler has of the kernels of so many steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps(count)
    return profile


def kernels(data: balpoe.Dataset, kind: str) -> list[tuple[str, float, int]]:
    """Microseconds and calls a step, by group of kernels, three experts, batch 128."""
    events = with_steps(data, kind, 128, lambda steps: profiled(steps, 20).key_averages())
    table: dict[str, list[float]] = {}
    names: list[tuple[float, int, str]] = []
    for event in events:
        lower = event.key.lower()
        group = next((name for name, marks in GROUPS.items() if any(mark in lower for mark in marks)), "other")
        entry = table.setdefault(group, [0.0, 0])
        entry[0] += event.self_device_time_total / 20
        entry[1] += event.count / 20
        names.append((event.self_device_time_total / 20, event.count // 20, event.key[:110]))
    for time_, count, name in sorted(names, reverse=True)[:30]:
        print(f"    {time_:8.1f} us {count:5} x {name}")
    return sorted(((name, t, round(n)) for name, (t, n) in table.items()), key=lambda row: -row[1])


def measure_steps(data: balpoe.Dataset, arguments: argparse.Namespace) -> Iterator[StepTime]:
    """Each kind of step, alone on the device."""
    print("kind      width experts  batch  ms a step  images/s  preparation s  peak MiB")
    sizes = (map(int, numbers.split(",")) for numbers in (arguments.widths, arguments.experts, arguments.batches))
    for kind, width, experts, batch_size in itertools.product(arguments.kinds.split(","), *sizes):
        row = measure(data, kind, experts, batch_size, width, arguments.device, arguments.epochs)
        print(
            f"{kind:9} {width:5} {experts:7} {batch_size:6} {row['ms_a_step']:10.2f} {row['images_per_second']:9.0f} "
            f"{row['preparation_s']:14.1f} {row['peak_mib'] or 0:9.0f}",
            flush=True,
        )
        yield row


def measure_together(data: balpoe.Dataset, arguments: argparse.Namespace) -> Iterator[StepTime]:
    """Several trainings that share the device."""
    counts = map(int, filter(None, arguments.at_once.split(",")))
    for at_once, augment in itertools.product(counts, ("standard", "autoaugment")):
        row = together(data, at_once, augment)
        print(f"{at_once} at once, {augment}: {row['ms_a_step_of_all']:.2f} ms a step of all", flush=True)
        yield row


def measure_kernels(data: balpoe.Dataset, kind: str) -> list[tuple[str, float, int]]:
    print(f"{kind}, three experts, batch 128: microseconds and kernels a step")
    table = kernels(data, kind)
    for group, microseconds, count in table:
        print(f"  {group:32} {microseconds:8.0f} {count:6}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default="fused,captured,compiled,eager")
    parser.add_argument("--experts", default="1,3,7")
    parser.add_argument("--batches", default="128,512")
    parser.add_argument("--widths", default="16", help="channels of the first stage")
    parser.add_argument("--at-once", default="1,5", help="trainings side by side; empty: none")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", action="store_true", help="where the time of a captured step goes")
    parser.add_argument("--out", type=Path, default=Path("results/cifar_step.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = random_images()
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "samples": len(data)}
    result["augmentation_ms"] = {
        augment: round(augmentation(data, augment, arguments.device), 1) for augment in ("standard", "autoaugment")
    }
    print(f"{name}, torch {torch.__version__}; augmentation, ms an epoch: {result['augmentation_ms']}", flush=True)
    for key, rows in (("rows", measure_steps(data, arguments)), ("together", measure_together(data, arguments))):
        result[key] = []
        for row in rows:
            result[key].append(row)
            write_json(arguments.out, result)
    for kind in arguments.kinds.split(",") if arguments.kernels else ():
        if kind != "eager":
            result[f"kernels_{kind}"] = measure_kernels(data, kind)
    write_json(arguments.out, result)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
