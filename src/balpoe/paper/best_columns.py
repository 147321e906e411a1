"""Our own recipe for each column of the paper's tables of CIFAR: how it is chosen, and what others have published.

Every column begins with the recipe of `cifar100-lt-best`. Two trainings, shorter than it, with three experts and with
seven, are each measured on held-out training images with two kinds of statistics of batch normalisation, of mixed
batches and of unmixed ones: four configurations. Each has a temperature under which these images are most likely.
The one with the lowest NLL there is the column's preset, temperature and length included; it is then trained with five
seeds and measured on the test set, by the same command. Some columns have a third training, twice as long: added when
what had been chosen before had missed the bar. Ratio 100 of CIFAR-100-LT has two rows: `cifar100-lt-best` itself, which
missed it, and what such a search chooses. A network of width 64 has the recipe of `cifar100-lt-best`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from balpoe.errors import UserError
from balpoe.paper.paper_result import Number, PaperResult, PaperTable, recorded_recipe
from balpoe.paper.tables import measured_records
from balpoe.paper.training_cost import training_steps

__all__ = [
    "BEST_RESULTS",
    "BEST_TABLES",
    "COLUMNS",
    "EPOCHS",
    "LONGER",
    "TRIALS",
    "WIDTH_64",
    "BestColumn",
    "Candidate",
    "candidates",
    "chosen",
    "is_outdated",
    "leading",
    "planned",
]

START = "cifar100-lt-best"
TRIALS: dict[str, dict[str, Any]] = {"start": {}, "seven-experts": {"num_experts": 7}}
"""Changes to where a column starts."""
LONGER = {**TRIALS, "seven-experts-800": {"num_experts": 7, "epochs": 800}}
"""Those of a column where what had been chosen before missed the bar."""
EPOCHS = 400
"""Of a trial, and of the preset that is chosen, unless a trial says otherwise."""


class BestColumn(NamedTuple):
    """A data set and its ratio: our preset, where its search starts, and the numbers to compare with."""

    title: str
    preset: str
    folder: str
    """Folder of the preset's records."""
    start: Mapping[str, Any]
    """What the start of the search changes of `cifar100-lt-best`."""
    validation: int
    """Images of each class that the search is measured by: 2,000 in all."""
    paper: Number
    """Accuracy with the paper's long schedule."""
    published: tuple[float, str]
    """The highest accuracy published of a ResNet-32 of width 16, whatever the number of networks, and whose it is."""
    bar_and_goal: tuple[float, float]
    """Accuracies that this project set out to reach."""
    standard: str = ""
    """Folder of the paper's standard BalPoE, of which it prints accuracies under shifted test sets."""
    trials: Mapping[str, Mapping[str, Any]] = TRIALS
    """What each training of the search changes of its start; none where the recipe was chosen before."""

    @property
    def result(self) -> PaperResult:
        """The preset with five seeds."""
        return PaperResult(self.folder, f"{self.title}, {self.preset}", self.preset, {}, 5)

    @property
    def search(self) -> PaperTable:
        """The trainings of the search."""
        return tuple(
            PaperResult(
                f"{self.preset}-search/{name}", f"{self.preset}: {name}", START,
                {**self.start, "epochs": EPOCHS, "validation": self.validation, **changes}, 1,
            )
            for name, changes in self.trials.items()
        )  # fmt: skip


CHOSEN_BEFORE = BestColumn(
    "CIFAR-100-LT, ratio 100", START, f"{START}/balpoe", {}, 20,
    (55.9, 0.4), (56.3, "SHIKE"), (58.4, 60.0), "cifar100-lt/balpoe", trials={},
)  # fmt: skip
COLUMNS = (
    CHOSEN_BEFORE,
    CHOSEN_BEFORE._replace(preset="cifar100-lt-100-best", folder="cifar100-lt/balpoe-best", trials=LONGER),
    BestColumn(
        "CIFAR-100-LT, ratio 50", "cifar100-lt-50-best", "cifar100-lt-50/balpoe-best",
        {"imbalance_ratio": 50.0}, 20, (60.1, None), (60.1, "BalPoE"), (62.5, 64.5), "cifar100-lt-50/balpoe", LONGER,
    ),
    BestColumn(
        "CIFAR-100-LT, ratio 10", "cifar100-lt-10-best", "cifar100-lt-10/balpoe-best",
        {"imbalance_ratio": 10.0}, 20,
        (68.1, None), (68.1, "BalPoE"), (70.0, 72.0), "cifar100-lt-10/balpoe", LONGER,
    ),
    BestColumn(
        "CIFAR-10-LT, ratio 100", "cifar10-lt-best", "cifar10-lt-100/balpoe-best",
        {"dataset": "cifar10-lt"}, 200, (86.8, 0.2), (86.8, "BalPoE"), (88.0, 89.0),
    ),
    BestColumn(
        "CIFAR-10-LT, ratio 50", "cifar10-lt-50-best", "cifar10-lt-50/balpoe-best",
        {"dataset": "cifar10-lt", "imbalance_ratio": 50.0}, 200, (88.5, 0.2), (88.5, "BalPoE"), (89.7, 91.0),
    ),
    BestColumn(
        "CIFAR-10-LT, ratio 10", "cifar10-lt-10-best", "cifar10-lt-10/balpoe-best",
        {"dataset": "cifar10-lt", "imbalance_ratio": 10.0}, 200,
        (91.9, 0.1), (91.9, "BalPoE, ProCo"), (92.6, 93.5),
    ),
)  # fmt: skip

