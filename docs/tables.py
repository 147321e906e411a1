"""make results: what pages show, made from records and catalogues.

The tables and figures of results/, the numbers of results.md, paper.md and explanation/calibration.md, the tables of
trust.md, and the table of metrics in report.md.
In results.md a line `<!-- table NAME -->` stands above the table results/tables/NAME.md. In paper.md and calibration.md
`<!-- FOLDER SCORE -->52.0 ± 0.5<!-- -->` is a score, such as accuracy, ece or shifted.0.adjusted, of the records in
results/FOLDER; in per cent, divergences (`_kl`) as they are.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from balpoe.evaluation.catalogue import METRICS
from balpoe.files import write_text
from balpoe.paper.expected import PAPER_RESULTS
from balpoe.paper.reproduce import write_tables
from balpoe.paper.tables import measured_records
from balpoe.report.console import mean_and_deviation

ROOT = Path(__file__).parents[1]
NUMBERED = ("paper.md", "explanation/calibration.md")
TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n(?:\|.*\n)*")
NUMBER = re.compile(r"<!-- ([\w/.-]+) ([\w.]+) -->[^<|]*<!-- -->")


def spliced(page: str, tables: Path) -> str:
    """Return the page with each marked table as it is now."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{(tables / f'{match[1]}.md').read_text(encoding='utf-8')}"

    return TABLE.sub(table, page)


def numbered(page: str, results: Path) -> str:
    """Return the page with each marked number as it is now, and with the number of seeds where some are missing."""

    def number(match: re.Match[str]) -> str:
        result = PAPER_RESULTS[match[1]]
        found = measured_records(result, results)
        part = "" if len(found) == result.seeds else f" ({len(found)} of {result.seeds} seeds)"
        values = [_within(record["evaluation"], match[2].split(".")) for record in found]
        per_cent = not match[2].endswith("_kl")
        text = mean_and_deviation(values, per_cent) + part if found else "not measured yet"
        return f"<!-- {match[1]} {match[2]} -->{text}<!-- -->"

    return NUMBER.sub(number, page)


def _within(value: Any, path: list[str]) -> Any:
    return functools.reduce(lambda outer, key: outer[int(key) if isinstance(outer, list) else key], path, value)


def trust_table(rows: Mapping[str, Any]) -> str:
    """Return what each method reaches on each data set of benchmarks/trust.py, mixup and temperatures chosen alike."""
    lines = [
        "| data | classes; training, test samples | method | balanced | ECE, as trained | ECE | perfect below | "
        "NLL: uniform, training, backward prior | BalPoE minus it: balanced, NLL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        size = f"{row['classes']}; {row['train']:,}, {row['test']:,}"
        for method, title in (("cross-entropy", "cross-entropy, adjusted"), ("logit-adjusted", "one expert"),
                              ("BalPoE", "BalPoE")):  # fmt: skip
            each, priors = row[method], ("uniform", "train", "backward-50")
            cells = [f"{100 * each['balanced_accuracy']:.1f}", f"{100 * each['before']['ece']:.1f}",
                     f"{100 * each['ece']:.1f}", f"{100 * each['ece_of_perfect']:.1f}",
                     ", ".join(f"{each[f'nll_{prior}']:.3f}" for prior in priors)]  # fmt: skip
            found = row.get(f"BalPoE minus {method}")
            cells.append(", ".join([_better(found["balanced_accuracy"], 1)] + [
                _better(found[f"nll_{prior}"], -1) for prior in priors]) if found else "")  # fmt: skip
            lines.append(f"| {name} | {size} | {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _better(difference: Sequence[float], sign: int) -> str:
    """Whether ours is better beyond the paired 95 % interval."""
    _, low, high = difference
    return "better" if min(sign * low, sign * high) > 0 else "worse" if max(sign * low, sign * high) < 0 else "="


def calibrated_table(rows: Mapping[str, Sequence[Any]]) -> str:
    """Return the scores of the paper's presets as trained and calibrated."""
    lines = [
        "| preset, ratio | accuracy: as trained, calibrated | ECE | NLL | temperature |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, several in rows.items():
        cells = []
        for score in ("accuracy", "ece", "nll"):
            pair = [mean_and_deviation([each[when][score] for each in several], score != "nll")
                    for when in ("before", "after")]  # fmt: skip
            cells.append(", ".join(pair))
        cells.append(mean_and_deviation([each["temperatures"][0] for each in several], False))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def trusted(page: str, results: Path) -> str:
    """Return the page on trust with its tables as they are now."""
    made = {
        name: table(json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["rows"])
        for name, table in (("trust", trust_table), ("calibrated", calibrated_table))
    }
    return TABLE.sub(lambda match: f"<!-- table {match[1]} -->\n\n{made[match[1]]}", page)


def metrics_table() -> str:
    """Return the table of all metrics, from their catalogue."""
    lines = ["| name | in tables | what it is | unit | better |", "| --- | --- | --- | --- | --- |"]
    for name, metric in METRICS.items():
        unit, better = "per cent" if metric.per_cent else "", "lower" if metric.lower_is_better else "higher"
        lines.append(f"| `{name}` | {metric.title} | {metric.meaning} | {unit} | {better} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_tables(ROOT / "results")
    page = ROOT / "docs" / "results.md"
    write_text(page, spliced(page.read_text(encoding="utf-8"), ROOT / "results" / "tables"))
    page = ROOT / "docs" / "report.md"
    write_text(page, TABLE.sub(f"<!-- table metrics -->\n\n{metrics_table()}", page.read_text(encoding="utf-8")))
    page = ROOT / "docs" / "trust.md"
    write_text(page, trusted(page.read_text(encoding="utf-8"), ROOT / "results"))
    for name in NUMBERED:
        page = ROOT / "docs" / name
        write_text(page, numbered(page.read_text(encoding="utf-8"), ROOT / "results"))
