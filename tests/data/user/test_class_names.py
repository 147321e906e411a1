import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.data.user.class_names import (
    capitals_notes,
    check_classes,
    class_indices,
    class_name,
    natural_order,
    some_of,
)


@given(st.lists(st.integers(0, 10**30)))
def test_numbers_are_ordered_by_value(numbers):
    assert natural_order(map(str, numbers)) == tuple(map(str, sorted(set(numbers))))


def test_text_and_numbers_are_ordered_piece_by_piece():
    names = ["a", "a1", "a1b", "a2", "a02", "a10", "b", "b 1", "b 1.9", "b 1.10", "Ä", "杉"]
    shuffled = random.Random(0).sample(names, len(names))
    assert natural_order(shuffled) == ("a", "a1", "a1b", "a02", "a2", "a10", "b", "b 1", "b 1.9", "b 1.10", "Ä", "杉")


def test_more_digits_than_python_turns_into_a_number():
    long = "9" * 5000
    assert natural_order(["1" + long, long]) == (long, "1" + long)


@pytest.mark.slow
@given(st.lists(st.text(max_size=4)))
def test_the_order_does_not_depend_on_how_names_come(names):
    assert natural_order(names) == natural_order(reversed(names))
    assert sorted(natural_order(names)) == sorted(set(names))


@pytest.mark.parametrize(
    ("typed", "name"), [("cafe\u0301", "caf\u00e9"), ("가", "가"), (" oak\t", "oak"), ("ﬁr", "ﬁr"), ("Oak", "Oak")]
)
def test_one_spelling(typed, name):
    assert class_name(typed) == name


def test_numbers_of_labels():
    labels = ["b", "a", "c", "b"]
    targets = class_indices(labels, ("c", "b", "a"))
    assert targets.tolist() == [1, 2, 0, 1]
    assert class_indices([], ("a",)).shape == (0,)


def test_classes_that_cannot_be_learnt():
    check_classes(["a", "b"], ["b"], "here")
    with pytest.raises(UserError, match=r"^here has one class only, 'a'; "):
        check_classes(["a", "a"], [], "here")
    with pytest.raises(UserError, match=r"^here: no training sample for 'c', 'd', 'e' and 1 more, which the test"):
        check_classes(["a", "b"], ["a", "c", "d", "e", "f"], "here")


def test_a_few_names():
    assert some_of(["a"]) == "'a'"
    assert some_of(["a\n", "b"], most=1) == "'a\\n' and 1 more"
    assert some_of(list(map(str, range(2000)))).endswith("and 1,997 more")


def test_names_that_differ_only_in_capitals():
    assert capitals_notes(["oak", "Oak 1", "öl"]) == []
    (note,) = capitals_notes(["Öl", "öl", "ÖL", *"aAbBcCdD", "oak"])
    assert "capitals: 'A' (1) and 'a' (1), 'B' (1) and 'b' (1), 'C' (1) and 'c' (1) and 2 more; if they" in note
    (note,) = capitals_notes(["Öl", "öl", "ÖL", "öl"])
    assert "'ÖL' (1) and 'Öl' (1) and 'öl' (2);" in note
