"""The method in scikit-learn: a pipeline, cross-validated; then the deployment prior, set without a refit."""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline

import balpoe


def main() -> None:
    """Train on wines of three kinds, one of which is rare, and use the classifier in other places."""
    X, y = load_wine(return_X_y=True)
    X, X_field, y, y_field = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    y, y_field = (np.array(["barolo", "grignolino", "barbera"])[labels] for labels in (y, y_field))
    keep = (y != "barbera") | (np.cumsum(y == "barbera") <= 6)
    X, y = X[keep], y[keep]

    pipeline = make_pipeline(SimpleImputer(), balpoe.BalPoEClassifier(epochs=40, random_state=0))
    scores = cross_val_score(pipeline, X, y, scoring="balanced_accuracy", cv=3)
    print(f"balanced accuracy {scores.mean():.3f} of three folds")

    pipeline.fit(X, y)
    print(f"where all kinds are equally frequent: {balanced_accuracy_score(y_field, pipeline.predict(X_field)):.3f}")

    # Where Barbera is what one drinks: the same classifier, other probabilities; no refit.
    barbera = pipeline.classes_.tolist().index("barbera")
    for prior in ("train", "uniform", {"barbera": 8, "barolo": 1, "grignolino": 1}):
        pipeline.set_params(balpoeclassifier__target_prior=prior)
        print(f"expected share of Barbera, prior {prior}: {pipeline.predict_proba(X_field)[:, barbera].mean():.3f}")


if __name__ == "__main__":
    main()
