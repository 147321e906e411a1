"""A prior that follows a stream of images whose labels shift, against none, one for all, and the exact one.

    python benchmarks/prior_tracking.py [PREDICTIONS VALIDATION] [--streams 20] [--processes 1] [--data-root FOLDER]

Without PREDICTIONS, those of the model of this repository on CIFAR-100. Test images are drawn with replacement by one
prior after another. Each block is predicted with the prior that the tracker has before it sees the block. *One
estimate* is the prior of the whole stream, found once all of it is there. Accuracies of the parts are over their second
half, when a tracker may have found the prior; those of the stream over all of it. Means over streams, with 95 %
intervals of these (Student's t); gains are paired.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from prediction_sets import predictions_of
from sites import MODEL, mean_with_interval
from torch import Tensor

import balpoe
from balpoe.data.registry import validation_data
from balpoe.files import write_json

PARTS = ("uniform", "forward-50", "backward-50")
RESAMPLES = 40  # of tests and bands: fewer than by default, to save time
FAMILIES = ("tempered", "free")
ONE = {family: f"one estimate, {family}" for family in FAMILIES}
HITS = dict[str, Tensor]  # whether each way is right, sample by sample


def drawn(predictions: balpoe.Predictions, prior: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Rows of test samples whose labels follow a prior."""
    weights = (prior / predictions.targets.bincount(minlength=len(prior)).clamp(min=1))[predictions.targets]
    return torch.multinomial(weights, samples, replacement=True, generator=generator)


def family_settings(family: str, test: balpoe.Predictions) -> dict[str, Any]:
    return {"family": family, "train_prior": test.train_prior if family == "tempered" else None}


def tracked(
    test: balpoe.Predictions, stream: Tensor, family: str, settings: dict[str, Any]
) -> tuple[Tensor, list[bool]]:
    """Whether the tracker is right at each sample of a stream, and whether no prior explained it at each look."""
    tracker = balpoe.track_prior(test.source_prior, **settings, **family_settings(family, test))
    hits, logits = [], test.logits
    for block in stream.split(settings["every"]):
        hits.append(tracker.adjust(logits[block]).argmax(dim=1) == test.targets[block])
        tracker.update(logits[block])
    return torch.cat(hits), [bool(step.changed) for step in tracker.history]


def measure(
    test: balpoe.Predictions, validation: balpoe.Predictions, half_life: int, samples: int, free: int, seed: int
) -> dict[str, Any]:
    """One stream: how accurate each way is, in each part and in all, and how often no prior explained it."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    priors = [balpoe.target_prior(part, test) for part in PARTS]
    stream = torch.cat([drawn(test, prior, samples, generator) for prior in priors])
    logits, targets = test.logits[stream], test.targets[stream]
    exact = [test.adjusted(part, prior) for part, prior in zip(logits.split(samples), priors, strict=True)]
    hits: HITS = {"as trained": logits.argmax(dim=1) == targets, "exact": torch.cat(exact).argmax(dim=1) == targets}
    known: dict[str, Any] = {"validation": validation, "num_resamples": RESAMPLES, "seed": seed}
    unexplained = {}
    for family in FAMILIES if seed < free else FAMILIES[:1]:
        settings = {**known, "half_life": half_life, "every": half_life}
        hits[family], unexplained[family] = tracked(test, stream, family, settings)
        found = balpoe.estimate_prior(logits, source_prior=test.source_prior, **known, **family_settings(family, test))
        hits[ONE[family]] = found.adjust(logits).argmax(dim=1) == targets
    late = {way: each.reshape(len(PARTS), samples)[:, samples // 2 :] for way, each in hits.items()}
    return {
        "parts": [{way: _per_cent(each[number]) for way, each in late.items()} for number in range(len(PARTS))],
        "stream": {way: _per_cent(each) for way, each in hits.items()},
        "unexplained": {family: sum(each) for family, each in unexplained.items()},
        "looks": {family: len(each) for family, each in unexplained.items()},
    }


def _per_cent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


def row(several: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Accuracy of each way over streams; what tracking gains over none, and over one estimate of the same family."""
    found: dict[str, Any] = {way: over_streams(several, lambda each, way=way: each[way]) for way in several[0]}
    for family in filter(lambda family: family in several[0], FAMILIES):
        for name, other in (("as trained", "as trained"), ("one estimate", ONE[family])):
            found[f"{family} over {name}"] = over_streams(several, lambda each, f=family, o=other: each[f] - each[o])
        found[f"{family} below exact"] = over_streams(several, lambda each, f=family: each["exact"] - each[f])
    return found


def over_streams(several: Sequence[dict[str, float]], value: Callable[..., float]) -> list[float]:
    """Mean over the streams that have it, with its interval."""
    found = []
    for each in several:
        with suppress(KeyError):
            found.append(value(each))
    return mean_with_interval(found)


def record(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"part": part, **row([each["parts"][number] for each in several])} for number, part in enumerate(PARTS)]
    rows.append({"part": "whole stream", **row([each["stream"] for each in several])})
    families = several[0]["looks"]
    counts = {
        name: {family: sum(each[name].get(family, 0) for each in several) for family in families}
        for name in ("unexplained", "looks")
    }
    streams = {family: sum(family in each["looks"] for each in several) for family in families}
    return {"streams": streams, **counts, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("predictions", nargs="*", type=Path, default=[], help="test and validation predictions")
    parser.add_argument("--data-root")
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--free-streams", type=int, default=20, help="streams with free shares, which take far longer")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--labelled", type=int, default=2000, help="validation samples that are used, at most")
    parser.add_argument("--half-life", type=int, default=500)
    parser.add_argument("--samples", type=int, default=2000, help="samples of each part")
    parser.add_argument("--out", type=Path, default=Path("results/prior_tracking.json"))
    arguments = parser.parse_args()
    if arguments.predictions:
        test, validation = map(predictions_of, arguments.predictions)
    else:
        model = balpoe.load(MODEL)
        test = model.predictions(balpoe.load_data("cifar100-lt", arguments.data_root)[1])
        validation = model.predictions(validation_data("cifar100-lt", arguments.data_root))
    chosen = torch.randperm(len(validation), generator=torch.Generator().manual_seed(0))[: arguments.labelled]
    validation = validation.subset(chosen.sort().values)
    settings = {name: getattr(arguments, name) for name in ("half_life", "samples")}
    work = partial(measure, test, validation, arguments.half_life, arguments.samples, arguments.free_streams)
    several = []
    with get_context("forkserver").Pool(arguments.processes) as pool:
        for found in pool.imap(work, range(arguments.streams)):
            several.append(found)
            print(len(several), found["stream"], flush=True)
            if len(several) > 1:
                about = {"model": MODEL.name, "labelled": len(validation), **settings}
                write_json(arguments.out, {**about, **record(several)})


if __name__ == "__main__":
    main()
