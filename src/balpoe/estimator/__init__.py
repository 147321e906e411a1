"""BalPoE as a scikit-learn classifier."""

from balpoe.estimator.classifier import BalPoEClassifier

__all__ = ["BalPoEClassifier"]
