"""make results: the tables of fine-tuning.md, from the records in results/.

A line `<!-- table NAME -->` stands above each. What has no record yet says so, with the command that makes it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from decision_tables import table as markdown
from scipy.special import stdtrit

from balpoe.files import write_text
from balpoe.paper.paper_result import PaperResult, PaperTable
from balpoe.paper.tables import measured_records
from balpoe.paper.transfer import CHOSEN, FURTHER_TABLES, TINY_IMAGENET, TRANSFER
from balpoe.report.console import mean_and_deviation

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n(?:\|.*\n|Not measured.*\n)*")
GROUPS = ("many", "medium", "few")
SUMMARY = {"cross-entropy": "cross-entropy, adjusted", "one logit-adjusted expert": "one expert",
           "uniform ensemble": "uniform ensemble", "BalPoE": "BalPoE"}  # fmt: skip
PARTS = {"head": "the head", "adapters": "adapters", "full": "everything",
         "full, without mixup": "everything, without mixup"}  # fmt: skip
BALANCED = {"balanced accuracy": ("uniform", "balanced_accuracy"), "ECE": ("uniform", "ece"), "NLL": ("uniform", "nll")}
SHIFTED = {f"{place}-50: {title}": (place, score) for place in ("forward", "backward")
           for title, score in (("accuracy", "accuracy"), ("NLL", "nll"))}  # fmt: skip
TINY = "balpoe reproduce tiny-imagenet"
WITH_TEMPERATURE = "ECE, with a temperature"
Record = dict[str, Any]


def absent(command: str) -> str:
    """Return what stands in place of a table without a record."""
    return f"Not measured yet: `{command}`.\n"


def per_cent(values: Sequence[float | None]) -> str:
    """The mean and the deviation over seeds; a dash where there is none."""
    return (
        "-" if not values or None in values else mean_and_deviation([each for each in values if each is not None], True)
    )


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
    seeds, adjusted = str(len(found)), [record["adjusted"] for record in found]
    as_trained = [record.get("calibrated") if record["adjusted"] is None else None for record in found]
    yield [result.title, seeds, *score_cells([record["evaluation"] for record in found], as_trained)]
    if adjusted[0]:
        divided = [record.get("adjusted_calibrated") for record in found]
        yield [f"{result.title}, adjusted after training", seeds, *score_cells(adjusted, divided)]


def further_row(result: PaperResult, found: Sequence[Record]) -> list[str]:
    """What a result has under shifted priors, and what it costs."""
    cost = (f"{found[0]['trained_parameters']:,}", f"{fmean(record['seconds'] for record in found):.0f}")
    return [result.title, *shifted_cells([record["evaluation"] for record in found]), *cost]


def results_table(table: PaperTable, results: Path, command: str, further: bool = False) -> str:
    """Return a table of the scores of all rows that have records, or of what they have further: shift and cost."""
    measured = [(result, found) for result in table if (found := measured_records(result, results))]
    if not measured:
        return absent(command)
    if further:
        heads = ("", "forward-50", "mean of the eleven", "backward-50", "trained parameters", "seconds")
        return markdown(heads, [further_row(*each) for each in measured])
    heads = ("", "seeds", "balanced accuracy", *GROUPS, "ECE", WITH_TEMPERATURE, "NLL")
    rows = [row for each in measured for row in result_rows(*each)]
    place = heads.index(WITH_TEMPERATURE)
    if all(row[place] == "-" for row in rows):  # there was nothing to fit one by
        heads, rows = (heads[:place] + heads[place + 1 :], [row[:place] + row[place + 1 :] for row in rows])
    return markdown(heads, rows)


def summary_table(results: Path) -> str:
    """Return the balanced accuracy of each method for each part that learns, cross-entropy adjusted after training."""
    found = {result.title: measured_records(result, results) for result in TRANSFER}
    rows = []
    for kind, part in PARTS.items():
        several = [found.get(f"{kind}: {method}", []) for method in SUMMARY]
        scored = [[record["adjusted"] or record["evaluation"] for record in each] for each in several]
        if any(scored):
            rows.append([part, *(per_cent([scores["balanced_accuracy"] for scores in each]) for each in scored)])
    return markdown(("what learns", *SUMMARY.values()), rows)


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


def pairs_table(results: Path, columns: Mapping[str, tuple[str, str]]) -> str:
    """Return the paired differences of benchmarks/transfer.py: where, and of which score, by the heads of columns."""
    path = results / "transfer.json"
    if not path.exists():
        return absent("python benchmarks/transfer.py")
    rows = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        found = [(row[place][score], score) for place, score in columns.values()]
        cells = [interval(each, 1, 3) if score == "nll" else interval(each) for each, score in found]
        rows.append([f"{row['ours']} minus {row['rival']}", str(row["seeds"]), *cells])
    return markdown(("", "seeds", *columns), rows)


def tiny_pairs_table(results: Path) -> str:
    """Return BalPoE minus its rivals on Tiny-ImageNet-LT, all adjusted: of each network's seeds, and of all together.

    With the 95 % interval of Student, of the differences that seeds have.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for result in TINY_IMAGENET:
        network, _, method = result.title.partition(": ")
        found.setdefault(network, {})[method] = {
            record["recipe"]["seed"]: (record["adjusted"] or record["evaluation"])["balanced_accuracy"]
            for record in measured_records(result, results)
        }
    rows = []
    for method in list(SUMMARY)[:-1]:
        pairs = [[each["BalPoE"][seed] - theirs for seed, theirs in each[method].items() if seed in each["BalPoE"]]
                 for each in found.values()]  # fmt: skip
        groups = [*pairs, [difference for each in pairs for difference in each]]
        if min(map(len, groups)) < 2:
            return absent(TINY)
        rows.append([f"BalPoE minus {SUMMARY[method]}", *map(student_interval, groups)])
    return markdown(("", *found, "both"), rows)


def student_interval(differences: Sequence[float]) -> str:
    """The mean of some differences, with Student's 95 % interval."""
    mean, number = fmean(differences), len(differences)
    reach = float(stdtrit(number - 1, 0.975)) * stdev(differences) / number**0.5
    return interval({"value": mean, "low": mean - reach, "high": mean + reach})


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
        "summary": lambda: summary_table(results),
        "pretraining": lambda: pretraining_table(results),
        "search": lambda: search_table(results),
        "transfer": lambda: results_table(TRANSFER, results, "balpoe reproduce transfer"),
        "transfer-further": lambda: results_table(TRANSFER, results, "balpoe reproduce transfer", further=True),
        "pairs": lambda: pairs_table(results, BALANCED),
        "pairs-shifted": lambda: pairs_table(results, SHIFTED),
        "adapter-step": lambda: step_table(results),
        "tiny-imagenet": lambda: results_table(TINY_IMAGENET, results, TINY),
        "tiny-imagenet-pairs": lambda: tiny_pairs_table(results),
        "tiny-imagenet-further": lambda: results_table(TINY_IMAGENET, results, TINY, further=True),
    }
    return TABLE.sub(lambda match: f"<!-- table {match[1]} -->\n\n{made[match[1]]()}", page)


if __name__ == "__main__":
    place = ROOT / "docs" / "fine-tuning.md"
    write_text(place, tuned(place.read_text(encoding="utf-8"), ROOT / "results"))
