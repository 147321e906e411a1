import copy
import dataclasses
import functools
import pickle
from concurrent.futures import ProcessPoolExecutor

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import balpoe.estimator.classifier
from balpoe import BalPoEClassifier, UserError, expert_network
from processes import READY

quick = functools.partial(BalPoEClassifier, epochs=3, mixup_alpha=0, hidden=(16,), random_state=0, device="cpu")
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn from the rows: of two rows, or of one that "
    "counts twice, they are not the same",
}


@parametrize_with_checks(
    [BalPoEClassifier(epochs=6, mixup_alpha=0, hidden=(16,), device="cpu")],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_what_scikit_learn_asks_of_a_classifier(estimator, check):
    check(estimator)


def gaussian_classes(counts, seed=0):
    """Three classes around corners of a triangle, unit deviation; the features have units of their own."""
    chance = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])
    y = np.repeat(np.arange(3), counts)
    return (centres[y] + chance.normal(size=(len(y), 2))) * [1000.0, 0.01] + [5e5, 3.0], y, centres


def exact(X, centres, prior):
    """Bayes' rule, from the densities that the samples were drawn from."""
    x = (X - [5e5, 3.0]) / [1000.0, 0.01]
    log_p = -((x[:, None] - centres) ** 2).sum(axis=2) / 2 + np.log(prior)
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def gaussian():
    X, y, centres = gaussian_classes([1500, 300, 60])
    names = np.array(["common", "seldom", "rare"])
    return BalPoEClassifier(epochs=25, mixup_alpha=0, random_state=0, device="cpu").fit(X, names[y]), centres


PRIORS = {
    "uniform": [1 / 3, 1 / 3, 1 / 3],
    "train": [1500 / 1860, 300 / 1860, 60 / 1860],
    "mapping": [0.1, 0.3, 0.6],
    "array": [0.6, 0.3, 0.1],
}


@pytest.mark.parametrize("name", PRIORS)
def test_probabilities_are_those_of_bayes_for_the_target_prior(gaussian, name):
    """The theorem, through the estimator: one fit, any prior."""
    classifier, centres = gaussian
    order = {"common": 0, "seldom": 1, "rare": 2}  # classes_ are sorted: common, rare, seldom
    prior = np.array(PRIORS[name])
    spec = name
    if name == "mapping":
        spec = {label: 50 * prior[place] for label, place in order.items()}
    if name == "array":
        spec = prior[[0, 2, 1]]
    X, y, _ = gaussian_classes((3000 * prior).round().astype(int), seed=1)
    found = classifier.set_params(target_prior=spec).predict_proba(X)
    truth = exact(X, centres, prior)[:, [0, 2, 1]]
    assert np.abs(found - truth).mean() < 0.035
    labels = np.array(["common", "rare", "seldom"])
    right = {0: "common", 1: "seldom", 2: "rare"}
    accuracy = np.mean(classifier.predict(X) == [right[label] for label in y])
    best = np.mean(labels[truth.argmax(axis=1)] == [right[label] for label in y])
    assert accuracy > best - 0.015
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_allclose(np.log(found), classifier.predict_log_proba(X))


def test_a_prior_goes_by_the_names_of_the_classes(gaussian):
    """Counts of a Series come in the order of frequency, and floats may be written as whole numbers."""
    classifier, _ = gaussian
    X, _, _ = gaussian_classes([20, 20, 20], seed=5)
    counts = {"common": 50, "rare": 5, "seldom": 10}
    expected = classifier.set_params(target_prior=counts).predict_proba(X)
    series = pd.Series(["seldom"] * 10 + ["common"] * 50 + ["rare"] * 5).value_counts(normalize=True)
    np.testing.assert_allclose(classifier.set_params(target_prior=series).predict_proba(X), expected)
    tensor = torch.tensor([50, 5, 10])
    np.testing.assert_allclose(classifier.set_params(target_prior=tensor).predict_proba(X), expected)
    numbers = quick().fit(X, np.repeat([1.0, 2.0, 7.0], 20))
    by_array = numbers.set_params(target_prior=[1, 2, 3]).predict_proba(X)
    np.testing.assert_array_equal(numbers.set_params(target_prior={7: 3, 1: 1, 2: 2}).predict_proba(X), by_array)


