"""Draw the figure of which.md, once for light pages and once for dark ones: python docs/which_figure.py."""

from pathlib import Path

THEMES = {
    "light": {"ask": "#f3f4f5", "do": "#e3f1fa", "line": "#7a828c", "blue": "#0072b2", "ink": "#1c2733"},
    "dark": {"ask": "#242b35", "do": "#12384d", "line": "#8b96a3", "blue": "#56b4e9", "ink": "#e6ebf0"},
}
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
SANS, MONO = "system-ui, Helvetica, Arial, sans-serif", "ui-monospace, Menlo, Consolas, monospace"
PLACES = (20, 262, 504, 746)
WIDE, NARROW = 214, 104


def drawing(colours: dict[str, str]) -> str:
    """Return the figure as SVG."""
    tip = f'<path d="M0,0 L10,5 L0,10 z" fill="{colours["line"]}"/>'
    marker = '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    parts = [f"<defs>{marker}{tip}</marker></defs>", box(380, 14, 220, 44, "What do you have?", colours)]
    for x, (have, question, *answers) in zip(PLACES, HAVE, strict=True):
        middle = x + WIDE // 2
        parts += [arrow(490, 58, middle, 106, colours), box(x, 108, WIDE, 40, have, colours)]
        parts += [arrow(middle, 148, middle, 186, colours), box(x, 188, WIDE, 40, question, colours)]
        for side, (word, command) in zip((-1, 1), answers, strict=True):
            left = x if side < 0 else x + WIDE - NARROW
            end = left + NARROW // 2
            parts.append(arrow(middle + 30 * side, 228, end, 280, colours))
            parts.append(text(end + 24 * side, 256, word, SANS, 12.5, colours))
            parts.append(box(left, 282, NARROW, 54, command, colours, command=True))
    parts.append(f'<path d="M20,362 H960" stroke="{colours["line"]}" stroke-dasharray="3 5"/>')
    parts.append(text(490, 387, "Then, where it is used:", SANS, 14, colours))
    for x, (question, commands) in zip(PLACES, USE, strict=True):
        parts += [box(x, 402, WIDE, 40, question, colours), arrow(x + WIDE // 2, 442, x + WIDE // 2, 472, colours)]
        parts.append(box(x, 474, WIDE, 58, commands, colours, command=True))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 546" role="img" aria-labelledby="title">'
    return "\n".join([head, f'<title id="title">{TITLE}</title>', *parts, "</svg>\n"])


def box(x: int, y: int, width: int, height: int, words: str, colours: dict[str, str], *, command: bool = False) -> str:
    """Return a box with one line or two: a question, or a command."""
    fill, edge = (colours["do"], colours["blue"]) if command else (colours["ask"], colours["line"])
    frame = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="8"'
    lines, (font, size) = words.split("|"), (MONO, 12) if command else (SANS, 14)
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    inside = [text(x + width / 2, first + 18 * row, line, font, size, colours) for row, line in enumerate(lines)]
    return "\n".join([f'<rect {frame} fill="{fill}" stroke="{edge}" stroke-width="1.5"/>', *inside])


def text(x: float, y: float, words: str, font: str, size: float, colours: dict[str, str]) -> str:
    """Return a line of text around a point."""
    look = f'text-anchor="middle" font-family="{font}" font-size="{size}" fill="{colours["ink"]}"'
    return f'<text x="{x}" y="{y}" {look}>{words}</text>'


def arrow(x: int, y: int, to_x: int, to_y: int, colours: dict[str, str]) -> str:
    """Return an arrow."""
    line = f'd="M{x},{y} L{to_x},{to_y}" stroke="{colours["line"]}" stroke-width="1.5" fill="none"'
    return f'<path {line} marker-end="url(#tip)"/>'


if __name__ == "__main__":
    for name, theme in THEMES.items():
        path = Path(__file__).parent / "images" / f"which-{name}.svg"
        path.write_text(drawing(theme), encoding="utf-8")
