import pytest
import torch
from matplotlib.figure import Figure

from balpoe import UserError, track_prior
from balpoe.deployment.prior_tracking import PriorStep
from balpoe.report.drawing import figure_bytes
from balpoe.report.prior_tracking import plot_tracked_prior


def step(at, share, fit):
    prior = torch.tensor([share, 0.9 - share, 0.1], dtype=torch.float64)
    return PriorStep(at, prior, prior + 0.01, torch.stack([prior - 0.05, prior + 0.05]), 0.5, fit)


HISTORY = [step(100, 0.2, None), step(200, 0.5, 0.4), step(300, 0.8, 0.001)]


def test_shares_bands_and_what_no_prior_explains():
    axes = Figure().subplots()
    plot_tracked_prior(HISTORY, ("oak", "ash", "elm"), axes, x="hours", most=2)
    assert [text.get_text() for text in axes.texts] == ["oak", "ash"]
    shares, estimates = axes.lines[:2]
    assert shares.get_ydata() == pytest.approx([20, 50, 80])
    assert estimates.get_ydata() == pytest.approx([21, 51, 81])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((15, 85))
    (grey,) = axes.patches
    assert (grey.get_x(), grey.get_width()) == (200, 100)
    assert axes.get_xlabel() == "hours"


def test_the_history_of_a_tracker_becomes_a_file():
    tracker = track_prior([0.5, 0.5], half_life=20, num_resamples=10)

    def draw(figure):
        plot_tracked_prior(tracker.history, ("$oak", "_ash"), figure.subplots())

    with pytest.raises(UserError, match="the stream was not looked at yet"):
        figure_bytes(draw, (5, 3), "png")
    tracker.update(torch.tensor([[3.0, -3.0], [-3.0, 3.0], [3.0, -3.0]] * 20))
    assert figure_bytes(draw, (5, 3), "png").startswith(b"\x89PNG")
