"""An evaluation that somebody has changed is refused, whatever was changed."""

import copy
import json

import pytest

from balpoe import Predictions, evaluate
from balpoe.evaluation.saved import current_evaluation, is_evaluation
from balpoe.evaluation.shifted_tests import full_evaluation
from made_predictions import make

WHOLE = json.loads(json.dumps(full_evaluation(make(300, 5), (20, 100))))


def test_what_is_written_is_taken():
    assert is_evaluation(WHOLE, experts=3)
    assert not is_evaluation(WHOLE, experts=2)
    missing = make(300, 5)
    missing = missing.subset(missing.targets != 4)
    assert is_evaluation(json.loads(json.dumps(full_evaluation(missing, (20, 100)))), experts=3)
    assert not is_evaluation(evaluate(missing, num_resamples=0).to_dict(), experts=3)  # no shifted test sets


def test_logits_that_are_no_posterior_have_no_adjusted_accuracy():
    made = make(300, 5)
    free = full_evaluation(Predictions(made.expert_logits, made.targets, made.class_counts), (20, 100))
    assert [row["as_trained"] for row in free["shifted"]] == [row["as_trained"] for row in WHOLE["shifted"]]
    assert {row["adjusted"] for row in free["shifted"]} == {None}
    free = json.loads(json.dumps(free))
    assert is_evaluation(free, experts=3)
    del free["shifted"][0]["adjusted"]
    assert not is_evaluation(free, experts=3)


def test_a_file_with_old_names_is_read():
    rows = [{**row, "not_told": row["as_trained"], "told": row["adjusted"]} for row in WHOLE["shifted"]]
    for row in rows:
        del row["as_trained"], row["adjusted"]
    old = {**WHOLE, "shifted": rows}
    assert not is_evaluation(old, experts=3)
    assert current_evaluation(old) == WHOLE == current_evaluation(WHOLE)
    assert current_evaluation({"shifted": 3}) == {"shifted": 3}


def places(value, path=()):
    """Every place of a JSON value, of lists the first and the last."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for number in {0, len(value) - 1}:
            yield from places(value[number], (*path, number))


@pytest.mark.parametrize("wrong", ["x", [], {}, True, 10**400, float("nan")], ids=repr)
def test_a_wrong_value_anywhere_is_refused(wrong):
    checked = 0
    for path in places(WHOLE):
        if not path:
            continue
        damaged = copy.deepcopy(WHOLE)
        holder = damaged
        for key in path[:-1]:
            holder = holder[key]
        if holder[path[-1]] == wrong or (path[-1] == "name" and isinstance(wrong, str)):
            continue
        if path == ("intervals",) and wrong == {}:
            continue  # no intervals were asked for
        holder[path[-1]] = wrong
        assert not is_evaluation(damaged, experts=3), path
        checked += 1
    assert checked > 100


def test_a_missing_part_is_refused():
    for key in WHOLE:
        rest = {name: value for name, value in WHOLE.items() if name != key}
        assert is_evaluation(rest, experts=3) == (key == "rarest_third"), key  # which earlier versions did not write
