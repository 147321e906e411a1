import functools
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

import balpoe
from balpoe import BalPoEClassifier, DecisionRule, UserError

quick = functools.partial(BalPoEClassifier, epochs=8, mixup_alpha=0, hidden=(16,), random_state=0, device="cpu")
NAMES = np.array(["ash", "birch", "cedar"])
MATRIX = pd.DataFrame([[0, 1, 2], [3, 0, 1], [9, 9, 0.0]], NAMES, NAMES)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(
        900, 8, n_informative=6, n_redundant=0, n_classes=3, weights=[0.7, 0.2, 0.1], flip_y=0.05, random_state=1
    )
    return X[:600], NAMES[y[:600]], X[600:], NAMES[y[600:]]


@pytest.fixture(scope="module")
def fitted(data):
    return quick().fit(*data[:2])


@pytest.fixture
def classifier(fitted):
    return fitted.set_params(decision=None, target_prior="uniform")


def test_without_a_decision_it_is_the_most_probable_class(classifier, data):
    X = data[2]
    expected = classifier.predict_proba(X).argmax(axis=1)
    assert (classifier.predict(X) == NAMES[expected]).all()
    classifier.set_params(decision="accuracy")
    assert (classifier.predict(X) == NAMES[expected]).all()


@pytest.mark.parametrize("prior", ["uniform", "train", {"ash": 1, "birch": 1, "cedar": 8}])
def test_costs_are_expected_ones_under_the_prior(classifier, data, prior):
    X = data[2]
    probabilities = classifier.set_params(target_prior=prior).predict_proba(X)
    matrix = np.array([[0, 1, 2], [3, 0, 1], [9, 9, 0.0]])
    answers = classifier.set_params(decision=matrix).predict(X)
    assert (answers == NAMES[(probabilities @ matrix).argmin(axis=1)]).all()
    missing = {"cedar": 9, "ash": 1, "birch": 2}
    answers = classifier.set_params(decision=missing).predict(X)
    assert (answers == NAMES[(probabilities * [1, 2, 9]).argmax(axis=1)]).all()
    assert (classifier.predict_proba(X) == probabilities).all()


def test_a_table_of_costs_goes_by_its_labels(classifier, data):
    """In whatever order they come; without any, and by its rows or columns alone, where only these have some."""
    X = data[2]
    expected = classifier.set_params(decision=MATRIX.to_numpy()).predict(X)
    order = ["cedar", "ash", "birch"]
    unlabelled = pd.DataFrame(MATRIX.to_numpy())
    for costs in (MATRIX, MATRIX.loc[order, order[::-1]], unlabelled, MATRIX.loc[order].set_axis(range(3), axis=1)):
        assert (classifier.set_params(decision=costs).predict(X) == expected).all()
    other = classifier.set_params(decision=MATRIX.loc[order, order].to_numpy()).predict(X)
    assert (other != expected).any()  # what it was before, from these labels


def test_labels_of_costs_are_known_by_value(data):
    X, y, new, _ = data
    numbered = quick().fit(X, np.searchsorted(NAMES, y) + 1)
    expected = numbered.set_params(decision=MATRIX.to_numpy()).predict(new)
    labels = [3, 1, 2]
    costs = MATRIX.set_axis([1, 2, 3]).set_axis([1, 2, 3], axis=1).loc[labels, labels]
    assert (numbered.set_params(decision=costs).predict(new) == expected).all()


def test_a_metric_is_fitted_on_what_the_networks_had_not_seen(classifier, data):
    _, _, X, y = data
    classifier.set_params(target_prior="train")
    plain = f1_score(y, classifier.predict(X), average="macro")
    better = f1_score(y, classifier.set_params(decision="macro_f1").predict(X), average="macro")
    assert better >= plain - 0.02
    found = classifier.set_params(decision="recall of cedar at least 0.9").predict(X)
    assert (found[y == "cedar"] == "cedar").mean() >= 0.75  # on 30 samples or so
    few = classifier.set_params(decision="recall of cedar at least 0.1").predict(X)
    assert (found == "cedar").sum() > (few == "cedar").sum()


