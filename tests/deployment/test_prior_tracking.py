import itertools
import warnings

import numpy as np
import pytest
import torch

from balpoe import Predictions, PriorTracker, UserError, estimate_prior, shift_prior, tempered_prior, track_prior
from gaussians import Gaussians, long_tail

pytestmark = pytest.mark.slow  # streams of thousands of samples

CLASSES = 4
UNIFORM = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)


@pytest.fixture
def world():
    return Gaussians(CLASSES, 3, seed=3)


def stream(world, prior, samples):
    """Exact logits, for the uniform prior, of samples with labels of another."""
    x, labels = world.sample(torch.as_tensor(prior, dtype=torch.float64), samples)
    return world.log_likelihood(x), labels


def validation(world, each=60):
    labels = torch.arange(CLASSES).repeat(each)
    return Predictions(world.log_likelihood(world.sample_of(labels))[:, None], labels, [1] * CLASSES, [0])


SKEWED = [0.7, 0.2, 0.05, 0.05]


def same(a, b):
    assert torch.equal(a.prior, b.prior)
    assert torch.equal(a.estimate, b.estimate)
    assert torch.equal(a.band, b.band)
    assert (a.seen, a.steps, a.waiting) == (b.seen, b.steps, b.waiting)
    for mine, theirs in zip(a.history, b.history, strict=True):
        assert all(
            torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(mine, theirs, strict=True)
        )


def test_each_look_finds_the_most_likely_prior_of_weighted_samples(world):
    logits, _ = stream(world, SKEWED, 350)
    tracker = track_prior(UNIFORM, half_life=40, every=50)
    tracker.update(logits)
    assert len(tracker.history) == 7
    assert len(tracker.logits) == 200  # five half-lives
    for number, step in enumerate(tracker.history):
        rows = logits[max(0, 50 * number - 150) : 50 * number + 50]
        weights = 0.5 ** (torch.arange(len(rows) - 1, -1, -1) / 40)
        found = estimate_prior(rows, weights=weights)
        torch.testing.assert_close(step.estimate, found.estimate, atol=1e-6, rtol=0)
        assert step.at == 50 * number + 50
        if number == 0:
            assert step.p_value == pytest.approx(found.p_value, rel=1e-4)


def test_how_the_stream_is_cut_makes_no_difference(world):
    logits, _ = stream(world, SKEWED, 260)
    known = validation(world)
    trackers = []
    for sizes in ([260], [1, 99, 30, 130]):
        tracker = track_prior(UNIFORM, half_life=60, every=50, validation=known, num_resamples=40)
        for part in logits.split(sizes):
            tracker.update(part)
        trackers.append(tracker)
    assert trackers[0].waiting == 10
    for other in trackers[1:]:
        same(trackers[0], other)


