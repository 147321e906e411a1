"""Methods side by side: the numbers of each, its difference to the best, and which cannot be told apart from that.

Pure functions of predictions and evaluations; `comparison.json` is a `Comparison` as it stands.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from balpoe.errors import UserError
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.rival import Difference, adjusted_rival, paired_differences
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.run_folder import Run
from balpoe.files import read_json, write_json

__all__ = [
    "COMPARED",
    "Comparison",
    "Row",
    "Trained",
    "adjusted_after",
    "alike",
    "compared",
    "held_out",
    "listed",
    "measured",
    "trained",
    "verdict_of_all",
]

COMPARED = ("balanced_accuracy", "many", "medium", "few", "ece", "nll")
"""Metrics of a comparison, of all of which there are differences; the first one decides which method is best."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What one method is judged by, with one seed."""

    seed: int
    predictions: Predictions
    evaluation: Mapping[str, Any]
    """As evaluation.json has it."""
    seconds: float
    """Time that its training took."""


@dataclass(frozen=True)
class Row:
    """A method in a comparison."""

    method: str
    title: str
    folder: str
    """Folder of its runs, below that of the comparison."""
    seeds: tuple[int, ...] = ()
    scores: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Numbers of each seed: metrics; ECE and NLL also as trained; accuracy under the most shifted test sets."""
    seconds: tuple[float, ...] = ()
    """Time that each seed's training took."""
    parameters: int | None = None
    adjustable: bool = True
    """Whether its scores are posteriors, so that they can be adjusted to another prior."""
    summary: str = ""
    """What it is, in words."""
    changes: str = ""
    """In what its recipe differs from that of all, in words."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Differences to the best, by metric; none for the best itself."""

    def mean(self, name: str) -> float | None:
        """Return the mean of a number over the seeds; None where a seed has none."""
        values = self.scores.get(name, ())
        present = [value for value in values if value is not None]
        return statistics.fmean(present) if present and len(present) == len(values) else None


@dataclass(frozen=True)
class Comparison:
    """Methods, the best first."""

    data: str
    """What they were trained on."""
    rows: tuple[Row, ...]
    samples: int
    """Number of samples that they are judged by."""
    shifted: tuple[str, ...] = ()
    """The most shifted test sets, such as forward-50 and backward-50; none where a class has too few test samples."""
    what: str = "test"
    """What these samples are: "test", or "held-out" ones of the training data."""
    missing: tuple[str, ...] = ()
    """What is still to be trained, in words."""
    choice: dict[str, Any] = field(default_factory=dict)
    """The method that held-out samples chose, and by what scores."""
    about: dict[str, Any] = field(default_factory=dict)
    """Whatever else a page says: classes, training samples, the recipe, the command."""

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        write_json(path, asdict(self))

    @staticmethod
    def load(path: Path) -> "Comparison":
        """Return what `save` has written."""
        try:
            return Comparison.of(read_json(path))
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a comparison ({error}); compare again") from error

    @staticmethod
    def of(found: Mapping[str, Any]) -> "Comparison":
        """Return a comparison from what JSON holds of it."""
        found = dict(found)
        rows, shifted, missing = (tuple(found.pop(name)) for name in ("rows", "shifted", "missing"))
        return Comparison(rows=tuple(map(_row, rows)), shifted=shifted, missing=missing, **found)


def _row(found: Mapping[str, Any]) -> Row:
    found = dict(found)
    seeds, seconds = (tuple(found.pop(name)) for name in ("seeds", "seconds"))
    scores = {name: tuple(values) for name, values in found.pop("scores").items()}
    differences = {name: Difference(**each) for name, each in found.pop("differences").items()}
    return Row(seeds=seeds, seconds=seconds, scores=scores, differences=differences, **found)


def compared(
    rows: Mapping[str, Row], trainings: Mapping[str, Sequence[Trained]], shot_groups: tuple[int, int], **about: Any
) -> Comparison:
    """Return the methods, the best first, with their paired differences to it.

    Args:
        rows: Each method as far as it is known without its trainings, by its name.
        trainings: Trainings of each method, one per seed; a method without any is left out.
        shot_groups: Thresholds of the shot groups.
        about: Further fields of `Comparison`.
    """
    present = {name: several for name, several in trainings.items() if several}
    filled = {name: _filled(rows[name], several) for name, several in present.items()}
    order = sorted(filled, key=lambda name: _rank(filled[name]))
    best, *others = order
    found = {best: filled[best]}
    for name in others:
        found[name] = replace(filled[name], differences=_differences(present[name], present[best], shot_groups))
    first = present[best][0]
    return Comparison(
        rows=tuple(found.values()), samples=len(first.predictions), shifted=_most_shifted(first.evaluation), **about
    )


def _rank(row: Row) -> tuple[float, float]:
    """First the highest balanced accuracy, and where two are equal the lower NLL."""
    accuracy, nll = row.mean(COMPARED[0]), row.mean("nll")
    return -(accuracy or 0.0), float("inf") if nll is None else nll


def _filled(row: Row, several: Sequence[Trained]) -> Row:
    numbers = [measured(each.evaluation) for each in several]
    predictions = several[0].predictions
    return replace(
        row,
        seeds=tuple(each.seed for each in several),
        scores={name: tuple(each.get(name) for each in numbers) for name in numbers[0]},
        seconds=tuple(each.seconds for each in several),
        parameters=predictions.parameters,
        adjustable=predictions.source_prior is not None,
    )


