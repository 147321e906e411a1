"""The estimated prior on CIFAR-100, with the model of this repository: as it is, shifted, and with blurred pictures.

python benchmarks/place_of_use.py --data-root FOLDER [--out results/place_of_use.json]
"""

import argparse
import json
from pathlib import Path

import torch

import balpoe
from balpoe.data.long_tail import long_tailed_indices, shifted_test_counts
from balpoe.data.registry import validation_data

MODEL = Path(__file__).parents[1] / "models" / "cifar100-lt-100.safetensors"


def blurred(data: balpoe.Dataset) -> balpoe.Dataset:
    """Every fifth picture, each pixel the mean of its nine neighbours."""
    images = torch.nn.functional.pad(data.images[::5].float(), (1, 1, 1, 1), mode="replicate")
    images = torch.nn.functional.avg_pool2d(images, 3, 1).round().to(torch.uint8)
    return balpoe.Dataset(images, data.targets[::5], data.class_names, data.preprocessing)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/place_of_use.json"))
    arguments = parser.parse_args()
    model = balpoe.load(MODEL)
    _, test = balpoe.load_data("cifar100-lt", arguments.data_root)
    validation = model.predictions(validation_data("cifar100-lt", arguments.data_root))
    whole = model.predictions(test)
    kept = shifted_test_counts(whole.class_counts, test.class_counts, 25, "backward")
    sets = {
        "as it is": whole,
        "backward-25": whole.subset(long_tailed_indices(whole.targets, kept)),
        "blurred": model.predictions(blurred(test)),
    }
    rows = []
    for name, predictions in sets.items():
        found = balpoe.estimate_target(predictions, validation)
        not_told, estimated = (
            balpoe.evaluate(each, num_resamples=0).accuracy for each in (predictions, found.adjusted(predictions))
        )
        row = {
            "name": name,
            "samples": len(predictions),
            "lambda": found.shift.lambda_,
            "significant": found.shift.significant,
            "fit_p_value": found.fit_p_value,
            "not_told": not_told,
            "estimated": estimated,
        }
        rows.append(row)
        print(row, flush=True)
    arguments.out.write_text(json.dumps({"model": MODEL.name, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