def test_a_rule_has_its_own_prior(classifier, data):
    X = data[2]
    expected = classifier.set_params(target_prior="train").predict(X)
    rule = DecisionRule(tuple(NAMES), torch.ones(3), target_prior=torch.from_numpy(classifier.class_prior_))
    classifier.set_params(target_prior="uniform", decision=rule)
    assert (classifier.predict(X) == expected).all()


def test_sets_cover_as_often_as_asked_for(classifier, data):
    _, _, X, y = data
    labels = np.searchsorted(NAMES, y)
    sets = classifier.set_params(target_prior="train").predict_set(X, alpha=0.2)
    assert sets.shape == (len(X), 3)
    assert sets.dtype == bool
    assert 0.7 < sets[np.arange(len(X)), labels].mean() < 0.9  # 300 samples: a deviation of 2.3 points
    larger = classifier.predict_set(X, alpha=0.05)
    assert (larger >= sets).all()
    by_class = classifier.predict_set(X, alpha=0.2, method="per-class")
    assert by_class[labels == 2, 2].mean() > 0.6
    balanced = classifier.set_params(target_prior="uniform").predict_set(X, alpha=0.2)
    covered = [balanced[labels == each, each].mean() for each in range(3)]
    assert 0.68 < np.mean(covered) < 0.92
    never = classifier.set_params(target_prior=[1, 1, 0]).predict_set(X)
    assert not never[:, 2].any()


def sets_by_definition(classifier, X, prior, alpha):
    """CV+ written out: a class is out if held-out samples that fit better, each by its own network, weigh enough."""
    unseen, networks = classifier._unseen, classifier._plan.networks
    data = classifier._plan.inputs(X)
    experts = classifier.network_(data).detach().double().unflatten(1, (networks, -1)).mean(dim=2)
    move = torch.as_tensor(prior).log()  # the lambdas average to zero: logits are for equally frequent classes
    mine = (unseen.logits * classifier.temperature_ + move).log_softmax(dim=1)
    mine = mine.gather(1, unseen.targets[:, None])[:, 0]
    theirs = (experts + move).log_softmax(dim=2)
    counts = torch.bincount(unseen.targets, minlength=3)
    weights = torch.as_tensor(prior) / (counts / counts.sum())
    found = np.zeros((len(X), 3), dtype=bool)
    for row in range(len(X)):
        for label in range(3):
            better = 0.0
            for score, target, fold in zip(mine, unseen.targets, unseen.fold, strict=True):
                if score > theirs[row, fold, label]:
                    better += float(weights[target])
            needed = (1 - alpha) * float(weights[unseen.targets].sum() + weights[label])
            found[row, label] = better < needed * (1 - 1e-12)
    return found


@pytest.mark.parametrize("prior", [[1 / 3, 1 / 3, 1 / 3], [0.2, 0.1, 0.7]])
def test_sets_are_those_of_the_definition(classifier, data, prior):
    X = data[2][:15]
    assert classifier._plan.networks == 5
    found, guarantee = classifier.set_params(target_prior=prior).predict_set(X, alpha=0.2, return_guarantee=True)
    assert (found == sets_by_definition(classifier, X, prior, 0.2)).all()
    assert (found == classifier.predict_set(X, alpha=0.2)).all()
    assert "This is CV+" in guarantee
    assert guarantee.startswith("Approximate: at least about 5")  # 60 % less the excess; weighted, which is not proven
    by_class = classifier.predict_set(X, alpha=0.2, method="per-class", return_guarantee=True)[1]
    assert by_class.startswith("At least 4")  # of some 60 samples


def test_the_temperature_has_no_part_in_sets(classifier, data):
    """The samples that set the thresholds fitted it."""
    X = data[2]
    before = classifier.predict_set(X)
    other = pickle.loads(pickle.dumps(classifier))
    other.temperature_, scale = 3.0, classifier.temperature_ / 3
    other._unseen = other._unseen._replace(logits=scale * other._unseen.logits)
    assert not np.allclose(other.predict_proba(X), classifier.predict_proba(X), atol=0.01)
    assert (other.predict_set(X) == before).mean() > 0.999


