"""Measured records as Markdown tables, with the paper's numbers below ours."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.saved import current_evaluation
from balpoe.files import read_json
from balpoe.paper.not_reproduced import NotReproduced
from balpoe.paper.paper_result import Number, PaperResult, PaperTable
from balpoe.report.console import mean_and_deviation

__all__ = [
    "commands_table",
    "differences_table",
    "markdown",
    "measured_records",
    "methods_table",
    "not_reproduced_table",
    "overview_table",
    "paper_table",
    "printed_number",
    "seeds_measured",
    "shifted_accuracies",
    "shifted_overview_table",
    "shifted_result_table",
    "welch_table",
]

PRINTED_SCORES = {name: METRICS[name].title for name in ("accuracy", "many", "medium", "few", "ece", "mce")}
PAPER_RUNS = 5
"""Runs behind a deviation that the paper prints."""


def measured_records(result: PaperResult, results: Path) -> list[dict[str, Any]]:
    """Return the records of a result, seed by seed."""
    paths = [results / result.folder / f"seed-{seed}.json" for seed in result.seed_numbers]
    found = [_record(path) for path in paths if path.exists()]
    return [{**record, "evaluation": current_evaluation(record["evaluation"])} for record in found]


def _record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("evaluation"), dict):
        raise UserError(f"{path} is not the record of a training; delete it and run the command that wrote it again")
    return record


def paper_table(table: PaperTable, results: Path) -> str:
    """Return a row for each result, the paper's numbers below it; without records, the result's command."""
    rows = [["", "seeds", *PRINTED_SCORES.values(), "parameters", "multiply-adds"]]
    for result in table:
        found = measured_records(result, results)
        rows.append(_measured_row(result, found) if found else [f"{result.title}: not measured yet"])
        if calibrated := [record["calibrated"] for record in found if "calibrated" in record]:
            rows.append(_calibrated_row(calibrated))
        if result.paper:
            rows.append(["*paper*", "", *(printed_number(result.paper.get(name)) for name in PRINTED_SCORES)])
    return markdown(rows)


def _measured_row(result: PaperResult, found: list[dict[str, Any]]) -> list[str]:
    size = found[0]["evaluation"]
    values = [[record["evaluation"][name] for record in found] for name in PRINTED_SCORES]
    return [
        result.title,
        seeds_measured(result, len(found)),
        *(mean_and_deviation(each, per_cent=True) for each in values),
        f"{size['parameters']:,}",
        f"{size['multiply_adds'] / 1e6:.1f} M",
    ]


def _calibrated_row(calibrated: list[dict[str, float]]) -> list[str]:
    temperature = mean_and_deviation([each["temperature"] for each in calibrated], per_cent=False)
    after = [mean_and_deviation([each[name] for each in calibrated], per_cent=True) for name in ("ece", "mce")]
    title = f"*the same, with a temperature of {temperature}, fitted on validation images*"
    return [title, "", "", "", "", "", *after]


def overview_table(methods: Mapping[str, Mapping[str, PaperResult | None]], results: Path) -> str:
    """Return accuracies of methods (rows) on data sets (columns), the paper's beside ours in brackets."""
    rows = [["", *next(iter(methods.values()))]]
    for method, of_data in methods.items():
        rows.append([method, *(_ours_and_printed(result, results) if result else "-" for result in of_data.values())])
    return markdown(rows)


def _ours_and_printed(result: PaperResult, results: Path) -> str:
    ours = [record["evaluation"]["accuracy"] for record in measured_records(result, results)]
    printed = f" ({printed_number(result.paper['accuracy'])})" if "accuracy" in result.paper else ""
    return mean_and_deviation(ours, per_cent=True) + printed if ours else "-"


