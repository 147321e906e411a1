"""make results: the tables of fine-tuning.md, from the records in results/.

A line `<!-- table NAME -->` stands above each. What has no record yet says so, with the command that makes it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from decision_tables import table as markdown

from balpoe.files import write_text
from balpoe.paper.paper_result import PaperResult, PaperTable
from balpoe.paper.tables import measured_records
from balpoe.paper.transfer import CHOSEN, FURTHER_TABLES, TINY_IMAGENET, TRANSFER
from balpoe.report.console import mean_and_deviation

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n(?:\|.*\n|Not measured.*\n)*")
GROUPS = ("many", "medium", "few")
Record = dict[str, Any]


def absent(command: str) -> str:
    """Return what stands in place of a table without a record."""
    return f"Not measured yet: `{command}`.\n"


def per_cent(values: Sequence[float | None]) -> str:
    """The mean and the deviation over seeds; a dash where there is none."""
    return "-" if None in values else mean_and_deviation([each for each in values if each is not None], True)


def score_cells(scores: Sequence[Record], with_temperature: Sequence[Record | None]) -> list[str]:
    """Accuracies, ECE without and with a temperature, and NLL, of each seed."""
    cells = [per_cent([each[name] for each in scores]) for name in ("balanced_accuracy", *GROUPS, "ece")]
    cells.append(per_cent([None if each is None else each["ece"] for each in with_temperature]))
    return [*cells, mean_and_deviation([each["nll"] for each in scores], False)]


def shifted_cells(evaluations: Sequence[Record]) -> list[str]:
    """Accuracies with logits adjusted to the set's own prior: both ends, and the mean of the eleven sets."""
    sets = [[row["adjusted"] for row in each["shifted"]] for each in evaluations]
    return [per_cent([each[0] for each in sets]), per_cent([fmean(each) for each in sets]),
            per_cent([each[-1] for each in sets])]  # fmt: skip


def result_rows(result: PaperResult, found: Sequence[Record]) -> Iterator[list[str]]:
    """A row of the scores as trained, and one of the same runs adjusted after training, where that changes them."""
    evaluations = [record["evaluation"] for record in found]
    shifted, cost = shifted_cells(evaluations), [f"{found[0]['trained_parameters']:,}"]
    cost.append(f"{fmean(record['seconds'] for record in found):.0f}")
    start = [result.title, str(len(found))]
    adjusted = [record["adjusted"] for record in found]
    as_trained = [record.get("calibrated") if record["adjusted"] is None else None for record in found]
    yield [*start, *score_cells(evaluations, as_trained), *([""] * 3 if adjusted[0] else shifted), *cost]
    if adjusted[0]:
        divided = [record.get("adjusted_calibrated") for record in found]
        title = f"{result.title}, adjusted after training"
        yield [title, str(len(found)), *score_cells(adjusted, divided), *shifted, "", ""]


def results_table(table: PaperTable, results: Path, command: str) -> str:
    """Return a table of all rows that have records."""
    heads = ("", "seeds", "balanced accuracy", *GROUPS, "ECE", "ECE, with a temperature", "NLL",
             "forward-50, adjusted", "mean of the eleven, adjusted", "backward-50, adjusted", "trained parameters",
             "seconds")  # fmt: skip
    measured = [(result, found) for result in table if (found := measured_records(result, results))]
    rows = [row for result, found in measured for row in result_rows(result, found)]
    return markdown(heads, rows) if rows else absent(command)


def search_table(results: Path) -> str:
    """Return the balanced accuracy of each trial on held-out training images, the chosen ones marked."""
    rows = []
    for result in FURTHER_TABLES["transfer-search"]:
        for record in measured_records(result, results):
            score = f"{100 * record['evaluation']['balanced_accuracy']:.1f}"
            rows.append([result.title, score, "chosen" if result.title in CHOSEN.values() else ""])
    heads = ("trial", "balanced accuracy, held out", "")
    return markdown(heads, rows) if rows else absent("balpoe reproduce transfer-search")


def interval(difference: Record, scale: float = 100, digits: int = 1) -> str:
    """A difference with the ends of its interval."""
    middle, low, high = (f"{scale * difference[name]:+.{digits}f}" for name in ("value", "low", "high"))
    return f"{middle} ({low} to {high})"


def pairs_table(results: Path) -> str:
    """Return the paired differences of benchmarks/transfer.py."""
    path = results / "transfer.json"
    if not path.exists():
        return absent("python benchmarks/transfer.py")
    rows = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        cells = [f"{row['ours']} minus {row['rival']}", str(row["seeds"])]
        uniform = row["uniform"]
        cells += [interval(uniform["balanced_accuracy"]), interval(uniform["ece"]), interval(uniform["nll"], 1, 3)]
        for place in ("forward", "backward"):
            cells += [interval(row[place]["accuracy"]), interval(row[place]["nll"], 1, 3)]
        rows.append(cells)
    heads = ("", "seeds", "balanced accuracy", "ECE", "NLL", "forward-50: accuracy", "forward-50: NLL",
             "backward-50: accuracy", "backward-50: NLL")  # fmt: skip
    return markdown(heads, rows)


def pretraining_table(results: Path) -> str:
    """Return what benchmarks/pretrain_vit.py took and reached."""
    path = results / "pretrain_vit.json"
    if not path.exists():
        return absent("python benchmarks/pretrain_vit.py --data FOLDER")
    record = json.loads(path.read_text(encoding="utf-8"))
    heads = ("network", "epochs", "seconds", "images a second", "accuracy", "accuracy in bfloat16", "file", "machine")
    cells = [record["network"], str(record["epochs_done"]), f"{record['seconds']:.0f}",
             f"{record['images_per_second']:,.0f}", f"{100 * record['accuracy']:.1f}",
             f"{100 * record['accuracy_in_bfloat16']:.1f}", f"{record['bytes'] / 1e6:.1f} MB",
             record["device"]]  # fmt: skip
    return markdown(heads, [cells])


def step_table(results: Path) -> str:
    """Return what benchmarks/adapter_step.py measured."""
    path = results / "adapter_step.json"
    if not path.exists():
        return absent("python benchmarks/adapter_step.py")
    rows = [[row["way"], str(row["batch"]), f"{row['images_per_second']:,.0f}", f"{row['peak_mib'] / 1024:.1f}",
             f"{row['trained']:,}", f"{row['faster']:.2f}", f"{row['memory']:.2f}"]
            for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "error" not in row]  # fmt: skip
    heads = ("what learns", "batch", "images a second", "peak GiB", "trained parameters", "times as fast", "memory")
    return markdown(heads, rows)


def tuned(page: str, results: Path) -> str:
    """Return the page with its tables as they are now."""
    made = {
        "pretraining": lambda: pretraining_table(results),
        "search": lambda: search_table(results),
        "transfer": lambda: results_table(TRANSFER, results, "balpoe reproduce transfer"),
        "pairs": lambda: pairs_table(results),
        "adapter-step": lambda: step_table(results),
        "tiny-imagenet": lambda: results_table(TINY_IMAGENET, results, "balpoe reproduce tiny-imagenet"),
    }
    return TABLE.sub(lambda match: f"<!-- table {match[1]} -->\n\n{made[match[1]]()}", page)


if __name__ == "__main__":
    place = ROOT / "docs" / "fine-tuning.md"
    write_text(place, tuned(place.read_text(encoding="utf-8"), ROOT / "results"))
