"""The paper's presets as trained, and calibrated by images that their long-tailed subsets leave out.

    python benchmarks/calibrated_presets.py [--seeds 3] [--data-root FOLDER]

Test scores before and after, for CIFAR-100-LT and CIFAR-10-LT at ratios 100, 50 and 10; about 10 minutes on one H200.
docs/trust.md has the table of results/calibrated.json, which this writes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from balpoe.cli.train_seeds import train
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run
from balpoe.files import read_json, write_json

SCORES = ("accuracy", "ece", "nll")


def scores(run: Run) -> dict[str, Any]:
    evaluation, fitted = run.evaluation(), read_json(run.folder / "calibration.json")
    return {
        "before": {name: evaluation["calibration"]["before"][name] for name in SCORES},
        "after": {name: evaluation[name] for name in SCORES},
        **{name: fitted[name] for name in ("temperatures", "frequency_bias", "samples")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-root", default="")
    parser.add_argument("--out", type=Path, default=Path("results/calibrated.json"))
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in ("cifar100-lt", "cifar10-lt"):
        for ratio in (100, 50, 10):
            changes = {"imbalance_ratio": ratio, "calibrate": True, "data_root": arguments.data_root}
            recipe = updated(preset(name), changes)
            with tempfile.TemporaryDirectory() as folder:
                runs = train(
                    recipe, list(range(1, arguments.seeds + 1)), root=Path(folder), base=name, start=recipe, fixed=True,
                    fresh=False,
                )  # fmt: skip
                rows[f"{name}-{ratio}"] = [scores(run) for run in runs]
            write_json(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
