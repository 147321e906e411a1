import numpy as np

from balpoe.estimator.inputs import FeatureInputs


def test_weighted_features_have_mean_zero_and_deviation_one():
    """As if each sample were there as often as it weighs; what lies far out is bent towards 8."""
    X, weights = np.array([[1000.0, 0.1], [1001.0, 0.3], [1003.0, 0.2]]), np.array([1, 2, 3])
    repeated = np.repeat(X, weights, axis=0)
    standard = (X - repeated.mean(axis=0)) / repeated.std(axis=0)
    np.testing.assert_allclose(FeatureInputs(X, weights)(X), standard / np.hypot(1, standard / 8), rtol=1e-4)
