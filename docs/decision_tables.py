"""make results: tables of decisions-measured.md, and of a stream in priors-measured.md, from the records in results/.

A line `<!-- table NAME -->` stands above each. Numbers in brackets are the ends of an interval. The first table of
decisions-measured.md, what holds and what does not, is made in decision_summary.py.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from decision_summary import summary

from balpoe.files import write_text

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n(?:\|.*\n)*")
GROUPS = ("many", "medium", "few")
Record = Mapping[str, Any]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def spread(value: Sequence[float] | None, scale: float = 1, digits: int = 1, sign: str = "") -> str:
    """A number with the ends of its interval; a dash for none."""
    if value is None:
        return "-"
    middle, low, high = (f"{scale * each:{sign}.{digits}f}" for each in value)
    return f"{middle} ({low} to {high})"


def by_group(row: Record, what: str, scale: float = 1) -> str:
    """The mean for each shot group that there is."""
    values = (row[f"{what} of {group}"] for group in GROUPS if f"{what} of {group}" in row)
    return ", ".join(f"{scale * value[0]:.1f}" if value else "-" for value in values)


def having(record: Record, part: str) -> Iterator[tuple[str, Any]]:
    """Yield the models of which a part was measured, each with it."""
    return ((name, each[part]) for name, each in record.items() if part in each)


def models(record: Record) -> str:
    """Return how accurate and how well calibrated the models are."""
    rows = []
    for name, each in record.items():
        accuracy, before, after = (f"{100 * each[key]:.1f}" for key in ("accuracy", "ece as trained", "ece"))
        calibrated = each["ece"] != each["ece as trained"]
        rows.append((name, f"{each['samples']:,}", accuracy, before, after if calibrated else "-"))
    return table(("model", "test samples", "accuracy", "ECE, as trained", "ECE, calibrated"), rows)


def sets(record: Record, kind: str = "rows") -> str:
    """Return coverage and size of prediction sets."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "sets"):
            for row in found.get(kind, ()):
                shares = (spread(row[key], 100) for key in ("coverage", "macro"))
                least = f"{100 * row['least'][0]:.0f}"
                yield name, row["prior"], row["way"], *shares, least, spread(row["size"]), by_group(row, "size")

    heads = ("model", "prior", "method", "covered, %", "mean over classes, %", "least class, %", "classes in a set")
    return table((*heads, "many, medium, few"), rows())


def classes(record: Record) -> str:
    """Return how coverage spreads over the classes: the lowest, a tenth, the middle, nine tenths and the highest."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "sets"):
            for row in filter(lambda row: "classes of all" in row, found["rows"]):
                spreads = (quantiles(row, group) for group in ("all", *GROUPS))
                yield name, row["prior"], row["way"], f"{100 * row['below of all'][0]:.0f}", *spreads

    heads = ("model", "prior", "method", "classes below 80 %, %", "all classes", *GROUPS)
    return table(heads, rows())


def quantiles(row: Record, group: str) -> str:
    """Coverage of the classes of a group, from the lowest to the highest."""
    return ", ".join(f"{100 * value:.0f}" for value in row[f"classes of {group}"])


def thresholds(record: Record) -> str:
    """Return what becomes of what thresholds of classes were fitted for."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "thresholds"):
            for row in found["rows"]:
                wanted = f"{row['aim']} of {100 * row['wanted']:.0f} %" if row["wanted"] else "best F1"
                values = [f"{row[key][0]:.1f}" for key in ("most probable", "fitted")]
                kept = [f"{row[key]:.0f}" if row["wanted"] else "-" for key in ("reached", "kept")]
                others = ", ".join(f"{row[f'new {key}'][0]:.0f}" for key in ("recall", "precision", "f1"))
                yield name, row["prior"], wanted, *values, spread(row["new"]), by_group(row, "new"), *kept, others

    heads = ("model", "prior", "fitted for", "most probable class", "held-out half", "new half", "many, medium, few")
    return table((*heads, "reached, %", "kept, %", "new: recall, precision, F1"), rows())


