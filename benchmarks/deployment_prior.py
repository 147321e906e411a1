"""The estimated prior on CIFAR-100, with the model of this repository: as it is, shifted, and with blurred images.

    python benchmarks/deployment_prior.py --data-root FOLDER [--out results/place_of_use.json]

The record keeps the name that it was first written under.
"""

import argparse
from pathlib import Path

import torch

import balpoe
from balpoe.data.long_tail import long_tailed_indices, shifted_test_counts
from balpoe.data.registry import validation_data
from balpoe.files import write_json

MODEL = Path(__file__).parents[1] / "models" / "cifar100-lt-100.safetensors"


def blurred(data: balpoe.Dataset) -> balpoe.Dataset:
    """Every fifth image, each pixel the mean of its nine neighbours."""
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
        as_trained, estimated = (
            balpoe.evaluate(each, num_resamples=0).accuracy for each in (predictions, found.adjusted(predictions))
        )
        row = {
            "name": name,
            "samples": len(predictions),
            "lambda": found.shift.lambda_,
            "significant": found.shift.significant,
            "fit_p_value": found.fit_p_value,
            "as_trained": as_trained,
            "estimated": estimated,
        }
        rows.append(row)
        print(row, flush=True)
    write_json(arguments.out, {"model": MODEL.name, "rows": rows})


if __name__ == "__main__":
    main()
