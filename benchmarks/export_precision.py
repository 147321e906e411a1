"""What smaller files and fewer experts cost the published CIFAR-100-LT model.

    python benchmarks/export_precision.py --data-root FOLDER [--samples 2000] [--out results/export_precision.json]

Each file is measured on the first test images, beside the model as it is; int8 has its scales from 256 training images.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from balpoe import Dataset, export, load, load_data
from balpoe.files import write_json

MODEL = Path(__file__).resolve().parents[1] / "models" / "cifar100-lt-100.safetensors"
KINDS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"}, {"precision": "fp16"}, {"precision": "int8"},
    {"precision": "fp32", "experts": (0, 2)}, {"precision": "fp32", "experts": (1,)},
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("results/export_precision.json"))
    arguments = parser.parse_args()
    model = load(MODEL)
    train, whole = load_data("cifar100-lt", root=arguments.data_root)
    first = slice(arguments.samples)
    test = Dataset(whole.images[first], whole.targets[first], whole.class_names, whole.preprocessing)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            made = export(model, Path(folder) / "model.onnx", images=train.images[:256], test=test, **kind)
            size = made.path.stat().st_size / 1e6
            rows.append({**kind, "megabytes": size, "difference": made.check.difference, **made.after})
            print({**rows[-1], "before": made.before}, flush=True)
    write_json(arguments.out, {"samples": len(test.targets), "before": made.before, "rows": rows})


if __name__ == "__main__":
    main()