def test_the_prior_of_the_place_of_use_is_estimated(gaussian):
    classifier, _ = gaussian
    X, _, _ = gaussian_classes([50, 250, 500], seed=2)
    there = np.array([50, 500, 250]) / 800
    found = classifier.estimate_target_prior(X)
    assert found.significant
    assert np.abs(found.prior.numpy() - there).max() < 0.08
    told = classifier.set_params(target_prior=there).predict_proba(X)
    estimated = classifier.set_params(target_prior="estimate").predict_proba(X)
    uniform = classifier.set_params(target_prior="uniform").predict_proba(X)
    assert np.abs(told - estimated).mean() < 0.4 * np.abs(told - uniform).mean()


def test_experts_answer_for_their_own_priors(gaussian):
    classifier, centres = gaussian
    X, _, _ = gaussian_classes([200, 200, 200], seed=3)
    found = classifier.predict_expert_proba(X)
    assert found.shape == (600, 3, 3)
    np.testing.assert_allclose(found.sum(axis=2), 1)
    train = np.array(PRIORS["train"])
    for expert, lambda_ in enumerate((1, 0, -1)):
        prior = train**lambda_ / (train**lambda_).sum()
        truth = exact(X, centres, prior)[:, [0, 2, 1]]
        assert np.abs(found[:, expert] - truth).mean() < 0.06, lambda_


