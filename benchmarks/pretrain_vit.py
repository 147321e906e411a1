"""A ViT-Tiny from random weights on all of Tiny-ImageNet: 100,000 photographs of 64 pixels, 200 classes, one GPU.

    python benchmarks/pretrain_vit.py --data FOLDER [--minutes 8] [--out models] [--record results/pretrain_vit.json]

FOLDER holds `tiny-imagenet-200`. All images are decoded once and stay on the device; `balpoe.fit` does the rest: crops,
flips, RandAugment, mixup and CutMix there, AdamW, a cosine, an exponential mean of the weights. Two epochs are timed
first, and there are as many epochs as then fit into --minutes (or --epochs); should they not fit after all, the mean
of the last checkpoint is taken. Written: the backbone's weights in bfloat16, for `--weights FILE` of `balpoe train`,
the settings as TOML beside them, and a record with the accuracy on the official validation images. `--per-class 5
--network test_vit --epochs 2 --batch-size 100` tries the script on a CPU.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

import balpoe
from balpoe.data.augment.operations import Flip, RandAugment, StretchedCrop
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import PictureFiles, raw_blocks
from balpoe.data.registry import load_files
from balpoe.evaluation.forward import logits_of
from balpoe.files import write_file, write_json, write_text
from balpoe.networks import ExpertNetwork, backbone_preprocessing
from balpoe.training.checkpoints import load_checkpoint
from balpoe.training.schedules import Cosine

PIXELS, AT_THE_END = 64, 12.0  # seconds kept for the test set and the files
SETTINGS: dict[str, Any] = {
    "batch_size": 1000, "lr": 1.5e-3, "optimizer": "adamw", "weight_decay": 0.05, "decay_norms": False,
    "clip_gradients": 1.0, "weight_average_decay": 0.9995, "mixup_alpha": 0.8, "cutmix_probability": 0.5, "seed": 0,
}  # fmt: skip
AUGMENTATION = (StretchedCrop(), Flip(), RandAugment())
SMOOTHING, DROP_PATH, WARMUP = 0.1, 0.1, 0.05  # the last as a part of the epochs


def smoothed_cross_entropy(expert_logits: Tensor, targets: Tensor, progress: object = None, **how: Any) -> Tensor:
    return F.cross_entropy(expert_logits[:, 0], targets, label_smoothing=SMOOTHING, **how)


def in_memory(files: PictureFiles, per_class: int, workers: int) -> balpoe.Dataset:
    """The images, or the first of each class, decoded."""
    if per_class:
        rows = [(files.targets == label).nonzero()[:per_class, 0] for label in range(len(files.class_names))]
        files = files.subset(torch.cat(rows))
    images = torch.cat(list(raw_blocks(files, 500, workers)))
    return balpoe.Dataset(images, files.targets, files.class_names, files.preprocessing)


def new_network(name: str, num_classes: int) -> ExpertNetwork:
    torch.manual_seed(SETTINGS["seed"])
    return balpoe.expert_network(name, num_classes=num_classes, num_experts=1, image_size=PIXELS, drop_path=DROP_PATH)


def fit(network: ExpertNetwork, train: balpoe.Dataset, epochs: int, run: Path, step: str, **changes: Any) -> None:
    settings = {**SETTINGS, **changes}
    balpoe.fit(
        network, smoothed_cross_entropy, train, epochs=epochs, schedule=Cosine(max(1, round(WARMUP * epochs))),
        augmentation=AUGMENTATION, run=run, checkpoint_seconds=45.0, step=step, **settings,
    )  # fmt: skip


def epochs_that_fit(network: ExpertNetwork, train: balpoe.Dataset, end: float, step: str, **changes: Any) -> int:
    """Train two epochs, of which the second one, compiled already, says how many fit; the weights are put back."""
    first = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        fit(network, train, 2, Path(folder), step, **changes)
        seconds = lines(Path(folder) / "timing.jsonl")[-1]["seconds"]
    network.load_state_dict(first)
    epochs = max(2, int(0.97 * (end - time.monotonic()) / seconds))
    print(f"{seconds:.2f} s an epoch, so {epochs} epochs", flush=True)
    return epochs


def fit_until(
    end: float, network: ExpertNetwork, train: balpoe.Dataset, epochs: int, run: Path, step: str, **changes: Any
) -> bool:
    """Train; if the time is up before, take the last checkpoint's mean of the weights. Return whether all fitted."""
    stop = threading.Timer(max(1.0, end - time.monotonic()), os.kill, (os.getpid(), signal.SIGINT))
    stop.daemon = True
    stop.start()
    try:
        fit(network, train, epochs, run, step, **changes)
    except KeyboardInterrupt as stopped:
        print(f"stopped by the clock: {stopped}", flush=True)
        mean = load_checkpoint(run / "checkpoint.pt")["mean"]
        with torch.no_grad():
            for weight, value in zip(network.parameters(), mean, strict=True):
                weight.copy_(value)
        return False
    finally:
        stop.cancel()
    return True


