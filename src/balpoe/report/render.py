"""A report as sections, and the two ways to write them down: one self-contained HTML page, or Markdown.

Whatever comes from data (class names, file names) is text: it is escaped here, and nowhere else is HTML made from it.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from balpoe.report.drawing import Drawing, inline_svg
from balpoe.report.look import FONT, css_variables
from balpoe.report.page_data import script_json

__all__ = ["Code", "Exhibit", "Figure", "Fragment", "Section", "Table", "html_page", "markdown_page"]

MOST_TABLE_ROWS = 300  # of a table on the page: a reader looks at no more, and a phone bears no more
LONG_HEADING = 24  # letters of a heading from which on its column is made wide, or it would be a tower of single words
REM_OF_AN_INCH = 7.6  # at most, on a wide screen: letters of a drawing are then about as large as those of the page


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names them."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    search: str = ""
    """What its rows are, such as "class", if the page is to find them by their names."""
    words: int = 1
    """How many of the first columns are words; the others are numbers."""


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and the numbers behind it."""

    name: str
    """Name of its files."""
    draw: Drawing
    size: tuple[float, float]
    alt: str
    table: Table
    points: Sequence[str] = ()
    """What the page says about each point of its scatter plots, where a reader points at it."""


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


Exhibit = Table | Figure | Code | Fragment


@dataclass(frozen=True)
class Section:
    """A heading, what it says in plain words, and what shows it."""

    title: str
    sentences: Sequence[str]
    exhibits: Sequence[Exhibit] = field(default=())
    narrow: bool = False
    """Whether half of a wide screen is enough for it."""


def html_page(title: str, sections: Sequence[Section], styles: str = "", scripts: str = "") -> str:
    """Return the whole page, which needs nothing but itself."""
    contents = "".join(
        f'<li><a href="#section-{n}">{_text(section.title)}</a></li>' for n, section in enumerate(sections)
    )
    opening, *others = (_section_html(number, section) for number, section in enumerate(sections))
    body = "\n".join([opening, f'<nav aria-label="Contents"><ol>{contents}</ol></nav>', *others])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>
{css_variables()}:root{{--font:{FONT}}}
{_asset("report.css")}{styles}</style>
</head>
<body>
<a class="skip" href="#section-0">Skip to the report</a>
<header><h1>{_name(title)}</h1></header>
<main>
{body}
</main>
<script>
{_asset("report.js")}{scripts}</script>
</body>
</html>
"""  # noqa: E501


def markdown_page(title: str, sections: Sequence[Section]) -> str:
    """Return the words and tables as Markdown."""
    lines = [f"# {_plain(title)}", ""]
    for section in sections:
        lines += [f"## {_plain(section.title)}", "", *(f"{_plain(sentence)}\n" for sentence in section.sentences)]
        for exhibit in section.exhibits:
            lines += [_markdown(exhibit), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section_html(number: int, section: Section) -> str:
    sentences = "".join(f"<p>{_name(sentence)}</p>" for sentence in section.sentences)
    exhibits = "\n".join(_exhibit_html(exhibit) for exhibit in section.exhibits)
    kind = ' class="narrow"' if section.narrow else ""
    return f'<section id="section-{number}"{kind}><h2>{_text(section.title)}</h2>{sentences}\n{exhibits}</section>'


def _exhibit_html(exhibit: Exhibit) -> str:
    if isinstance(exhibit, Table):
        return _table(exhibit)
    if isinstance(exhibit, Code):
        return (
            f'<figure class="code"><figcaption>{_text(exhibit.title)} <button type="button" class="copy">Copy</button>'
            f'</figcaption><pre tabindex="0">{_text(exhibit.text)}</pre></figure>'
        )
    if isinstance(exhibit, Fragment):
        return exhibit.html
    return _figure(exhibit)


def _figure(figure: Figure) -> str:
    drawing, places = inline_svg(figure.draw, figure.size, figure.name)
    texts = zip(places, figure.points, strict=True) if figure.points else ()
    points = [[*place, text] for place, text in texts]
    data = f'<script type="application/json" class="points">{script_json(points)}</script>' if points else ""
    return (
        f'<figure><div class="drawing" style="max-width: {REM_OF_AN_INCH * figure.size[0]:.1f}rem" tabindex="0" '
        f'role="img" aria-label="{_text(figure.alt)}">{drawing}{data}</div>'
        f"<details{' open' if figure.table.search else ''}><summary>The numbers of this figure</summary>"
        f"{_table(figure.table)}</details></figure>"
    )


def _table(table: Table) -> str:
    caption = f"<caption>{_name(table.caption)}</caption>" if table.caption else ""
    kinds = [' class="word"' if place < table.words else "" for place in range(len(table.headings))]
    wide = [' class="long"' if len(heading) >= LONG_HEADING else "" for heading in table.headings]
    head = "".join(
        f'<th scope="col"{kind or long}>{_text(heading)}</th>'
        for heading, kind, long in zip(table.headings, kinds, wide, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{_name(first)}</th>'
        f"{''.join(f'<td{kind}>{_name(cell)}</td>' for cell, kind in zip(rest, kinds[1:], strict=True))}</tr>"
        for first, *rest in table.rows[:MOST_TABLE_ROWS]
    )
    left = len(table.rows) - MOST_TABLE_ROWS
    more = f"<p>And {left:,} more rows, which are left out here.</p>" if left > 0 and not table.search else ""
    what = table.caption or ", ".join(filter(None, table.headings)) or "of facts"
    return (
        f'{_search(table)}<div class="scroll"><div class="sign" aria-hidden="true"></div>'
        f'<div class="pane" tabindex="0" role="region" aria-label="Table: {_text(what)}">'
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div>{more}"
    )


def _search(table: Table) -> str:
    """A field that finds rows by their names, also those that are too many to be shown at once."""
    if not table.search:
        return ""
    return (
        f'<div class="search"><label>Find a {_text(table.search)} <input type="search" autocomplete="off"></label> '
        f'<output aria-live="polite"></output><script type="application/json">'
        f"{script_json(table.rows[MOST_TABLE_ROWS:])}</script></div>"
    )


def _markdown(exhibit: Exhibit) -> str:
    if isinstance(exhibit, Code):
        fence = "```"
        while fence in exhibit.text:
            fence += "`"
        return f"{_plain(exhibit.title)}:\n\n{fence}\n{exhibit.text}\n{fence}"
    if isinstance(exhibit, Fragment):
        return exhibit.markdown
    table = exhibit if isinstance(exhibit, Table) else exhibit.table
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
