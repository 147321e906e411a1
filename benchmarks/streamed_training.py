"""Does loading hold the GPU up? Three experts trained on JPEG files, against the same steps on a batch held there.

    python benchmarks/streamed_training.py [--networks resnet50] [--pictures 12288] [--workers -1] [--small]

Files of 500 x 375 are decoded and cropped to 224 pixels by worker processes; flip, colour jitter, normalisation and
mixup are done in whole batches on the device. Three rates, images a second, in one run: *loading* alone, *steps*
alone (one batch, again and again), and *both*, as in `balpoe.fit`. "both / slower" is 1 when the two overlap wholly.
`--small` is a tiny network and few images on a CPU, to try the script itself.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from input_pipeline import MEAN, STD, made_image
from torch import nn

import balpoe
from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.epoch_plan import plan_epoch
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.loading.in_memory import Batch
from balpoe.data.loading.streaming import batch_source
from balpoe.files import write_json
from balpoe.training.distributed import chosen_precision, launch
from balpoe.training.engine import Engine
from balpoe.training.learner import Learner
from balpoe.training.optimizers import make_optimizer
from balpoe.training.settings import FitSettings
from balpoe.training.step import Step, training_step

CLASSES, DISTINCT = 1000, 512


def write_one(path: str) -> None:
    made_image(500, 375, int(Path(path).stem)).save(path, quality=90)


def write_images(folder: Path, count: int) -> list[str]:
    """Every 512 images the same ones come again, as files of their own: decoding does not know."""
    paths = [str(folder / f"{number}.jpg") for number in range(count)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(write_one, paths[:DISTINCT])
    for number in range(DISTINCT, count):
        shutil.copy(paths[number % DISTINCT], paths[number])
    return paths


def rate(batches: Iterable[Batch], step: Step | None, device: str, skipped: int = 8) -> float:
    """Images a second, after the first few batches."""
    images, begun = 0, 0.0
    for number, batch in enumerate(batches):
        if number == skipped:
            _wait(device)
            begun = time.perf_counter()
        if step is not None:
            step(batch, 0.025, 0.0)
        images += len(batch.targets) if number >= skipped else 0
    _wait(device)
    return images / (time.perf_counter() - begun)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name: str, files: PictureFiles, batch_size: int, workers: int, device: str, kind: str) -> dict[str, float]:
    torch.manual_seed(0)
    side = files.preprocessing.size[-1]
    network = balpoe.expert_network(name, num_classes=CLASSES, num_experts=3, split=2, image_size=side)
    loss = balpoe.BalPoELoss([len(files)] * CLASSES, (1, 0, -1)).to(device)
    plan = plan_epoch(0, 0, len(files), batch_size, mixup_alpha=0.2)
    source = batch_source(files, torch.device(device), AUGMENTATIONS["imagenet"], seed=0, workers=workers)

    def work(engine: Engine, network: nn.Module) -> dict[str, float]:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        settings = FitSettings(lr=0.025, nesterov=False, weight_decay=0.0, device=device)
        learner = Learner(network, loss, make_optimizer(network, settings, engine.device))
        step = training_step(engine, learner, kind, chosen_precision(device, "auto"))
        full = [next(iter(source.batches(plan, 0)))] * (len(files) // batch_size)
        return {
            "loading": rate(source.batches(plan, 0), None, device),
            "steps": rate(full, step, device),
            "both": rate(source.batches(plan, 1), step, device),
        }

    rates: dict[str, float] = launch(work, network, device=device, devices=1, precision="bf16-mixed")
    return rates | {"both_over_slower": rates["both"] / min(rates["loading"], rates["steps"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="resnet50,resnext50_32x4d")
    parser.add_argument("--pictures", type=int, default=12_288, help="files")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=-1, help="processes that decode; -1: as the machine allows")
    parser.add_argument("--small", action="store_true", help="a tiny network on a CPU")
    parser.add_argument("--out", type=Path, default=Path("results/streamed_training.json"))
    arguments = parser.parse_args()
    device, side, networks, kind = "cuda", 224, arguments.networks.split(","), "captured"
    if arguments.small:
        device, side, networks, kind = "cpu", 32, ["test_resnet"], "auto"
    rows = []
    with tempfile.TemporaryDirectory() as place:
        paths = write_images(Path(place), arguments.pictures)
        targets = [number % CLASSES for number in range(len(paths))]
        files = PictureFiles(paths, targets, list(map(str, range(CLASSES))), Preprocessing((3, side, side), MEAN, STD))
        print(f"{'images a second':20} {'loading':>9} {'steps':>9} {'both':>9} {'both / slower':>14}", flush=True)
        for network in networks:
            found = measure(network, files, arguments.batch, arguments.workers, device, kind)
            rows.append({"network": network, "batch": arguments.batch, **found})
            rates = " ".join(f"{found[name]:9.0f}" for name in ("loading", "steps", "both"))
            print(f"{network:20} {rates} {found['both_over_slower']:14.2f}", flush=True)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    record = {"device": name, "torch": torch.__version__, "cores": os.cpu_count(), "rows": rows}
    write_json(arguments.out, record)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
