"""A training step and inference on a CPU, for 1, 3 and 7 experts, against a plain loop over separate experts.

    python benchmarks/cpu_experts.py [--threads 2] [--rounds 15] [--out benchmarks/cpu_experts.json]

Prints ratios within this run (machines are noisy; the two sides are measured in turn, and the median of
the ratios of neighbours is taken). Bars: with 3 experts neither side more than 5 % slower than the loop,
and inference of 3 experts below 2.4 times that of one.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe import BalPoELoss, equidistant_lambdas, expert_network
from balpoe.files import write_json

BATCH = 16
CLASSES = 100


class PlainBlock(nn.Module):
    """A residual block of torch's own layers."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.stride, self.padding = stride, (width - in_width) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Add the body to the shortcut."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(self.body(x) + F.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding)))


class PlainExpert(nn.Module):
    """The second and third stage and a cosine classifier."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(16, 32, 2), *[(32, 32, 1)] * 4, (32, 64, 2), *[(64, 64, 1)] * 4]
        self.blocks = nn.Sequential(*(PlainBlock(*width) for width in widths))
        self.weight = nn.Parameter(torch.randn(CLASSES, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Return this expert's logits."""
        features = self.blocks(x).mean(dim=(2, 3))
        return 32 * F.linear(F.normalize(features), F.normalize(self.weight))


class PlainLoop(nn.Module):
    """A shared trunk and a list of experts: what one would write first."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        self.trunk = nn.Sequential(*stem, *(PlainBlock(16, 16, 1) for _ in range(5)))
        self.experts = nn.ModuleList(PlainExpert() for _ in range(num_experts))

    def forward(self, images: Tensor) -> Tensor:
        """Return expert logits."""
        shared = self.trunk(images)
        return torch.stack([expert(shared) for expert in self.experts], dim=1)


def training_step(network: nn.Module, num_experts: int) -> Callable[[], None]:
    network.train()
    loss = BalPoELoss(torch.ones(CLASSES), equidistant_lambdas(num_experts))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images, targets = torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        loss(network(images), targets).backward()
        optimizer.step()

    return step


def inference(network: nn.Module) -> Callable[[], None]:
    network.eval()
    images = torch.randn(BATCH, 3, 32, 32)

    def step() -> None:
        with torch.inference_mode():
            network(images)

    return step


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Time each piece of work in turn, round after round, after a warm-up."""
    for work in works.values():
        for _ in range(3):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return times


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/cpu_experts.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = []
    print(f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}, batch {BATCH}, ResNet-32")
    print(f"{'':10} {'experts':>7} {'ours / loop':>12} {'ours / one expert':>18} {'images/s':>9}")
    for kind in ("training", "inference"):
        works: dict[str, Callable[[], None]] = {}
        for experts in (1, 3, 7):
            ours = expert_network("resnet32", num_classes=CLASSES, num_experts=experts)
            for name, network in (("ours", ours), ("loop", PlainLoop(experts))):
                work = training_step(network, experts) if kind == "training" else inference(network)
                works[f"{name}-{experts}"] = work
        times = measure(works, arguments.rounds)
        for experts in (1, 3, 7):
            row = {
                "kind": kind,
                "experts": experts,
                "ours_over_loop": round(ratio(times[f"ours-{experts}"], times[f"loop-{experts}"]), 3),
                "ours_over_one_expert": round(ratio(times[f"ours-{experts}"], times["ours-1"]), 3),
                "images_per_second": round(BATCH / statistics.median(times[f"ours-{experts}"]), 1),
            }
            rows.append(row)
            print(
                f"{kind:10} {experts:7} {row['ours_over_loop']:12.2f} {row['ours_over_one_expert']:18.2f} "
                f"{row['images_per_second']:9.0f}"
            )
    machine = {"machine": platform.machine(), "threads": arguments.threads, "torch": torch.__version__, "batch": BATCH}
    write_json(arguments.out, {**machine, "rows": rows})
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