def test_one_network_promises_what_was_asked_for(data, monkeypatch):
    """No CV+: a tenth of the samples is held out, and is new to the network."""
    monkeypatch.setattr("balpoe.estimator.classifier.SMALL", {"mlp": 100, "head": 100})
    X, y, new, _ = data
    one = quick(target_prior="train").fit(X, y)
    found, guarantee = one.predict_set(new, alpha=0.3, return_guarantee=True)
    assert one._plan.networks == 1
    assert guarantee.startswith("At least 70 % of samples have their class in their set, if they come with the given")
    assert "Whatever those shares were, at least" in guarantee
    prior, unseen = torch.from_numpy(one.class_prior_), one._unseen
    plain = balpoe.ConformalSets.fit((unseen.logits * one.temperature_, unseen.targets), alpha=0.3, target_prior=prior)
    logits = one.network_(one._plan.inputs(new)).detach().mean(dim=1)
    assert (plain.predict(logits).numpy() == found).all()


def test_what_weakens_the_promise_of_sets_is_said(data):
    X, y, new, _ = data
    grouped = quick(target_prior="train").fit(X, y, groups=np.arange(len(X)) // 2)
    guarantee = grouped.predict_set(new, return_guarantee=True)[1]
    assert "come in groups" in guarantee
    assert grouped._unseen.groups.shape == grouped._unseen.targets.shape
    further = quick(warm_start=True, target_prior="train").fit(X, y)
    assert "Other networks" not in further.predict_set(new, return_guarantee=True)[1]
    further.fit(X[:300], y[:300])
    assert "Other networks than the one in use" in further.predict_set(new, return_guarantee=True)[1]


def test_an_estimated_prior_decides_too(classifier, data):
    X = data[2]
    probabilities = classifier.set_params(target_prior="estimate").predict_proba(X)
    answers = classifier.set_params(decision=[1, 2, 9]).predict(X)
    assert (answers == NAMES[(probabilities * [1, 2, 9]).argmax(axis=1)]).all()
    sets, guarantee = classifier.predict_set(X, return_guarantee=True)
    assert sets.shape == (len(X), 3)
    assert guarantee.startswith("Approximate")
    assert "as far as the estimated prior is right" in guarantee


def test_the_log_probabilities_serve_answers_that_are_no_classes(classifier, data):
    """As the documents say."""
    X = data[2]
    logits = torch.from_numpy(classifier.predict_log_proba(X))
    answers = balpoe.decide(logits, abstain_cost=0.3)
    assert torch.equal(answers == 3, logits.exp().amax(dim=1) < 0.7)


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        ([1, 2], "costs have shape (2,), but there are 3 classes"),
        (np.zeros((3, 2)), "costs have 2 columns, but there are 3 classes"),
        (np.ones((3, 4)), "decision has 4 answers for 3 classes"),
        ([1, float("nan"), 1], "('birch') is nan"),
        ([[1, 0, 0], [1, 0, 1], [1, 1, 0]], "the right answer costs 1, more than 0"),
        ({"ash": 1, "elm": 2}, "decision: unknown class 'elm'; known are ash, birch, cedar"),
        ({"ash": 1, "ceder": 2}, "decision: unknown class 'ceder'; did you mean 'cedar'?"),
        (pd.Series([1, 2, 3], ["ash", "ash", "birch"]), "more than one cost of missing class 'ash'; keep one"),
        (MATRIX.rename(index={"ash": "asch"}), "decision: unknown class 'asch'; did you mean 'ash'?"),
        (MATRIX.rename(columns={"ash": "birch"}), "decision has more than one column of class 'birch'"),
        (MATRIX.assign(abstain=0.5), "for others, such as abstain, give predict_log_proba to balpoe.decide"),
        (MATRIX.iloc[:2], "decision has no row of class 'cedar'; give one for each class"),
        ("recall of ceder at least 0.9", "decision: unknown class 'ceder'; did you mean 'cedar'?"),
        ("recall of cedar at leest 0.9", "is not understood; write recall of CLASS at least 0.9"),
        ("recall of cedar at least 90", "the recall of class 'cedar' must lie above 0 and up to 1, but is 90"),
        ({"ash": 1, "cedar": 2}, "no cost of missing class 'birch'"),
        ("beauty", "unknown metric 'beauty'"),
        (DecisionRule(("a", "b"), [1, 1]), "2 answers for 2 classes, but predict answers with the 3 classes"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(data, monkeypatch, decision, sentence):
    monkeypatch.setattr(BalPoEClassifier, "_train", lambda *_: pytest.fail("trained"))
    with pytest.raises(UserError) as error:
        quick(decision=decision).fit(*data[:2])
    assert sentence in str(error.value)


def test_mistakes_about_sets(classifier, data):
    with pytest.raises(UserError, match="alpha must lie between 0 and 1"):
        classifier.predict_set(data[2], alpha=1)
    with pytest.raises(UserError, match="unknown method of sets"):
        classifier.predict_set(data[2], method="magic")
    with pytest.raises(UserError, match=r"need at least .* those that fit held out"):
        classifier.predict_set(data[2], alpha=1e-4)


def test_clone_and_pickle_keep_the_decision(classifier, data):
    rule = DecisionRule(tuple(NAMES), [1, 2, 9])
    for decision in (rule, "macro_f1", [1, 2, 9]):
        classifier.set_params(decision=decision)
        again = pickle.loads(pickle.dumps(classifier))
        assert (again.predict(data[2]) == classifier.predict(data[2])).all()
        copied = clone(classifier)
        assert type(copied.decision) is type(decision)
        assert repr(copied)


def test_scikit_learn_moves_the_threshold_of_two_classes(data):
    X, y, new, _ = data
    cedar = (y == "cedar").astype(int)
    fixed = FixedThresholdClassifier(quick(), threshold=0.2, response_method="predict_proba").fit(X, cedar)
    alone = quick().fit(X, cedar)
    assert (fixed.predict(new) == (alone.predict_proba(new)[:, 1] >= 0.2)).all()
    # A threshold of 0.2 is a miss that costs four times as much as a false alarm.
    by_cost = alone.set_params(decision=[1, 4]).predict(new)
    assert (by_cost == fixed.predict(new)).mean() > 0.99
    tuned = TunedThresholdClassifierCV(quick(epochs=4), scoring="f1", cv=2, random_state=0).fit(X[::2], cedar[::2])
    assert 0 < tuned.best_threshold_ < 1
    assert set(tuned.predict(new)) == {0, 1}


def test_predictions_for_all_that_is_fitted_or_decides_on_them(classifier, data):
    """Held-out ones are of samples that the networks had not seen; both give the classifier's own probabilities."""
    X, y, new, labels = data
    held_out, unlabelled = classifier.held_out_, classifier.unlabelled(new)
    assert held_out.class_names == unlabelled.class_names == tuple(NAMES)
    assert torch.bincount(held_out.targets).tolist() == [int((y == name).sum()) for name in NAMES]
    uniform = torch.full((3,), 1 / 3)
    for prior, name in ((uniform, "uniform"), (torch.from_numpy(classifier.class_prior_), "train")):
        found = unlabelled.adjusted(unlabelled.logits, prior).softmax(dim=1).numpy()
        np.testing.assert_allclose(found, classifier.set_params(target_prior=name).predict_proba(new), atol=1e-6)
    right = (held_out.logits.argmax(dim=1) == held_out.targets).double().mean()
    seen = (classifier.set_params(target_prior="uniform").predict(X) == y).mean()
    assert right < seen  # not what the networks say of samples that they were trained on
    answers = balpoe.Abstention.fit(held_out, error=0.2, confidence=None)(unlabelled)
    known = answers < 3
    assert 0.2 < known.double().mean() < 1
    assert (NAMES[answers[known].numpy()] != labels[known.numpy()]).mean() < (classifier.predict(new) != labels).mean()
    far = classifier.unlabelled(np.zeros_like(new[:5]))
    assert balpoe.UnknownDetector.fit(held_out).predict(far).shape == (5,)
