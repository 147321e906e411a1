"""Draw the figure of which.md, for light and dark pages: python docs/which_figure.py."""

from pathlib import Path

from balpoe.files import write_text
from balpoe.report.look import FONT, css_variables

FIGURE = Path(__file__).parent / "images" / "which.svg"

TITLE = (
    "What do you have? A table leads to BalPoEClassifier, a folder of images to balpoe train, your own loop to "
    "BalPoELoss, a trained classifier to balpoe.load or saved logits; then come priors, costs, abstaining and a report."
)
HAVE = (
    ("a table, embeddings", "In scikit-learn?", ("yes", "BalPoE|Classifier()"), ("no", "balpoe train|features.npz")),
    ("a folder of images", "A GPU?", ("no", "balpoe train|photos/"), ("yes", "... --tune|adapters")),
    ("your own PyTorch loop", "How many heads?", ("one", "LogitAdjusted|Loss"), ("several", "BalPoELoss,|ExpertHead")),
    ("a trained classifier", "Is it one of ours?", ("yes", "balpoe.load|(RUN)"), ("no", "np.savez|(logits=...)")),
)
USE = (
    ("How frequent are classes?", "known: --prior FILE|stream: --track-prior FILE"),
    ("What do mistakes cost?", "--costs FILE|--metric macro_f1"),
    ("May it say nothing?", "--abstain-error 0.05|--sets 0.1"),
    ("Who has to believe it?", "balpoe report RUN|balpoe evaluate RUN"),
)
LOOK = f"""
{css_variables("svg", ("ink", "soft", "paper", "field", "blue"))}
text {{ font: 14px {FONT}; fill: var(--ink); text-anchor: middle; }}
.command {{ font: 12px ui-monospace, Menlo, Consolas, monospace; }}
rect {{ fill: var(--field); stroke: var(--soft); stroke-width: 1.5; }}
.do {{ fill: var(--paper); stroke: var(--blue); }}
.ground {{ fill: var(--paper); stroke: none; }}
path {{ stroke: var(--soft); stroke-width: 1.5; fill: none; }}
.tip {{ fill: var(--soft); stroke: none; }}
"""
PLACES = (20, 262, 504, 746)
WIDE, NARROW = 214, 104


def drawing() -> str:
    """Return the figure as SVG."""
    marker = '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    parts = [f'<defs>{marker}<path class="tip" d="M0,0 L10,5 L0,10 z"/></marker></defs>']
    parts += ['<rect class="ground" width="980" height="546"/>', box(380, 14, 220, 44, "What do you have?")]
    for x, (have, question, *answers) in zip(PLACES, HAVE, strict=True):
        middle = x + WIDE // 2
        parts += [arrow(490, 58, middle, 106), box(x, 108, WIDE, 40, have)]
        parts += [arrow(middle, 148, middle, 186), box(x, 188, WIDE, 40, question)]
        for side, (word, command) in zip((-1, 1), answers, strict=True):
            left = x if side < 0 else x + WIDE - NARROW
            end = left + NARROW // 2
            parts += [arrow(middle + 30 * side, 228, end, 280), text(end + 24 * side, 256, word)]
            parts.append(box(left, 282, NARROW, 54, command, command=True))
    parts += ['<path d="M20,362 H960" stroke-dasharray="3 5"/>', text(490, 387, "Then, where it is used:")]
    for x, (question, commands) in zip(PLACES, USE, strict=True):
        parts += [box(x, 402, WIDE, 40, question), arrow(x + WIDE // 2, 442, x + WIDE // 2, 472)]
        parts.append(box(x, 474, WIDE, 58, commands, command=True))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 546" role="img" aria-labelledby="title">'
    return "\n".join([head, f'<title id="title">{TITLE}</title>', f"<style>{LOOK}</style>", *parts, "</svg>\n"])


def box(x: int, y: int, width: int, height: int, words: str, *, command: bool = False) -> str:
    """Return a box with one line or two: a question, or a command."""
    lines, kind = words.split("|"), ' class="do"' if command else ""
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    inside = [text(x + width / 2, first + 18 * row, line, command=command) for row, line in enumerate(lines)]
    return "\n".join([f'<rect{kind} x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>', *inside])


def text(x: float, y: float, words: str, *, command: bool = False) -> str:
    """Return a line of text around a point."""
    kind = ' class="command"' if command else ""
    return f'<text{kind} x="{x}" y="{y}">{words}</text>'


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return an arrow."""
    return f'<path d="M{x},{y} L{to_x},{to_y}" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    write_text(FIGURE, drawing())
