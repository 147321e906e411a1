"""The best of every column as Markdown tables: accuracy, calibration and cost beside what others have published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from balpoe.files import read_json
from balpoe.paper.best_columns import COLUMNS, WIDTH_64, candidates, leading, planned
from balpoe.paper.expected import PAPER_RESULTS
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.tables import markdown, measured_records, printed_number, seeds_measured, shifted_accuracies
from balpoe.paper.training_cost import gpu_seconds
from balpoe.report.console import mean_and_deviation

__all__ = [
    "PUBLISHED_64",
    "as_chosen",
    "best_tables",
    "columns_table",
    "search_table",
    "seconds_alone",
    "shifted_columns_table",
    "width_table",
]

ABSENT = "not measured yet"
PUBLISHED_64 = {"GLMC with MaxNorm": (58.41, 64.57, 74.28), "SURE": (57.34, 63.13, 73.24)}
"""Accuracies published for a "ResNet-32" of width 64, one network, on CIFAR-100-LT of ratio 100, 50 and 10."""
PARAMETERS_64 = {"width-64/logit-adjusted": 7_409_216, "width-64/balpoe": 21_484_096}


def best_tables(results: Path) -> dict[str, str]:
    """Return all of these tables by name."""
    return {
        "best-columns": columns_table(results),
        "best-columns-search": search_table(results),
        "best-columns-shifted": shifted_columns_table(results),
        "width-64": width_table(results),
    }


def columns_table(results: Path) -> str:
    """Return a row for each column: the paper's number, the highest published, ours, its calibration, its cost."""
    heading = ["", "paper", "highest published", "bar", "goal", "ours", "experts", "seeds"]
    rows = [[*heading, "ECE", "ECE at a temperature", "GPU seconds", "each, five at once"]]
    for column in COLUMNS:
        result, (published, whose) = as_chosen(column.result, results), column.published
        found = measured_records(result, results)
        row = [f"{column.title}: `{column.preset}`", printed_number(column.paper), f"{published} ({whose})"]
        row += map(str, column.bar_and_goal)
        rows.append([*row, *(_measured_cells(result, found, results) if found else [ABSENT])])
    return markdown(rows)


def as_chosen(result: PaperResult, results: Path) -> PaperResult:
    """Return a result with what its search has chosen, if it has."""
    plan, settled = planned(result, results)
    return plan if settled else result


def _measured_cells(result: PaperResult, found: Sequence[Mapping[str, Any]], results: Path) -> list[str]:
    accuracy, ece = ([record["evaluation"][name] for record in found] for name in ("accuracy", "ece"))
    tempered = [record["calibrated"]["ece"] for record in found if "calibrated" in record]
    seconds, measured = seconds_alone(result, results)
    return [
        mean_and_deviation(accuracy, per_cent=True), str(result.recipe(1).experts), seeds_measured(result, len(found)),
        mean_and_deviation(ece, per_cent=True), mean_and_deviation(tempered, per_cent=True),
        f"{seconds:.0f}" if measured else f"about {seconds:.0f}", _seconds_of_each(result, found),
    ]  # fmt: skip


def _seconds_of_each(result: PaperResult, found: Sequence[Mapping[str, Any]]) -> str:
    """What each seed took of a GPU, if all were trained side by side: each has the time of all, not its own."""
    seconds = [record["seconds"] for record in found if "seconds" in record]
    if len(seconds) < result.seeds or min(seconds) < 0.95 * max(seconds):
        return "-"
    share = max(seconds) / len(seconds)
    return f"{share:.0f}" if share > gpu_seconds(result.recipe(1)) / 2 else "-"


