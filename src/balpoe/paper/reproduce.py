"""The paper's tables, measured here: trains what is missing, and writes a record for each training."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch

from balpoe.data.registry import DATASETS
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.shifted_tests import estimated_test_sets
from balpoe.experiments.build import benchmark_data
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run, train_run_by_step
from balpoe.experiments.weights_version import with_weights_version
from balpoe.files import InUseError, read_text, write_json, write_text
from balpoe.paper.best_columns import BEST_RESULTS, BEST_TABLES, COLUMNS, is_outdated, planned
from balpoe.paper.best_tables import as_chosen, best_tables
from balpoe.paper.expected import (
    ALL_METHODS,
    ALSO_SHIFTED,
    OVERVIEW,
    PAPER_RESULTS,
    PAPER_TABLES,
    TABLES_AND_FIGURES,
)
from balpoe.paper.fast import write_fast_tables
from balpoe.paper.figures import write_figures
from balpoe.paper.further_records import (
    adjusted_scores,
    calibrated_scores,
    searched_scores,
    trained_parameters,
    unmixed_predictions,
    validation_predictions,
)
from balpoe.paper.not_reproduced import NOT_REPRODUCED
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.tables import (
    commands_table,
    differences_table,
    measured_records,
    methods_table,
    not_reproduced_table,
    overview_table,
    paper_table,
    shifted_overview_table,
    shifted_result_table,
    welch_table,
)
from balpoe.paper.training_cost import gpu_seconds
from balpoe.paper.transfer import FURTHER_TABLES
from balpoe.report.console import console
from balpoe.training.concurrent import TRAININGS_AT_ONCE, Work, can_share_a_gpu, side_by_side
from balpoe.training.interrupts import Interrupt, time_limit

__all__ = ["MissingRun", "missing_runs", "reproduce", "write_tables"]

VALIDATED = {"cifar100-lt/balpoe", "cifar100-lt-best/last-weights", *BEST_RESULTS}
"""Folders of results of which the validation set is predicted as well."""
SEARCHED = {trial.folder for column in COLUMNS for trial in column.search}
"""Folders of trials that are measured with statistics of unmixed batches as well."""


class MissingRun(NamedTuple):
    """A training whose record is not there yet."""

    result: PaperResult
    seed: int
    settled: bool = True
    """Whether its recipe is: a search may still have to choose it."""

    @property
    def path(self) -> Path:
        """Path of the record, below results/."""
        return Path(self.result.folder) / f"seed-{self.seed}.json"

    @property
    def seconds(self) -> float:
        """About how many seconds of a GPU it takes."""
        return gpu_seconds(self.result.recipe(self.seed))

    def folder(self, runs: Path) -> Path:
        """Return the folder of the run."""
        return runs / self.result.folder / f"seed-{self.seed}"

    def seconds_left(self, runs: Path) -> float:
        """Return the same, less the share of the epochs that are done."""
        history = self.folder(runs) / "history.jsonl"
        done = len(read_text(history).splitlines()) if history.exists() and not self.is_of_another(runs) else 0
        epochs = self.result.recipe(self.seed).epochs
        return self.seconds * max(0, epochs - done) / epochs

    def is_of_another(self, runs: Path) -> bool:
        """Whether the run that is there is of another recipe, such as that of an earlier version of the result."""
        run, recipe = Run(self.folder(runs)), with_weights_version(self.result.recipe(self.seed))
        return run.exists and run.recipe().identity() != recipe.identity()


def _table_names(names: Sequence[str]) -> list[str]:
    """Names of tables here; a table or figure of the paper stands for those it needs, nothing for all of the paper."""
    known = {
        **{name: (name,) for name in (*PAPER_TABLES, *NOT_REPRODUCED, *FURTHER_TABLES, *BEST_TABLES)},
        **TABLES_AND_FIGURES,
        "best-columns": tuple(BEST_TABLES),
        "all": (*PAPER_TABLES, *NOT_REPRODUCED),
    }
    for name in names:
        if name not in known:
            raise unknown_name("item", name, known)
    return list(dict.fromkeys(table for name in names or ("all",) for table in known[name]))


def missing_runs(names: Sequence[str], results: Path) -> list[MissingRun]:
    """Return what is to be trained for some tables, in order: of each table the first seeds, then the second ones."""
    found = []
    for name in _table_names(names):
        if name in NOT_REPRODUCED:
            continue
        table = PAPER_TABLES.get(name) or FURTHER_TABLES.get(name) or BEST_TABLES[name]
        plans = [planned(result, results) for result in table]
        for turn in range(max(result.seeds for result in table)):
            found += [
                MissingRun(result, result.seed_numbers[turn], settled)
                for result, settled in plans
                if turn < result.seeds
            ]
    missing = {each.path: each for each in found if not (results / each.path).exists()}  # tables share some results
    return list(missing.values())


def reproduce(names: Sequence[str], *, minutes: float | None, results: Path, runs: Path, data_root: str) -> None:
    """Train what is missing, side by side on a GPU, and write a record for each; stop in time, go on next time."""
    if minutes is not None and not 0 <= minutes < 1e6:
        raise UserError(f"--minutes must be a number from 0, but is {minutes:g}")
    if results.exists() and not results.is_dir():
        raise UserError(f"--results must be a folder, but {results} is a file; name another")
    out, started = console(), time.monotonic()
    find = functools.partial(missing_runs, names, results)
    waiting = find()
    _announce(names, waiting, results)
    # Of what is beyond the paper the rest has pages of its own, whose tables are made there.
    write = write_tables if any(name not in FURTHER_TABLES for name in _table_names(names)) else write_fast_tables
    if not waiting:
        write(results)
        _announce_outdated(names, results)
        out.print(f"tables and figures are in {results}")
        return
    deadline = float("inf") if minutes is None else started + 60 * minutes
    at_once = TRAININGS_AT_ONCE if _on_one_gpu(waiting) and all(map(_in_memory, waiting)) else 1
    with Interrupt() as interrupt, time_limit(deadline - started, interrupt):
        measure = functools.partial(_measure, results=results, runs=runs, data_root=data_root, interrupt=interrupt)
        works = _while_they_fit(find, measure, runs, deadline)
        try:
            for line in side_by_side(works, at_once):
                out.print(f"{(time.monotonic() - started) / 60:5.1f} min  {line}")
        except KeyboardInterrupt:
            if time.monotonic() < deadline:
                raise  # somebody's Ctrl-C
            out.print("time is up: what is unfinished goes on with the same command")
        finally:
            write(results)
    left = len(find())
    _announce_outdated(names, results)
    out.print(f"{len(waiting) - left} records written to {results}, {left} are still missing")


def _announce(names: Sequence[str], waiting: Sequence[MissingRun], results: Path) -> None:
    """Say what is missing of each table, what it takes, and what cannot be trained here."""
    out = console()
    cost = sum(each.seconds for each in waiting) / 60
    out.print(f"{len(waiting)} trainings are missing: about {cost:.0f} minutes on one H200")
    for name in _table_names(names):
        if lacking := missing_runs([name], results):
            seeds: dict[str, list[str]] = {}
            for each in lacking:
                seeds.setdefault(each.result.title, []).append(str(each.seed))
            parts = "; ".join(f"{title} (seeds {','.join(several)})" for title, several in seeds.items())
            out.print(f"  {name}, on {lacking[0].result.recipe(1).dataset}: {parts}")
        for row in NOT_REPRODUCED.get(name, ()):
            hours = f"about {row.hours:.0f} GPU hours"
            out.print(f"  {name}: {row.title} needs images that are not here, {hours}: balpoe train {row.command}")
    if waiting and not _on_one_gpu(waiting):
        out.print("No GPU is used: these recipes are made for one, and take hours to days each on a CPU.")


def _announce_outdated(names: Sequence[str], results: Path) -> None:
    tables = _table_names(names)
    for column in COLUMNS:
        if column.preset in tables and is_outdated(column, results):
            console().print(
                f"the search of {column.preset} has chosen another recipe than that of the records in "
                f"{results / column.folder}; move these away, and the same command trains it"
            )


def _while_they_fit(
    find: Callable[[], list[MissingRun]],
    measure: Callable[[MissingRun], Work[str]],
    runs: Path,
    deadline: float,
) -> Iterator[Work[str] | None]:
    """Give the trainings one after the other, each time the first that ends in time beside those under way.

    None as long as there is none, and one under way may change that: it ends, or settles the recipe of others.
    """
    begun: list[MissingRun] = []
    taken: set[Path] = set()

    def measured(each: MissingRun) -> Work[str]:
        line = yield from measure(each)
        begun.remove(each)  # done, or left to another process
        return line

    while True:
        seconds = deadline - time.monotonic() - sum(each.seconds_left(runs) for each in begun)
        undone = (each for each in find() if each.settled and each.path not in taken)  # another process writes some
        chosen = next((each for each in undone if each.seconds_left(runs) <= seconds), None)
        if chosen is not None:
            taken.add(chosen.path)
            begun.append(chosen)
            yield measured(chosen)
        elif begun:
            under_way = len(begun)
            while len(begun) == under_way:
                yield None
        else:
            return


def write_tables(results: Path) -> None:
    """All that the records give: tables and figures."""
    for name, table in PAPER_TABLES.items():
        shown = methods_table(ALL_METHODS[name], results) if name in ALL_METHODS else paper_table(table, results)
        write_text(results / "tables" / f"{name}.md", shown)
        for result in table:
            if result.shifted and measured_records(result, results):
                write_text(results / "tables" / f"{name}-shifted.md", shifted_result_table(result, results))
    best = {name: tuple(as_chosen(result, results) for result in table) for name, table in BEST_TABLES.items()}
    write_text(results / "tables" / "commands.md", commands_table(PAPER_TABLES | ALL_METHODS | best, results))
    write_text(results / "tables" / "overview.md", overview_table(OVERVIEW, results))
    write_text(results / "tables" / "also-shifted.md", shifted_overview_table(ALSO_SHIFTED, results))
    write_text(results / "tables" / "differences.md", differences_table(PAPER_RESULTS.values(), results))
    write_text(results / "tables" / "welch.md", welch_table(PAPER_RESULTS.values(), results))
    for name, shown in best_tables(results).items():
        write_text(results / "tables" / f"{name}.md", shown)
    for name, rows in NOT_REPRODUCED.items():
        write_text(results / "tables" / f"{name}.md", not_reproduced_table(rows))
    write_fast_tables(results)
    write_figures(results)


def _measure(missing: MissingRun, results: Path, runs: Path, data_root: str, interrupt: Interrupt) -> "Work[str]":
    """Train one result with one seed; return a line about it."""
    recipe = missing.result.recipe(missing.seed)
    recipe = with_weights_version(updated(recipe, {"data_root": data_root, "checkpoint_seconds": 30.0}))
    folder = missing.folder(runs)
    try:
        fresh = missing.is_of_another(runs)
        run = yield from train_run_by_step(recipe, folder, fresh=fresh, progress=False, interrupt=interrupt)
    except InUseError:
        return f"{missing.path}: left to the process that trains it"
    unmixed = None
    if missing.result.folder in SEARCHED:
        unmixed = yield from unmixed_predictions(run, data_root, interrupt)
    yield functools.partial(_record, run, missing, results, data_root, unmixed)
    scores = run.evaluation()
    return (
        f"{missing.path}: accuracy {100 * scores['accuracy']:.1f}, ECE {100 * scores['ece']:.1f}, {run.seconds():.0f} s"
    )


def _record(run: Run, missing: MissingRun, results: Path, data_root: str, unmixed: Predictions | None = None) -> None:
    record = run.record()
    if unmixed is not None:
        record["mixed"], record["unmixed"] = searched_scores(run.predictions()), searched_scores(unmixed)
    if _in_memory(missing):
        record["duplicates"] = _without_duplicates(run, data_root)
    folder = missing.result.folder
    if folder in VALIDATED:
        validation = validation_predictions(run, data_root)
        record["estimated"] = [asdict(row) for row in estimated_test_sets(run.predictions(), validation)]
        record["calibrated"] = calibrated_scores(run.predictions(), validation)
    if any(missing.result in table for table in FURTHER_TABLES.values()):
        record["trained_parameters"] = trained_parameters(run)
        record["adjusted"] = adjusted_scores(run.predictions())
    if folder.startswith("transfer/"):
        made = run.predictions()
        record["calibrated"] = calibrated_scores(made, validation_predictions(run, data_root))
        divided = replace(made, expert_logits=made.expert_logits / record["calibrated"]["temperature"])
        record["adjusted_calibrated"] = adjusted_scores(divided)
    write_json(results / missing.path, record)


def _without_duplicates(run: Run, data_root: str) -> dict[str, float]:
    """How many training images equal a test image, and the accuracy on the test set without these."""
    predictions = run.predictions()
    train, test = benchmark_data(updated(run.recipe(), {"data_root": data_root}))
    seen = {image.numpy().tobytes() for image in train.images}
    twice = torch.tensor([image.numpy().tobytes() in seen for image in test.images])
    right = predictions.logits.argmax(dim=1) == predictions.targets
    return {"duplicates": int(twice.sum()), "accuracy_without": float(right[~twice].double().mean())}


def _in_memory(missing: MissingRun) -> bool:
    """Whether its images are held in memory; others are decoded by processes, of which one training has enough."""
    return DATASETS[missing.result.recipe(1).dataset].in_memory


def _on_one_gpu(waiting: Sequence[MissingRun]) -> bool:
    recipe = waiting[0].result.recipe(1)
    return can_share_a_gpu(recipe.device, recipe.devices)