def methods_table(methods: PaperTable, results: Path) -> str:
    """Return every measured method, the most accurate first, with what the paper prints or quotes of it.

    Args:
        methods: Results to show; those without records are left out.
        results: Folder of the records.
    """
    found = [(result, records) for result in methods if (records := measured_records(result, results))]
    scores = ("accuracy", "many", "medium", "few", "ece", "nll")
    titles = [METRICS[name].title for name in scores]
    heading = ["", "seeds", *titles, "forward-50, adjusted", "backward-50, adjusted", "paper", "parameters"]
    ranked: list[tuple[float, list[str]]] = []
    for result, records in found:
        printed = result.paper.get("accuracy") or result.quoted.get("accuracy")
        shifted = [[record["evaluation"]["shifted"][place]["adjusted"] for record in records] for place in (0, -1)]
        under_shift = ["-" if None in each else mean_and_deviation(each, per_cent=True) for each in shifted]
        seeds, size = seeds_measured(result, len(records)), f"{records[0]['evaluation']['parameters']:,}"
        measured = [mean_and_deviation(_values(records, name), METRICS[name].per_cent) for name in scores]
        row = [result.title, seeds, *measured, *under_shift, printed_number(printed), size]
        ranked.append((fmean(_values(records, "accuracy")), row))
        if result.changes.get("lambdas") == (1,):  # the same runs, with logit adjustment after training
            after = [_adjusted_to_uniform(record) for record in records]
            blank = ["-"] * (len(scores) - 1)
            row = [f"{result.title}, adjusted after training", seeds, mean_and_deviation(after, True), *blank]
            ranked.append((fmean(after), [*row, *under_shift, "-", size]))
    return markdown([heading, *(row for _, row in sorted(ranked, key=lambda pair: -pair[0]))])


def commands_table(tables: Mapping[str, PaperTable], results: Path) -> str:
    """Return the command of every measured row, by table: a row of scores has its title alone."""
    rows = [["table", "row", "command"]]
    for name, table in tables.items():
        measured = (result for result in table if measured_records(result, results))
        rows += [[name, result.title, f"`{result.command()}`"] for result in measured]
    return markdown(rows)


def _adjusted_to_uniform(record: dict[str, Any]) -> float:
    """The accuracy on the whole, balanced test set once the logits are adjusted to it."""
    return next(float(row["adjusted"]) for row in record["evaluation"]["shifted"] if row["name"] == "uniform")


