"""The scripts of the gallery: short and quick, and each draws a figure that can be read."""

import ast
import itertools
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Annotation

from balpoe.report.drawing import themed_svg
from balpoe.report.look import STYLE
from scripts import in_few_epochs

FOLDER = Path(__file__).parents[2] / "examples" / "gallery"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))


@pytest.fixture(autouse=True)
def look(monkeypatch, tmp_path):
    """The site's look, and nothing shown or left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        yield
        plt.close("all")


def test_there_are_a_dozen():
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_draws_a_figure_that_can_be_read(path, monkeypatch):
    source = path.read_text(encoding="utf-8")
    if ".export(" in source:  # of one network, not of five: tests/estimator/test_deployed.py has those
        monkeypatch.setattr("balpoe.estimator.classifier.SMALL", {})
    exec(compile(in_few_epochs(source), path, "exec"), {"__name__": "__main__"})
    assert len(plt.get_fignums()) == 1
    figure = plt.gcf()
    for axes in figure.axes:
        # What an axis shows stands on it, but for names as ticks and a second panel beside the first.
        assert axes.get_xlabel() or axes.get_title(loc="left") or axes.get_label() == "<colorbar>"
    assert any(axes.get_ylabel() or axes.get_xlabel() for axes in figure.axes)
    figure.canvas.draw()
    boxes = [each.get_window_extent() for each in figure.findobj(Annotation) if each.get_text()]
    for first, second in itertools.combinations(boxes, 2):
        assert not first.overlaps(second)
    colours = set(re.findall(r"(?:fill|stroke): (#\w+)", themed_svg(figure, path.stem)))
    assert all(len(set(re.findall("..", colour[1:]))) == 1 for colour in colours), colours  # greys on a map, no others


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_has_a_title_and_leaves_the_look_to_the_site(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 40
    title, line, *_ = ast.get_docstring(ast.parse(source)).strip().splitlines()
    assert line == "=" * len(title)
    assert not re.search(r"style\.use|rcParams|#[0-9A-Fa-f]{6}|color=\"[a-z]{3,}", source)
