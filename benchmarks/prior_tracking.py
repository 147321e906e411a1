"""A prior that follows a stream of CIFAR-100 images whose labels shift, with the model of this repository.

    python benchmarks/prior_tracking.py [--data-root FOLDER] [--repetitions 3]

Test images are drawn with replacement by one prior after another. Each block is predicted with the prior that the
tracker has before it sees the block. Accuracies are over the second half of each part, when it may have found it.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.data.registry import validation_data
from balpoe.files import write_json

MODEL = Path(__file__).parents[1] / "models" / "cifar100-lt-100.safetensors"
PARTS = ("uniform", "forward-50", "backward-50", "uniform")
FAMILIES = ("free", "tempered")


def drawn(predictions: balpoe.Predictions, prior: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Rows of test samples whose labels follow a prior."""
    weights = (prior / predictions.targets.bincount(minlength=len(prior)).clamp(min=1))[predictions.targets]
    return torch.multinomial(weights, samples, replacement=True, generator=generator)


def measure(
    test: balpoe.Predictions, validation: balpoe.Predictions, half_life: int, samples: int, seed: int
) -> list[dict[str, Any]]:
    """One stream: the accuracy of each way to predict in each part, and the looks at which no prior explained it."""
    generator = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {"half_life": half_life, "every": half_life, "validation": validation, "seed": seed}
    bent: dict[str, Any] = {"family": "tempered", "train_prior": test.train_prior}
    trackers = {
        name: balpoe.track_prior(test.source_prior, **settings, **(bent if name == "tempered" else {}))
        for name in FAMILIES
    }
    rows, logits = [], test.logits
    for part in PARTS:
        prior = balpoe.target_prior(part, test)
        ways: dict[str, list[Tensor]] = {name: [] for name in ("as trained", *FAMILIES, "exact")}
        for block in drawn(test, prior, samples, generator).split(half_life):
            answers = {"as trained": logits[block], "exact": test.adjusted(logits[block], prior)}
            answers |= {name: tracker.adjust(logits[block]) for name, tracker in trackers.items()}
            for name, each in answers.items():
                ways[name].append(each.argmax(dim=1) == test.targets[block])
            for tracker in trackers.values():
                tracker.update(logits[block])
        late = {name: float(torch.cat(each)[samples // 2 :].double().mean()) for name, each in ways.items()}
        looks = samples // half_life
        unexplained = {name: sum(bool(s.changed) for s in trackers[name].history[-looks:]) for name in FAMILIES}
        rows.append({"part": part, "accuracy": late, "looks": looks, "unexplained": unexplained})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--half-life", type=int, default=500)
    parser.add_argument("--samples", type=int, default=4000, help="samples of each part")
    parser.add_argument("--out", type=Path, default=Path("results/prior_tracking.json"))
    arguments = parser.parse_args()
    model = balpoe.load(MODEL)
    test = model.predictions(balpoe.load_data("cifar100-lt", arguments.data_root)[1])
    validation = model.predictions(validation_data("cifar100-lt", arguments.data_root))
    several: list[list[dict[str, Any]]] = []
    for seed in range(arguments.repetitions):
        several.append(measure(test, validation, arguments.half_life, arguments.samples, seed))
        rows = [
            {
                "part": same[0]["part"],
                "accuracy": {way: fmean(row["accuracy"][way] for row in same) for way in same[0]["accuracy"]},
                "looks": sum(row["looks"] for row in same),
                "unexplained": {name: sum(row["unexplained"][name] for row in same) for name in FAMILIES},
            }
            for same in zip(*several, strict=True)
        ]
        settings = {name: getattr(arguments, name) for name in ("half_life", "samples")}
        write_json(arguments.out, {"model": MODEL.name, **settings, "repetitions": len(several), "rows": rows})
        print(rows, flush=True)


if __name__ == "__main__":
    main()
