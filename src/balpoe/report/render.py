"""A report as parts, and the two ways to write them down: one self-contained HTML page, or Markdown.

Whatever comes from data (class names, file names) is text: it is escaped here, and nowhere else is HTML made from it.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from balpoe.report.plots import Drawing, inline_svg

__all__ = ["Block", "Code", "Figure", "Fragment", "Part", "Table", "html_page", "markdown_page"]

MOST_ROWS = 300  # of a table on the page: a reader looks at no more, and a phone bears no more


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names them."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and the numbers behind it."""

    name: str
    """Of its files."""
    draw: Drawing
    size: tuple[float, float]
    alt: str
    table: Table


@dataclass(frozen=True)
class Code:
    """Text to copy."""

    title: str
    text: str


@dataclass(frozen=True)
class Fragment:
    """HTML that is made elsewhere and safe; Markdown has a sentence in its place."""

    html: str
    markdown: str = ""


Block = Table | Figure | Code | Fragment


@dataclass(frozen=True)
class Part:
    """A heading, what it says in plain words, and what shows it."""

    title: str
    sentences: Sequence[str]
    blocks: Sequence[Block] = field(default=())


def html_page(title: str, parts: Sequence[Part], styles: str = "", scripts: str = "") -> str:
    """Return the whole page, which needs nothing but itself."""
    contents = "".join(f'<li><a href="#part-{n}">{_text(part.title)}</a></li>' for n, part in enumerate(parts))
    body = "\n".join(_section(number, part) for number, part in enumerate(parts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>
{_asset("report.css")}{styles}</style>
</head>
<body>
<a class="skip" href="#part-0">Skip to the report</a>
<header><h1>{_name(title)}</h1><nav aria-label="Contents"><ol>{contents}</ol></nav></header>
<main>
{body}
</main>
<script>
{_asset("report.js")}{scripts}</script>
</body>
</html>
"""  # noqa: E501


def markdown_page(title: str, parts: Sequence[Part]) -> str:
    """Return the words and tables as Markdown."""
    lines = [f"# {_plain(title)}", ""]
    for part in parts:
        lines += [f"## {_plain(part.title)}", "", *(f"{_plain(sentence)}\n" for sentence in part.sentences)]
        for block in part.blocks:
            lines += [_markdown(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(number: int, part: Part) -> str:
    sentences = "".join(f"<p>{_name(sentence)}</p>" for sentence in part.sentences)
    blocks = "\n".join(_block(block) for block in part.blocks)
    return f'<section id="part-{number}"><h2>{_text(part.title)}</h2>{sentences}\n{blocks}</section>'


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Code):
        return (
            f'<figure class="code"><figcaption>{_text(block.title)} <button type="button" class="copy">Copy</button>'
            f'</figcaption><pre tabindex="0">{_text(block.text)}</pre></figure>'
        )
    if isinstance(block, Fragment):
        return block.html
    return (
        f'<figure><div class="drawing" tabindex="0" role="img" aria-label="{_text(block.alt)}">'
        f"{inline_svg(block.draw, block.size, block.name)}</div>"
        f"<details><summary>The numbers of this picture</summary>{_table(block.table)}</details></figure>"
    )


def _table(table: Table) -> str:
    caption = f"<caption>{_name(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{_text(heading)}</th>' for heading in table.headings)
    rows = "".join(
        f'<tr><th scope="row">{_name(first)}</th>{"".join(f"<td>{_name(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in table.rows[:MOST_ROWS]
    )
    left = len(table.rows) - MOST_ROWS
    more = f"<p>And {left:,} more rows, which are left out here.</p>" if left > 0 else ""
    what = table.caption or ", ".join(filter(None, table.headings)) or "of facts"
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="Table: {_text(what)}">'
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _markdown(block: Block) -> str:
    if isinstance(block, Code):
        fence = "```"
        while fence in block.text:
            fence += "`"
        return f"{_plain(block.title)}:\n\n{fence}\n{block.text}\n{fence}"
    if isinstance(block, Fragment):
        return block.markdown
    table = block if isinstance(block, Table) else block.table
    rows = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "\n".join("| " + " | ".join(map(_plain, row)) + " |" for row in rows)


def _text(text: str) -> str:
    return html.escape(text)


def _name(text: str) -> str:
    """Text that may hold a name in any script, which is not to turn the text around it."""
    return f"<bdi>{html.escape(text)}</bdi>"


def _plain(text: str) -> str:
    """Text as Markdown shows it: no markup, no new cell, no new line."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _asset(name: str) -> str:
    return (resources.files("balpoe.report") / "assets" / name).read_text(encoding="utf-8")
