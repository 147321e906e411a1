import math

import pytest
import torch

from balpoe import UserError
from balpoe.data.long_tail import (
    held_out_indices,
    long_tailed_counts,
    long_tailed_indices,
    shifted_test_counts,
    unused_indices,
)

# CIFAR-LT as the field has it: total, largest, smallest, and the classes of each shot group
CIFAR = {
    (100, 10): (19_573, 500, 50, 69, 31, 0),
    (100, 50): (12_608, 500, 10, 41, 41, 18),
    (100, 100): (10_847, 500, 5, 35, 35, 30),
    (10, 10): (20_431, 5000, 500, 10, 0, 0),
    (10, 50): (13_996, 5000, 100, 9, 1, 0),
    (10, 100): (12_406, 5000, 50, 8, 2, 0),
}


@pytest.mark.parametrize(("classes", "ratio"), CIFAR)
def test_counts_of_cifar_lt(classes, ratio):
    counts = long_tailed_counts(classes, 50_000 // classes, ratio)
    many = sum(count > 100 for count in counts)
    few = sum(count < 20 for count in counts)
    assert (sum(counts), max(counts), min(counts), many, classes - many - few, few) == CIFAR[classes, ratio]


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
        (50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
        (100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
    ],
)
def test_counts_of_cifar10_lt_class_by_class(ratio, expected):
    assert long_tailed_counts(10, 5000, ratio) == expected


def test_step_profile():
    assert long_tailed_counts(4, 100, 10, "step") == [100, 100, 10, 10]
    assert long_tailed_counts(5, 100, 10, "step") == [100, 100, 100, 10, 10]
    assert long_tailed_counts(3, 7, 1) == [7, 7, 7]
    for largest in range(1, 300):  # the smallest class keeps one sample at a ratio of the largest count
        assert long_tailed_counts(3, largest, largest)[-1] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((10, 100, 0.01), "at least 1, but is 0.01; did you mean 100?"),
        ((10, 100, -5), "at least 1, but is -5"),
        ((10, 100, float("nan")), "at least 1"),
        ((10, 100, 1000), "class 7 would keep no sample of 100; use a ratio of at most 100"),
        ((10, 100, 10, "stairs"), "unknown profile 'stairs'"),
    ],
)
def test_wrong_arguments(arguments, sentence):
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        long_tailed_counts(*arguments)


def test_selection_is_the_reference_s():
    """The rule in its own words: numpy's global generator with seed 0, one shuffle per class."""
    import numpy as np

    targets = np.random.default_rng(3).integers(0, 5, 200)
    counts = [20, 15, 10, 5, 2]
    np.random.seed(0)
    expected = []
    for label in range(5):
        samples = np.where(targets == label)[0]
        np.random.shuffle(samples)
        expected.extend(samples[: counts[label]].tolist())
    assert long_tailed_indices(torch.from_numpy(targets), counts).tolist() == expected
    with pytest.raises(UserError, match="class 0 has"):
        long_tailed_indices(torch.from_numpy(targets), [1000])


@pytest.mark.parametrize(("ratio", "size"), [(50, 2486), (25, 2956), (10, 3876), (5, 4932), (2, 7166)])
def test_sizes_of_the_shifted_cifar100_test_sets(ratio, size):
    train, test = torch.tensor(long_tailed_counts(100, 500, 100)), torch.full((100,), 100)
    forward = shifted_test_counts(train, test, ratio, "forward")
    backward = shifted_test_counts(train, test, ratio, "backward")
    assert sum(forward) == sum(backward) == size
    assert forward == backward[::-1] == long_tailed_counts(100, 100, ratio)
    assert min(forward) == {50: 2, 25: 4, 10: 10, 5: 20, 2: 50}[ratio]


def test_classes_are_ranked_by_training_count():
    train, test = torch.tensor([5, 500, 50, 50]), torch.full((4,), 8)
    forward = shifted_test_counts(train, test, 8, "forward")
    assert forward == [1, 8, 4, 2]  # equal counts in label order
    assert shifted_test_counts(train, test, 8, "backward") == [8, 1, 2, 4]
    with pytest.raises(UserError, match="did you mean 'backward'"):
        shifted_test_counts(train, test, 8, "backwards")


def test_pareto_is_a_power_of_the_rank():
    counts = long_tailed_counts(100, 1_000_000, 100, "pareto")
    assert counts[0] == 1_000_000
    assert counts[-1] == 10_000
    slopes = {round(math.log(counts[0] / counts[rank]) / math.log(rank + 1), 3) for rank in (1, 9, 99)}
    assert slopes == {1.0}


def test_what_is_held_out_is_not_kept_and_what_is_unused_is_behind_it():
    targets = torch.arange(60) % 3
    counts = [18, 10, 2]
    kept, held_out = held_out_indices(targets, counts, per_class=4)
    assert torch.bincount(targets[kept]).tolist() == [16, 10, 2]  # class 0 has only two others, and gives up two
    assert torch.bincount(targets[held_out]).tolist() == [4, 4, 4]
    assert not set(kept.tolist()) & set(held_out.tolist())
    subset, unused = long_tailed_indices(targets, counts), unused_indices(targets, counts, per_class=4)
    assert torch.bincount(targets[unused]).tolist() == [2, 4, 4]
    assert not set(subset.tolist()) & set(unused.tolist())
    assert set(kept.tolist()) <= set(subset.tolist())