WIDTH_64: PaperTable = tuple(
    # A shorter training than that of width 16, whose step takes a fifth of the time or less: GLMC has 200 epochs, too.
    PaperResult(f"width-64/{name}", title, "cifar100-lt-best", {"width": (64,), "epochs": 200, **changes})
    for name, title, changes in (
        ("logit-adjusted", "one expert", {"lambdas": (0,)}),
        ("balpoe", "BalPoE, three experts", {}),
    )
)
"""The recipe of `cifar100-lt-best` with the "ResNet-32" of some papers, four times as wide."""

BEST_RESULTS: dict[str, PaperResult] = {column.folder: column.result for column in COLUMNS}
"""By folder: each column's preset with its five seeds."""
BEST_TABLES: dict[str, PaperTable] = {
    **{
        column.preset if column.search else f"{column.preset}-five": (*column.search, column.result)
        for column in COLUMNS
    },
    "width-64": WIDTH_64,
}
"""By name; `balpoe reproduce` trains them when they are asked for, and not as part of the paper."""


class Candidate(NamedTuple):
    """A configuration of a search, with its scores on held-out images; None where it is not measured yet."""

    trial: PaperResult
    changes: dict[str, Any]
    """What it changes of the start."""
    scores: Mapping[str, Any] | None

    @property
    def nll(self) -> float:
        """The NLL at its temperature; infinite where it is not measured."""
        return float(self.scores["at_temperature"]["nll"]) if self.scores else float("inf")


def candidates(column: BestColumn, results: Path) -> Iterator[Candidate]:
    """Yield the configurations of a column's search: each training with either kind of statistics."""
    for trial, changes in zip(column.search, column.trials.values(), strict=True):
        record = next(iter(measured_records(trial, results)), None)
        if record and not (_is_of(record, trial) and "mixed" in record):
            raise UserError(f"{results / trial.folder} has a record of another recipe than this search's; move it away")
        for kind, statistics in (("mixed", {}), ("unmixed", {"unmixed_statistics": True})):
            scores = record and record[kind]
            temperature = {"temperature": round(scores["temperature"], 2)} if scores else {}
            yield Candidate(trial, {"epochs": EPOCHS, **changes, **statistics, **temperature}, scores)


def _is_of(record: Mapping[str, Any], result: PaperResult) -> bool:
    """Whether a record is of the recipe of a result."""
    made = recorded_recipe(record) if "recipe" in record else None
    return made is not None and made.identity() == result.recipe(made.seed).identity()


def leading(column: BestColumn, results: Path) -> Candidate | None:
    """Return the configuration with the lowest NLL at its temperature so far.

    None before the trials that every search has are measured; a longer one may take the lead later.

    >>> leading(COLUMNS[1], Path("nowhere")) is None
    True
    """
    found = list(candidates(column, results))
    first = [each for each in found if each.trial in column.search[: len(TRIALS)]]
    if any(each.scores is None for each in first):
        return None
    return min(found, key=lambda each: each.nll, default=None)


def chosen(column: BestColumn, results: Path) -> Candidate | None:
    """Return the same of a column of which all are measured; None as long as one is not."""
    if any(each.scores is None for each in candidates(column, results)):
        return None
    return leading(column, results)


def planned(result: PaperResult, results: Path) -> tuple[PaperResult, bool]:
    """Return a result as it is to be trained, and whether that is settled.

    It is not as long as a search has to choose the recipe; then it is the longest of what may be chosen. Nor is it as
    long as records of what was chosen before are there. What is chosen changes the start of the search, whatever the
    preset says by now.

    >>> planned(COLUMNS[1].result, Path("nowhere"))[1], planned(WIDTH_64[0], Path("nowhere")) == (WIDTH_64[0], True)
    (False, True)
    """
    column = next((each for each in COLUMNS if each.folder == result.folder and each.search), None)
    if column is None:
        return result, True
    found = chosen(column, results)
    best = found or max(candidates(column, results), key=lambda each: training_steps(each.trial.recipe(1)))
    plan = replace(result, preset=START, changes={**column.start, **best.changes})
    if plan.recipe(1).identity() == result.recipe(1).identity():
        plan = result
    records = list(measured_records(plan, results))
    if found is None or all(_is_of(record, plan) for record in records):
        return plan, found is not None
    if all(_is_of(record, result) for record in records):
        return plan, False
    raise UserError(f"{results / plan.folder} has a record of another recipe than its search chose; move it away")


def is_outdated(column: BestColumn, results: Path) -> bool:
    """Whether the records of a column's seeds are of its preset, and its search has chosen another recipe by now."""
    return chosen(column, results) is not None and not planned(column.result, results)[1]
