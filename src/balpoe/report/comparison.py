"""A comparison of methods: its tables for the terminal, and its page."""

from collections.abc import Sequence
from pathlib import Path

from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.rival import Difference
from balpoe.experiments.comparison import COMPARED, Comparison, Row, alike, verdict_of_all
from balpoe.files import write_text
from balpoe.report.comparison_plots import plot_differences, plot_search, plot_trade_off
from balpoe.report.console import mean_and_deviation
from balpoe.report.plots import WIDTH
from balpoe.report.render import Code, Figure, Section, Table, markdown_page
from balpoe.report.write import write_page

__all__ = ["accuracy_table", "calibration_table", "comparison_sections", "write_comparison"]

INTERVALS = (
    "Each 95 % interval is over the {what} samples and the seeds, paired: both methods are measured on the same "
    "samples, with the same seeds. It holds for one method by itself; among twenty, one may lie outside by chance."
)


def accuracy_table(comparison: Comparison, title: str = "") -> Table:
    """Return balanced accuracy, its difference to the best, shot groups and shifted test sets of each method."""
    groups = [name for name in ("many", "medium", "few") if any(row.mean(name) is not None for row in comparison.rows)]
    headings = ["method", "balanced %", "to the best", *groups, *comparison.shifted]
    rows = [
        [
            row.title,
            mean_and_deviation(row.scores[COMPARED[0]], per_cent=True),
            _difference(row.differences.get(COMPARED[0]), COMPARED[0], best=row is comparison.rows[0]),
            *(_mean(row, name) for name in (*groups, *comparison.shifted)),
        ]
        for row in comparison.rows
    ]
    return Table(headings, rows, title)


def calibration_table(comparison: Comparison, title: str = "") -> Table:
    """Return ECE and NLL as trained and calibrated, and what each method costs."""
    sizes = all(row.parameters is not None for row in comparison.rows)  # held-out predictions do not have them
    further = ["parameters"] if sizes else []
    headings = ["method", "balanced %, as trained", "ECE %", "calibrated", "NLL", "calibrated", *further, "seconds"]
    rows = [
        [
            row.title,
            _mean(row, f"{COMPARED[0]}_as_trained"),
            _mean(row, "ece_as_trained"),
            mean_and_deviation(row.scores["ece"], per_cent=True),
            _mean(row, "nll_as_trained", per_cent=False),
            mean_and_deviation(row.scores["nll"], per_cent=False),
            *([f"{row.parameters:,}"] if sizes else []),
            _seconds(_cost(row)),
        ]
        for row in comparison.rows
    ]
    return Table(headings, rows, title)


def _mean(row: Row, name: str, per_cent: bool = True) -> str:
    value = row.mean(name)
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if per_cent else f"{value:.3f}"


def _difference(difference: Difference | None, name: str, best: bool = False) -> str:
    if difference is None:
        return "best" if best else "-"
    value, low, high = (METRICS[name].shown(each, "+") for each in (difference.value, difference.low, difference.high))
    return f"{value} ({low} to {high})"


