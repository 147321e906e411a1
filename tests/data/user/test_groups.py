import pytest
import torch

from balpoe import UserError
from balpoe.data.user.groups import ARRAY, PATTERN, TABLE, group_notes, group_numbers, matched_groups


def test_the_first_parentheses_or_all_of_it():
    names = ["ash/p12_1.png", "elm/p3_1.png", "elm/x.png"]
    assert matched_groups(r"p\d+", names) == ("p12", "p3", "")
    assert matched_groups(r"p(\d+)_(\d)", names) == ("12", "3", "")
    assert matched_groups(r"(q)?/", names) == ("", "", "")
    with pytest.raises(UserError, match=r"--group 'p\(' is no regular expression"):
        matched_groups("p(", names)


def test_numbers_are_equal_where_groups_are_and_never_for_samples_in_none():
    groups = ["b", "", "a", "b", "", "a\0"]
    numbers = group_numbers(groups).tolist()
    for i, first in enumerate(groups):
        for j, second in enumerate(groups):
            assert (numbers[i] == numbers[j]) == (i == j or (first == second != "")), (i, j)
    assert group_numbers([]).tolist() == []


def notes(groups, targets, said_by=PATTERN):
    return "\n".join(group_notes(groups, torch.tensor(targets), ("ash", "elm"), said_by))


def test_groups_of_each_class_are_counted():
    text = notes(["a", "a", "b", "", "c", "c"], [0, 0, 0, 0, 1, 1])
    assert "groups, which stay on one side of every split: 3 (ash 3, elm 1)" in text
    assert "samples in no group, each of which stands for itself: 1" in text
    assert "join" not in text
    assert "check --group" not in text


def test_a_pattern_that_joins_classes_or_tells_nothing_apart():
    text = notes(["a", "a", "b", "b"], [0, 1, 0, 0])
    assert "groups that join several classes: 1 of 2 ('a')" in text
    assert text.endswith("anew in each class: --group '(.*)_' keeps the folder in the group")
    assert "one group only, 'a'" in notes(["a", "a", "", ""], [0, 0, 1, 1])
    assert "no group has a second sample" in notes(["a", "b", "c", "d"], [0, 0, 1, 1])


@pytest.mark.parametrize(("said_by", "words"), [(TABLE, "the table's column of groups"), (ARRAY, "the array groups")])
def test_groups_that_no_pattern_gave_are_to_be_made_right_where_they_are(said_by, words):
    text = notes(["a", "a", "b", "b"], [0, 1, 0, 0], said_by)
    assert text.endswith(f"wrong for numbers that begin anew in each class: make them unique in {words}")
    for groups in (["a", "a", "", ""], ["a", "b", "c", "d"]):
        text = notes(groups, [0, 0, 1, 1], said_by)
        assert f"check {words}" in text
        assert "--group" not in text