def tracking(record: Record) -> str:
    """Return how accurate each way to follow a stream is, and what the trackers gain, in points."""
    families, others = [name for name, number in record["streams"].items() if number], ("as trained", "one estimate")
    ways = ("as trained", *(f"one estimate, {each}" for each in families), *families, "exact")

    def rows() -> Iterator[tuple[str, ...]]:
        for row in record["rows"]:
            gains = (spread(row[f"{family} over {name}"], sign="+") for family in families for name in others)
            yield row["part"], *(f"{row[way][0]:.1f}" for way in ways), *gains

    heads = (f"tracked, {way}" if way in families else way for way in ways)
    gains = (f"{family}, gain over {name}" for family in families for name in others)
    return table(("labels of the stream", *heads, *gains), rows())


def costs(record: Record) -> str:
    """Return what answers cost."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "costs"):
            for row in found:
                paid = (f"{row[key][0]:.3f}" for key in ("most probable", "decided"))
                yield name, row["prior"], row["costs"], *paid, spread(row["change"], sign="+")

    return table(("model", "prior", "costs", "most probable class", "least expected cost", "change, %"), rows())


def metrics(record: Record) -> str:
    """Return what the rule for macro F1 gains."""
    keys = ("most probable", "macro_f1")
    rows = (
        (name, row["prior"], *(f"{row[key][0]:.1f}" for key in keys), spread(row["gain"], sign="+"))
        for name, found in having(record, "metrics")
        for row in found
    )
    return table(("model", "prior", "most probable class", "rule for macro F1", "gain, points"), rows)


def recalls(record: Record) -> str:
    """Return what becomes of a wanted recall."""
    rows = (
        (
            name,
            "on the held-out half" if row["confidence"] is None else f"at confidence {row['confidence']:g}",
            *(spread(row[key], 100) for key in ("most probable", "recall")),
            f"{100 * row['kept']:.0f}",
            spread(row["accuracy lost"]),
        )
        for name, found in having(record, "recalls")
        for row in found
    )
    heads = ("model", "80 % wanted", "recall of the most probable class", "recall", "80 % or more", "accuracy lost")
    return table(heads, rows)


def risk(record: Record) -> str:
    """Return the error at coverage, and the areas."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "risk"):
            for row in found:
                errors = (spread(row[f"error at {share}"]) for share in ("50%", "80%", "100%"))
                yield name, row["prior"], *errors, spread(row["area of all"]), by_group(row, "area")

    heads = ("model", "prior", "error at 50 % answered", "at 80 %", "at 100 %", "area, %", "many, medium, few")
    return table(heads, rows())


def abstaining(record: Record) -> str:
    """Return what becomes of a wanted error, and who is answered."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "abstaining"):
            for row in found["rows"]:
                error, kept = spread(row["error"], 100), f"{100 * row['kept']:.0f}"
                answered = (spread(row["answered of all"], 100), by_group(row, "answered", 100))
                yield name, row["prior"], row["way"], error, kept, *answered, f"{row['silent']}"

    heads = ("model", "prior", "threshold", "error, %", "10 % or less", "answered, %", "many, medium, few")
    return table((*heads, "nothing answered"), rows())


def groups(record: Record) -> str:
    """Return who is answered, and who is wrong, where shot groups are treated alike or not."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, found in having(record, "groups"):
            for row in found["rows"]:
                shares = (by_group(row, "answered", 100), spread(row["error"], 100), by_group(row, "error", 100))
                whole, kept = spread(row["answered of all"], 100), f"{100 * row['kept in each']:.0f}"
                yield name, row["prior"], row["way"], whole, *shares, kept, f"{row['silent']}"

    heads = ("model", "prior", "thresholds", "answered, %", "many, medium, few", "error, %", "error: many, medium, few")
    return table((*heads, "10 % or less in each", "nothing answered"), rows())


def tree(record: Record) -> str:
    """Return accuracy and answers by level of the tree."""
    levels = ("class accuracy", "superclass accuracy")
    answers = ("class answered", "superclass answered", "any answered")
    rows = (
        (
            name,
            row["prior"],
            *(spread(row[key]) for key in levels),
            ", ".join(f"{row[key][0]:.1f}" for key in answers),
            *(spread(row[key]) for key in ("class right", "superclass right", "answered right")),
        )
        for name, found in having(record, "tree")
        for row in found
    )
    heads = ("model", "prior", "class, %", "superclass, %", "answered at class, superclass, any, %")
    return table((*heads, "right: class", "right: superclass", "right: both"), rows)