def write_comparison(comparison: Comparison, page: Path, further: Sequence[Section] = ()) -> list[Path]:
    """Write the page, or with the ending .md its words and tables, and beside a page its figures; return the files.

    Args:
        comparison: What is compared.
        page: File to write.
        further: Sections to add, such as that of a search.
    """
    sections = [*comparison_sections(comparison), *further]
    title = f"Methods compared on {comparison.data}"
    if page.suffix == ".md":
        write_text(page, markdown_page(title, sections))
        return [page]
    return write_page(title, sections, page)


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Return the page, section by section."""
    sections = [_result(comparison), _calibration(comparison)]
    if len(comparison.rows) > 1:
        sections.insert(1, _differences(comparison))
    if comparison.choice:
        sections.insert(1, _chosen(comparison))
    if comparison.about.get("searches"):
        sections.append(_search(comparison))
    return [*sections, _methods(comparison), _again(comparison)]


def _chosen(comparison: Comparison) -> Section:
    """The method that held-out samples chose, on the test part."""
    measured = Comparison.of(comparison.choice["test"])
    text = (
        f"{comparison.choice['title']} was chosen by held-out samples of the training data alone. Trained on all "
        "training samples, it has on the test part, which has had no say in this:"
    )
    return Section("What was chosen", [text], [accuracy_table(measured), calibration_table(measured)])


def _search(comparison: Comparison) -> Section:
    """The trials of each method, and what they found."""
    found = comparison.about["searches"]
    scores = {title: list(zip(each["scores"], each["given_up"], strict=True)) for title, each in found.items()}
    rows = [
        [title, str(len(each["scores"])), str(sum(each["given_up"])), f"{100 * each['scores'][0]:.1f}",
         f"{100 * max(score for score, given_up in scores[title] if not given_up):.1f}",
         ", ".join(f"{name} {_value(value)}" for name, value in each["best"].items())]
        for title, each in found.items()
    ]  # fmt: skip
    headings = ["method", "trials", "given up", "as it stands %", "best %", "best settings"]
    table = Table(headings, rows, "Held-out balanced accuracy; lambdas by the largest of evenly spaced ones.")
    alt = f"Held-out balanced accuracy of each trial, and the best so far, of {len(scores)} methods."
    figure = Figure(
        "search", lambda figure: plot_search(scores, figure.subplots()), (WIDTH, 3.0 + 0.12 * len(scores)), alt, table
    )
    text = (
        "Settings were searched by held-out samples of the training data, each method with the same number of trials; "
        "the first trial is the recipe as it stands. The best of many is flattered by chance: what counts is the test."
    )
    return Section("The search", [text], [figure])


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _result(comparison: Comparison) -> Section:
    about = comparison.about
    counts = about["class_counts"]
    sentences = [
        verdict_of_all(comparison),
        f"Trained on {sum(counts):,} samples of {len(counts):,} classes ({max(counts):,} to {min(counts):,} a class).",
        *_caveats(comparison),
    ]
    table = accuracy_table(comparison, "Accuracy; best first. " + _explained(comparison))
    return Section("The result", sentences, [_trade_off(comparison), table])


def _explained(comparison: Comparison) -> str:
    """What the columns of the accuracy table are."""
    shifted = (
        f"{' and '.join(comparison.shifted)}: accuracy, %, where frequent and where rare classes are common, "
        * bool(comparison.shifted)
    )
    return f"{shifted}adjusted to it.".capitalize() if shifted else ""


def _caveats(comparison: Comparison) -> list[str]:
    fixed = [row.title for row in comparison.rows if not row.adjustable]
    sentences = [f"Not trained yet: {'; '.join(comparison.missing)}."] if comparison.missing else []
    if fixed and comparison.shifted:
        sentences.append(
            f"The scores of {', '.join(fixed)} are no posterior of a known prior: under other class frequencies they "
            "count as they are."
        )
    return sentences


def _trade_off(comparison: Comparison) -> Figure:
    """Balanced accuracy against ECE, cost as size."""
    rows = [row for row in comparison.rows if row.mean("ece") is not None]
    points = {row.title: (row.mean("ece") or 0.0, row.mean(COMPARED[0]) or 0.0, _cost(row)) for row in rows}
    same = {comparison.rows[0].title, *(row.title for row in alike(comparison))}
    table = Table(
        ["method", "ECE %", "balanced %", "seconds"],
        [[name, f"{100 * x:.1f}", f"{100 * y:.1f}", _seconds(cost)] for name, (x, y, cost) in points.items()],
    )
    best = comparison.rows[0]
    alt = (
        f"Balanced accuracy against calibration error of {len(points)} methods; better is up and to the left. "
        f"{best.title} is highest, with {_mean(best, COMPARED[0])} % at an ECE of {_mean(best, 'ece')} %."
    )
    height = max(3.0, 0.9 + 0.2 * len(points))
    texts = [
        f"{name}: balanced {100 * y:.1f} %, ECE {100 * x:.1f} %, {_seconds(cost)} s"
        for name, (x, y, cost) in points.items()
    ]
    return Figure(
        "trade-off", lambda figure: plot_trade_off(points, same, figure.subplots()), (WIDTH, height), alt, table, texts
    )


def _seconds(value: float) -> str:
    """Seconds, with a digit after the point where they are few."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _cost(row: Row) -> float:
    return sum(row.seconds) / len(row.seconds)


def _differences(comparison: Comparison) -> Section:
    best, *others = comparison.rows
    shown = [row for row in others if COMPARED[0] in row.differences]
    names = [name for name in COMPARED if any(name in row.differences for row in shown)]
    table = Table(
        ["method", *(METRICS[name].title for name in names)],
        [[row.title, *(_difference(row.differences.get(name), name) for name in names)] for row in shown],
        f"Minus {best.title}, in points (NLL in nats), with 95 % intervals; ECE and NLL calibrated, lower is better.",
    )
    estimates = {row.title: _ends(row.differences[COMPARED[0]]) for row in shown}
    alt = f"Differences of balanced accuracy to {best.title}, with 95 % intervals, of {len(estimates)} methods."
    figure = Figure(
        "differences", lambda figure: plot_differences(estimates, best.title, figure.subplots()),
        (WIDTH, 0.9 + 0.24 * len(estimates)), alt, table,
    )  # fmt: skip
    return Section("Differences to the best", [INTERVALS.format(what=comparison.what)], [figure] if shown else [])


def _ends(difference: Difference) -> tuple[float, float, float]:
    return difference.value, difference.low, difference.high


def _calibration(comparison: Comparison) -> Section:
    text = (
        "ECE is the mean gap of confidence and accuracy, NLL the mean negative log-likelihood of the labels; of both "
        "less is better. Every method is calibrated by the same procedure, on samples outside of its training; where "
        "these ask for a correction by class frequency, that changes answers, too."
    )
    about = "Seconds are those of one training; mean over the seeds."
    return Section(
        "Whether its confidence can be trusted, and what it costs", [text], [calibration_table(comparison, about)]
    )


def _methods(comparison: Comparison) -> Section:
    headings, rows = ["method", "what it is"], [[row.title, row.summary] for row in comparison.rows]
    if any(row.changes for row in comparison.rows):
        headings.append("its recipe differs in")
        rows = [[*cells, row.changes or "nothing"] for cells, row in zip(rows, comparison.rows, strict=True)]
    table = Table(headings, rows, words=len(headings))
    left_out = [f"Left out: {name} ({why})." for name, why in comparison.about.get("left_out", {}).items()]
    return Section("The methods", left_out, [table])


def _again(comparison: Comparison) -> Section:
    folders = ", ".join(dict.fromkeys(row.folder for row in comparison.rows))
    changed = comparison.about.get("changed")
    code = Code("The command" + (f", and {changed}" if changed else ""), comparison.about["command"])
    sentences = [
        f"The runs lie beside comparison.json, which has every number of this page, in {folders}: each is a run like "
        "any other, for balpoe evaluate, balpoe report and balpoe predict.",
    ]
    return Section("How to do it again", sentences, [code])
