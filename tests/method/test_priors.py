import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError, class_counts, class_prior, equidistant_lambdas, logit_offsets, tempered_prior
from balpoe.method.priors import checked_prior

positive = st.lists(st.floats(1e-8, 1.0), min_size=2, max_size=8)
lambda_ = st.floats(-3, 3)


def test_class_counts_of_every_kind_of_sequence():
    expected = [2, 0, 1]
    for labels in ([0, 2, 0], np.array([0, 2, 0], dtype=np.int16), torch.tensor([0, 2, 0], dtype=torch.uint8)):
        assert class_counts(labels).tolist() == expected
    assert class_counts([0, 2, 0], num_classes=5).tolist() == [2, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "sentence"),
    [
        ([0, -3, 1], None, "label -3 of sample 1 is negative"),
        ([0.0, 1.5], None, "whole numbers"),
        ([True, False], None, "whole numbers"),
        ([[0, 1]], None, r"shape \(1, 2\)"),
        ([0, 7], 5, "label 7 of sample 1 is outside the 5 classes"),
    ],
)
def test_wrong_labels_are_told_in_one_sentence(labels, classes, sentence):
    with pytest.raises(UserError, match=sentence):
        class_counts(labels, classes)


def test_effective_number_against_the_formula_in_the_open():
    counts, beta = [5000, 500, 50, 5, 1], 0.9999
    effective = [(1 - beta**n) / (1 - beta) for n in counts]
    expected = [value / sum(effective) for value in effective]
    assert class_prior(counts, method="effective").tolist() == pytest.approx(expected, rel=1e-6)
    # With beta 0 every class counts as one sample; towards 1 the effective number is the number.
    assert class_prior(counts, method="effective", beta=0.0).tolist() == pytest.approx([0.2] * 5)
    near_one = class_prior(torch.tensor(counts).double(), method="effective", beta=1 - 1e-12)
    assert near_one.tolist() == pytest.approx(class_prior(torch.tensor(counts).double()).tolist(), rel=1e-6)


def test_smoothing_adds_to_each_count():
    assert class_prior([8, 0], smoothing=1).tolist() == pytest.approx([0.9, 0.1])
    assert class_prior([0, 0], smoothing=1).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([3, float("nan")], "must be finite, but is nan for class 1"),
        ([3, float("inf")], "must be finite, but is inf for class 1"),
        ([3, -1], "class 1 has a negative count of -1"),
        ([0, 0], "all class counts are zero"),
        ([5, 0, 2], "class 1 has no training sample"),
        ([[1, 2]], "one row of numbers"),
    ],
)
def test_wrong_counts_are_told_in_one_sentence(counts, sentence):
    with pytest.raises(UserError, match=sentence):
        class_prior(counts)


def test_other_wrong_arguments_of_class_prior():
    with pytest.raises(UserError, match="did you mean 'effective'"):
        class_prior([1, 2], method="efective")
    with pytest.raises(UserError, match="smoothing must be"):
        class_prior([1, 2], smoothing=-1)
    with pytest.raises(UserError, match="beta must lie"):
        class_prior([1, 2], method="effective", beta=1.0)


@given(positive, lambda_)
def test_tempered_prior_against_the_definition(weights, value):
    prior = torch.tensor(weights, dtype=torch.float64)
    prior = prior / prior.sum()
    powers = [float(p) ** value for p in prior]
    expected = [power / math.fsum(powers) for power in powers]
    assert tempered_prior(prior, value).tolist() == pytest.approx(expected, rel=1e-9)


@given(positive, st.lists(lambda_, min_size=1, max_size=4))
def test_tempered_prior_and_offsets_stay_finite_in_float32(weights, values):
    prior = torch.tensor(weights)
    tempered = tempered_prior(prior, values)
    assert tempered.dtype == torch.float32
    assert tempered.shape == (len(values), len(weights))
    assert torch.isfinite(tempered.log()).all()
    torch.testing.assert_close(tempered.sum(dim=1), torch.ones(len(values)))
    assert torch.isfinite(logit_offsets(prior, values)).all()


def test_lambdas_as_number_vector_and_matrix():
    prior = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    matrix = torch.tensor([[1.0, 0.5, 0.0], [-1.0, 2.0, 0.3]])
    assert tempered_prior(prior, 1).tolist() == pytest.approx(prior.tolist())
    assert tempered_prior(prior, 0).tolist() == pytest.approx([1 / 3] * 3)
    for expert in range(2):
        powers = prior ** matrix[expert]
        torch.testing.assert_close(tempered_prior(prior, matrix)[expert], powers / powers.sum())
        expected = [(1 - float(matrix[expert, c])) * math.log(prior[c]) for c in range(3)]
        assert logit_offsets(prior, matrix)[expert].tolist() == pytest.approx(expected, rel=1e-6)
    assert logit_offsets(prior, 0.0).shape == (1, 3)


def test_counts_are_as_good_as_their_shares():
    """With one lambda per class a common factor of the prior is not a constant that the softmax removes."""
    counts, matrix = torch.tensor([70.0, 20.0, 10.0], dtype=torch.float64), [[1.0, 0.5, 0.0], [-1.0, 2.0, 0.3]]
    for function in (logit_offsets, tempered_prior):
        torch.testing.assert_close(function(counts, matrix), function(counts / 100, matrix))


def test_a_given_prior_is_divided_by_its_sum():
    given = torch.tensor([0.50004, 0.3, 0.2], dtype=torch.float64)  # as rounding leaves it
    torch.testing.assert_close(checked_prior(given, 3, "prior"), given / given.sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("lambdas", "sentence"),
    [
        ((1, float("nan")), "finite"),
        ((), "shape"),
        ([[1.0, 0.0]], "2 entries per expert, but there are 3 classes"),
    ],
)
def test_wrong_lambdas(lambdas, sentence):
    with pytest.raises(UserError, match=sentence):
        logit_offsets([0.5, 0.3, 0.2], lambdas)


def test_a_zero_in_the_training_prior_is_named():
    with pytest.raises(UserError, match="class 1"):
        logit_offsets([0.5, 0.0, 0.5], (1, 0))


def test_equidistant_lambdas_are_the_papers():
    assert equidistant_lambdas(1) == (0.0,)
    assert equidistant_lambdas(2) == (1.0, -1.0)
    assert equidistant_lambdas(3) == (1.0, 0.0, -1.0)
    assert equidistant_lambdas(7) == pytest.approx([1, 2 / 3, 1 / 3, 0, -1 / 3, -2 / 3, -1])
    assert equidistant_lambdas(3, mean=-0.25, spread=1.25) == (1.0, -0.25, -1.5)  # ImageNet-LT
    assert equidistant_lambdas(3, spread=2) == (2.0, 0.0, -2.0)  # iNaturalist
    with pytest.raises(UserError, match="at least 1"):
        equidistant_lambdas(0)
