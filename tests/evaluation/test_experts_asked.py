"""How many experts were asked: by group, saved and read back, and in words."""

from dataclasses import replace

import pytest
import torch

from balpoe import Predictions, UserError
from balpoe.evaluation.experts_asked import asked_by_group, router_notes
from balpoe.evaluation.shifted_tests import full_evaluation
from made_predictions import make

ASKED = torch.arange(300) % 3 + 1


def routed():
    return replace(make(300, 5), experts_asked=ASKED, multiply_adds=60, multiply_adds_of_all=80)


def test_means_by_shot_group_are_those_of_a_loop():
    predictions = routed()
    for few, many in ((20, 100), (0, 10**9)):
        found, by_group = asked_by_group(predictions, (few, many)), {"all": [], "many": [], "medium": [], "few": []}
        for label, asked in zip(predictions.targets.tolist(), ASKED.tolist(), strict=True):
            count = int(predictions.class_counts[label])
            name = "few" if count < few else "many" if count > many else "medium"
            by_group[name].append(asked)
            by_group["all"].append(asked)
        for name, each in by_group.items():
            assert found[name] == (pytest.approx(sum(each) / len(each)) if each else None)


def test_saved_and_read_back(tmp_path):
    predictions = routed()
    predictions.save(tmp_path)
    again = Predictions.load(tmp_path)
    assert torch.equal(again.experts_asked, ASKED)
    assert again.multiply_adds_of_all == 80
    assert torch.equal(again.subset(torch.tensor([5, 0])).experts_asked, ASKED[[5, 0]])
    make(300, 5).save(tmp_path)
    assert Predictions.load(tmp_path).experts_asked is None


@pytest.mark.parametrize("wrong", [ASKED[:-1], ASKED - 1, ASKED + 1, ASKED.float()])
def test_numbers_that_cannot_be(wrong):
    with pytest.raises(UserError, match="experts_asked must be a number from 1 to 3 for each of the 300 samples"):
        replace(make(300, 5), experts_asked=wrong)


def test_what_is_said_is_the_mean_over_the_seeds():
    more = replace(routed(), experts_asked=torch.full((300,), 3), multiply_adds=84)
    whole = replace(routed(), experts_asked=None)
    evaluations = [full_evaluation(each, (20, 100), whole) for each in (routed(), more)]
    (note,) = router_notes(evaluations)
    assert note.startswith("The router asked 2.50 of 3 experts a sample (")
    assert ": 90 % of the multiply-adds of all; balanced accuracy " in note
    theirs = 100 * evaluations[0]["router"]["with_all_experts"]["balanced_accuracy"]
    assert note.endswith(f"and {theirs:.1f} % with all experts asked.")
    (short,) = router_notes([full_evaluation(routed(), (20, 100))])
    assert short.endswith("75 % of the multiply-adds of all.")
    assert router_notes([full_evaluation(make(300, 5), (20, 100))]) == []