def accuracy(network: ExpertNetwork, test: balpoe.Dataset) -> float:
    answers = logits_of(network, test).mean(dim=1).argmax(dim=1)
    return float((answers == test.targets).double().mean())


def write_weights(network: ExpertNetwork, path: Path) -> None:
    """Write the backbone in bfloat16, and leave the network with these very weights."""
    model: Any = network.trunk.model
    weights = {name: tensor.cpu().bfloat16().contiguous() for name, tensor in model.state_dict().items()}
    data = save(weights, {"trained_on": "Tiny-ImageNet", "by": "benchmarks/pretrain_vit.py"})
    write_file(path, lambda stream: stream.write(data))
    model.load_state_dict(weights)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def all_settings(epochs: int, changes: dict[str, Any]) -> dict[str, Any]:
    """What is written beside the weights."""
    return {
        **SETTINGS, **changes, "epochs": epochs, "warmup_epochs": max(1, round(WARMUP * epochs)),
        "label_smoothing": SMOOTHING, "drop_path": DROP_PATH, "augmentation": " ".join(map(repr, AUGMENTATION)),
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything, from the start of the script")
    parser.add_argument("--epochs", type=int, default=0, help="0: as many as fit")
    parser.add_argument("--network", default="vit_tiny_patch8_64")
    parser.add_argument("--per-class", type=int, default=0, help="0: all images")
    parser.add_argument("--batch-size", type=int, default=SETTINGS["batch_size"])
    parser.add_argument("--lr", type=float, default=SETTINGS["lr"])
    parser.add_argument("--step", default="compiled" if torch.cuda.is_available() else "auto")
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--record", type=Path, default=Path("results/pretrain_vit.json"))
    return parser.parse_args()


def main() -> None:
    options, begun = arguments(), time.monotonic()
    end = begun + 60 * options.minutes - AT_THE_END
    changes = {"batch_size": options.batch_size, "lr": options.lr}
    wanted = replace(Preprocessing(*backbone_preprocessing(options.network, PIXELS)), resize=PIXELS)
    files = load_files("tiny-imagenet-lt", options.data, wanted, imbalance_ratio=1)
    train, test = (in_memory(each, options.per_class, options.workers) for each in files[:2])
    print(f"{len(train):,} and {len(test):,} images after {time.monotonic() - begun:.0f} s", flush=True)
    network = new_network(options.network, len(train.class_names))
    epochs = options.epochs or epochs_that_fit(network, train, end, options.step, **changes)
    trained, settings = time.monotonic(), all_settings(epochs, changes)
    path = options.out / f"{options.network}.tiny_imagenet.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        whole = fit_until(end, network, train, epochs, Path(folder), options.step, **changes)
        history, timing = lines(Path(folder) / "history.jsonl"), lines(Path(folder) / "timing.jsonl")
    seconds, as_trained = time.monotonic() - trained, accuracy(network, test)
    write_weights(network, path)
    write_text(path.with_suffix(".toml"), "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    record = {
        "network": options.network, "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__, "settings": settings, "images": len(train), "test_images": len(test),
        "finished": whole, "epochs_done": len(history), "seconds": seconds,
        "images_per_second": timing[-1]["images_per_second"], "step": timing[-1]["step"], "accuracy": as_trained,
        "accuracy_in_bfloat16": accuracy(network, test), "weights": path.name, "bytes": path.stat().st_size,
        "losses": [row["loss"] for row in history],
    }  # fmt: skip
    write_json(options.record, record)
    print(f"accuracy {100 * as_trained:.2f} % after {len(history)} epochs in {seconds:.0f} s")
    print(f"written to {path} and {options.record} after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