def _differences(
    ours: Sequence[Trained], best: Sequence[Trained], shot_groups: tuple[int, int]
) -> dict[str, Difference]:
    """Differences over the seeds that both have; none where the samples are not the same."""
    theirs = {each.seed: each.predictions for each in best}
    pairs = [(each.predictions, theirs[each.seed]) for each in ours if each.seed in theirs]
    if not pairs or not all(torch.equal(a.targets, b.targets) for a, b in pairs):
        return {}
    mine, rivals = zip(*pairs, strict=True)
    return paired_differences(mine, rivals, COMPARED, shot_groups)


def measured(evaluation: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers that a table of methods has, of one evaluation.

    Scores that are no posterior cannot be adjusted: under a shifted test set they count as they are.

    >>> shifted = [{"name": "forward-50", "as_trained": 0.7, "adjusted": 0.9}]
    >>> measured({"ece": 0.02, "nll": 0.4, "shifted": shifted, "calibration": {"before": {"ece": 0.1, "nll": 0.5}}})
    {'balanced_accuracy': None, 'many': None, 'medium': None, 'few': None, 'ece': 0.02, 'nll': 0.4, \
'balanced_accuracy_as_trained': None, 'ece_as_trained': 0.1, 'nll_as_trained': 0.5}
    """
    before = evaluation.get("calibration", {}).get("before", evaluation)
    scores = {name: evaluation.get(name) for name in COMPARED}
    raw = {f"{name}_as_trained": before.get(name) for name in (COMPARED[0], "ece", "nll")}
    rows = {row["name"]: row for row in evaluation.get("shifted", ())}
    ends = {name: rows[name] for name in _most_shifted(evaluation)}
    shifted = {name: row["as_trained"] if row["adjusted"] is None else row["adjusted"] for name, row in ends.items()}
    return {**scores, **raw, **shifted}


def _most_shifted(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the first and the last shifted test set: towards the frequent classes, and towards the rare ones."""
    names = [row["name"] for row in evaluation.get("shifted", ())]
    return (names[0], names[-1]) if len(names) > 1 else ()


def trained(run: Run) -> Trained:
    """Return what a finished run is judged by on the test samples."""
    return Trained(run.recipe().seed, run.predictions(), run.evaluation(), run.seconds())


def adjusted_after(training: Trained, shot_groups: tuple[int, int]) -> Trained:
    """Return the same training adjusted to equally frequent classes after it; as it is where nothing is to be adjusted.

    Args:
        training: Training of another method, such as cross-entropy.
        shot_groups: Thresholds of the shot groups.
    """
    moved, before = (adjusted_rival(each) for each in (training.predictions, training.predictions.uncalibrated()))
    if moved is None or before is None:
        return training
    evaluation = _scores(moved, before, shot_groups)
    if "shifted" in training.evaluation:
        evaluation = {**full_evaluation(moved, shot_groups), "calibration": evaluation["calibration"]}
    return replace(training, predictions=moved, evaluation=evaluation)


def _scores(predictions: Predictions, before: Predictions, shot_groups: tuple[int, int]) -> dict[str, Any]:
    """The metrics of predictions without intervals, and what they were before calibration."""
    after, raw = (evaluate(each, shot_groups=shot_groups, num_resamples=0).to_dict() for each in (predictions, before))
    return {**after, "calibration": {"before": raw}}


def held_out(run: Run) -> Trained:
    """Return what a calibrated run is judged by on samples outside of its training; the test part is not read."""
    folder, recipe = run.folder / "predictions" / "held-out", run.recipe()
    if not folder.is_dir():
        raise UserError(
            f"{run.folder} has no predictions of samples outside of training: its scores are no posterior, or no "
            f"class had a sample to spare; leave {recipe.method} out, or --choose"
        )
    predictions, (few, many) = Predictions.load(folder), recipe.shot_groups
    evaluation = _scores(predictions, predictions.uncalibrated(), (few, many))
    return Trained(recipe.seed, predictions, evaluation, run.seconds())


def alike(comparison: Comparison) -> list[Row]:
    """Return the methods whose balanced accuracy is not below the best one's beyond the interval."""
    differences = ((row, row.differences.get(COMPARED[0])) for row in comparison.rows[1:])
    return [row for row, difference in differences if difference is None or difference.sign >= 0]


def verdict_of_all(comparison: Comparison) -> str:
    """Return which method is best, and which cannot be told apart from it, in one or two sentences."""
    best, *others = comparison.rows
    mean = best.mean(COMPARED[0])
    opening = f"{best.title} has the highest balanced accuracy, {100 * (mean or 0):.1f} %"
    if not others:
        return f"{opening}; nothing is compared with it."
    same, seeds = [row.title for row in alike(comparison)], min(len(row.seeds) for row in comparison.rows)
    over = f"{comparison.samples:,} {comparison.what} samples" + (f" and {seeds} seeds" if seeds > 1 else ", one seed")
    if not same:
        return f"{opening}, beyond the 95 % interval of its difference to every other method ({over})."
    verb = "cannot be told apart from it"
    if len(same) == len(others):
        return f"{opening}, but no method here can be told apart from it ({over})."
    return f"{opening}; {listed(same)} {verb} ({over}), and every other method is below it beyond the 95 % interval."


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> listed(["RIDE", "TLC", "LADE"])
    'RIDE, TLC and LADE'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
