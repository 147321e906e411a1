"""What experts add to a pretrained transformer: paired differences between runs of `balpoe reproduce transfer`.

    python benchmarks/transfer.py [--runs runs/reproduce] [--jobs 2] [--out results/transfer.json]

Runs of the same seed are compared on the same test images: balanced accuracy, ECE and NLL as they are, and accuracy,
ECE and NLL on the test sets forward-50 and backward-50, with logits adjusted to their priors. An interval is over
images and seeds (`balpoe.evaluation.rival`). Cross-entropy is adjusted to the uniform prior first. A pair whose runs
are not here keeps the row that --out has of it, as does one of which fewer seeds are here; one without any is left out.
"""

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from balpoe.data.long_tail import long_tailed_indices, shifted_test_counts
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.rival import adjusted_rival, paired_differences
from balpoe.experiments.run_folder import runs_of
from balpoe.files import read_json, write_json
from balpoe.method.priors import class_counts

METRICS = {"uniform": ("balanced_accuracy", "ece", "nll"), "forward": ("accuracy", "ece", "nll"),
           "backward": ("accuracy", "ece", "nll")}  # fmt: skip
RATIO = 50
Row = dict[str, Any]
TUNES = ("head", "adapters", "full", "full-unmixed")


class Pair(NamedTuple):
    """Two rows of `balpoe.paper.transfer`, the second one being the rival."""

    ours: str
    rival: str


PAIRS = (
    *(Pair(f"{tune}-balpoe", f"{tune}-{rival}") for tune in TUNES
      for rival in ("cross-entropy", "logit-adjusted", "uniform")),
    *(Pair(f"{tune}-uniform", f"{tune}-logit-adjusted") for tune in TUNES),
    *(Pair("adapters-own-balpoe", f"adapters-{rival}") for rival in ("cross-entropy", "logit-adjusted", "balpoe")),
    *(Pair(f"{tune}-balpoe", f"{other}-balpoe") for tune, other in (("adapters", "head"), ("full", "adapters"),
      ("full-unmixed", "adapters"), ("full", "full-unmixed"))),
)  # fmt: skip


def balanced(predictions: Predictions) -> Predictions:
    """The predictions, adjusted to the uniform prior where they are made for another."""
    return adjusted_rival(predictions) or predictions


def under_shift(predictions: Predictions, direction: str) -> Predictions:
    """The predictions of a shifted test set, adjusted to its own prior."""
    counts = class_counts(predictions.targets, predictions.num_classes)
    kept = shifted_test_counts(predictions.class_counts, counts, RATIO, direction)
    part = predictions.subset(long_tailed_indices(predictions.targets, kept, 0))
    prior = class_counts(part.targets, part.num_classes) / len(part)
    return replace(part, expert_logits=part.adjusted(part.calibrated(), prior), calibration=None)


def compared(pair: Pair, runs: Path) -> Row | None:
    """The differences of a pair, by test set and metric; None where one of the two is not trained."""
    torch.set_num_threads(1)
    if not all((runs / name).is_dir() for name in pair):
        return None
    first, second = ({run.folder.name: run for run in runs_of(runs / name) if run.finished} for name in pair)
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    ours, rivals = ([balanced(side[seed].predictions()) for seed in seeds] for side in (first, second))
    found: Row = {**pair._asdict(), "seeds": len(seeds)}
    for place, metrics in METRICS.items():
        first_side, second_side = (
            several if place == "uniform" else [under_shift(each, place) for each in several]
            for several in (ours, rivals)
        )
        differences = paired_differences(first_side, second_side, metrics)
        found[place] = {name: asdict(each) for name, each in differences.items()}
    return found


def kept(found: Iterable[Row | None], recorded: Sequence[Row], pairs: Sequence[Pair]) -> list[Row]:
    """The rows of pairs, in their order: what was found, or what was recorded, if that is of more seeds."""
    rows: dict[Pair, Row] = {}
    for row in (*recorded, *found):
        if row is not None and row["seeds"] >= rows.get(pair := Pair(row["ours"], row["rival"]), row)["seeds"]:
            rows[pair] = row
    return [rows[pair] for pair in pairs if pair in rows]


def shown(row: Row) -> str:
    parts = [f"{place} {name} {each['value']:+.4f} ({each['low']:+.4f} to {each['high']:+.4f})"
             for place in METRICS for name, each in row[place].items()]  # fmt: skip
    return f"{row['ours']} minus {row['rival']}, {row['seeds']} seeds: " + ", ".join(parts)


def main(pairs: Sequence[Pair] = PAIRS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/transfer.json"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(partial(compared, runs=options.runs / "transfer"), pairs))
    recorded = read_json(options.out)["rows"] if options.out.exists() else []
    rows = kept(found, recorded, pairs)
    for row in rows:
        print(shown(row), flush=True)
    write_json(options.out, {"ratio": RATIO, "rows": rows})


if __name__ == "__main__":
    main()
