"""What one temperature of the experts does: digits-lt without and with mixup, fitted on its validation samples.

    python benchmarks/temperature.py [--seeds 5]

Test scores as trained and at the temperature, `balpoe.at_temperature`, means over the seeds; minutes on a CPU.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import balpoe
from balpoe.data.registry import validation_data
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import train_run
from balpoe.files import write_json

NAMES = ("balanced_accuracy", "ece", "nll")


def measure(alpha: float, seed: int) -> dict[str, float]:
    """One training: the temperature, and the scores before and after."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = updated(preset("digits-lt"), {"mixup_alpha": alpha, "seed": seed})
        run = train_run(recipe, Path(folder) / "run", progress=False)
        lambdas = recipe.expert_lambdas
        unseen, test = balpoe.load(run.folder).predictions(validation_data("digits-lt")), run.predictions()
        temperature = balpoe.fit_temperature(unseen.expert_logits, unseen.targets, unseen.train_prior, lambdas)
        logits = balpoe.at_temperature(test.expert_logits, temperature, test.train_prior, lambdas)
        before, after = (balpoe.evaluate(each, num_resamples=0) for each in (test, replace(test, expert_logits=logits)))
    scores = {
        f"{name}_{when}": getattr(found, name)
        for when, found in (("as_trained", before), ("tempered", after))
        for name in NAMES
    }
    return {"validation_samples": len(unseen), "temperature": temperature, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/temperature.json"))
    arguments = parser.parse_args()
    rows = []
    for alpha in (0.0, 0.4):
        several = [measure(alpha, seed) for seed in range(arguments.seeds)]
        means = {name: fmean(each[name] for each in several) for name in several[0]}
        rows.append({"mixup_alpha": alpha, "seeds": arguments.seeds, **means})
        print(", ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()), flush=True)
        write_json(arguments.out, {"rows": rows})
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
