"""Estimated label priors where the truth is known: the maximum against long plain EM, and how often intervals cover.

    python benchmarks/prior_estimate.py [--draws 300] [--out results/prior_estimate.json]

Unit Gaussians around random means, drawn anew each time. With `quapy` installed its EMQ is a second reference. A few
minutes on one core.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.files import write_json
from balpoe.method.prior_families import slopes


@dataclass(frozen=True)
class Problem:
    """What is simulated; `separation` is the deviation of the means, `ratio` the imbalance of the prior."""

    family: str
    classes: int
    dimensions: int
    separation: float
    samples: int
    ratio: float
    per_class: int = 0
    """Validation samples a class, of a network that is too sure and fonder of some classes; 0 for exact posteriors."""


PROBLEMS = (
    Problem("free", 10, 8, 0.7, 1000, 10),
    Problem("free", 10, 8, 0.5, 500, 10),
    Problem("free", 10, 8, 1.2, 300, 50),
    Problem("free", 10, 8, 3.0, 500, 100),
    Problem("free", 23, 5, 1.0, 2000, 30),
    Problem("free", 6, 8, 0.7, 500, 10, 50),
    Problem("tempered", 10, 8, 0.7, 1000, 10),
    Problem("tempered", 10, 8, 0.5, 200, 50),
    Problem("tempered", 6, 8, 1.0, 300, 50, 20),
)


def long_tail(classes: int, ratio: float) -> Tensor:
    profile = ratio ** (-torch.arange(classes, dtype=torch.float64) / (classes - 1))
    return profile / profile.sum()


class Gaussians:
    """One drawn problem."""

    def __init__(self, classes: int, dimensions: int, separation: float, generator: torch.Generator) -> None:
        self.generator = generator
        self.means = separation * torch.randn(classes, dimensions, generator=generator, dtype=torch.float64)

    def labels(self, prior: Tensor, samples: int) -> Tensor:
        return torch.multinomial(prior, samples, replacement=True, generator=self.generator)

    def logits(self, labels: Tensor) -> Tensor:
        """Balanced logits of new samples: log P(x | y) up to a constant."""
        shape = len(labels), self.means.shape[1]
        x = self.means[labels] + torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return x @ self.means.T - self.means.square().sum(dim=1) / 2


def covered(problem: Problem, seed: int) -> tuple[float, float]:
    """The share of intervals that hold the truth in one draw, and their mean width."""
    generator = torch.Generator().manual_seed(seed)
    drawn = Gaussians(problem.classes, problem.dimensions, problem.separation, generator)
    train = long_tail(problem.classes, problem.ratio)
    logits = drawn.logits(drawn.labels(train, problem.samples))
    settings: dict[str, Any] = {"family": problem.family, "train_prior": train, "seed": seed}
    if problem.per_class:
        known = torch.arange(problem.classes * problem.per_class) % problem.classes
        settings["validation"] = SimpleNamespace(logits=network(drawn.logits(known)), targets=known)
        logits = network(logits)
    low, high = balpoe.estimate_prior(logits, **settings).interval
    truth = train if problem.family == "free" else torch.tensor(1.0)
    return float(((low <= truth) & (truth <= high)).double().mean()), float((high - low).mean())


def network(exact: Tensor) -> Tensor:
    centred = exact - exact.mean(dim=1, keepdim=True)
    return 2.2 * centred + torch.sin(torch.arange(exact.shape[1], dtype=torch.float64))


def against_em(seed: int) -> dict[str, float]:
    """23 overlapping classes, 10,000 samples of a skewed prior: our maximum and that of 20,000 plain steps of EM."""
    generator = torch.Generator().manual_seed(seed)
    drawn = Gaussians(23, 5, 1.0, generator)
    target = torch.softmax(1.5 * torch.randn(23, generator=generator, dtype=torch.float64), dim=0)
    logits = drawn.logits(drawn.labels(target, 10_000))
    ours = balpoe.estimate_prior(logits, num_resamples=1).estimate
    posteriors = logits.softmax(dim=1)
    em = torch.full((23,), 1 / 23, dtype=torch.float64)
    for _ in range(20_000):
        em = em * (1 / (posteriors @ em) @ posteriors) / len(logits)
    slope = slopes(posteriors, torch.ones(len(logits), dtype=torch.float64), ours)
    row = {
        "excess": float(torch.where(ours > 0, (slope - 1).abs(), slope - 1).max()),
        "gain_over_em": float((posteriors @ ours).log().sum() - (posteriors @ em).log().sum()),
        "largest_difference": float((ours - em).abs().max()),
        "largest_true_share_at_zero": float(target[ours == 0].max()) if bool((ours == 0).any()) else 0.0,
    }
    return row | against_quapy(posteriors, ours)


def against_quapy(posteriors: Tensor, ours: Tensor) -> dict[str, float]:
    try:
        from quapy.method.aggregative import EMQ
    except ImportError:
        return {}
    EMQ.MAX_ITER = 20_000
    uniform = torch.full_like(ours, 1 / len(ours)).numpy()
    theirs = torch.from_numpy(EMQ.EM(uniform, posteriors.numpy(), epsilon=1e-10)[0])
    gain = float((posteriors @ ours).log().sum() - (posteriors @ theirs).log().sum())
    return {"gain_over_quapy": gain, "largest_difference_to_quapy": float((ours - theirs).abs().max())}


def seconds_of_a_fit() -> float:
    """100 classes, 10,000 samples, without the bootstrap."""
    drawn = Gaussians(100, 32, 0.45, torch.Generator().manual_seed(0))
    logits = drawn.logits(drawn.labels(long_tail(100, 100), 10_000))
    balpoe.estimate_prior(logits[:100], num_resamples=1)
    start = time.perf_counter()
    balpoe.estimate_prior(logits, num_resamples=1)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("results/prior_estimate.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"seconds_of_a_fit": seconds_of_a_fit(), "coverage": []}
    print(f"one fit: {record['seconds_of_a_fit']:.2f} s", flush=True)
    for problem in PROBLEMS:
        number = arguments.draws * (3 if (problem.family, problem.per_class) == ("tempered", 0) else 1)
        draws = [covered(problem, seed) for seed in range(number)]
        coverage, width = (fmean(values) for values in zip(*draws, strict=True))
        record["coverage"].append({**asdict(problem), "draws": number, "coverage": coverage, "width": width})
        print(f"{problem}: {100 * coverage:.1f} %, width {width:.3f}", flush=True)
    record["against_em"] = [against_em(seed) for seed in range(10)]
    for row in record["against_em"]:
        print(row, flush=True)
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
