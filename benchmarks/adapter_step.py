"""A training step of a ViT-B/16 at 224 pixels on one GPU: adapters, and all of its weights, in the same run.

    python benchmarks/adapter_step.py [--batches 64,128] [--step captured] [--seconds 100] [--small]

Three experts on one backbone, 1000 classes, random images on the device, bfloat16. Full fine-tuning takes AdamW, as the
preset own-full does, adapters SGD, as own-adapters does; "own" is a set of adapters for each expert in the last four
blocks. "faster" and "memory" are images per second and peak memory over those of full fine-tuning with the same batch.
A line is printed and the file rewritten after each measurement, one that fails leaves the others, and none is begun
after --seconds. `--small` is a tiny network on a CPU, to try the script itself.
"""

import argparse
import copy
import functools
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from large_step import CLASSES, LAMBDAS, Setting, clear, our_step, seconds_a_step

import balpoe
from balpoe.data.loading.in_memory import Batch
from balpoe.files import write_json
from balpoe.networks import ExpertNetwork, add_adapters
from balpoe.training.settings import FitSettings

FULL = FitSettings(optimizer="adamw", lr=3e-4, weight_decay=0.05, decay_norms=False, depth_lr_decay=0.75)
FROZEN = FitSettings(lr=0.01)
WAYS: dict[str, dict[str, Any] | None] = {
    "full": None,
    "adapters": {"kind": "adaptformer"},
    "adapters, own in 4 blocks": {"kind": "adaptformer", "split": 4},
    "lora": {"kind": "lora"},
}
"""What is added to the network; None: nothing, and everything learns."""
Row = dict[str, Any]


@functools.cache
def fresh_network(name: str, pixels: int) -> ExpertNetwork:
    torch.manual_seed(0)
    return balpoe.expert_network(name, num_classes=CLASSES, num_experts=len(LAMBDAS), image_size=pixels)


def measure(name: str, way: str, batch_size: int, step: str, setting: Setting) -> Row:
    """Images per second, peak memory, weights that learn, and the first losses."""
    clear(setting.device)
    network = copy.deepcopy(fresh_network(name, setting.pixels))
    torch.manual_seed(0)
    if (adapters := WAYS[way]) is not None:
        add_adapters(network, **adapters)
    network.to(setting.device)
    images = torch.randn(batch_size, 3, setting.pixels, setting.pixels, device=setting.device)
    batch = Batch(images, torch.randint(CLASSES, (batch_size,), device=setting.device))
    begun = time.perf_counter()
    take = our_step(network, batch, step, setting, FULL if adapters is None else FROZEN)
    losses = [float(take()) for _ in range(3)]
    preparation = time.perf_counter() - begun
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"the first losses are {losses}")
    rate = batch_size / seconds_a_step(take, setting)
    memory = torch.cuda.max_memory_allocated() / 2**20 if setting.device == "cuda" else 0.0
    trained = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    return {"images_per_second": rate, "peak_mib": memory, "trained": trained, "preparation_s": preparation,
            "losses": losses}  # fmt: skip


def attempt(name: str, way: str, batch_size: int, step: str, setting: Setting) -> Row:
    row: Row = {"way": way, "batch": batch_size}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="the training step cannot be captured")
            return row | measure(name, way, batch_size, step, setting)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


def over_full(row: Row, full: Row) -> Row:
    """The row, with its rate and memory over those of full fine-tuning."""
    if "error" in row or "error" in full:
        return row
    memory = {"memory": row["peak_mib"] / full["peak_mib"]} if full["peak_mib"] else {}
    return row | {"faster": row["images_per_second"] / full["images_per_second"], **memory}


def line(row: Row) -> str:
    if "error" in row:
        return f"{row['way']:26} {row['batch']:5} {row['error']}"
    return (
        f"{row['way']:26} {row['batch']:5} {row['images_per_second']:9.0f} {row['peak_mib']:9.0f} "
        f"{row['trained']:11,} {row.get('faster', math.nan):7.2f} {row.get('memory', math.nan):7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="vit_base_patch16_224")
    parser.add_argument("--batches", default="64,128")
    parser.add_argument("--step", default="captured")
    parser.add_argument("--seconds", type=float, default=100, help="after which no measurement is begun")
    parser.add_argument("--small", action="store_true", help="a tiny network on a CPU")
    parser.add_argument("--out", type=Path, default=Path("results/adapter_step.json"))
    options = parser.parse_args()
    name, step, setting = options.network, options.step, Setting("cuda", 224, 3.0)
    batches = [int(text) for text in options.batches.split(",")]
    if options.small:
        name, step, setting, batches = "test_vit", "auto", Setting("cpu", 32, 0.01), [4]
    device = torch.cuda.get_device_name() if setting.device == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}, {name}, {step}")
    print(
        f"{'':26} {'batch':>5} {'images/s':>9} {'peak MiB':>9} {'trained':>11} {'faster':>7} {'memory':>7}", flush=True
    )
    rows: list[Row] = []
    end = time.perf_counter() + options.seconds
    for batch_size in batches:
        full: Row = {"error": "not measured"}
        for way in WAYS:
            if time.perf_counter() > end:
                break
            row = attempt(name, way, batch_size, step, setting)
            full = row if way == "full" else full
            rows.append(over_full(row, full))
            print(line(rows[-1]), flush=True)
            result = {"device": device, "torch": torch.__version__, "network": name, "pixels": setting.pixels,
                      "step": step, "rows": rows}  # fmt: skip
            write_json(options.out, result)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