def test_rare_classes_are_found():
    X, y = load_digits(return_X_y=True)
    keep = np.concatenate([np.flatnonzero(y == label)[: 120 // (label + 1)] for label in range(10)])
    rest = np.setdiff1d(np.arange(len(y)), keep)
    classifier = BalPoEClassifier(epochs=50, mixup_alpha=0.2, random_state=0, device="cpu").fit(X[keep], y[keep])
    ours = balanced_accuracy_score(y[rest], classifier.predict(X[rest]))
    plain = LogisticRegression(max_iter=2000).fit(X[keep] / 16, y[keep])
    assert ours > balanced_accuracy_score(y[rest], plain.predict(X[rest] / 16)) + 0.02
    plain_accuracy = classifier.set_params(target_prior="train").score(X[keep], y[keep])
    assert plain_accuracy > 0.95


@pytest.fixture(scope="module")
def small():
    X, y, _ = gaussian_classes([60, 25, 12])
    return X, y


@pytest.fixture(scope="module")
def fitted_once(small):
    return quick().fit(*small)


@pytest.fixture
def fitted(fitted_once):
    """The quick classifier, fitted to the small set."""
    return copy.deepcopy(fitted_once)


def test_pipeline_search_and_cross_validation(small):
    X, y = small
    pipeline = make_pipeline(MinMaxScaler(), quick(epochs=8))
    search = GridSearchCV(pipeline, {"balpoeclassifier__lr": [0.1, 0.3]}, scoring="balanced_accuracy", cv=2)
    assert search.fit(X, y).best_score_ > 0.7
    scores = cross_val_score(pipeline, X, y, scoring="balanced_accuracy", cv=2)
    assert scores.shape == (2,)
    assert scores.mean() > 0.7


def test_copies(small, fitted, tmp_path):
    X, y = small
    classifier = fitted
    expected = classifier.predict_proba(X)
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    for copied in (
        pickle.loads(pickle.dumps(classifier)),
        copy.deepcopy(classifier),
        joblib.load(tmp_path / "classifier.joblib"),
    ):
        np.testing.assert_array_equal(copied.predict_proba(X), expected)
    fresh = clone(classifier)
    assert not hasattr(fresh, "classes_")
    np.testing.assert_array_equal(fresh.fit(X, y).predict_proba(X), expected)


def test_in_threads(small):
    X, y = small
    expected = [quick(random_state=seed).fit(X, y).predict_proba(X) for seed in range(3)]
    together = joblib.Parallel(2, backend="threading")(
        joblib.delayed(quick(random_state=seed).fit)(X, y) for seed in range(3)
    )
    for classifier, probabilities in zip(together, expected, strict=True):
        np.testing.assert_allclose(classifier.predict_proba(X), probabilities, atol=1e-4)


def test_in_another_process(small, fitted):
    """As `n_jobs` has it: the classifier goes there, and comes back fitted."""
    X, y = small
    with ProcessPoolExecutor(1, mp_context=READY) as others:
        there = others.submit(quick().fit, X, y).result()
    np.testing.assert_allclose(there.predict_proba(X), fitted.predict_proba(X), atol=1e-4)


def test_chance(small):
    X, y = small
    np.random.seed(0)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (quick(random_state=seed).fit(X, y).predict_proba(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4
    assert torch.equal(torch.get_rng_state(), before)
    unset = [quick(random_state=None).fit(X, y).predict_proba(X) for _ in range(2)]
    assert np.abs(unset[0] - unset[1]).max() > 1e-4


def test_labels_and_frames(small, fitted):
    X, y = small
    expected = fitted.predict_proba(X)
    frame = pd.DataFrame(X, columns=["weight", "height"])
    for table in (frame, pl.DataFrame({name: frame[name].to_numpy() for name in frame})):
        classifier = quick().fit(table, pd.Series(y).map({0: "a", 1: "b", 2: "c"}))
        assert classifier.feature_names_in_.tolist() == ["weight", "height"]
        assert set(classifier.predict(table)) <= {"a", "b", "c"}
        np.testing.assert_array_equal(classifier.predict_proba(table), expected)
    classifier = quick().fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame.rename(columns={"weight": "mass"}))


def test_weights(small, fitted):
    X, y = small
    plain = fitted.predict_proba(X)
    np.testing.assert_array_equal(quick().fit(X, y, sample_weight=np.full(len(y), 7.0)).predict_proba(X), plain)
    ignored = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)
    kept = quick().fit(X[ignored > 0], y[ignored > 0]).predict_proba(X)
    np.testing.assert_array_equal(quick().fit(X, y, sample_weight=ignored).predict_proba(X), kept)
    heavy = quick().fit(X, y, sample_weight=np.where(y == 2, 5.0, 1.0))
    np.testing.assert_allclose(heavy.class_prior_, np.array([60, 25, 60]) / 145)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, np.nan], "contains NaN"),
        ([1.0, np.inf], "contains infinity"),
        ([1.0, -1.0], "Negative values"),
        ([0.0, 0.0], r"got 0 class \(samples of weight 0 do not count\)|Sample weights must contain at least one"),
    ],
)
def test_wrong_weights_get_one_sentence(small, weights, message):
    X, y = small
    with pytest.raises(ValueError, match=message):
        quick().fit(X, y, sample_weight=np.resize(weights, len(y)))
    with pytest.raises(ValueError, match=r"sample_weight.shape ==|inconsistent"):
        quick().fit(X, y, sample_weight=np.ones(len(y) - 1))


def test_large_weights(small, fitted):
    X, y = small
    plain = fitted.predict_proba(X)
    np.testing.assert_allclose(quick().fit(X, y, sample_weight=np.full(len(y), 1e308)).predict_proba(X), plain)


