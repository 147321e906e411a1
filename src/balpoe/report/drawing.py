"""Figures as parts of a page, and as files."""

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from balpoe.report.look import FONT, HUES, LIGHT, STYLE, css_variables, themed, words

__all__ = ["Drawing", "figure_bytes", "inline_svg", "themed_file", "themed_svg"]

Drawing = Callable[[Figure], None]
SVG = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
WORDS = {LIGHT[name]: words(name) for name in (*HUES, "few")}
NO_DATE: dict[str, Any] = {"Date": None, "Creator": None}


def inline_svg(draw: Drawing, size: tuple[float, float], name: str) -> tuple[str, list[tuple[float, float]]]:
    """Return a figure as an SVG element for a page, and where its points are.

    The drawing is transparent, its text real text, its colours those of the page. The points are those of its scatter
    plots, one after another, in the units of the drawing.
    """
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure, data = _drawn(draw, size, "svg")
    width, height = (round(72 * side) for side in size)
    head = f'<svg {SVG} viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">'
    text = _bare(data.decode(), name)
    return re.sub(r"<svg [^>]*>", head, text, count=1), _points(figure)


def figure_bytes(draw: Drawing, size: tuple[float, float], kind: str) -> bytes:
    """Return a figure as a file in light colours: "png", or "svg"."""
    with rc_context({**STYLE, "svg.fonttype": "path"}):
        return _drawn(draw, size, kind)[1]


def themed_file(draw: Drawing, size: tuple[float, float], name: str) -> bytes:
    """Return a figure as an SVG file for light and dark pages."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        return themed_svg(figure, name).encode()


def themed_svg(figure: Figure, name: str) -> str:
    """Return a finished figure as an SVG drawing with a ground of its own, light or dark as the page that shows it.

    Its text is real text, in the font of the reader's system: the same numbers give the same file.
    """
    stream = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata=NO_DATE)
    text = _bare(stream.getvalue().decode(), name)
    width, height = (72 * side for side in figure.get_size_inches())
    used = dict.fromkeys(re.findall(r"var\(--([\w-]+)\)", text)) | {"paper": None}
    style = f"<style>{css_variables('svg', used)}text{{font-family:{FONT}}}</style>"
    head = f'<svg {SVG} width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}" role="img">'
    ground = '<rect width="100%" height="100%" rx="6" style="fill: var(--paper)"/>'
    return re.sub(r"<svg [^>]*>", lambda _: head + style + ground, text, count=1)


def _bare(svg: str, name: str) -> str:
    """The drawing alone: without what precedes it, with the page's colours and font, its names its own."""
    text = re.sub(r"^.*?(?=<svg )|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    # A page holds several figures: names that only this one uses, and those of another must not meet.
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r">\s+<", ">\n<", text)
    return themed(re.sub(r"<[^>]+>", lambda tag: _short(tag[0]), text))


def _short(tag: str) -> str:
    """A tag without a font, which is the page's, without turns by nothing, and to a hundredth of a point.

    Words are in the colour of words, also where a script has not thought of it.
    """
    tag = re.sub(r"font-family: [^;\"]+; | transform=\"rotate\(-?0 [^)]*\)\"", "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return (
        re.sub(r"fill: (#\w+)", lambda found: f"fill: {WORDS.get(found[1], found[1])}", tag)
        if tag[:5] == "<text"
        else tag
    )


def _points(figure: Figure) -> list[tuple[float, float]]:
    """Where the points of all scatter plots are, in 1/72 inch from the upper left corner."""
    scatters = [(axes, each) for axes in figure.axes for each in axes.collections if isinstance(each, PathCollection)]
    places = [axes.transData.transform(each.get_offsets()) * 72 / figure.dpi for axes, each in scatters]
    height = 72 * figure.get_figheight()
    return [(round(x, 1), round(height - y, 1)) for part in places for x, y in part.tolist()]


def _drawn(draw: Drawing, size: tuple[float, float], kind: str) -> tuple[Figure, bytes]:
    figure = Figure(figsize=size, layout="constrained")
    stream = io.BytesIO()
    options: dict[str, Any] = {"metadata": NO_DATE, "transparent": True} if kind == "svg" else {"dpi": 120}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font does not have
        draw(figure)
        figure.savefig(stream, format=kind, **options)
    return figure, stream.getvalue()