def seconds_alone(result: PaperResult, results: Path) -> tuple[float, bool]:
    """Return how long the epochs of a training take alone on the GPU, and whether that was measured.

    Where it was not, it is about what its steps take.

    Args:
        result: What is trained.
        results: Folder of the records of whole commands, if there are any.

    >>> seconds_alone(PaperResult("a/b", "BalPoE", "cifar100-lt"), Path("nowhere"))
    (23.8, False)
    """
    names = ("fast_command", "fast_command_cifar100_lt", "whole_trainings")  # the last one of earlier kernels
    records = [results / f"{name}.json" for name in names]
    rows = [row for path in records if path.exists() for row in read_json(path)["rows"]]
    timed = [row for row in rows if (row["recipe"], row["seeds"]) == (result.preset, 1) and not result.changes]
    if timed:
        return float(min(timed, key=lambda row: row["cold"])["epochs_seconds"]), True
    return round(gpu_seconds(result.recipe(1)), 3), False


def search_table(results: Path) -> str:
    """Return the configurations of every search, with the one that was chosen."""
    heading = ["", "statistics", "accuracy", "many", "medium", "few", "ECE", "NLL", "temperature", "ECE there"]
    rows = [[*heading, "NLL there", "GPU seconds", "chosen"]]
    for column in COLUMNS:
        best = leading(column, results)
        for each in candidates(column, results):
            unmixed = "unmixed_statistics" in each.changes
            cost = "the same" if unmixed else f"about {gpu_seconds(each.trial.recipe(1)):.0f}"
            if each.scores is not None:
                names = ("accuracy", "many", "medium", "few", "ece")
                scores = [mean_and_deviation([each.scores[name]], per_cent=True) for name in names]
                there = mean_and_deviation([each.scores["at_temperature"]["ece"]], per_cent=True)
                row = [each.trial.title, "unmixed" if unmixed else "mixed", *scores, f"{each.scores['nll']:.3f}"]
                row += [f"{each.scores['temperature']:.2f}", there, f"{each.nll:.3f}"]
                rows.append([*row, cost, "yes" if each == best else ""])
            elif not unmixed:  # of what is not measured a row for each training
                rows.append([each.trial.title, "both", ABSENT, *[""] * 8, cost])
    return markdown(rows)


def shifted_columns_table(results: Path) -> str:
    """Return mean accuracies on the eleven test distributions, the prior known or estimated, beside the paper's."""
    heading = ["", "seeds", "as trained", "prior known", "prior estimated", "paper, prior known", "known minus paper"]
    rows = [heading]
    for column in COLUMNS:
        found, title = measured_records(column.result, results), f"{column.title}: `{column.preset}`"
        theirs = PAPER_RESULTS[column.standard].shifted if column.standard else None
        printed = f"{fmean(theirs.adjusted):.1f}" if theirs else "-"
        if not found:
            rows.append([title, "", ABSENT, "", "", printed])
            continue
        uses = {use: fmean(map(fmean, seeds)) for use, seeds in shifted_accuracies(found).items()}
        cells = [f"{100 * uses[use]:.1f}" if use in uses else "-" for use in ("as trained", "adjusted", "estimated")]
        gain = f"{100 * uses['adjusted'] - fmean(theirs.adjusted):+.1f}" if theirs and "adjusted" in uses else "-"
        rows.append([title, seeds_measured(column.result, len(found)), *cells, printed, gain])
    return markdown(rows)


def width_table(results: Path) -> str:
    """Return what the recipe has at width 64 beside what others have published of that network."""
    rows = [["", "parameters", "epochs", "seeds", "ratio 100", "ratio 50", "ratio 10", "ECE, ratio 100"]]
    for result in WIDTH_64:
        found = measured_records(result, results)
        ours = ([record["evaluation"][name] for record in found] for name in ("accuracy", "ece"))
        accuracy, ece = (mean_and_deviation(each, per_cent=True) if found else ABSENT for each in ours)
        row = [f"ours, {result.title}", f"{PARAMETERS_64[result.folder]:,}", str(result.recipe(1).epochs)]
        rows.append([*row, seeds_measured(result, len(found)), accuracy, "-", "-", ece])
    for title, accuracies in PUBLISHED_64.items():
        rows.append([f"*{title}*, one network", "-", "-", "-", *map(str, accuracies), "-"])
    return markdown(rows)
