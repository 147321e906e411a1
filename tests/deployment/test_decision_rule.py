"""The rule: the answer of least expected cost, against sums in the open, and through a file."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.deployment import posteriors
from balpoe.deployment.decision_rule import DecisionRule
from tensor_sizes import TensorSizes


def slow_answers(probabilities, costs):
    """Every expected cost, summed in the open; the first of the least, but for rounding."""
    answers = []
    for row in probabilities.tolist():
        expected = [sum(p * costs[y][a] for y, p in enumerate(row)) for a in range(len(costs[0]))]
        answers.append(next(a for a, cost in enumerate(expected) if cost <= min(expected) + 1e-12))
    return answers


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(0, 3))
def test_against_sums_in_the_open(seed, classes, more):
    generator = torch.Generator().manual_seed(seed)
    costs = torch.rand(classes, classes + more, generator=generator, dtype=torch.float64)
    costs[range(classes), range(classes)] = -torch.rand(classes, generator=generator, dtype=torch.float64)
    logits = 2 * torch.randn(20, classes, generator=generator, dtype=torch.float64)
    rule = DecisionRule(tuple(map(str, range(classes))), costs)
    assert rule(logits).tolist() == slow_answers(logits.softmax(dim=1), costs.tolist())


@given(st.integers(0, 10_000), st.booleans())
def test_costs_of_missing_are_a_matrix(seed, abstains):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(5, generator=generator, dtype=torch.float64)
    charges = torch.rand(5, generator=generator, dtype=torch.float64) / 5
    matrix = weights[:, None] * (1 - torch.eye(5)) + charges
    abstain_cost = float(weights.mean()) / 2 if abstains else None
    logits = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    rule = DecisionRule(tuple("abcde"), weights, charges, abstain_cost)
    if abstains:
        matrix = torch.cat([matrix, torch.full((5, 1), abstain_cost)], dim=1)
        assert rule.answers == (*"abcde", "abstain")
    assert rule(logits).tolist() == slow_answers(logits.softmax(dim=1), matrix.tolist())
    without = DecisionRule(tuple("abcde"), weights)
    plain = (weights[:, None] * (1 - torch.eye(5))).tolist()
    assert without(logits).tolist() == slow_answers(logits.softmax(dim=1), plain)


@pytest.mark.parametrize("costs", [torch.ones(4), 1 - torch.eye(4)], ids=["weights", "matrix"])
def test_ties_go_to_the_first(costs):
    logits = torch.tensor([[0.0, 0, 0, 0], [-1, 3, 3, 3], [0.3, 0.1, 0.3, 0.3]])
    assert DecisionRule(tuple("abcd"), costs)(logits).tolist() == [0, 1, 0]


def test_costs_that_differ_by_rounding_are_equal():
    """The same numbers in another order: where classes are alike, all answers cost the same but for rounding."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(7, generator=generator, dtype=torch.float64)
    costs = torch.stack([numbers[torch.randperm(7, generator=generator)] for _ in range(40)], dim=1)
    rule = DecisionRule(tuple("abcdefg"), costs, answers=tuple(map(str, range(40))))
    assert len(rule.expected_costs(torch.full((1, 7), 1 / 7, dtype=torch.float64)).unique()) > 1
    assert rule(torch.zeros(1, 7)).tolist() == [0]


def test_blocks_do_not_matter(monkeypatch):
    logits, rule = torch.randn(1000, 7), DecisionRule(tuple("abcdefg"), 1 - torch.eye(7))
    at_once = rule(logits)
    monkeypatch.setattr(posteriors, "BLOCK_VALUES", 50)
    assert torch.equal(rule(logits), at_once)
    assert rule(logits[:0]).shape == (0,)


@pytest.mark.parametrize("costs", [torch.ones(9), 1 - torch.eye(9)], ids=["weights", "matrix"])
def test_memory_does_not_grow_with_the_rows(costs, tmp_path, monkeypatch):
    monkeypatch.setattr(posteriors, "BLOCK_VALUES", 900)
    rule, largest = DecisionRule(tuple("abcdefghi"), costs), []
    for rows in (300, 850):
        np.save(tmp_path / "logits.npy", np.random.default_rng(0).normal(size=(rows, 9)).astype("float32"))
        with TensorSizes() as made:
            rule(np.load(tmp_path / "logits.npy", mmap_mode="r"))
        largest.append(max(made.sizes))
    assert largest == [900, 900]  # a block, of which the answers to all samples have fewer


def test_a_rule_has_its_prior_with_it():
    logits = torch.tensor([[1.0, 0.0]])
    assert DecisionRule(("a", "b"), [1, 1], target_prior=[0.1, 0.9])(logits).tolist() == [1]
    assert DecisionRule(("a", "b"), [1, 1])(logits, source_prior=[0.9, 0.1]).tolist() == [1]


@pytest.mark.parametrize(
    "rule",
    [
        DecisionRule(("a", "b"), [1, 3], [0.1, 0], target_prior=[0.3, 0.7], metric="macro_f1", notes=("so",)),
        DecisionRule(("a", "b"), [[0, 1], [1, 0]], abstain_cost=0.2),
        DecisionRule(("a", "b"), [1, 2], abstain_cost=0.2),
        DecisionRule(("a", "b"), [[0, 1, 2], [1, 0, 2]], answers=("x", "y", "z")),
    ],
    ids=["charges", "matrix", "abstains", "named"],
)
def test_through_a_file(rule, tmp_path):
    rule.save(tmp_path / "rule.json")
    again, logits = DecisionRule.load(tmp_path / "rule.json"), torch.randn(50, 2)
    assert (again.answers, again.metric, again.notes) == (rule.answers, rule.metric, rule.notes)
    assert torch.equal(again(logits), rule(logits))


def test_bad_files_and_arguments(tmp_path):
    for text in ("{}", "[]", json.dumps({"class_names": ["a"], "costs": [1, 2], "notes": []})):
        (tmp_path / "rule.json").write_text(text)
        with pytest.raises(UserError, match=r"rule\.json"):
            DecisionRule.load(tmp_path / "rule.json")
    with pytest.raises(UserError, match="the logits have 3 classes, but 2 are wanted"):
        DecisionRule(("a", "b"), [1, 1])(torch.zeros(1, 3))
    with pytest.raises(UserError, match="abstain_cost must be a finite number"):
        DecisionRule(("a", "b"), [1, 1], abstain_cost=float("nan"))
    for wrong, shown in (("0.1", "'0.1'"), ([0.1], "0.1"), (torch.ones(2), "tensor"), (1j, "1j"), (True, "True")):
        with pytest.raises(UserError, match=f"abstain_cost must be a number, but is {shown}"):
            DecisionRule(("a", "b"), [1, 1], abstain_cost=wrong)
    with pytest.raises(UserError, match="charges must be"):
        DecisionRule(("a", "b"), [1, 1], charges=[1])
