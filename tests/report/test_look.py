"""Colours: seen by all kinds of colour vision, on light and on dark pages, the same for a method everywhere."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import balpoe
from balpoe.baselines.catalogue import METHODS
from balpoe.paper.expected import PAPER_TABLES
from balpoe.report.look import DARK, HUES, LIGHT, css_variables, hue, method_looks, themed, words

THEMES = {"light": LIGHT, "dark": DARK}
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Least distance of two colours in Oklab, times 100; about 2 is just noticed. Marks and dashes differ, too.
LEAST = {"normal": 14, "protanopia": 9, "deuteranopia": 9, "tritanopia": 7}


def linear(colour):
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    """Ottosson 2020."""
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return lab @ np.cbrt(cones @ np.clip(rgb, 0, 1))


def contrast(first, second):
    """WCAG's ratio."""
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def test_a_distance_is_what_it_is_called():
    """The simulation makes known confusions smaller, and leaves grey as it is."""
    grey = linear("#808080")
    for matrix in VISION.values():
        assert np.allclose(matrix @ grey, grey, atol=1e-3)
    pure = [np.array([1.0, 0, 0]), np.array([0, 0.4, 0])]
    apart = {
        name: np.linalg.norm(np.subtract(*(oklab(matrix @ each) for each in pure))) for name, matrix in VISION.items()
    }
    assert apart["deuteranopia"] < apart["normal"] / 2
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("names", [HUES, ("many", "medium", "few")], ids=["methods", "groups"])
def test_colours_differ_for_all_kinds_of_colour_vision(theme, names):
    for vision, least in LEAST.items():
        seen = {name: oklab(VISION[vision] @ linear(THEMES[theme][name])) for name in names}
        for first, second in itertools.combinations(names, 2):
            distance = 100 * np.linalg.norm(seen[first] - seen[second])
            assert distance >= least, (vision, first, second, distance)


@pytest.mark.parametrize("theme", THEMES)
def test_marks_and_words_can_be_seen_on_the_page(theme):
    colours = THEMES[theme]
    for name in (*HUES, "many", "medium", "few"):
        assert contrast(colours[name], colours["paper"]) >= 3, name
    of_words = ["ink", "soft", "blue", *(name for name in colours if name.endswith("-words"))]
    of_words += [name for name in (*HUES, "many", "medium", "few") if f"{name}-words" not in colours]
    for name in of_words:
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    assert min(contrast(colours[name], colours["field"]) for name in ("ink", "soft", "blue")) >= 4.5


def test_each_colour_has_one_name_and_two_looks():
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colours in THEMES.values() for colour in colours.values())


def test_a_method_has_its_hue_under_all_its_names():
    titles = {entry.title or name for name, entry in METHODS.items()}
    titles |= {result.title for table in PAPER_TABLES.values() for result in table}
    for title in titles:
        if "BalPoE" in title:
            assert hue(title) == "blue", title
        elif title.startswith("SADE"):
            assert hue(title) == "violet", title
        elif "cross-entropy" in title:
            assert hue(title) in ("grey", "orange"), title
    assert hue("BalPoE (digits)") == hue("demo-balpoe") == "blue"
    assert hue("plain (cross-entropy), adjusted") == hue("logit adjustment after training") == "orange"
    assert hue("CMO + balanced softmax") is None


def test_methods_of_a_figure_can_be_told_apart():
    names = ["cross-entropy", "cross-entropy with mixup", "BalPoE", "BalPoE without mixup", *map(str, range(10))]
    looks = method_looks(names)
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(names)
    own = [looks[name].colour for name in map(str, range(4))]
    assert len(set(own)) == 4
    assert not {looks["BalPoE"].colour, looks["cross-entropy"].colour} & set(own)


def test_a_drawing_keeps_what_is_no_colour_of_ours():
    text = f'<path id="abcdef" style="fill: {LIGHT["red"]}; stroke: #123456"/><text>#1c2733ff</text>'
    assert themed(text) == text.replace(LIGHT["red"], "var(--red)")
    assert all(f"--{name}:{colour}" in css_variables() for theme in THEMES.values() for name, colour in theme.items())
    assert words("orange") == LIGHT["orange-words"]


OF_THE_SERVER = {"desk", "bar", "expert", "good", "warn"}  # what only its page has: what it lies on, bars, verdicts


def test_the_server_s_page_has_the_same_colours():
    page = (Path(balpoe.__file__).parent / "deployment" / "serve" / "page.css").read_text(encoding="utf-8")
    light, dark = page.split("@media (prefers-color-scheme: dark)", 1)
    for part, colours in ((light, LIGHT), (dark, DARK)):
        found = dict(re.findall(r"--(\w+): (#\w+)", part))
        shared = {name: colour for name, colour in found.items() if name not in OF_THE_SERVER}
        assert len(shared) > 5
        assert shared == {name: colours.get(name) for name in shared}