def _values(records: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [record["evaluation"][name] for record in records]


def shifted_result_table(result: PaperResult, results: Path) -> str:
    """Return accuracy under the shifted test sets beside the paper's: as trained, adjusted, or with an estimate."""
    found = measured_records(result, results)
    paper = {"as trained": result.shifted.as_trained, "adjusted": result.shifted.adjusted} if result.shifted else {}
    sets = found[0]["evaluation"]["shifted"]
    columns = [["test set", *(row["name"] for row in sets), "*mean of the eleven*"]]
    columns.append(["samples", *(f"{row['samples']:,}" for row in sets), ""])
    for use, seeds in shifted_accuracies(found).items():
        each = [*zip(*seeds, strict=True), [fmean(values) for values in seeds]]
        heading = f"{use} ({seeds_measured(result, len(seeds))} seeds)"
        columns.append([heading, *(mean_and_deviation(list(values), per_cent=True) for values in each)])
        if use in paper:
            columns.append(["paper", *(f"{value:.1f}" for value in (*paper[use], fmean(paper[use])))])
    return markdown(list(zip(*columns, strict=True)))


def shifted_overview_table(titled: Mapping[str, PaperResult], results: Path) -> str:
    """Return mean accuracies of several results under the shifted test sets: a row for each use of the prior."""
    rows: list[list[str]] = []
    for title, result in titled.items():
        found = measured_records(result, results)
        if found and not rows:
            rows.append(["", "seeds", *(row["name"] for row in found[0]["evaluation"]["shifted"]), "mean"])
        for use, seeds in shifted_accuracies(found).items():
            means = [fmean(values) for values in zip(*seeds, strict=True)]
            numbers = [f"{100 * value:.1f}" for value in (*means, fmean(means))]
            rows.append([f"{title}, {use}", seeds_measured(result, len(seeds)), *numbers])
    return markdown(rows)


class _Comparison(NamedTuple):
    """A number that the paper prints beside what some records have, seed by seed."""

    result: PaperResult
    name: str
    values: list[float]
    paper: Number

    @property
    def difference(self) -> float:
        return 100 * fmean(self.values) - self.paper[0]

    @property
    def beyond_two_deviations(self) -> bool:
        """Whether it is more than twice the larger deviation, ours where the paper prints none."""
        return abs(self.difference) > 2 * max(100 * stdev(self.values), self.paper[1] or 0)

    @property
    def p_value(self) -> float:
        """Welch's test of equal means: two samples with deviations of their own; the paper must print one."""
        from scipy.stats import ttest_ind_from_stats  # takes a second to import

        mean, deviation = 100 * fmean(self.values), 100 * stdev(self.values)
        paper = *self.paper, PAPER_RUNS
        return float(ttest_ind_from_stats(mean, deviation, len(self.values), *paper, equal_var=False).pvalue)

    def cells(self) -> list[str]:
        ours = mean_and_deviation(self.values, per_cent=True)
        return [f"{self.result.folder}: {self.name}", ours, printed_number(self.paper), f"{self.difference:+.1f}"]


def _comparisons(expected: Iterable[PaperResult], results: Path) -> list[_Comparison]:
    """Every number that the paper prints and for which there are at least two seeds."""
    records = [(result, measured_records(result, results)) for result in expected]
    return [
        _Comparison(result, *each) for result, found in records if len(found) > 1 for each in _compared(result, found)
    ]


def differences_table(expected: Iterable[PaperResult], results: Path) -> str:
    """Return what differs from the paper by more than twice the larger deviation, ours where it prints none."""
    compared = _comparisons(expected, results)
    once = sum(not each.result.repeats for each in compared)
    rows = [each.cells() for each in compared if each.beyond_two_deviations]
    last = [f"*of {len(compared)} comparisons, {once} without repeats*"]
    return markdown([["", "ours", "paper", "difference"], *rows, last])


def welch_table(expected: Iterable[PaperResult], results: Path, level: float = 0.05) -> str:
    """Return what differs from the paper by Welch's test at a level, of all that the paper prints a deviation of."""
    tested = [(each, each.p_value) for each in _comparisons(expected, results) if each.paper[1] is not None]
    rows = [[*each.cells(), f"{p:.3f}"] for each, p in tested if p < level]
    groups = [p for _, p in tested], [p for each, p in tested if not each.result.repeats]
    counts = [
        f"{sum(p < level for p in ps)} of {len(ps)} below {level:g}, {level * len(ps):.1f} expected" for ps in groups
    ]
    last = f"*{'; without repeats '.join(counts)}*"
    return markdown([["", "ours", "paper", "difference", "p"], *rows, [last]])


def _compared(result: PaperResult, found: list[dict[str, Any]]) -> Iterator[tuple[str, list[float], Number]]:
    """What some records have, seed by seed, and the paper prints: scores, and accuracies on shifted test sets."""
    for name, printed in result.paper.items():
        yield PRINTED_SCORES[name], [record["evaluation"][name] for record in found], printed
    if result.shifted:
        sets, ours = [row["name"] for row in found[0]["evaluation"]["shifted"]], shifted_accuracies(found)
        theirs = {"as trained": result.shifted.as_trained, "adjusted": result.shifted.adjusted}
        for use in (use for use in theirs if use in ours):
            for name, values, accuracy in zip(sets, zip(*ours[use], strict=True), theirs[use], strict=True):
                if name != "uniform":  # the accuracy above
                    yield f"{name}, {use}", list(values), (accuracy, None)


def shifted_accuracies(found: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Return, for each use of the prior that some records have, their accuracies under the shifted test sets.

    Records of a method whose scores are no posterior have no adjusted ones.
    """
    uses = {
        "as trained": [[row["as_trained"] for row in record["evaluation"]["shifted"]] for record in found],
        "adjusted": [[row["adjusted"] for row in record["evaluation"]["shifted"]] for record in found],
        "estimated": [[row["estimated"] for row in record["estimated"]] for record in found if "estimated" in record],
    }
    whole = {use: [values for values in seeds if None not in values] for use, seeds in uses.items()}
    return {use: seeds for use, seeds in whole.items() if seeds}


def not_reproduced_table(absent: Iterable[NotReproduced]) -> str:
    """Return what is not measured, with its command and what it would take."""
    rows = [["", "seeds", "accuracy", "command", "GPU hours a training"]]
    for row in absent:
        rows.append([row.title, "0", "not measured", f"`balpoe train {row.command}`", f"{row.hours:.1f}"])
        rows.append(["*paper*", "", f"{row.paper}"])
    return markdown(rows)


def seeds_measured(result: PaperResult, measured: int) -> str:
    """Return how many seeds of a result are measured, such as 3, or 2 of 3."""
    return str(measured) if measured == result.seeds else f"{measured} of {result.seeds}"


def printed_number(number: Number | None) -> str:
    """Return a number as the paper prints it; - where it prints none."""
    if number is None:
        return "-"
    value, deviation = number
    return f"{value}" if deviation is None else f"{value} ± {deviation}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row has the headings; shorter rows end in empty cells.

    >>> print(markdown([["", "seeds"], ["BalPoE"]]), end="")
    |  | seeds |
    | --- | --- |
    | BalPoE |  |
    """
    width = len(rows[0]) if rows else 0
    whole = [[*row, *[""] * (width - len(row))] for row in rows]
    whole[1:1] = [["---"] * width] if rows else []
    return "\n".join(f"| {' | '.join(row)} |" for row in whole) + "\n"
