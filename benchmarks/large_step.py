"""A training step at ImageNet's size on one GPU: three-expert ResNet-50 and ResNeXt-50, the reference's way and ours.

    python benchmarks/large_step.py [--only compiled,512] [--networks resnet50] [--pixels 64] [--seconds 200] [--small]

Images are random tensors on the device, 224 x 224 (--pixels), 1000 classes; layers 3 and 4 are the experts' own. The
reference's way is that of the released code: float32 (torch's defaults, so convolutions in TF32), deterministic
algorithms, channels first, eager, batch 64. Ours is `balpoe.training.step`, as in `balpoe.fit`: bfloat16, channels
last, captured as a CUDA graph, also compiled. "x" is images per second over the reference's, of the same network in the
same call. A line is printed and the file rewritten after each measurement, and one that fails leaves the others;
none is begun after --seconds. `--small` is a tiny network on a CPU, to try the script itself.
"""

import argparse
import copy
import functools
import gc
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional as F

import balpoe
from balpoe.data.loading.in_memory import Batch
from balpoe.data.long_tail import long_tailed_counts
from balpoe.training.distributed import launch
from balpoe.training.engine import Engine
from balpoe.training.learner import Learner
from balpoe.training.optimizers import make_optimizer
from balpoe.training.settings import FitSettings
from balpoe.training.step import training_step

CLASSES, LAMBDAS, SHARED_STAGES = 1000, (1, 0, -1), 2
COUNTS = long_tailed_counts(CLASSES, 1280, 256)  # the largest and the smallest class of ImageNet-LT
SGD = functools.partial(torch.optim.SGD, lr=0.025, momentum=0.9, weight_decay=5e-4, nesterov=True)
PAPER_RATE = FitSettings(lr=0.025)
StepRate = dict[str, Any]
Step = Callable[[], Tensor]


class Way(NamedTuple):
    """One way to take a step."""

    name: str
    batch: int
    kind: str = "compiled"
    """Kind of step in `balpoe.training.step`, or "reference" for that of the released code."""
    inductor: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    """Settings of the compiler that are not its own."""


# What is quick, and what the bar is about, comes first; the compiler's searches take minutes and come last.
WAYS = (
    Way("reference", 64, "reference"),
    Way("captured", 64, "captured"),
    Way("captured", 256, "captured"),
    Way("compiled", 256),
    Way("compiled", 64),
    Way("captured", 512, "captured"),
    # 1 x 1 convolutions, two thirds of all, as matrix products with which the compiler can fuse what is around them.
    Way("products", 256, inductor={"conv_1x1_as_mm": True}),
    # The kernels between the convolutions (normalisation, rectifier, sum), each searched for its fastest form.
    Way("searched-kernels", 256, inductor={"max_autotune_pointwise": True, "coordinate_descent_tuning": True}),
    Way("searched-products", 256, inductor={"conv_1x1_as_mm": True, "max_autotune_gemm": True}),
    # torch's mode "max-autotune-no-cudagraphs", convolutions included.
    Way("searched", 256, inductor={"max_autotune": True, "coordinate_descent_tuning": True}),
    Way("compiled", 512),
)


class Setting(NamedTuple):
    """Where it is measured, and how long."""

    device: str
    pixels: int
    at_least: float
    """Seconds of a measurement, after the warm-up."""


@functools.cache
def fresh_network(name: str, pixels: int) -> balpoe.ExpertNetwork:
    torch.manual_seed(0)
    experts = len(LAMBDAS)
    return balpoe.expert_network(name, num_classes=CLASSES, num_experts=experts, split=SHARED_STAGES, image_size=pixels)


def measure(network_name: str, way: Way, setting: Setting) -> StepRate:
    """Images per second, peak memory, and how long it took to get there."""
    clear(setting.device)
    network = copy.deepcopy(fresh_network(network_name, setting.pixels)).to(setting.device)
    torch.manual_seed(0)  # the losses of all ways can be compared
    images = torch.randn(way.batch, 3, setting.pixels, setting.pixels, device=setting.device)
    batch = Batch(images, torch.randint(CLASSES, (way.batch,), device=setting.device))
    begun = time.perf_counter()
    with torch._inductor.config.patch(way.inductor):
        step = (
            reference_step(network, batch) if way.kind == "reference" else our_step(network, batch, way.kind, setting)
        )
        losses = [float(step()) for _ in range(3)]  # compiles, captures, chooses algorithms
    preparation = time.perf_counter() - begun
    rate = way.batch / seconds_a_step(step, setting)
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"the first losses are {losses}")
    memory = torch.cuda.max_memory_allocated() / 2**20 if setting.device == "cuda" else 0.0
    return {"images_per_second": rate, "preparation_s": preparation, "peak_mib": memory, "losses": losses}


