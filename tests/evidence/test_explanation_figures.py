"""The figures of the explanation and how-to pages: those that are drawn now, each shown by a page."""

import re
from pathlib import Path

import numpy as np
import pytest

from scripts import script

ROOT = Path(__file__).parents[2]
DRAWN = script("docs/explanation_figures.py")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
MADE = {"_build", "gallery"}  # by building the site


def parts(svg):
    """What a drawing says, and where: its text without numbers, and the numbers."""
    svg = re.sub(r'(?<=[#"])[\w-]*[0-9a-f]{10}\b', "ID", svg)  # a digest of a shape, which rounding changes
    return NUMBER.sub("N", svg), np.array([float(found) for found in NUMBER.findall(svg)])


@pytest.mark.parametrize("name", DRAWN.FIGURES)
def test_the_figure_is_the_one_that_is_drawn(name, tmp_path):
    DRAWN.draw(name, tmp_path)
    now, before = (
        parts((folder / f"{name}.svg").read_text(encoding="utf-8")) for folder in (tmp_path, ROOT / "docs" / "images")
    )
    assert now[0] == before[0]
    np.testing.assert_allclose(now[1], before[1], atol=0.05)  # points of the page: processors round differently


def test_each_figure_is_on_a_page():
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not MADE & set(page.parts)]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name in DRAWN.FIGURES:
        assert f"images/{name}.svg" in text, name