def test_a_weight_of_six_is_six_samples(small):
    """Not to the last digit, for the batches differ."""
    X, y = small
    weights = np.where(y == 2, 6, 1)
    weighted = quick(epochs=20, hidden=32).fit(X, y, sample_weight=weights)
    repeated = quick(epochs=20, hidden=32).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    plain = quick(epochs=20, hidden=32).fit(X, y)
    np.testing.assert_allclose(weighted.class_prior_, repeated.class_prior_)
    shares = [
        each.set_params(target_prior="train").predict_proba(X)[:, 2].mean() for each in (weighted, repeated, plain)
    ]
    assert abs(shares[0] - shares[1]) < 0.02
    assert shares[0] > shares[2] + 0.03


def test_warm_start_goes_on(small):
    X, y = small
    classifier = quick(epochs=8, warm_start=True, lr=0.05).fit(X, y)
    first, weights = classifier.history_[0]["loss"], copy.deepcopy(classifier.network_.state_dict())
    classifier.fit(X, y)
    assert [entry["epoch"] for entry in classifier.history_] == list(range(16))
    assert classifier.history_[8]["loss"] < first
    assert any(not torch.equal(weights[name], value) for name, value in classifier.network_.state_dict().items())
    with pytest.raises(ValueError, match="warm_start goes on with the classes of the last fit"):
        classifier.fit(X, np.where(y == 2, 9, y))
    with pytest.raises(ValueError, match="X has 1 features"):
        classifier.fit(X[:, :1], y)


def test_a_fit_that_fails_leaves_the_one_before(small):
    X, y = small
    classifier = quick(warm_start=True).fit(X, y)
    expected = classifier.predict_proba(X)
    for settings in ({"lr": 1e6, "warm_start": True}, {"lr": 1e6, "warm_start": False}):
        with pytest.raises(UserError, match="lower the learning rate"):
            classifier.set_params(**settings).fit(X, (y + 1) % 3)
        np.testing.assert_array_equal(classifier.predict_proba(X), expected)
    with pytest.raises(ValueError, match="at least 2 classes"):
        classifier.fit(np.hstack([X, X]), np.zeros(len(y)))
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)
    with pytest.raises(ValueError, match="at least 2 classes"):
        (fresh := quick()).fit(X, np.zeros(len(y)))
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    changed = classifier.set_params(lambdas=(0,), network="head", hidden=(3,))  # for the next fit, not for this one
    np.testing.assert_array_equal(changed.predict_proba(X), expected)


def test_embeddings_are_seen_by_the_classifier_itself():
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 25, 12])
    X = chance.normal(size=(97, 300)) + 0.3 * np.eye(3)[y].repeat(100, axis=1)
    classifier = quick(hidden=None).fit(X, y)
    assert classifier.network_.classifier.weight.shape == (15, 3, 300 + 256)
    assert classifier.score(X, y) > 0.9
    assert quick().fit(X[:, :255], y).network_.classifier.weight.shape == (15, 3, 16)


def test_many_samples_take_one_network(small, monkeypatch):
    monkeypatch.setattr(balpoe.estimator.classifier, "SMALL", {"mlp": 50})
    X, y = small
    classifier = quick().fit(X, y)
    assert classifier.network_.num_experts == 3
    assert classifier.score(X, y) > 0.7
    assert 5 <= len(classifier._unseen.targets) <= 12


@pytest.mark.filterwarnings("error")
def test_a_prior_that_cannot_be_estimated_stays_as_it_is():
    """Labels that have nothing to do with the features: no evidence, and a note."""
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.repeat([0, 1, 2], [30, 20, 10])
    classifier = quick(epochs=8, target_prior="estimate").fit(X, y)
    with pytest.warns(UserWarning, match="too few, or predicted too badly, to estimate a prior"):
        found = classifier.predict_proba(X)
    np.testing.assert_allclose(found, classifier.set_params(target_prior="uniform").predict_proba(X))
    with pytest.raises(UserError, match="too few, or predicted too badly"):
        classifier.estimate_target_prior(X)


