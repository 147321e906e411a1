"""How well a model tells classes that it was never shown, and images of another data set, from those that it knows.

    python benchmarks/unknown.py [--data cifar100-lt] [--left-out 20] [--seeds 3] [--data-root FOLDER]
    python benchmarks/unknown.py --model models/cifar100-lt-100.safetensors --data-root FOLDER
    python benchmarks/unknown.py --run runs/images/seed-0 --other FOLDER [--left-out 20] [--seeds 3]

Of classes ordered by their training samples, every fifth (20 of 100) is left out of training, other ones for each seed;
test images of these are unknown, those of the others known. CIFAR-10's test images are the other data set; some of its
classes (automobile, truck) are near some of CIFAR-100's. With --model nothing is trained, and the other data set alone
is measured. With --run the heads of a run on frozen features are trained anew without the classes, with the rate, mixup
and epochs that its held-out samples chose; the other data are a folder of images of other classes. Thresholds come from
images outside of training (with --run a fifth of the training samples). Some minutes on one H200 for CIFAR-100-LT;
`--data digits-lt --left-out 2` and --run take minutes on a CPU. Writes results/unknown.json; docs/decisions-measured.md
has its tables.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.registry import validation_data
from balpoe.data.user.split import split_rows
from balpoe.deployment.class_means import ClassMeans, classifier_features
from balpoe.deployment.unknown import SCORES, UnknownDetector
from balpoe.deployment.unknown_metrics import unknown_report
from balpoe.experiments.build import Assembly, assemble, build_network, own_data
from balpoe.experiments.cached_features import feature_data
from balpoe.experiments.calibrate import Choice
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import Run, environment
from balpoe.files import read_json, write_json
from balpoe.training.fit import fit_and_predict

COMBINED: tuple[tuple[str, ...], ...] = (
    ("energy", "disagreement"),
    ("disagreement", "mahalanobis"),
    ("energy", "disagreement", "mahalanobis"),
    ("energy", "disagreement", "cosine"),
)
OTHER = {"cifar100-lt": "cifar10-lt"}  # another data set of images of the same size


def left_out_classes(class_counts: Tensor, number: int, seed: int) -> Tensor:
    """Classes at equal steps of the order by training samples, so that frequent and rare ones are among them."""
    step = len(class_counts) // number
    return class_counts.argsort(descending=True, stable=True)[seed % step :: step][:number]


def only(data: balpoe.Dataset, classes: Tensor) -> balpoe.Dataset:
    """Samples of some classes, numbered anew in this order."""
    number = torch.full((len(data.class_names),), -1)
    number[classes] = torch.arange(len(classes))
    rows = (number[data.targets] >= 0).nonzero().squeeze(1)
    names = [data.class_names[label] for label in classes.tolist()]
    return balpoe.Dataset(data.images[rows], number[data.targets[rows]], names, data.preprocessing)


def unlabelled(data: balpoe.Dataset, like: balpoe.Dataset) -> balpoe.Dataset:
    """Samples whose labels mean nothing to the model: all are called class 0 of it."""
    return balpoe.Dataset(data.images, torch.zeros(len(data), dtype=torch.long), like.class_names, like.preprocessing)


def measured(
    network: Any, about: Mapping[str, Any], train: balpoe.Dataset, held_out: balpoe.Dataset, test: balpoe.Dataset,
    unknown: Mapping[str, balpoe.Dataset], shot_groups: tuple[int, int],
) -> dict[str, Any]:  # fmt: skip
    """Every score on known test samples against each kind of unknown ones."""
    parts = {"held out": held_out, "known": test, **unknown}
    seen = {name: balpoe.predict(network, data, **about) for name, data in parts.items()}
    features = {name: classifier_features(network, data) for name, data in parts.items()}
    means = ClassMeans.fit(classifier_features(network, train), train.targets, len(train.class_names))
    rows: dict[str, Any] = {}
    for names in [*((name,) for name in SCORES), *COMBINED]:
        detector = UnknownDetector.fit(seen["held out"], names, features=features["held out"], means=means)
        scores = {name: detector.score(seen[name], features[name]) for name in ("known", *unknown)}
        rows[" + ".join(names)] = {
            name: unknown_report(
                scores["known"], test.targets, train.class_counts, scores[name], threshold=detector.threshold,
                groups=shot_groups,
            )
            for name in unknown
        }  # fmt: skip
    answers = seen["known"].answers()[0]
    return {"accuracy": float((answers == test.targets).double().mean()), "rows": rows}


def trained(recipe: Recipe, number: int) -> dict[str, Any]:
    """Train without some classes, and measure."""
    parts = assemble(recipe)
    assert isinstance(parts.train, balpoe.Dataset)
    assert isinstance(parts.test, balpoe.Dataset)
    out = left_out_classes(parts.train.class_counts, number, recipe.seed)
    kept = kept_classes(parts.train, out)
    train, test = only(parts.train, kept), only(parts.test, kept)
    held_out = validation_data(recipe.dataset, recipe.data_root or None, imbalance_ratio=recipe.imbalance_ratio)
    network = build_network(recipe, len(kept), train.preprocessing.size)
    loss = balpoe.BalPoELoss(train.class_counts, recipe.expert_lambdas)
    fit_and_predict(network, loss, train, None, replace(parts.settings, progress=False))
    about = {"class_counts": train.class_counts, "lambdas": recipe.expert_lambdas}
    unknown = {"left out": unlabelled(only(parts.test, out), train)} | other_data(recipe, train)
    found = measured(network, about, train, only(held_out, kept), test, unknown, few_and_many(recipe))
    return {"seed": recipe.seed, "left_out": [parts.train.class_names[label] for label in out.tolist()], **found}


def of_run(folder: Path, other: Path | None, number: int, seeds: int) -> list[dict[str, Any]]:
    """Train the heads of a run on frozen features without some classes, once for each seed, and measure."""
    choice, recipe = Choice.load(folder), Run(folder).recipe()
    assert choice is not None
    changes = {"lr": choice.lr, "mixup_alpha": choice.mixup_alpha, "epochs": choice.epochs, "calibrate": False}
    recipe = updated(recipe, changes)
    parts = assemble(recipe, progress=True)
    further = {} if other is None else {other.name: all_features(parts.network, recipe, other)}
    heads = updated(recipe, {"network": "head", "weights": "", "frozen": False})
    return [without_classes(updated(heads, {"seed": seed}), parts, further, number) for seed in range(seeds)]


def all_features(network: Any, recipe: Recipe, folder: Path) -> Tensor:
    """Features of all images of a folder."""
    found = own_data(updated(recipe, {"data_root": str(folder)}))
    parts = [part for part in (found.train, found.test) if isinstance(part, PictureFiles)]
    return torch.cat([feature_data(network, part, workers=recipe.workers).images for part in parts])


def without_classes(recipe: Recipe, parts: Assembly, further: Mapping[str, Tensor], number: int) -> dict[str, Any]:
    """Train heads on features without some classes, and measure."""
    assert isinstance(parts.train, balpoe.Dataset)
    assert isinstance(parts.test, balpoe.Dataset)
    out = left_out_classes(parts.train.class_counts, number, recipe.seed)
    kept = kept_classes(parts.train, out)
    rows = split_rows(parts.train.targets, test_fraction=0.2, seed=recipe.seed)
    train, held_out = (only(parts.train.subset(each), kept) for each in rows)
    network = build_network(recipe, len(kept), train.preprocessing.size)
    settings = replace(parts.settings, seed=recipe.seed, progress=False, label="")
    fit_and_predict(network, balpoe.BalPoELoss(train.class_counts, recipe.expert_lambdas), train, None, settings)
    unknown = {"left out": unlabelled(only(parts.test, out), train)}
    for name, features in further.items():
        unknown[name] = unlabelled(balpoe.Dataset(features, torch.zeros(len(features), dtype=torch.long)), train)
    about = {"class_counts": train.class_counts, "lambdas": recipe.expert_lambdas}
    found = measured(network, about, train, held_out, only(parts.test, kept), unknown, few_and_many(recipe))
    return {"seed": recipe.seed, "left_out": [parts.train.class_names[label] for label in out.tolist()], **found}


def kept_classes(data: balpoe.Dataset, out: Tensor) -> Tensor:
    return torch.tensor([label for label in range(len(data.class_names)) if label not in out.tolist()])


def of_model(path: Path, data_root: str) -> dict[str, Any]:
    """Measure a trained model on another data set."""
    model = balpoe.load(path)
    recipe = updated(model.recipe, {"data_root": data_root})
    train, test = balpoe.load_data(recipe.dataset, data_root or None, imbalance_ratio=recipe.imbalance_ratio)
    held_out = validation_data(recipe.dataset, data_root or None, imbalance_ratio=recipe.imbalance_ratio)
    model.network.to("cuda" if torch.cuda.is_available() else "cpu")
    about = {"class_counts": train.class_counts, "lambdas": model.lambdas}
    unknown = other_data(recipe, train)
    return {"model": path.name, **measured(model.network, about, train, held_out, test, unknown, few_and_many(recipe))}


def few_and_many(recipe: Recipe) -> tuple[int, int]:
    few, many = recipe.shot_groups
    return few, many


def other_data(recipe: Recipe, like: balpoe.Dataset) -> dict[str, balpoe.Dataset]:
    """Test images of another data set, where there is one of the same size."""
    if recipe.dataset not in OTHER:
        return {}
    _, test = balpoe.load_data(OTHER[recipe.dataset], recipe.data_root or None)
    return {OTHER[recipe.dataset].removesuffix("-lt"): unlabelled(test, like)}


def printed(found: Mapping[str, Any]) -> None:
    for score, kinds in found["rows"].items():
        for kind, groups in kinds.items():
            cells = (
                f"{name} {100 * row['auroc']:.1f} / {100 * row['fpr']:.0f} / {100 * row['kept']:.0f}"
                for name, row in groups.items()
            )
            print(f"{score:32} {kind:10} AUROC / FPR95 / kept: {',  '.join(cells)}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="cifar100-lt", help="preset that is trained")
    parser.add_argument("--left-out", type=int, default=20, help="number of classes that are left out of training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--model", type=Path, default=None, help="trained model to measure instead")
    parser.add_argument("--run", type=Path, default=None, help="calibrated run on frozen features to train anew")
    parser.add_argument("--name", default="images", help="name in the record, with --run")
    parser.add_argument("--other", type=Path, default=None, help="folder of images of other classes, with --run")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--out", type=Path, default=Path("results/unknown.json"))
    arguments = parser.parse_args(argv)
    record = read_json(arguments.out) if arguments.out.exists() else {}
    if arguments.model is not None:
        found = of_model(arguments.model, arguments.data_root)
        printed(found)
        record["model"] = {**found, "environment": environment()}
    elif arguments.run is not None:
        rows = of_run(arguments.run, arguments.other, arguments.left_out, arguments.seeds)
        for row in rows:
            printed(row)
        record[arguments.name] = {"runs": rows, "environment": environment()}
    else:
        changes: dict[str, Any] = {"data_root": arguments.data_root, "calibrate": False}
        changes |= {} if arguments.epochs is None else {"epochs": arguments.epochs}
        recipe, rows = updated(preset(arguments.data), changes), []
        for seed in range(arguments.seeds):
            rows.append(trained(updated(recipe, {"seed": seed}), arguments.left_out))
            printed(rows[-1])
        record[arguments.data] = {"epochs": recipe.epochs, "runs": rows, "environment": environment()}
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
