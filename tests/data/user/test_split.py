import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.data.user.split import LEAST_EVIDENCE, split_rows, wanted_counts, without_evidence
from balpoe.method.intervals import wilson_interval

FRACTIONS = st.sampled_from([0.05, 0.1, 0.2, 0.3, 0.5])


def shuffled(counts, seed=0):
    targets = [label for label, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(targets)
    return torch.tensor(targets)


def split_or_none(*arguments, **settings):
    try:
        return split_rows(*arguments, **settings)
    except UserError:
        return None  # and the test says whether rightly


def numbers(targets, rows, classes):
    return torch.bincount(targets[rows], minlength=classes)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12).filter(lambda c: max(c) > 1), FRACTIONS, st.integers(0, 9))
def test_without_groups_each_class_gives_what_the_rule_wants(counts, fraction, seed):
    targets = shuffled(counts)
    train, test = split_rows(targets, test_fraction=fraction, seed=seed)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(targets)))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    for count, given_away in zip(counts, numbers(targets, test, len(counts)).tolist(), strict=True):
        assert given_away <= count / 2
        assert given_away >= (count >= 2)
        assert abs(given_away - fraction * count) <= max(0.5, 1 - fraction * count, fraction * count - count // 2)


def test_the_rule_in_numbers():
    assert wanted_counts(torch.tensor([1, 2, 3, 7, 8, 100]), 0.2).tolist() == [0, 1, 1, 1, 2, 20]
    assert wanted_counts(torch.tensor([1, 2, 3, 4, 5]), 0.5).tolist() == [0, 1, 1, 2, 2]


@st.composite
def grouped(draw):
    size = draw(st.integers(2, 60))
    targets = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    targets[:1] = [0]
    names = st.sampled_from(["", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"])
    return torch.tensor(targets), draw(st.lists(names, min_size=size, max_size=size))


@settings(max_examples=150)
@given(grouped(), FRACTIONS, st.integers(0, 9))
def test_groups_stay_whole_and_every_class_stays_in_training(data, fraction, seed):
    targets, groups = data
    split = split_or_none(targets, groups, test_fraction=fraction, seed=seed)
    counts = torch.bincount(targets)
    if split is None:
        for row, group in enumerate(groups):
            whole = torch.tensor(
                [other for other, name in enumerate(groups) if other == row or (name and name == group)]
            )
            assert bool((numbers(targets, whole, len(counts)) > counts // 2).any())
        return
    train, test = split
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(targets)))
    named = [{groups[row] for row in rows.tolist()} - {""} for rows in split]
    assert not named[0] & named[1]
    tested = numbers(targets, test, len(counts))
    assert bool((tested <= counts // 2).all())
    assert bool((tested[counts == 1] == 0).all())


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=4), FRACTIONS, st.integers(0, 9)
)
def test_with_groups_of_one_class_the_share_misses_by_less_than_a_group(sizes, fraction, seed):
    rows = [
        (label, f"{label}-{g}") for label, groups in enumerate(sizes) for g, n in enumerate(groups) for _ in range(n)
    ]
    targets, groups = torch.tensor([label for label, _ in rows]), [group for _, group in rows]
    split = split_or_none(targets, groups, test_fraction=fraction, seed=seed)
    held_out = {groups[row] for row in split[1].tolist()} if split else set()
    wanted = wanted_counts(torch.bincount(targets), fraction).tolist()
    for label, own in enumerate(sizes):
        taken = [size for g, size in enumerate(own) if f"{label}-{g}" in held_out]
        left = [size for g, size in enumerate(own) if f"{label}-{g}" not in held_out]
        if sum(taken) > wanted[label]:  # none fitted, so the smallest was taken
            assert taken == [min(own)]
        elif taken:
            assert wanted[label] - sum(taken) < min(left)
        else:
            assert min(own) > sum(own) // 2


def test_a_group_of_several_classes_does_not_cost_the_rare_one_its_training():
    # Group "a" holds the only sample of class 2, and "b" most of class 1: neither may go.
    targets = torch.tensor([0] * 20 + [1] * 4 + [2])
    groups = ["a"] * 5 + [""] * 15 + ["b"] * 3 + ["c"] + ["a"]
    for seed in range(20):
        _, test = split_rows(targets, groups, seed=seed)
        assert {groups[row] for row in test.tolist()} == {"", "c"}
        assert numbers(targets, test, 3).tolist() == [4, 1, 0]


@pytest.mark.parametrize("rare", [0, 1])
def test_the_class_in_the_fewest_groups_chooses_first(rare):
    # The rare class can only be tested through group "both", which uses up what the other one should give.
    targets = torch.tensor([1 - rare] * 10 + [rare] * 6)
    groups = ["both"] * 2 + [f"g{row}" for row in range(8)] + ["both"] + ["rest"] * 5
    for seed in range(20):
        _, test = split_rows(targets, groups, seed=seed)
        assert test.tolist() == [0, 1, 10]


def test_where_no_group_fits_the_smallest_goes():
    targets = torch.tensor([0] * 12 + [1])
    groups = ["five"] * 5 + ["three"] * 3 + ["four"] * 4 + [""]
    for seed in range(20):
        assert split_rows(targets, groups, test_fraction=0.1, seed=seed)[1].tolist() == [5, 6, 7]


def test_a_group_with_more_than_half_of_another_class_stays():
    # For class 0, "mixed" would do, but it holds five of the eight of class 1.
    targets = torch.tensor([0] * 4 + [1] * 8)
    groups = ["mixed"] + ["rest"] * 3 + ["mixed"] * 5 + ["own"] * 3
    assert split_rows(targets, groups)[1].tolist() == [9, 10, 11]


def test_rows_that_belong_together_join_groups():
    targets = torch.tensor([0, 1] * 20)
    groups = [f"g{row // 2}" for row in range(40)]
    for seed in range(10):
        _, test = split_rows(targets, groups, seed=seed, together=[[1, 10], [11, 30], [5, 6, 7]])
        test = set(test.tolist())
        assert test & {0, 1, 10, 11, 30, 31} in (set(), {0, 1, 10, 11, 30, 31})
        assert test & {4, 5, 6, 7} in (set(), {4, 5, 6, 7})
    alone = [split_rows(targets, seed=seed, together=[[0, 39]])[1].tolist() for seed in range(40)]
    assert any(0 in rows for rows in alone)
    assert all((0 in rows) == (39 in rows) for rows in alone)


def test_a_seed_is_a_split():
    targets = shuffled([50, 20, 3])
    splits = [tuple(split_rows(targets, seed=seed)[1].tolist()) for seed in (0, 0, 1, 2)]
    assert splits[0] == splits[1]
    assert len(set(splits)) == 3


def test_every_sample_may_be_held_out():
    targets = torch.zeros(10, dtype=torch.long)
    held_out = Counter(row for seed in range(300) for row in split_rows(targets, seed=seed)[1].tolist())
    assert set(held_out) == set(range(10))
    assert max(held_out.values()) < 2 * min(held_out.values())  # 60 each on average


def test_many_classes_and_samples():
    targets = torch.arange(40_000) % 10_000
    train, test = split_rows(targets)
    assert torch.bincount(targets[test]).tolist() == [1] * 10_000
    assert torch.bincount(targets[train]).tolist() == [3] * 10_000
    _, test = split_rows(targets, [f"g{row % 20_000}" for row in range(40_000)])
    assert torch.bincount(targets[test]).tolist() == [2] * 10_000


def test_what_cannot_be_split():
    with pytest.raises(UserError, match="no class has a sample to spare"):
        split_rows(torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match="no class has a sample to spare"):
        split_rows(torch.tensor([0, 0, 0, 1, 1]), ["a", "a", "a", "b", "b"])
    for fraction in (0, -0.1, 0.6, float("nan")):
        with pytest.raises(UserError, match=r"^test_fraction must be above 0 and at most 0\.5, but is "):
            split_rows(torch.tensor([0, 0, 1, 1]), test_fraction=fraction)
    with pytest.raises(UserError, match="there are 2 samples but 1 groups"):
        split_rows(torch.tensor([0, 1]), ["a"])


def test_the_least_evidence_is_where_an_interval_can_be_narrower_than_half_of_the_scale():
    def narrowest(total):
        hits = torch.arange(total + 1)
        low, high = wilson_interval(hits, torch.full_like(hits, total))
        return float((high - low).min())

    assert all(narrowest(total) > 0.5 for total in range(1, LEAST_EVIDENCE))
    assert narrowest(LEAST_EVIDENCE) < 0.5
    assert without_evidence(torch.arange(10)).tolist() == list(range(LEAST_EVIDENCE))
    assert without_evidence(torch.tensor([9, 10]), least=10).tolist() == [0]


@given(st.lists(st.integers(0, 2), min_size=20, max_size=60), st.integers(1, 5), st.integers(0, 99))
def test_added_samples_leave_the_others_where_they_are(labels, added, seed):
    """So many come, so many at most change sides; and the order of the rows does not count."""
    labels = [0, 0, 1, 1, 2, 2, *labels]
    names = [f"sample {row} of {seed}" for row in range(len(labels) + added)]
    before = {names[row] for row in split_rows(torch.tensor(labels), names=names[: len(labels)])[1].tolist()}
    more = labels + [added % 3] * added
    after = {names[row] for row in split_rows(torch.tensor(more), names=names)[1].tolist()}
    assert len((before ^ after) & set(names[: len(labels)])) <= added
    turned = split_rows(torch.tensor(more[::-1]), names=names[::-1])[1].tolist()
    assert {names[::-1][row] for row in turned} == after


def test_a_group_that_grows_stays_where_it_is():
    targets, groups = torch.arange(40) % 2, [f"patient {row // 4}" for row in range(40)]
    names = [f"{row * 7919 % 104729:06d}" for row in range(44)]
    before = {groups[row] for row in split_rows(targets, groups, names=names[:40])[1].tolist()}
    grown = [*groups, *[sorted(before)[0]] * 4]
    after = {grown[row] for row in split_rows(torch.arange(44) % 2, grown, names=names)[1].tolist()}
    assert len(before ^ after) <= 2
    assert sorted(before)[0] in after
