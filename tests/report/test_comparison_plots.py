"""Figures of comparisons: values are drawn where they are, and the best can be seen."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from balpoe.report.comparison_plots import plot_differences, plot_search, plot_trade_off
from balpoe.report.look import LIGHT


def test_points_are_where_the_numbers_say():
    axes = Figure().subplots()
    plot_trade_off({"a": (0.02, 0.9, 10.0), "b": (0.1, 0.8, 40.0)}, {"a"}, axes)
    assert np.allclose(axes.collections[0].get_offsets(), [[2.0, 90.0], [10.0, 80.0]])
    sizes = axes.collections[0].get_sizes()
    assert sizes[0] < sizes[1]
    assert {text.get_text() for text in axes.texts} == {"a", "b"}
    filled, open_ = axes.collections[0].get_facecolors()
    assert to_hex(open_) == LIGHT["paper"] != to_hex(filled)


def test_differences_and_searches_are_drawn():
    axes = Figure().subplots()
    plot_differences({"a": (-0.02, -0.03, -0.01), "b": (0.0, -0.01, 0.01)}, "best", axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    axes = Figure().subplots()
    plot_search({"a": [(0.5, False), (0.9, True), (0.6, False)]}, axes)
    assert list(axes.lines[-1].get_ydata()) == pytest.approx([50.0, 50.0, 60.0])  # what was given up is not the best
