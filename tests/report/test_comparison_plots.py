"""Figures of comparisons: labels that do not cover each other, and values that are drawn where they are."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from balpoe.report.comparison_plots import plot_differences, plot_search, plot_trade_off, spread


@given(st.lists(st.floats(0, 10), min_size=1, max_size=15))
def test_labels_keep_a_gap_their_order_and_the_limits(values):
    gap = 0.6
    places = spread(values, gap, 0.0, 10.0)
    ordered = [place for _, place in sorted(zip(values, places, strict=True))]
    assert all(second - first >= gap - 1e-9 for first, second in itertools.pairwise(ordered))
    assert min(places) >= -1e-9
    assert max(places) <= 10 + 1e-9


def test_labels_with_room_stay_where_they_are():
    assert spread([5.0, 1.0, 9.0], 1.0, 0.0, 10.0) == [5.0, 1.0, 9.0]


def test_points_are_where_the_numbers_say():
    axes = Figure().subplots()
    plot_trade_off({"a": (0.02, 0.9, 10.0), "b": (0.1, 0.8, 40.0)}, {"a"}, axes)
    assert np.allclose(axes.collections[0].get_offsets(), [[2.0, 90.0], [10.0, 80.0]])
    sizes = axes.collections[0].get_sizes()
    assert sizes[0] < sizes[1]
    assert {text.get_text() for text in axes.texts} == {"a", "b"}


def test_differences_and_searches_are_drawn():
    axes = Figure().subplots()
    plot_differences({"a": (-0.02, -0.03, -0.01), "b": (0.0, -0.01, 0.01)}, "best", axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    axes = Figure().subplots()
    plot_search({"a": [(0.5, False), (0.9, True), (0.6, False)]}, axes)
    assert list(axes.lines[-1].get_ydata()) == pytest.approx([50.0, 50.0, 60.0])  # what was given up is not the best
