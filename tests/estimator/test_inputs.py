import numpy as np
import pandas as pd
import pytest

from balpoe.estimator.inputs import FeatureInputs, group_numbers, sample_weights


def test_weighted_features_have_mean_zero_and_deviation_one():
    """As if each sample were there as often as it weighs; what lies far out is bent towards 8."""
    X, weights = np.array([[1000.0, 0.1], [1001.0, 0.3], [1003.0, 0.2]]), np.array([1, 2, 3])
    repeated = np.repeat(X, weights, axis=0)
    standard = (X - repeated.mean(axis=0)) / repeated.std(axis=0)
    np.testing.assert_allclose(FeatureInputs(X, weights)(X), standard / np.hypot(1, standard / 8), rtol=1e-4)


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT, "", " "])
def test_a_sample_without_a_group_stands_for_itself(nothing):
    """As in a table; and a group may be called nan."""
    assert group_numbers(["b", nothing, "a", "b", nothing, "nan"], 6).tolist() == [1, 3, 0, 1, 4, 2]
    assert group_numbers([nothing] * 3, 3).tolist() == [0, 1, 2]


def test_groups_are_numbers_texts_or_both():
    assert group_numbers(np.array([3.0, np.nan, 20.0, 3.0]), 4).tolist() == [0, 2, 1, 0]
    assert group_numbers(pd.Series([20, 3, None, 20], dtype="Int64"), 4).tolist() == [1, 0, 2, 1]
    assert group_numbers([1, "a", 1, None], 4).tolist() == [0, 1, 0, 2]


def test_groups_are_told_by_several_columns():
    columns = pd.DataFrame({"patient": [2, 1, 2, 1], "eye": ["left", "left", "right", "left"]})
    structured = np.array(list(columns.itertuples(index=False)), dtype=[("patient", int), ("eye", "U5")])
    for groups in (columns.apply(tuple, axis=1), pd.MultiIndex.from_frame(columns), structured):
        assert group_numbers(groups, 4).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT, ""])
def test_what_is_missing_in_one_column_splits_no_group(nothing):
    labels = [(patient, eye) for patient in (nothing, 1, "a", 1) for eye in ("left", nothing)] * 2
    groups = pd.Series(labels, dtype=object)
    numbers = group_numbers(groups, 16).tolist()
    known = [None if number == 1 else number for number in range(8)]  # the second has nothing
    known[6:] = known[2:4]
    for place, number in enumerate(numbers):
        same = [other for other in range(16) if numbers[other] == number]
        key = known[place % 8]
        assert same == ([place] if key is None else [other for other in range(16) if known[other % 8] == key])


@pytest.mark.parametrize(
    ("weight", "message"), [(-1.0, "Negative values"), (np.inf, "contains infinity"), (np.nan, "contains NaN")]
)
def test_one_weight_for_all_is_checked_as_many_are(weight, message):
    np.testing.assert_array_equal(sample_weights(2, 3), [2, 2, 2])
    for weights in (weight, [weight]):
        with pytest.raises(ValueError, match=message):
            sample_weights(weights, 1)
