import numpy as np
import pytest

from balpoe.data.user.neighbours import Share, nearest, neighbour_accuracy, neighbour_share


@pytest.fixture
def points():
    random = np.random.default_rng(0)
    targets, groups = random.integers(0, 3, 1300), random.integers(0, 9, 1300)
    return random.normal(size=(1300, 4)).astype(np.float32), targets, groups


def slow_nearest(features, allowed):
    found = []
    for row, here in enumerate(features.astype(float)):
        distances = [
            np.square(here - there).sum() if allowed(row, other) else np.inf
            for other, there in enumerate(features.astype(float))
        ]
        found.append(int(np.argmin(distances)) if min(distances) < np.inf else -1)
    return found


def test_nearest_against_a_loop(points):
    features, targets, groups = (each[:150] for each in points)
    targets[:1] = 7  # alone in its class
    found = nearest(features, lambda rows: (targets[rows, None] == targets) & (groups[rows, None] != groups))
    assert found.tolist() == slow_nearest(features, lambda a, b: targets[a] == targets[b] and groups[a] != groups[b])
    assert found[0] == -1


def test_blocks_of_rows_are_put_together(points):
    features, _, groups = points
    found = nearest(features, lambda rows: groups[rows, None] != groups)
    apart = np.where(groups[:, None] != groups, np.square(features[:, None] - features).sum(axis=2), np.inf)
    assert np.mean(found == apart.argmin(axis=1)) > 0.999  # but for ties by rounding


def test_accuracy_of_neighbours_outside_of_ones_own_part(points):
    features, targets, groups = (each[:150] for each in points)
    counted = groups != 3
    neighbours = slow_nearest(features, lambda a, b: groups[a] != groups[b])
    right = {
        label: [targets[neighbours[row]] == label for row in range(150) if counted[row] and targets[row] == label]
        for label in range(3)
    }
    expected = np.mean([np.mean(each) for each in right.values()])
    assert neighbour_accuracy(features, targets, groups, counted) == pytest.approx(expected)


def test_the_expected_share_is_that_of_a_random_member_of_the_class():
    targets = np.repeat([0, 1], [60, 40])
    groups = np.concatenate([np.repeat(np.arange(6), 10), np.repeat(np.arange(6, 16), 4)])
    random = np.random.default_rng(0)
    neighbours = np.array([random.choice(np.flatnonzero((targets == t) & (np.arange(100) != i)))
                           for i, t in enumerate(targets)])  # fmt: skip
    share = neighbour_share(neighbours, groups, targets, np.arange(100), random)
    assert share.observed == np.mean(groups == groups[neighbours])
    assert share.expected == pytest.approx(0.6 * 9 / 59 + 0.4 * 3 / 39, abs=0.01)
    assert not share.is_beyond_random


def test_what_stays_together_is_drawn_together():
    """Ten finer groups in two coarse ones are ten observations, not a hundred, and prove little."""
    targets, finer = np.zeros(100, dtype=int), np.repeat(np.arange(10), 10)
    coarse = finer // 5
    neighbours = (np.arange(100) + 10) % 50 + 50 * coarse  # another finer group of the same coarse one
    random = np.random.default_rng(0)
    together = neighbour_share(neighbours, coarse, targets, finer, random)
    apart = neighbour_share(neighbours, coarse, targets, np.arange(100), random)
    assert together.observed == apart.observed == 1
    assert together.deviation > 2 * apart.deviation
    assert apart.is_beyond_random
    assert not together.is_beyond_random


def test_nobody_has_a_neighbour():
    alone = np.full(3, -1)
    assert not neighbour_share(alone, alone, alone, np.arange(3), np.random.default_rng(0)).is_beyond_random


@pytest.mark.parametrize(
    ("share", "beyond", "strong"),
    [
        (Share(0.68, 0.05, 0.01), True, True),
        (Share(0.25, 0.05, 0.01), True, False),  # too little of what is open
        (Share(0.60, 0.30, 0.01), True, False),  # only twice as many
        (Share(0.95, 0.50, 0.01), True, True),  # two groups a class: no share is three times a half
        (Share(0.68, 0.05, 0.20), False, False),  # too few images
    ],
)
def test_what_is_far_beyond_random(share, beyond, strong):
    assert (share.is_beyond_random, share.is_strong) == (beyond, strong)
