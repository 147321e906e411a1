"""Figures in files and in pages: one drawing, light and dark."""

import re
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from balpoe.report.drawing import figure_bytes, inline_svg, themed_file
from balpoe.report.look import DARK, LIGHT


def draw(figure: Figure) -> None:
    axes = figure.subplots()
    axes.plot([1, 2, 3], [0.12345, 2, 3], color=LIGHT["orange"], label="a line")
    axes.annotate("0.123456 of it", (1, 1), color=LIGHT["orange"])
    axes.scatter([1], [1], color="k")
    axes.legend()


@pytest.fixture(scope="module")
def file():
    return themed_file(draw, (4, 3), "name").decode()


def test_a_file_knows_both_looks_and_no_other_colour(file):
    root = ET.fromstring(file)
    assert (root.get("width"), root.get("viewBox")) == ("288pt", "0 0 288 216")
    used = set(re.findall(r"var\(--([a-z-]+)\)", file))
    assert {"ink", "soft", "paper", "line", "orange", "orange-words"} == used
    light, dark = re.search(r"svg\{(.*?)\}@media.*?svg\{(.*?)\}", file).groups()
    for style, colours in ((light, LIGHT), (dark, DARK)):
        assert dict(re.findall(r"--([a-z-]+):(#\w+)", style)) == {name: colours[name] for name in used}
    assert not re.findall(r"(?:fill|stroke): ?#", file)


def test_words_are_text_as_it_was_written_in_the_colour_of_words(file):
    texts = {each.text: each.get("style") for each in ET.fromstring(file).iter("{http://www.w3.org/2000/svg}text")}
    assert "fill: var(--orange-words)" in texts["0.123456 of it"]
    assert "font-family" not in texts["a line"]
    assert "DejaVu" not in file


def test_the_same_figure_is_the_same_file(file):
    assert themed_file(draw, (4, 3), "name").decode() == file


def test_names_inside_a_page_do_not_meet():
    first, second = (inline_svg(draw, (4, 3), name)[0] for name in ("one", "two"))
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text)) == own


def test_a_file_for_a_text_processor_has_the_light_colours():
    text = figure_bytes(draw, (4, 3), "svg").decode()
    assert LIGHT["orange"] in text
    assert "var(" not in text
