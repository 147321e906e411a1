import math
import re

import pytest
from matplotlib.figure import Figure

from balpoe.report.drawing import figure_bytes, inline_svg
from balpoe.report.plots import (
    plot_accuracy_by_count,
    plot_boundaries,
    plot_class_counts,
    plot_cost,
    plot_groups,
    plot_marginal,
    plot_priors,
    plot_reliability,
    plot_shifted,
)


@pytest.fixture
def axes():
    return Figure().subplots()


def test_reliability_bars_are_the_bins_that_are_not_empty(axes):
    bins = {"share": [0.0, 0.4, 0.6], "confidence": [0.0, 0.5, 0.9], "accuracy": [0.0, 0.3, 0.95]}
    plot_reliability(bins, axes)
    accuracy, gaps = axes.containers
    assert [bar.get_height() for bar in accuracy] == [0.3, 0.95]
    assert [bar.get_x() + bar.get_width() / 2 for bar in accuracy] == pytest.approx([0.5, 5 / 6])
    assert [bar.get_height() for bar in gaps] == pytest.approx([0.2, -0.05])


def test_boundaries_lie_where_adjusted_scores_are_equal(axes):
    prior, taus = 0.8, (0, 1, 2)
    plot_boundaries(prior, taus, axes)
    for line, tau in zip(axes.lines, taus, strict=True):
        x = line.get_xdata()[0]
        frequent = -((x + 1) ** 2) / 2 + math.log(prior) - tau * math.log(prior)
        rare = -((x - 1) ** 2) / 2 + math.log(1 - prior) - tau * math.log(1 - prior)
        assert frequent == pytest.approx(rare)


def test_priors_and_costs_are_drawn_as_given(axes):
    plot_priors({"a": [0.7, 0.3], "b": [0.3, 0.7]}, axes)
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.7, 0.3], [0.3, 0.7]]
    plot_cost({f"method {n}": (n, 10 * n) for n in range(12)}, axes, "cost")
    looks = {(tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in axes.collections}
    assert len(looks) == 12  # no two alike


def test_names_are_drawn_as_they_are():
    """No formula, not hidden, in any script."""

    def draw(figure):
        methods = {"_$\\frac{x$": [(0.5, 0.4, 0.6), None], "\u05db\u05dc\u05d1 \U0001f98a": [(0.4, None, None)] * 2}
        plot_groups(["all", "few"], methods, figure.subplots())

    svg, _ = inline_svg(draw, (6, 3), "names")
    assert "_$\\frac{x$" in svg
    assert "\u05db\u05dc\u05d1" in svg
    assert figure_bytes(draw, (6, 3), "png").startswith(b"\x89PNG")


def test_class_counts_are_the_areas_of_the_groups(axes):
    plot_class_counts([5, 300, 40, 2], {"many": [0, 1, 0, 0], "medium": [0, 0, 1, 0], "few": [1, 0, 0, 1]}, axes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["many: 1 class", "medium: 1 class", "few: 2 classes"]
    corners = axes.collections[2].get_paths()[0].vertices
    assert corners[:, 0].min() == 2
    assert corners[:, 0].max() == 4
    assert corners[:, 1].max() == 5


def test_groups_are_points_with_their_intervals_and_an_empty_one_has_none(axes):
    plot_groups(["all", "few"], {"a": [(0.5, 0.4, 0.7), (0.2, None, None)], "b": [(0.6, 0.5, 0.65), None]}, axes)
    assert [line.get_xdata().tolist() for line in axes.lines] == [pytest.approx([50, 20]), pytest.approx([60])]
    intervals = [path.vertices[:, 0].tolist() for each in axes.collections for path in each.get_paths()]
    assert intervals == [pytest.approx([40, 70]), pytest.approx([20, 20]), pytest.approx([50, 65])]
    assert [text.get_text() for text in axes.texts] == ["50.0", "20.0", "60.0"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["all", "few"]


def test_axes_have_plain_numbers():
    """No powers of ten, however long the axis is."""
    for counts in ([1, 3, 1280], [5, 80, 500], [1, 40, 100_000]):
        svg, _ = inline_svg(
            lambda figure, c=counts: plot_class_counts(c, {"many": [1] * 3}, figure.subplots()), (5, 3), "a"
        )
        texts = [text.strip() for text in re.findall(r">([^<>]*)</text>", svg)]
        assert str(10) in texts
        assert all(re.fullmatch(r"[\d,.]+|many: 3 classes|classes.*|training samples", text) for text in texts), texts
    svg, _ = inline_svg(lambda figure: plot_marginal([0.6, 0.0002], [0.5, 0.5], figure.subplots()), (5, 3), "a")
    assert {"0.1", "1", "10"} <= {text.strip() for text in re.findall(r">([^<>]*)</text>", svg)}
    assert "10^" not in svg


def test_the_places_of_points_are_where_they_are_drawn():
    """In the drawing's own units: what is drawn at a place is found at it."""

    def draw(figure):
        plot_accuracy_by_count([10, 20, 300], {"a": [0.1, None, 0.3], "b": [0.9, 0.8, 0.7]}, figure.subplots())

    svg, places = inline_svg(draw, (5, 3), "points")
    used = [
        (float(x), float(y))
        for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill[^>]*fill-opacity', svg)
    ]
    assert len(places) == 5
    assert places[:2] == [pytest.approx(each, abs=0.1) for each in used[:2]]


def test_marks_and_lines_are_where_the_numbers_are(axes):
    plot_accuracy_by_count([10, 20, 30], {"a": [0.1, None, 0.3]}, axes)
    assert axes.collections[0].get_offsets().flatten().tolist() == pytest.approx([10, 10, 30, 30])
    other = Figure().subplots()
    plot_shifted(
        ["forward-2", "uniform"],
        {"as trained": [(0.5, 0.4, 0.6), (0.6, 0.5, 0.7)], "adjusted": [(0.7, None, None)] * 2},
        other,
    )
    assert [list(line.get_ydata()) for line in other.lines] == [[50, 60], [70, 70]]
    assert other.collections[0].get_paths()[0].vertices[:, 1].tolist().count(40) > 0
    third = Figure().subplots()
    plot_marginal([0.7, 0.3], [0.6, 0.4], third)
    assert [list(line.get_ydata()) for line in third.lines] == [[0.6, 0.4], [0.7, 0.3]]
