"""make results: the tables of decisions-measured.md, from decisions.json, unknown.json and the sites of results/.

A line `<!-- table NAME -->` stands above each. Numbers in brackets are the ends of an interval.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

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
    return ", ".join(f"{scale * row[key][0]:.1f}" for group in GROUPS if (key := f"{what} of {group}") in row)


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
        for name, each in record.items():
            for row in each["sets"].get(kind, ()):
                shares = (spread(row[key], 100) for key in ("coverage", "macro"))
                least = f"{100 * row['least'][0]:.0f}"
                yield name, row["prior"], row["way"], *shares, least, spread(row["size"]), by_group(row, "size")

    heads = ("model", "prior", "method", "covered, %", "mean over classes, %", "least class, %", "classes in a set")
    return table((*heads, "many, medium, few"), rows())


def costs(record: Record) -> str:
    """Return what answers cost."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, each in record.items():
            for row in each["costs"]:
                paid = (f"{row[key][0]:.3f}" for key in ("most probable", "decided"))
                yield name, row["prior"], row["costs"], *paid, spread(row["change"], sign="+")

    return table(("model", "prior", "costs", "most probable class", "least expected cost", "change, %"), rows())


def metrics(record: Record) -> str:
    """Return what the rule for macro F1 gains."""
    keys = ("most probable", "macro_f1")
    rows = (
        (name, row["prior"], *(f"{row[key][0]:.1f}" for key in keys), spread(row["gain"], sign="+"))
        for name, each in record.items()
        for row in each["metrics"]
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
        for name, each in record.items()
        for row in each["recalls"]
    )
    heads = ("model", "80 % wanted", "recall of the most probable class", "recall", "80 % or more", "accuracy lost")
    return table(heads, rows)


def risk(record: Record) -> str:
    """Return the error at coverage, and the areas."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, each in record.items():
            for row in each["risk"]:
                errors = (spread(row[f"error at {share}"]) for share in ("50%", "80%", "100%"))
                yield name, row["prior"], *errors, spread(row["area of all"]), by_group(row, "area")

    heads = ("model", "prior", "error at 50 % answered", "at 80 %", "at 100 %", "area, %", "many, medium, few")
    return table(heads, rows())


def abstaining(record: Record) -> str:
    """Return what becomes of a wanted error, and who is answered."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, each in record.items():
            for row in each["abstaining"]["rows"]:
                error, kept = spread(row["error"], 100), f"{100 * row['kept']:.0f}"
                answered = (spread(row["answered of all"], 100), by_group(row, "answered", 100))
                yield name, row["prior"], row["way"], error, kept, *answered, f"{row['silent']}"

    heads = ("model", "prior", "threshold", "error, %", "10 % or less", "answered, %", "many, medium, few")
    return table((*heads, "nothing answered"), rows())


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
        for name, each in record.items()
        for row in each["tree"]
    )
    heads = ("model", "prior", "class, %", "superclass, %", "answered at class, superclass, any, %")
    return table((*heads, "right: class", "right: superclass", "right: both"), rows)


def unknown(runs: Sequence[Record]) -> str:
    """Return how well scores tell unknown samples: means over trainings, with the least and the most of them."""

    def rows() -> Iterator[tuple[str, ...]]:
        for score in runs[0]["rows"]:
            cells = []
            for kind, number in (("left out", "auroc"), ("left out", "fpr"), ("cifar10", "auroc"), ("cifar10", "fpr")):
                for group in ("all", "few"):
                    values = [100 * run["rows"][score][kind][group][number] for run in runs]
                    cells.append(f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
            yield score, *cells

    heads = [f"{kind}: {name}" for kind in ("left out", "CIFAR-10") for name in ("AUROC", "few", "FPR95", "few")]
    return table(("score", *heads), rows())


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
    """Return seconds and memory of the decisions on a number of rows."""
    seconds = {(row["kind"], row["rows"]): row for row in record["rows"]}
    counts = sorted({rows for _, rows in seconds})
    lines = [
        (kind, *(f"{seconds[kind, n]['seconds']:.2f} s, {seconds[kind, n]['mib']:.0f} MiB" for n in counts))
        for kind in dict.fromkeys(kind for kind, _ in seconds)
    ]
    return table(("decision", *(f"{n:,} rows" for n in counts)), lines)


def decided(page: str, results: Path) -> str:
    """Return the page with its tables as they are now."""

    def read(name: str) -> Any:
        return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))

    record = read("decisions")
    made: dict[str, Callable[[], str]] = {
        each.__name__: lambda each=each: each(record)
        for each in (models, sets, costs, metrics, recalls, risk, abstaining, tree)
    }
    made["held-out-sets"] = lambda: sets(record, "held out")
    made["speed"] = lambda: speed(read("decisions_speed"))
    made["unknown"] = lambda: unknown(read("unknown")["cifar100-lt"]["runs"])
    made["sites"] = lambda: sites({"shipped": read("sites"), "cifar100-lt-best": read("sites_best")})
    return TABLE.sub(lambda match: f"<!-- table {match[1]} -->\n\n{made[match[1]]()}", page)


if __name__ == "__main__":
    page = ROOT / "docs" / "decisions-measured.md"
    write_text(page, decided(page.read_text(encoding="utf-8"), ROOT / "results"))