@pytest.mark.parametrize("family", ["free", "tempered"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_saved_tracker_goes_on_to_the_same_numbers(world, tmp_path, family, calibrated):
    logits, _ = stream(world, SKEWED, 330)
    options = {"family": family, "train_prior": long_tail(CLASSES) if family == "tempered" else None}
    known = validation(world) if calibrated else None
    tracker = track_prior(UNIFORM, half_life=60, every=40, validation=known, num_resamples=40, **options)
    tracker.save(tmp_path / "new.npz")
    same(tracker, PriorTracker.load(tmp_path / "new.npz"))
    tracker.update(logits[:210])
    tracker.save(tmp_path / "state.npz")
    resumed = PriorTracker.load(tmp_path / "state.npz")
    same(tracker, resumed)
    tracker.update(logits[210:])
    resumed.update(logits[210:])
    same(tracker, resumed)
    torch.testing.assert_close(resumed.adjust(logits), tracker.adjust(logits), rtol=0, atol=0)


def test_it_follows_the_labels_and_predicts_better():
    world = Gaussians(CLASSES, 3, 1.5, seed=3)
    tracker = track_prior(UNIFORM, half_life=300, validation=validation(world, 200), every=400, num_resamples=40)
    for prior in (SKEWED, SKEWED[::-1], UNIFORM.tolist()):
        tracker.update(stream(world, prior, 1600)[0])
        assert float((tracker.prior - torch.tensor(prior)).abs().sum()) < 0.25
        logits, labels = stream(world, prior, 3000)
        if prior != UNIFORM.tolist():
            plain, moved = (
                float((each.argmax(1) == labels).double().mean()) for each in (logits, tracker.adjust(logits))
            )
            assert moved > plain + 0.03


def test_the_prior_stays_while_nothing_speaks_against_it(world):
    known, left = validation(world), 0
    for seed in range(6):
        tracker = track_prior(UNIFORM, half_life=100, every=150, validation=known, num_resamples=40, seed=seed)
        left += not torch.equal(tracker.update(stream(world, UNIFORM, 300)[0]), UNIFORM)
    assert left <= 3  # 12 tests at 5 %
    start = torch.tensor(SKEWED, dtype=torch.float64)
    tracker = track_prior(UNIFORM, half_life=100, every=100, start_prior=start)
    assert torch.equal(tracker.update(stream(world, UNIFORM, 99)[0]), start)
    assert tracker.band.tolist() == [[0] * CLASSES, [1] * CLASSES]
    assert tracker.changed is None


def test_noise_is_shrunk_to_the_start(monkeypatch):
    """Of 40 classes and 200 samples of no shift most of the estimate's distance is noise."""
    world = Gaussians(40, 6, seed=0)
    uniform = torch.full((40,), 1 / 40, dtype=torch.float64)
    monkeypatch.setattr("balpoe.deployment.tracker_state.SIGNIFICANCE", 2)  # use it in any case
    for _ in range(5):
        tracker = track_prior(uniform, half_life=200, every=200)
        tracker.update(world.log_likelihood(world.sample(uniform, 200)[0]))
        used, found = (float((each - uniform).abs().sum()) for each in (tracker.prior, tracker.estimate))
        assert used < 0.6 * found


def test_bands_hold_the_shares(world):
    held = []
    for seed in range(40):
        tracker = track_prior(UNIFORM, half_life=300, every=600, seed=seed)
        tracker.update(stream(world, SKEWED, 600)[0])
        low, high = tracker.band
        held += ((low <= torch.tensor(SKEWED)) & (torch.tensor(SKEWED) <= high)).tolist()
    assert 0.88 <= np.mean(held) <= 0.995


def test_images_that_have_changed_are_told_and_change_nothing(world):
    tracker = track_prior(UNIFORM, half_life=300, every=300, validation=validation(world, 150), num_resamples=40)
    with pytest.warns(UserWarning, match="no label prior explains the latest samples of the stream"):
        prior = tracker.update(0.3 * stream(world, SKEWED, 600)[0])
    assert tracker.changed
    assert torch.equal(prior, UNIFORM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.update(0.3 * stream(world, SKEWED, 300)[0])  # said once


def test_a_half_life_in_time(world):
    logits, _ = stream(world, SKEWED, 240)
    by_number = track_prior(UNIFORM, half_life=40, every=60)
    by_time = track_prior(UNIFORM, half_life=120.0, in_time=True, every=60, most_samples=200)
    by_number.update(logits)
    by_time.update(logits, 1e9 + 3 * torch.arange(240.0, dtype=torch.float64))
    torch.testing.assert_close(by_time.estimate, by_number.estimate, atol=1e-6, rtol=0)
    assert by_time.history[-1].at == 1e9 + 3 * 239
    by_time.update(logits[:60], 2e9)  # everything before is forgotten
    torch.testing.assert_close(by_time.estimate, estimate_prior(logits[:60]).estimate, atol=1e-6, rtol=0)
    assert len(by_time.logits) == 60


def test_one_number_bends_the_training_prior(world):
    train = long_tail(CLASSES, 20)
    tracker = track_prior(UNIFORM, half_life=100, every=200, family="tempered", train_prior=train)
    logits, _ = stream(world, tempered_prior(train, -1.0).tolist(), 200)
    tracker.update(logits)
    weights = 0.5 ** (torch.arange(199, -1, -1) / 100)
    found = estimate_prior(logits, weights=weights, family="tempered", train_prior=train)
    torch.testing.assert_close(tracker.prior, found.prior, atol=1e-4, rtol=0)
    assert tracker.band.shape == (2, CLASSES)
    assert bool(((tracker.band[0] <= tracker.estimate) & (tracker.estimate <= tracker.band[1])).all())
    torch.testing.assert_close(tracker.adjust(logits), shift_prior(logits, tracker.prior, UNIFORM))


def test_mistakes(world, tmp_path):
    logits, _ = stream(world, SKEWED, 10)
    for options, sentence in (
        ({"half_life": 0}, "half_life must be above 0, but is 0"),
        ({"half_life": float("nan")}, "half_life must be a finite number, but is nan"),
        ({"half_life": "long"}, "half_life must be a number, but is 'long'"),
        ({"half_life": 5, "every": 0}, "every must be at least 1"),
        ({"half_life": 5, "start_prior": [0.5, 0.5]}, "start_prior has 2 entries, but there are 4 classes"),
        ({"half_life": 5, "family": "tempered"}, "give train_prior"),
        ({"half_life": 5, "num_resamples": 0}, "num_resamples must be at least 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            track_prior(UNIFORM, **options)
    plain, timed = track_prior(UNIFORM, half_life=5), track_prior(UNIFORM, half_life=5, in_time=True)
    for tracker, arguments, sentence in (
        (plain, (logits[:, :2],), "logits have 2 classes, but the prior has 4"),
        (plain, (logits * float("nan"),), "logits must be finite, but are not in sample 0"),
        (plain, (logits, 5.0), "half_life is in samples; leave times out"),
        (timed, (logits,), "half_life is in time; give times"),
        (timed, (logits, [1.0, 2.0]), "times must be a number for each of the 10 samples"),
        (timed, (logits, list(range(10, 0, -1))), "times must not go back"),
    ):
        with pytest.raises(UserError, match=sentence):
            tracker.update(*arguments)
    timed.update(logits, 5.0)
    with pytest.raises(UserError, match="times must not go back"):
        timed.update(logits, 4.0)
    np.savez(tmp_path / "other.npz", prior=[0.5, 0.5])
    with pytest.raises(UserError, match=r"other\.npz is not the state of a tracker"):
        PriorTracker.load(tmp_path / "other.npz")
    with pytest.raises(UserError, match="cannot read"):
        PriorTracker.load(tmp_path / "none.npz")


def test_the_latest_steps_alone_are_remembered(world, monkeypatch):
    monkeypatch.setattr("balpoe.deployment.prior_tracking.HISTORY", 3)
    tracker = track_prior(UNIFORM, half_life=10, every=10, num_resamples=2)
    tracker.update(stream(world, SKEWED, 60)[0])
    assert [step.at for step in tracker.history] == [40, 50, 60]
    assert all(later.at > earlier.at for earlier, later in itertools.pairwise(tracker.history))