def test_warm_start_on_other_rows_keeps_the_temperature():
    """Labels of pure chance, learnt by heart: to call samples unseen that the first fit saw would be wrong."""
    chance = np.random.default_rng(0)
    X, y = chance.normal(size=(200, 20)), chance.integers(0, 2, 200)
    classifier = quick(hidden=32, epochs=12, warm_start=True).fit(X, y)
    first, order = classifier.temperature_, chance.permutation(200)
    assert first > 3
    assert classifier.fit(X, y).temperature_ > 3  # the same parts are still unseen
    second = classifier.temperature_
    assert classifier.fit(X[order], y[order]).temperature_ == second
    assert classifier.fit(X, y).temperature_ == second  # in between, all networks have seen all samples


def test_logits_are_divided_by_the_temperature(small, monkeypatch):
    """Whatever cross-fitting finds; here a scale of 4, which is a temperature of a quarter."""
    X, y = small
    real = balpoe.estimator.classifier.cross_fit
    monkeypatch.setattr(
        balpoe.estimator.classifier, "cross_fit", lambda *parts: dataclasses.replace(real(*parts), scale=4.0)
    )
    classifier = quick().fit(X, y)
    assert classifier.temperature_ == 0.25
    networks = classifier.network_(classifier._plan.inputs(X)).detach().double().unflatten(1, (5, 3))
    logits = 4 * networks.mean(dim=1)
    np.testing.assert_allclose(classifier.predict_expert_proba(X), logits.softmax(dim=2), rtol=1e-4)
    np.testing.assert_allclose(classifier.predict_proba(X), logits.mean(dim=1).softmax(dim=1), rtol=1e-4)


@pytest.mark.parametrize("lambdas", [(1,), (1, 0, -1)])
def test_logits_are_moved_from_source_to_target(small, lambdas):
    """Cross-entropy's are made for the training prior, those of lambdas that average to zero for the uniform one."""
    X, y = small
    classifier = quick(lambdas=lambdas, epochs=2).fit(X, y)
    logits, train = classifier._logits(X), torch.from_numpy(classifier.class_prior_)
    source = train if lambdas == (1,) else torch.full((3,), 1 / 3)
    for name, target in (
        ("train", train),
        ("uniform", torch.full((3,), 1 / 3)),
        ([1, 2, 7], torch.tensor([1, 2, 7]) / 10),
    ):
        expected = (logits + target.log() - source.log()).softmax(dim=1)
        np.testing.assert_allclose(classifier.set_params(target_prior=name).predict_proba(X), expected, rtol=1e-5)


def test_auto_keeps_the_alpha_that_predicts_unseen_samples_better(small, monkeypatch):
    X, y = small
    real, tried = balpoe.estimator.classifier.cross_fit, []

    def scored(*parts):
        tried.append(parts[-1].mixup_alpha)
        return dataclasses.replace(real(*parts), scale=0.9, nll=abs(tried[-1] - best))

    monkeypatch.setattr(balpoe.estimator.classifier, "cross_fit", scored)
    for best in (0.0, 0.2):
        assert quick(mixup_alpha="auto", epochs=1).fit(X, y).mixup_alpha_ == best
    assert tried == [0.0, 0.2] * 2


def test_a_search_over_priors(small):
    X, y = small
    places = ["uniform", "train", {0: 1, 1: 1, 2: 8}]
    search = GridSearchCV(quick(), {"target_prior": places, "hidden": [8, (8, 8)]}, cv=2).fit(X, y)
    results = search.cv_results_
    scores = dict(zip(map(str, results["param_target_prior"]), results["mean_test_score"], strict=True))
    assert scores["train"] > scores[str(places[2])]  # plain accuracy, where class 2 is rare


@pytest.mark.parametrize("labels", [[False, True, True], [-1, 3, 7], [0.0, 1.0, 2.0], list("abc")])
def test_labels_of_all_kinds(small, labels):
    X, y = small
    labels = np.array(labels)[y]
    classifier = quick(random_state=np.random.RandomState(3)).fit(X, labels)
    assert classifier.predict(X).dtype == labels.dtype
    assert set(classifier.predict(X)) <= set(labels)
    assert quick().fit(X, pl.Series(labels)).classes_.tolist() == classifier.classes_.tolist()


