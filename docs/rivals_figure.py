"""make results: accuracy and ECE of all methods in one recipe, drawn from the records in results/ as one SVG.

It is light or dark as the page that shows it, on a ground of its own. Nothing is measured by a font: the same records
give the same file everywhere.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from balpoe.files import write_text
from balpoe.paper.expected import ALL_METHODS
from balpoe.paper.tables import measured_records
from balpoe.report.look import FONT, LIGHT, css_variables, hue

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "images" / "methods.svg"
LOOK = f"""
{css_variables("svg")}
text {{
  font: 13px {FONT}; fill: var(--ink); stroke: var(--paper); stroke-width: 4px; paint-order: stroke;
}}
.ours {{ fill: var(--blue); stroke: var(--blue); }} .other {{ fill: var(--grey); stroke: var(--grey); }}
text.ours {{ stroke: var(--paper); font-weight: 600; }}
.head {{ font-weight: 600; }} .ground {{ fill: var(--paper); }} .grid {{ stroke: var(--line); }}
"""
WIDTH, TOP, ROW, NAMES = 760, 66, 22, 275
PANELS = {"accuracy": (NAMES + 20, 165, 30.0, 60.0), "ece": (NAMES + 265, 165, 0.0, 45.0)}
HEADS = {"accuracy": "accuracy, % (better: more)", "ece": "ECE, % (better: less)"}


class Bar(NamedTuple):
    """What is drawn of a method: per cent, each the mean and the deviation over seeds."""

    title: str
    ours: bool
    scores: dict[str, tuple[float, float]]


def bars(results: Path) -> list[Bar]:
    """Return the measured methods, the most accurate first."""
    found = []
    for result in ALL_METHODS["methods"]:
        records = [record["evaluation"] for record in measured_records(result, results)]
        if records:
            values = {name: [100 * each[name] for each in records] for name in PANELS}
            scores = {name: (fmean(each), stdev(each) if len(each) > 1 else 0.0) for name, each in values.items()}
            found.append(Bar(result.title, result.title.startswith("BalPoE"), scores))
    return sorted(found, key=lambda bar: -bar.scores["accuracy"][0])


def drawing(results: Path) -> str:
    """Return the figure as SVG."""
    rows = bars(results)
    height = TOP + ROW * len(rows) + 16
    best, balpoe = rows[0], next(bar for bar in rows if bar.title == "BalPoE")
    title = (
        f"Accuracy and ECE of {len(rows)} variants of methods on CIFAR-100-LT, ratio 100, in one recipe: "
        f"{best.title} has the highest accuracy, {best.scores['accuracy'][0]:.1f} %; "
        f"BalPoE has {balpoe.scores['accuracy'][0]:.1f} %, with an ECE of {balpoe.scores['ece'][0]:.1f} %."
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>'
    parts = [head, f"<title>{title}</title>", f"<style>{LOOK}</style>", ground, *axes(height - 12)]
    for number, bar in enumerate(rows):
        parts += line(bar, TOP + ROW * number + ROW // 2)
    return "\n".join([*parts, "</svg>\n"])


def axes(bottom: int) -> Iterator[str]:
    """Yield the heading and the grid of each panel."""
    for name, (left, width, low, high) in PANELS.items():
        yield f'<text class="head" x="{left}" y="24">{HEADS[name]}</text>'
        for value in range(int(low), int(high) + 1, 10):
            x = place(value, left, width, low, high)
            yield f'<path class="grid" d="M{x:.1f},{TOP - 8} V{bottom}"/>'
            yield f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{value}</text>'


def line(bar: Bar, y: int) -> Iterator[str]:
    """Yield the name of a method, and for each score a dot, the deviation over seeds, and the number."""
    name = hue(bar.title) or "grey"
    words = f' style="fill: var(--{name}-words)"' if f"{name}-words" in LIGHT else f' style="fill: var(--{name})"'
    colour = f'style="fill: var(--{name}); stroke: var(--{name})"'
    weight = ' class="head"' if bar.ours else ""
    yield f'<text{weight}{words} x="{NAMES}" y="{y + 4}" text-anchor="end">{escape(short(bar.title))}</text>'
    for score, panel in PANELS.items():
        mean, deviation = bar.scores[score]
        low, x, high = (place(value, *panel) for value in (mean - deviation, mean, mean + deviation))
        yield f'<path {colour} d="M{low:.1f},{y} H{high:.1f}" stroke-width="3"/>'
        yield f'<circle {colour} cx="{x:.1f}" cy="{y}" r="4.5"/>'
        yield f'<text{weight}{words} x="{high + 10:.1f}" y="{y + 4}">{mean:.1f}</text>'


def place(value: float, left: float, width: float, low: float, high: float) -> float:
    """Return where a value is drawn."""
    return left + width * (value - low) / (high - low)


def short(title: str) -> str:
    """Return a title that fits beside its dot."""
    return (
        title.replace("SADE's loss, without its test-time part,", "SADE's loss,")
        .replace(" (transductive)", "")
        .replace("prior from the ", "")
    )


if __name__ == "__main__":
    write_text(FIGURE, drawing(ROOT / "results"))