def reference_step(network: nn.Module, batch: Batch) -> Step:
    """The released code's step: the adjusted cross-entropy of each expert in turn, their mean, plain SGD."""
    prior = balpoe.class_prior(COUNTS)
    offsets = balpoe.logit_offsets(prior, LAMBDAS).to(batch.images)
    optimizer = SGD(network.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.backends.cudnn.flags(None, False, None, True, None, None):  # deterministic; None: as it is
            expert_logits = network(batch.images)
            losses = [F.cross_entropy(expert_logits[:, i] + offsets[i], batch.targets) for i in range(len(LAMBDAS))]
            loss = torch.stack(losses).mean()
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def our_step(network: nn.Module, batch: Batch, kind: str, setting: Setting, settings: FitSettings = PAPER_RATE) -> Step:
    """The step of `balpoe.fit`, of a kind, with its settings."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = batch._replace(images=batch.images.contiguous(memory_format=torch.channels_last))
    loss = balpoe.BalPoELoss(COUNTS, LAMBDAS).to(setting.device)
    optimizer = make_optimizer(network, settings, torch.device(setting.device))

    def work(engine: Engine, network: nn.Module) -> Step:
        step = training_step(engine, Learner(network, loss, optimizer), kind, "bf16-mixed")
        return lambda: step(batch, settings.lr, 0.0)

    return launch(work, network, device=setting.device, devices=1, precision="bf16-mixed")


def seconds_a_step(step: Step, setting: Setting) -> float:
    """Many steps in a row, without reading from the device in between."""
    steps = 5
    while True:
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        if setting.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
        if seconds >= setting.at_least:
            return seconds / steps
        steps = math.ceil(1.2 * steps * setting.at_least / seconds)


def clear(device: str) -> None:
    """Leave nothing of the measurements before."""
    gc.collect()
    torch.compiler.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def attempt(network: str, way: Way, setting: Setting, seconds_left: float) -> StepRate:
    """The measurement, or why there is none: one that fails leaves the others."""
    row: StepRate = {"network": network, "way": way.name, "batch": way.batch}
    if seconds_left < 0:
        return row | {"error": "no time left"}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="the training step cannot be captured")
            return row | measure(network, way, setting)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


def line(row: StepRate) -> str:
    name = f"{row['network']:16} {row['way']:18} {row['batch']:6}"
    if "error" in row:
        return f"{name} {row['error']}"
    times = row.get("times_reference", math.nan)
    return f"{name} {row['images_per_second']:9.0f} {times:6.2f} {row['preparation_s']:14.1f} {row['peak_mib']:9.0f}"


def wanted(only: str) -> list[Way]:
    """The ways whose name or batch is asked for, and the reference's, with which they are compared."""
    words = set(filter(None, only.split(",")))
    return [way for way in WAYS if not words or way.kind == "reference" or words & {way.name, str(way.batch)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ", ".join(dict.fromkeys(way.name for way in WAYS))
    parser.add_argument("--only", default="", help=f"these ways ({names}) or batches, with commas between")
    parser.add_argument("--networks", default="resnet50,resnext50_32x4d")
    parser.add_argument("--seconds", type=float, default=200, help="after which no measurement is begun")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--small", action="store_true", help="a tiny network on a CPU")
    parser.add_argument("--out", type=Path, default=Path("results/large_step.json"))
    arguments = parser.parse_args()
    ways, networks, setting = (
        wanted(arguments.only),
        arguments.networks.split(","),
        Setting("cuda", arguments.pixels, 3.0),
    )
    if arguments.small:
        ways = [way._replace(batch=4, kind="reference" if way.kind == "reference" else "auto") for way in ways]
        networks, setting = ["test_resnet"], Setting("cpu", 32, 0.01)
    device = torch.cuda.get_device_name() if setting.device == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}")
    print(f"{'':35} {'batch':>6} {'images/s':>9} {'x':>6} {'preparation s':>14} {'peak MiB':>9}", flush=True)
    rows: list[StepRate] = []
    reference: dict[str, float] = {}
    end = time.perf_counter() + arguments.seconds
    for way, network in ((way, network) for way in ways for network in networks):
        row = attempt(network, way, setting, end - time.perf_counter())
        rate = row.get("images_per_second", math.nan)
        if rate / reference.setdefault(network, rate) > 0:  # neither failed
            row["times_reference"] = rate / reference[network]
        rows.append(row)
        print(line(row), flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"device": device, "torch": torch.__version__, "pixels": setting.pixels, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