def test_the_first_paragraph_says_what_it_serves():
    first = BalPoEClassifier.__doc__.split("\n\n")[0]
    assert "balanced accuracy" in first
    assert 'target_prior="train"' in first


def test_pictures():
    images, y = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) * 15.9).astype(np.uint8)[:300]
    flat = quick().fit(images, y[:300])
    np.testing.assert_array_equal(
        flat.predict_proba(images), quick().fit(images.reshape(300, 64), y[:300]).predict_proba(images.reshape(300, 64))
    )
    with pytest.raises(UserError, match=r"samples of shape \(1, 8, 8\) were expected, but got \(1, 6, 8\)"):
        flat.predict(images[:, :, :6])
    network = functools.partial(expert_network, "resnet32", width=4, in_channels=1)
    classifier = quick(network=network, augmentation="crop-flip", epochs=1).fit(images, y[:300])
    assert classifier.predict_expert_proba(images[:5]).shape == (5, 3, 10)
    assert pickle.loads(pickle.dumps(classifier)).predict(images[:5]).shape == (5,)
    with pytest.raises(UserError, match="samples of shape"):
        classifier.predict(images[:, :, :6])
    floats = images[:20].astype(np.float32)
    np.testing.assert_allclose(classifier.predict_proba(floats), classifier.predict_proba(images[:20]), atol=1e-5)
    with pytest.raises(UserError, match="lambdas describes 3 experts but the network returned 2"):
        quick(network=lambda num_classes, num_experts: network(num_classes=10, num_experts=2)).fit(images, y[:300])


def test_progress(small, capsys):
    quick(verbose=True, epochs=2).fit(*small)
    assert "epoch" in capsys.readouterr().err
    quick(epochs=2).fit(*small)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_values_that_are_not_numbers_get_scikit_learn_s_sentence(small, wrong):
    X, y = small
    X = X.copy()
    X[3, 1] = wrong
    ours, theirs = quick(), LogisticRegression()
    messages = []
    for estimator in (ours, theirs):
        with pytest.raises(ValueError, match="Input X contains") as caught:
            estimator.fit(X, y)
        messages.append(str(caught.value).splitlines()[0])
    assert messages[0] == messages[1]