def unknown(record: Record, kind: str) -> str:
    """Return how well scores tell unknown samples: means over trainings, with the least and the most of them."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, runs in having(record, "runs"):
            for score in runs[0]["rows"]:
                cells = []
                for number, group in itertools.product(("auroc", "fpr"), ("all", "few")):
                    values = [100 * run["rows"][score][kind][group][number] for run in runs]
                    cells.append(f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
                yield name, score, *cells

    return table(("model", "score", "AUROC", "AUROC, few", "FPR95", "FPR95, few"), rows())


def whole_model(record: Record) -> str:
    """Return how the shipped model, which knows all classes, tells CIFAR-10."""
    found = {score: kinds["cifar10"] for score, kinds in record["model"]["rows"].items()}
    rows = (
        (score, *(spread([row[group]["auroc"], *row[group]["interval"]], 100) for group in ("all", "few")))
        for score, row in found.items()
    )
    return table(("score", "AUROC", "few"), rows)


def sites(records: Mapping[str, Record]) -> str:
    """Return what priors of places are worth."""
    rows = (
        (
            name,
            f"Dirichlet({row['concentration']:g})",
            f"{row['as trained']['accuracy'][0]:.1f}",
            *(spread(row[way]["gain"], sign="+") for way in ("exact prior", "shrunk counts", "yes/no list")),
            spread(row["shrunk counts"]["regained"]),
        )
        for name, record in records.items()
        for row in record["rows"]
    )
    heads = ("model", "priors of the sites", "accuracy as trained", "exact priors", "`PriorTable` of 200 labels")
    return table((*heads, "yes/no list", "regained by the table, %"), rows)


def speed(record: Record) -> str:
    """Return processor time and memory of the decisions on a number of rows, and what they take beside the simplest."""
    found = {(row["kind"], row["rows"]): row for row in record["rows"]}
    most = max(rows for _, rows in found)
    lines = (
        (kind, f"{row['processor_seconds']:.1f}", f"{row['mib']:.0f}", f"{row['ratio']:.1f}")
        for (kind, rows), row in found.items()
        if rows == most
    )
    heads = (f"decision, {most:,} rows", "processor seconds", "memory, MiB", "times the most probable class")
    return table(heads, lines)


def records(results: Path) -> dict[str, Any]:
    """Read all records, by name; those of sites by model."""

    def read(name: str) -> Any:
        return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))

    found = {name: read(name) for name in ("decisions", "decisions_speed", "unknown", "prior_tracking")}
    sites = {"shipped": "sites", "cifar100-lt-best": "sites_best", "images-100": "sites_images"}
    return {**found, "sites": {model: read(name) for model, name in sites.items()}}


def decided(page: str, results: Path) -> str:
    """Return a page with its tables as they are now."""
    known = records(results)
    record = known["decisions"]
    made: dict[str, Callable[[], str]] = {
        each.__name__: lambda each=each: each(record)
        for each in (models, sets, classes, costs, metrics, recalls, thresholds, risk, abstaining, groups, tree)
    }
    made["summary"] = lambda: table(("what is promised", "bar", "measured", "holds"), summary(known))
    made["held-out-sets"] = lambda: sets(record, "held out")
    made["speed"] = lambda: speed(known["decisions_speed"])
    made["unknown"] = lambda: unknown(known["unknown"], "left out")
    made["unknown-cifar10"] = lambda: unknown(known["unknown"], "cifar10")
    made["whole-model"] = lambda: whole_model(known["unknown"])
    made["sites"] = lambda: sites(known["sites"])
    made["tracking"] = lambda: tracking(known["prior_tracking"])
    return TABLE.sub(lambda match: f"<!-- table {match[1]} -->\n\n{made[match[1]]()}", page)


if __name__ == "__main__":
    for name in ("decisions-measured", "priors-measured"):
        page = ROOT / "docs" / f"{name}.md"
        write_text(page, decided(page.read_text(encoding="utf-8"), ROOT / "results"))
