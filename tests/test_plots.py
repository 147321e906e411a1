import math

import pytest
from matplotlib.figure import Figure

from balpoe.plots import plot_boundaries, plot_cost, plot_priors, plot_reliability


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
