"""Images per second from JPEG files to batches: ours against torchvision's plain pipeline, in one run.

    python benchmarks/input_pipeline.py [--sizes 500x375,800x600,4000x3000] [--workers 0,2] [--rounds 5]
                                        [--out results/input_pipeline.json]

torchvision: ImageFolder, RandomResizedCrop(224), flip, ColorJitter(.4, .4, .4), ToTensor and Normalize in the workers
of a DataLoader. Ours: the workers decode and crop, and send bytes; flip, jitter and normalisation are done in whole
batches on the device, and timed apart: on a GPU they hardly count, on a CPU they take the time of the training process.
The two are measured in turn, and the ratio is the median over neighbours. "per core" counts processor time in one
process (0 workers), which other work on the machine disturbs least. Bar: 1.5 times as many per core at 500 x 375.
"""

import argparse
import io
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.decode import ResizedCrop, read_crop
from balpoe.data.loading.image_files import ImageLoader, PictureFiles
from balpoe.files import write_json

SIDE, BATCH = 224, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIDE),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.4, 0.4, 0.4),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)
PREPROCESSING = Preprocessing((3, SIDE, SIDE), MEAN, STD)

Task = Callable[[], object]


def made_image(width: int, height: int, seed: int) -> Image.Image:
    """Structure of all sizes, as in a photograph, and some noise."""
    rng = np.random.default_rng(seed)
    values = rng.normal(128, 10, (height, width, 3)).astype(np.float32)
    for cells, amount in ((4, 36), (12, 24), (40, 15), (120, 8)):
        coarse = rng.normal(0, amount, (3, max(2, cells * height // width), cells)).astype(np.float32)
        smooth = [np.asarray(Image.fromarray(channel).resize((width, height), 3)) for channel in coarse]
        values += np.stack(smooth, axis=-1)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def write_images(folder: Path, width: int, height: int, count: int) -> list[str]:
    for number in range(count):
        path = folder / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        made_image(width, height, number).save(path, quality=90)
    return [str(path) for path in sorted(folder.rglob("*.jpg"))]


def torchvision_batches(folder: Path, workers: int) -> Callable[[], Iterator[Any]]:
    settings: dict[str, Any] = {"persistent_workers": True} if workers else {}
    loader = DataLoader(
        ImageFolder(str(folder), PLAIN), batch_size=BATCH, shuffle=True, num_workers=workers, **settings
    )
    return lambda: iter(loader)


def our_batches(paths: list[str], workers: int) -> Callable[[], Iterator[Any]]:
    data = PictureFiles(paths, [0] * len(paths), ["only"], PREPROCESSING)
    loader = ImageLoader(data, ResizedCrop(), seed=0, workers=workers)
    blocks = torch.randperm(len(paths)).split(BATCH)
    return lambda: loader.blocks(0, (block.tolist() for block in blocks))


def in_turn(works: dict[str, Task], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds on the clock and of this process's processor time, round by round, after one that does not count."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            clock, processor = time.perf_counter(), time.process_time()
            work()
            if number:
                times[name].append((time.perf_counter() - clock, time.process_time() - processor))
    return times


def measure(folder: Path, paths: list[str], workers: int, rounds: int) -> dict[str, float]:
    sources = {"torchvision": torchvision_batches(folder, workers), "ours": our_batches(paths, workers)}
    works: dict[str, Task] = {name: lambda each=source: list(each()) for name, source in sources.items()}  # type: ignore[misc]
    times = in_turn(works, rounds)
    row: dict[str, float] = {}
    for kind, label in enumerate(("in_all", "per_core")[: 2 if not workers else 1]):
        spent = {name: [seconds[kind] for seconds in times[name]] for name in works}
        for name in works:
            row[f"{name}_{label}"] = len(paths) / statistics.median(spent[name])
        ratios = [plain / ours for plain, ours in zip(spent["torchvision"], spent["ours"], strict=True)]
        row[f"ratio_{label}"] = statistics.median(ratios)
    return row | {f"{name}_per_worker": row[f"{name}_in_all"] / max(workers, 1) for name in works}


def batch_milliseconds(device: str, rounds: int) -> float:
    """What is left for the device: flip, colour jitter and normalisation of whole batches, for one image."""
    images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device=device)

    def work() -> None:
        changed: Tensor = images
        for operation in AUGMENTATIONS["imagenet"]:
            changed = operation(changed, np.random.default_rng(0))
        PREPROCESSING.normalise(changed).sum().item()  # waits for a GPU

    return 1e3 * statistics.median(clock for clock, _ in in_turn({"": work}, rounds)[""]) / BATCH


def stages(paths: list[str], rounds: int) -> dict[str, float]:
    """Processor milliseconds of each part, for one image; the last three are other ways to do a part."""
    crop, rng = ResizedCrop(), np.random.default_rng(0)
    files = [Path(path).read_bytes() for path in paths]
    decoded = [pil_loader(path) for path in paths]
    boxes = [crop.box(image.width, image.height, rng) for image in decoded]
    parts = [image.crop((x, y, x + w, y + h)) for image, (x, y, w, h) in zip(decoded, boxes, strict=True)]
    squares = [part.resize((SIDE, SIDE), Image.Resampling.BILINEAR) for part in parts]
    _, _, jitter, to_tensor, normalise = PLAIN.transforms
    floats = [to_tensor(square) for square in squares]
    tensors = [torch.from_numpy(np.array(part)).permute(2, 0, 1)[None] for part in parts]
    works: dict[str, Task] = {
        "Pillow: decode": lambda: [Image.open(io.BytesIO(file)).load() for file in files],
        "Pillow: resize": lambda: [part.resize((SIDE, SIDE), Image.Resampling.BILINEAR) for part in parts],
        "torchvision: ColorJitter": lambda: [jitter(square) for square in squares],
        "torchvision: ToTensor": lambda: [to_tensor(square) for square in squares],
        "torchvision: Normalize": lambda: [normalise(tensor) for tensor in floats],
        "ours: read_crop in all": lambda: [read_crop(path, SIDE, crop, rng) for path in paths],
        "instead: torchvision.io decode": lambda: [decode_jpeg(read_file(path), ImageReadMode.RGB) for path in paths],
        "instead: torch's resize of bytes": lambda: [
            F.interpolate(tensor, (SIDE, SIDE), mode="bilinear", antialias=True) for tensor in tensors
        ],
        "instead: reduced decode (1/2)": lambda: [_reduced(file) for file in files],
    }
    times = in_turn(works, rounds)
    return {name: 1e3 * statistics.median(spent for _, spent in times[name]) / len(paths) for name in works}


def _reduced(file: bytes) -> object:
    image = Image.open(io.BytesIO(file))
    image.draft(None, (image.width // 2, image.height // 2))
    return image.load()


def print_rates(size: str, kilobytes: float, workers: int, found: dict[str, float]) -> None:
    per_core = f"{found['ratio_per_core']:9.2f}" if not workers else ""
    rates = " ".join(
        f"{found[f'{name}_in_all']:9.1f} {found[f'{name}_per_worker']:11.1f}" for name in ("torchvision", "ours")
    )
    print(f"{size:>10} {kilobytes:6.0f} {workers:7} {rates} {found['ratio_in_all']:9.2f} {per_core}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="500x375,800x600,4000x3000")
    parser.add_argument("--workers", default="0,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megapixels", type=float, default=40.0, help="megapixels of the images of a round")
    parser.add_argument("--out", type=Path, default=Path("results/input_pipeline.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    waiting = batch_milliseconds(device, arguments.rounds)
    print(f"flip, colour jitter and normalisation in batches on {device}: {waiting:.2f} ms an image")
    print(f"{'images a second':>25} {'torchvision':>22} {'ours':>17} {'ours / torchvision':>20}")
    columns = f"{'in all':>9} {'per worker':>11}"
    print(f"{'size':>10} {'kB':>6} {'workers':>7} {columns} {columns} {'in all':>9} {'per core':>9}")
    rows, parts = [], {}
    for size in arguments.sizes.split(","):
        width, height = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as place:
            count = max(8, round(1e6 * arguments.megapixels / (width * height)))
            paths = write_images(Path(place), width, height, count)
            kilobytes = statistics.mean(Path(path).stat().st_size for path in paths) / 1e3
            for workers in map(int, arguments.workers.split(",")):
                found = measure(Path(place), paths, workers, arguments.rounds)
                rows.append({"size": size, "kilobytes": kilobytes, "workers": workers, **found})
                print_rates(size, kilobytes, workers, found)
            parts[size] = stages(paths, arguments.rounds)
    first = next(iter(parts))
    print(f"where the time goes, processor ms an image at {first}:")
    for name, milliseconds in parts[first].items():
        print(f"  {name:34} {milliseconds:6.2f}")
    record = {
        "made": time.strftime("%Y-%m-%d"),
        "machine": platform.processor() or platform.machine(),
        "device": device,
        "batch_ms": waiting,
        "rows": rows,
        "stages_ms": parts,
    }
    write_json(arguments.out, record)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
