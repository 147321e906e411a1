"""Heads of experts on features that they share: through a hidden layer, beside it, or without one.

    python benchmarks/heads.py train.npz test.npz

Each file holds `features` (samples, features) and `labels` (integers), such as those of a frozen backbone on
CIFAR-100-LT. Every head is trained with the settings of the preset "own-features". docs/own-backbone.md has the
table of results/heads.json, which this writes.
"""

import argparse
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import balpoe
from balpoe.experiments.presets import preset
from balpoe.files import write_json
from balpoe.networks.expert_layers import ExpertLinear
from balpoe.training.schedules import Cosine

SCORES = ("balanced_accuracy", "many", "medium", "few", "ece")


HEADS = ("beside", "none", "hidden")
LAMBDAS = (1, 0, -1)


def head(kind: str, features: int, classes: int, experts: int) -> balpoe.ExpertNetwork:
    if kind == "beside":
        return balpoe.ExpertHead(features, classes, experts)
    layers = [ExpertLinear(features, 512, experts)] if kind == "hidden" else []
    classifier = balpoe.CosineClassifier(512 if layers else features, classes, experts)
    return balpoe.ExpertNetwork(nn.Identity(), layers, classifier)


def measure(kind: str, train: balpoe.Dataset, test: balpoe.Dataset) -> dict[str, float]:
    recipe = preset("own-features")
    torch.manual_seed(recipe.seed)
    network = head(kind, train.images.shape[1], len(train.class_names), len(LAMBDAS))
    loss = balpoe.BalPoELoss(train.class_counts, LAMBDAS)
    balpoe.fit(
        network, loss, train, epochs=recipe.epochs, batch_size=recipe.batch_size, lr=recipe.lr, schedule=Cosine(),
        weight_decay=recipe.weight_decay, mixup_alpha=recipe.mixup_alpha, seed=recipe.seed, device="cpu",
    )  # fmt: skip
    predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=LAMBDAS)
    evaluation = balpoe.evaluate(predictions, num_resamples=0)
    return {name: getattr(evaluation, name) for name in SCORES}


def read(path: Path) -> balpoe.Dataset:
    arrays = np.load(path, allow_pickle=False)
    features = torch.from_numpy(arrays["features"])
    return balpoe.Dataset(features, arrays["labels"], preprocessing=balpoe.Preprocessing(tuple(features.shape[1:])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/heads.json"))
    arguments = parser.parse_args()
    train, test = read(arguments.train), read(arguments.test)
    rows: list[dict[str, Any]] = []
    for kind in HEADS:
        rows.append({"head": kind, **measure(kind, train, test)})
        print(rows[-1], flush=True)
        write_json(arguments.out, {"machine": platform.machine(), "rows": rows})


if __name__ == "__main__":
    main()