def test_other_bad_input_gets_one_sentence(small, fitted):
    X, y = small
    classifier = fitted
    for bad, message in (
        (X[:, :1], "X has 1 features, but BalPoEClassifier is expecting 2 features"),
        (X[:0], "Found array with 0 sample"),
        (X[0], "Expected 2D array"),
        (csr_matrix(X), "Sparse data was passed"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            classifier.predict(bad)
    for bad, labels, message in (
        (X, np.zeros(len(y)), "needs samples of at least 2 classes, but got 1 class"),
        (pd.DataFrame(), [], "at least one array or dtype is required|0 sample|0 feature"),
        (X, y[:-1], "inconsistent numbers of samples"),
        (csr_matrix(X), y, "Sparse data was passed"),
        (pd.DataFrame({"a": ["red"] * len(y)}), y, "could not convert string to float|str"),
        (X, y + 0.5, "Unknown label type"),
        (pd.DataFrame({"when": pd.date_range("2026-01-01", periods=len(y))}), y, "X must hold numbers, but holds"),
        (np.zeros((len(y), 2, 0)), y, "0 feature"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            quick().fit(bad, labels)
    np.testing.assert_array_equal(quick().fit(X.astype(np.longdouble), y).predict(X), classifier.predict(X))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixup_alpha": "some"}, "mixup_alpha must be a number from 0 or 'auto', but is 'some'"),
        ({"mixup_alpha": None}, "mixup_alpha must be a number from 0 or 'auto', but is None"),
        ({"epochs": 3.5}, "epochs must be a whole number, but is 3.5"),
        ({"batch_size": "8"}, "batch_size must be a whole number, but is '8'"),
        ({"lr": "a"}, "lr must be a number, but is 'a'"),
        ({"cosine_scale": "a"}, "cosine_scale must be a number, but is 'a'"),
        ({"hidden": (8.5,)}, "hidden must be a whole number, but is 8.5"),
        ({"hidden": "ab"}, "hidden must be a whole number, but is 'ab'"),
        ({"network": 3}, "network must be a name, or a function"),
        ({"network": "resnet32"}, "wants X of shape"),
        ({"network": lambda num_classes, num_experts: expert_network("mlp", num_classes=9, num_features=2)}, "wants X"),
        ({"augmentation": "crop-flip"}, "augmentation is for networks for images"),
        ({"device": None}, "device must be text, but is None"),
        ({"target_prior": "trian"}, "did you mean 'train'"),
        ({"target_prior": None}, "target_prior must be 'uniform', 'train', 'estimate', a file, a mapping"),
        ({"mixup_alpha": -1}, "mixup_alpha must be at least 0"),
        ({"hidden": ()}, "hidden must name the units of one layer or more"),
        ({"network": "resnet23"}, "unknown network 'resnet23'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"device": "npu"}, "unknown device 'npu'"),
        ({"lambdas": ()}, "lambda"),
    ],
)
def test_wrong_settings_get_one_sentence(small, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        quick(**settings).fit(*small)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({0: 1, 1: 1}, "class '2' has no weight; give it 0 if it does not occur"),
        ({0: 1, 1: 1, 2: 1, 3: 1}, "unknown class '3'"),
        ({0: 1, 1: -1, 2: 1}, "must be a number from 0, but is -1"),
        ({0: 1, 1: 1, 2: 1, "2": 3}, "two weights for one class"),
        ([0.2, 0.3, np.nan], "must be a number from 0, but is nan"),
        (pd.DataFrame([[1, 2, 3]]), "a mapping from class to weight, or a row of weights"),
        (0.5, "a mapping from class to weight, or a row of weights"),
        ([1, 1], "target_prior has 2 entries, but there are 3 classes"),
        ([0, 0, 0], "all weights are zero"),
        ("trian", "did you mean 'train'"),
    ],
)
def test_wrong_priors_get_one_sentence(small, fitted, prior, message):
    classifier = fitted.set_params(target_prior=prior)
    with pytest.raises(UserError, match=message) as caught:
        classifier.predict(small[0])
    assert "\n" not in str(caught.value)


def test_a_class_with_one_sample_and_classes_that_do_not_occur(small):
    X, y = small
    X, y = np.concatenate([X, [[9e5, 3.0]]]), np.append(y, 7)
    classifier = quick(epochs=40).fit(X, y)
    assert classifier.predict(X[-1:]).tolist() == [7]
    classifier.set_params(target_prior={0: 1, 1: 1, 2: 1, 7: 0})
    assert classifier.predict_proba(X)[:, 3].max() == 0


def test_far_out_is_far_out(small, fitted):
    """The further, the more like what lies far out, and not like the mean; without a warning."""
    X, y = small
    there = fitted.predict_proba([[1e30, 3.0]])
    for value in (1e150, 1e160, 1e308):
        np.testing.assert_allclose(fitted.predict_proba([[value, 3.0]]), there, atol=1e-6)
    tiny = quick().fit((X - X.mean(axis=0)) * 1e-300, y)
    assert np.isfinite(tiny.predict_proba([[1e10, -1e10]])).all()


def test_numbers_of_any_size():
    X, y, _ = gaussian_classes([40, 20, 10])
    for factor in (1e300, 1e-300):
        classifier = quick(epochs=40).fit((X - X.mean(axis=0)) / X.std(axis=0) * factor, y)
        assert classifier.score((X - X.mean(axis=0)) / X.std(axis=0) * factor, y) > 0.7
    constant = np.column_stack([X, np.ones(len(X))])
    assert np.isfinite(quick().fit(constant, y).predict_proba(constant)).all()


def test_biased_lambdas_are_told(small):
    with pytest.warns(UserWarning, match="lambdas average to 1"):
        quick(lambdas=(2, 1, 0)).fit(*small)


def test_series_are_held_out_as_wholes():
    """Eight frames of each track: predicted by networks that have seen its other frames, they look far too easy."""
    random = np.random.default_rng(0)
    tracks = np.repeat(np.arange(40), 8)
    labels = np.repeat(random.integers(0, 2, 40), 8)
    X = random.normal(size=(40, 6))[tracks] + 0.5 * labels[:, None] + 0.02 * random.normal(size=(320, 6))
    settings = {"epochs": 40, "mixup_alpha": 0, "random_state": 0, "device": "cpu", "hidden": 16}
    apart = BalPoEClassifier(**settings).fit(X, labels)
    whole = BalPoEClassifier(**settings).fit(X, labels, groups=tracks)
    assert whole.temperature_ > 2 * apart.temperature_
    test = random.normal(size=(2000, 6)) + 0.5 * (truth := random.integers(0, 2, 2000))[:, None]
    nll = [-float(np.log(each.predict_proba(test)[np.arange(2000), truth]).mean()) for each in (apart, whole)]
    assert nll[1] < nll[0]
    with pytest.raises(ValueError, match="give one label for each sample"):
        BalPoEClassifier(**settings).fit(X, labels, groups=tracks[:9])


def test_samples_in_no_group_stand_for_themselves(small):
    X, y = small
    alone = quick().fit(X, y, groups=[None] * len(y))
    np.testing.assert_array_equal(alone.predict_proba(X), quick().fit(X, y).predict_proba(X))


def test_too_few_samples_to_hold_any_out(small):
    X, y = small
    with pytest.raises(UserError, match=r"too few samples to hold any out of training.*; give two or more of each"):
        quick().fit(X[:2], ["a", "b"])
    with pytest.raises(UserError, match="too few groups of samples to hold any out of training"):
        quick().fit(X, y, groups=["all"] * len(y))


@pytest.mark.parametrize("bend", [lambda x: np.sinh(3 * x), lambda x: np.tan(np.pi * (norm.cdf(x) - 0.5))])
def test_heavy_tails_cost_little(bend):
    """Three classes of one deviation each, as they are and through a monotone map; a half is for testing."""
    chance = np.random.default_rng(0)
    y = np.repeat(np.arange(3), [240, 80, 40])
    X = chance.normal(size=(360, 6)) + 1.5 * np.eye(3)[y].repeat(2, axis=1)
    scores = []
    for table in (X, bend(X - X.mean(axis=0))):
        classifier = quick(epochs=30).fit(table[::2], y[::2])
        scores.append(balanced_accuracy_score(y[1::2], classifier.predict(table[1::2])))
    assert scores[0] > 0.8
    assert scores[1] > scores[0] - 0.05


def test_mixup_is_tried_where_the_first_training_is_overconfident(small, monkeypatch):
    real, tried = balpoe.estimator.classifier.cross_fit, []

    def scored(*parts):
        tried.append(parts[-1].mixup_alpha)
        return dataclasses.replace(real(*parts), scale=scale, nll=-tried[-1])

    monkeypatch.setattr(balpoe.estimator.classifier, "cross_fit", scored)
    scale, classifier = 1.1, quick(mixup_alpha="auto", epochs=1)
    assert classifier.fit(*small).mixup_alpha_ == 0
    assert tried == [0]
    scale = 0.9
    assert classifier.fit(*small).mixup_alpha_ == 0.2
    assert tried == [0, 0, 0.2]
