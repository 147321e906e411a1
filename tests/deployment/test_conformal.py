"""Prediction sets: against MAPIE and crepes, and their coverage by simulation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin

from balpoe import ConformalSets, Predictions, estimate_prior, evaluate
from balpoe.deployment import set_promise, set_scores
from balpoe.deployment.set_inputs import METHODS
from balpoe.errors import UserError
from balpoe.files import read_json
from balpoe.method.expert_calibration import ExpertCalibration
from gaussians import Gaussians, long_tail
from made_predictions import make
from scripts import script

CLASSES = 8
UNIFORM = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
FORWARD = long_tail(CLASSES, 50)
BACKWARD = FORWARD.flip(0)


def uneven(seed=0):
    """Classes of which the first half is easy to tell, and the second is not."""
    problem = Gaussians(CLASSES, separation=0.8, seed=seed)
    problem.means[: CLASSES // 2] *= 2.5
    return problem


def samples(problem, prior, number):
    """Logits of a network that is too sure of itself, and labels."""
    x, targets = problem.sample(prior, number)
    return 1.5 * problem.log_likelihood(x), targets


def coverage(problem, validation, prior, number=400, test=2000, splits=40, **settings):
    """Mean over splits of the share of sets with the right class, over samples and over classes."""
    shares = []
    for split in range(splits):
        logits, targets = samples(problem, validation, number)
        sets = ConformalSets.fit((logits, targets), seed=split, **settings)
        logits, targets = samples(problem, prior, test)
        hit = sets.predict(logits)[torch.arange(test), targets].double()
        per_class = torch.bincount(targets, hit, CLASSES) / torch.bincount(targets, minlength=CLASSES)
        shares.append([float(hit.mean()), float(per_class.nanmean())])
    return np.mean(shares, axis=0)


class Softmax(ClassifierMixin, BaseEstimator):
    """Logits as a trained classifier of scikit-learn."""

    def __init__(self, classes):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return torch.as_tensor(X).softmax(dim=1).numpy()

    def predict(self, X):
        return self.predict_proba(X).argmax(axis=1)

    def __sklearn_is_fitted__(self):
        return True


def by_mapie(score, logits, targets, new, **options):
    from mapie.classification import SplitConformalClassifier

    network = Softmax(logits.shape[1])
    theirs = SplitConformalClassifier(
        network, confidence_level=0.9, conformity_score=score, prefit=True, random_state=0
    )
    theirs.conformalize(logits.numpy(), targets.numpy())
    return theirs.predict_set(new.numpy(), **options)[1][:, :, 0]


@pytest.mark.parametrize("number", [50, 213, 289])
def test_least_ambiguous_sets_are_mapies(number):
    problem = uneven()
    logits, targets = samples(problem, UNIFORM, number)
    new, _ = samples(problem, UNIFORM, 300)
    ours = ConformalSets.fit((logits, targets), alpha=0.1).predict(new)
    np.testing.assert_array_equal(ours.numpy(), by_mapie("lac", logits, targets, new))


def test_adaptive_sets_are_mapies(monkeypatch):
    """With its random numbers: it takes off what we add."""
    monkeypatch.setattr(
        set_scores,
        "_random_part",
        lambda logits, seed: 1 - torch.tensor(np.random.RandomState(0).uniform(size=len(logits)))[:, None],
    )
    problem = Gaussians(CLASSES, separation=0.8)  # not uneven: for samples that are all but certain MAPIE rounds
    logits, targets = samples(problem, UNIFORM, 213)
    new, _ = samples(problem, UNIFORM, 300)
    ours = ConformalSets.fit((logits, targets), alpha=0.1, score="aps").predict(new)
    options = {"conformity_score_params": {"include_last_label": "randomized"}}
    np.testing.assert_array_equal(ours.numpy(), by_mapie("aps", logits, targets, new, **options))


def test_sets_by_class_are_those_of_crepes():
    import crepes

    problem = uneven()
    logits, targets = samples(problem, FORWARD, 300)
    new, _ = samples(problem, UNIFORM, 100)
    sets = ConformalSets.fit((logits, targets), alpha=0.1, method="per-class")
    theirs = crepes.ConformalClassifier()
    theirs.fit(1 - logits.softmax(dim=1)[torch.arange(300), targets].numpy(), bins=targets.numpy())
    scores, ours = 1 - new.softmax(dim=1).numpy(), sets.predict(new).numpy()
    own = ~sets.rare
    assert 0 < int(own.sum()) < CLASSES
    for label in own.nonzero().squeeze(1).tolist():
        p = theirs.predict_p(scores[:, label], bins=np.full(100, label), smoothing=False)
        np.testing.assert_array_equal(ours[:, label], p > 0.1 + 1e-9)


@pytest.mark.parametrize("score", ["probability", "aps"])
def test_marginal_coverage(score):
    problem = uneven()
    share, _ = coverage(problem, FORWARD, FORWARD, score=score)
    assert 0.89 <= share <= 0.91


@pytest.mark.slow
def test_coverage_of_each_class():
    """A class of 40 samples has at least 90 %, and up to 1 / 41 more; drawn thresholds have no more."""
    problem = uneven()
    _, macro = coverage(problem, UNIFORM, FORWARD, 8 * 40, test=5000, method="per-class")
    assert 0.895 <= macro <= 0.925
    _, macro = coverage(problem, UNIFORM, FORWARD, 8 * 40, test=5000, method="per-class", drawn=True)
    assert 0.89 <= macro <= 0.91


@pytest.mark.parametrize("prior", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("method", ["marginal", "prevalence", "pooled"])
def test_coverage_under_a_known_shift(prior, method):
    problem = uneven()
    share, _ = coverage(problem, UNIFORM, prior, method=method, target_prior=prior)
    assert 0.885 <= share <= 0.915
    if method == "marginal":
        blind, _ = coverage(problem, UNIFORM, prior, method=method)
        assert 0.89 <= share <= 0.91
        assert abs(blind - 0.9) > 0.015  # the shift matters here


def test_prevalence_serves_the_mean_over_classes():
    problem = uneven()
    plain, prevalence = (
        coverage(problem, FORWARD, FORWARD, 800, method=method, target_prior=FORWARD)
        for method in ("marginal", "prevalence")
    )
    assert abs(plain[0] - 0.9) < 0.01
    assert abs(prevalence[0] - 0.9) < 0.01
    assert prevalence[1] > plain[1] + 0.03


def test_power_goes_from_marginal_to_prevalence():
    logits, targets = samples(Gaussians(CLASSES), FORWARD, 500)
    new, _ = samples(Gaussians(CLASSES, seed=1), FORWARD, 200)

    def found(**settings):
        return ConformalSets.fit((logits, targets), target_prior=FORWARD, **settings).predict(new)

    assert torch.equal(found(method="prevalence", power=0), found())
    rare = [found(method="prevalence", power=power)[:, -1].sum() for power in (0, 0.5, 1)]
    assert rare[0] < rare[1] < rare[2]


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.1, 0.25, 0.5]))
@settings(max_examples=30, deadline=None)
def test_weighted_thresholds_by_counting(seed, alpha):
    """Podkopaev and Ramdas' rule, written out: in the set unless too much weight scores lower."""
    problem = uneven(seed)
    logits, targets = samples(problem, UNIFORM, 120)
    counts = torch.bincount(targets, minlength=CLASSES)
    if int(counts.min()) == 0:
        return
    sets = ConformalSets.fit((logits, targets), alpha=alpha, target_prior=FORWARD)
    new, _ = samples(problem, FORWARD, 5)
    found, scores, own = sets.predict(new), sets.score(new), sets.scores
    weights = (FORWARD / counts * 120)[targets]
    for row in range(5):
        for label in range(CLASSES):
            mine = float(FORWARD[label] / counts[label] * 120)
            below = float(weights[own < scores[row, label]].sum())
            assert bool(found[row, label]) == (below < (1 - alpha) * (float(weights.sum()) + mine) - 1e-9)


def test_a_prior_at_prediction_weights_the_samples_anew():
    problem = uneven()
    share = []
    for _ in range(30):
        sets = ConformalSets.fit(samples(problem, UNIFORM, 400))
        new, targets = samples(problem, BACKWARD, 2000)
        share.append(sets.predict(new, target_prior=BACKWARD)[torch.arange(2000), targets].double().mean())
    assert abs(float(torch.stack(share).mean()) - 0.9) < 0.01


def test_excluded_and_unseen_classes():
    logits, targets = samples(Gaussians(CLASSES), UNIFORM, 400)
    seen = targets != 3
    prior = torch.tensor([0, 1, 1, 1, 1, 1, 1, 1]) / 7
    sets = ConformalSets.fit((logits[seen], targets[seen]), target_prior=prior)
    found = sets.predict(logits)
    assert not bool(found[:, 0].any())
    assert bool(found[:, 3].all())
    assert sets.always_included == ("3",)
    assert "In every set, as too few validation samples say when to leave it out: 3." in sets.guarantee


def test_rare_classes_are_pooled_and_named():
    predictions = make(samples=2000, classes=10)
    counts = torch.tensor([100, 60, 40, 30, 20, 12, 9, 8, 5, 2])
    rows = torch.cat([(predictions.targets == label).nonzero().squeeze(1)[:n] for label, n in enumerate(counts)])
    few = predictions.subset(rows)
    sets = ConformalSets.fit(few, method="per-class")
    assert sets.pooled_classes == ("7", "8", "9")
    assert len(set(sets.thresholds[7:].tolist())) == 1
    shared = "Too rare for a threshold of their own: 7, 8, 9. They share one. At least 90 % of their samples"
    assert shared in sets.guarantee
    pool = ConformalSets.fit(few.subset((few.targets >= 7).nonzero().squeeze(1)))  # 15 samples
    assert sets.thresholds[7] == pool.thresholds[0]

    fewer = ConformalSets.fit(few.subset((few.targets != 7).nonzero().squeeze(1)), method="per-class")
    assert "nothing is promised of them" in fewer.guarantee  # 7 samples together
    everything = ConformalSets.fit(few.subset((few.targets != 7).nonzero().squeeze(1)))
    assert fewer.thresholds[9] == everything.thresholds[9]


def test_the_shortfall_of_counted_shares_is_said():
    logits, targets = samples(Gaussians(CLASSES), UNIFORM, 400)
    counts = torch.bincount(targets, minlength=CLASSES)
    counted = ConformalSets.fit((logits, targets), target_prior=FORWARD)
    least = 90 - 100 * float((FORWARD / (counts + 1)).sum())
    assert f"Whatever those shares were, at least {least:.3g} %." in counted.guarantee
    known = ConformalSets.fit((logits, targets), target_prior=FORWARD, validation_prior=UNIFORM)
    assert (
        known.guarantee == "At least 90 % of samples have their class in their set, if they come with the given prior."
    )


def test_an_estimated_prior_is_called_approximate():
    logits, targets = samples(Gaussians(CLASSES), UNIFORM, 400)
    found = estimate_prior(samples(Gaussians(CLASSES), BACKWARD, 400)[0])
    sets = ConformalSets.fit((logits, targets), target_prior=found)
    assert sets.guarantee.startswith("Approximate: about 90 %")
    torch.testing.assert_close(sets.target_prior, found.prior)
    by_class = ConformalSets.fit((logits, targets), target_prior=found, method="per-class")
    assert by_class.guarantee.startswith("At least 90 % of the samples of each class")
    said = ConformalSets.fit((logits, targets), target_prior=found.prior, estimated=True)
    assert said.guarantee == sets.guarantee


def test_cross_fitted_samples_weaken_the_promise():
    validation = samples(Gaussians(CLASSES), UNIFORM, 400)
    sets = ConformalSets.fit(validation, cross_fitted=True)
    assert sets.guarantee.startswith("Approximate")
    assert "CV+ would promise at least 80 %" in sets.guarantee
    assert torch.equal(sets.thresholds, ConformalSets.fit(validation).thresholds)


def test_cv_plus_by_counting():
    """Romano et al.: a class is out if (1 - alpha)(n + 1) samples score lower than it, each by its own network."""
    problem = uneven()
    logits, targets = samples(problem, UNIFORM, 100)
    folds = torch.arange(100) % 3
    networks = (1.0, 0.7, 1.4)  # as if each were a network
    own = torch.stack([networks[fold] * row for fold, row in zip(folds.tolist(), logits, strict=True)])
    sets = ConformalSets.fit((own, targets), folds=folds)
    new, _ = samples(problem, UNIFORM, 30)
    together = torch.stack([scale * new for scale in networks])
    found = sets.predict(together)
    log_p = [(scale * new).log_softmax(dim=1) for scale in networks]
    mine = -own.log_softmax(dim=1)[torch.arange(100), targets]
    for row in range(30):
        for label in range(CLASSES):
            lower = sum(bool(mine[i] < -log_p[i % 3][row, label]) for i in range(100))
            assert bool(found[row, label]) == (lower < 0.9 * 101)
    assert sets.guarantee.startswith("At least 76.1 % of samples")  # 80 % less 2 (1 - 1/3) / (100/3 + 1) = 3.9 points


def test_cv_plus_is_mapies():
    """Their classifiers of five folds, ours from the same five."""
    from mapie.classification import CrossConformalClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit

    problem = uneven()
    x, targets = problem.sample(UNIFORM, 150)
    new, _ = problem.sample(UNIFORM, 60)
    folds = torch.arange(150) % 5
    theirs = CrossConformalClassifier(LogisticRegression(), confidence_level=0.9, cv=PredefinedSplit(folds.numpy()))
    theirs.fit_conformalize(x.numpy(), targets.numpy())
    expected = theirs.predict_set(new.numpy(), agg_scores="crossval")[1][:, :, 0]
    own, together = torch.zeros(150, CLASSES, dtype=torch.float64), []
    for fold in range(5):
        network = LogisticRegression().fit(x[folds != fold].numpy(), targets[folds != fold].numpy())
        own[folds == fold] = torch.from_numpy(network.predict_log_proba(x[folds == fold].numpy()))
        together.append(torch.from_numpy(network.predict_log_proba(new.numpy())))
    found = ConformalSets.fit((own, targets), folds=folds).predict(torch.stack(together))
    assert (found.numpy() == expected).mean() > 0.995  # they round scores, which decides between near ones


def nearest_means(x, targets, new):
    """Logits of a classifier that learns class means from a few samples: the fewer, the surer of the wrong ones."""
    member = torch.nn.functional.one_hot(targets, 3).double()
    means = (member.T @ x) / member.sum(dim=0).clamp(min=1)[:, None]
    return -0.5 * torch.cdist(new, means).square()


def test_cv_plus_covers_by_simulation():
    """At least 1 - 2 alpha less the excess, and near 1 - alpha: networks trained on 32 of 40 samples in 10 dimensions.

    Sets from what the networks say of their own training samples would not.
    """
    problem, alpha, prior = Gaussians(3, dimensions=10, separation=0.6), 0.2, torch.full((3,), 1 / 3).double()
    folds, held, fooled = torch.arange(40) % 5, [], []
    for _ in range(150):
        x, targets = problem.sample(prior, 40)
        new, truth = problem.sample(prior, 100)
        own, together = torch.zeros(40, 3, dtype=torch.float64), []
        for fold in range(5):
            seen = folds != fold
            own[~seen] = nearest_means(x[seen], targets[seen], x[~seen])
            together.append(nearest_means(x[seen], targets[seen], new))
        sets = ConformalSets.fit((own, targets), alpha=alpha, folds=folds)
        held.append(sets.predict(torch.stack(together))[torch.arange(100), truth].double().mean())
        naive = ConformalSets.fit((nearest_means(x, targets, x), targets), alpha=alpha)
        fooled.append(naive.predict(nearest_means(x, targets, new))[torch.arange(100), truth].double().mean())
    proven = set_promise.cv_plus_level(alpha, 40, 5)
    assert 0.4 < proven < 1 - 2 * alpha
    assert torch.stack(held).mean() > proven
    assert torch.stack(held).mean() == pytest.approx(1 - alpha, abs=0.03)
    assert torch.stack(fooled).mean() < 1 - alpha - 0.05


def test_cv_plus_of_one_network_is_the_plain_method():
    problem = uneven()
    validation, (new, _) = samples(problem, UNIFORM, 150), samples(problem, UNIFORM, 200)
    for settings_ in ({}, {"method": "per-class"}, {"target_prior": FORWARD}):
        plus = ConformalSets.fit(validation, folds=torch.zeros(150, dtype=torch.long), **settings_)
        plain = ConformalSets.fit(validation, **settings_)
        assert torch.equal(plus.predict(new[None]), plain.predict(new))
        assert plus.guarantee == plain.guarantee


def test_similar_classes_share_a_threshold():
    """Classes of two kinds, certain and doubtful, of 60 samples each: the pools are the kinds."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(60 * 100) % 100
    spread = torch.where(targets % 2 == 0, 0.2, 3.0)
    logits = torch.zeros(len(targets), 100)
    own = 6 + spread * torch.randn(len(targets), generator=generator)
    logits[torch.arange(len(targets)), targets] = own
    sets = ConformalSets.fit((logits, targets), method="pooled", score="probability")
    assert 2 < len(sets.pools) < 30
    assert all(len({int(name) % 2 for name in pool}) == 1 for pool in sets.pools)
    assert len(sets.scores) < len(targets)  # a part of the samples made the pools


def test_predictions_and_their_logits_give_the_same_sets():
    predictions = make(samples=1200, classes=10)
    first, rest = torch.arange(600), torch.arange(600, 1200)
    validation, new = predictions.subset(first), predictions.subset(rest)
    sets = ConformalSets.fit(validation, target_prior="backward-20", method="prevalence")
    prior = sets.target_prior
    bare = ConformalSets.fit(
        (validation.logits, validation.targets), target_prior=prior, source_prior=predictions.source_prior,
        method="prevalence",
    )  # fmt: skip
    assert torch.equal(sets.predict(new), bare.predict(new.logits))
    assert torch.equal(
        sets.predict(new, target_prior="train"), bare.predict(new.logits, target_prior=predictions.train_prior)
    )
    assert bool((sets.predict(new).sum(dim=1) > 0).double().mean() > 0.5)
    assert evaluate(new, num_resamples=0).accuracy < float(
        sets.predict(new)[torch.arange(600), new.targets].double().mean()
    )


def test_sets_bring_their_calibration_along():
    """What the samples of the sets were calibrated by is what new samples must be calibrated by."""
    predictions = make(samples=1000, classes=6)
    calibrated = Predictions(
        predictions.expert_logits, predictions.targets, predictions.class_counts, predictions.lambdas,
        calibration=ExpertCalibration((2.0,) * 3),
    )  # fmt: skip
    sets = ConformalSets.fit(calibrated.subset(torch.arange(500)))
    new = torch.arange(500, 1000)
    assert torch.equal(sets.predict(predictions.subset(new)), sets.predict(calibrated.subset(new).logits))
    assert not torch.equal(sets.predict(predictions.subset(new)), sets.predict(predictions.subset(new).logits))


@pytest.mark.parametrize("method", METHODS)
def test_saved_sets_are_the_same(tmp_path, method):
    predictions = make(samples=900, classes=6)
    prior = [0.0, 0.1, 0.2, 0.2, 0.2, 0.3]
    sets = ConformalSets.fit(predictions, method=method, target_prior=prior, drawn=True)
    sets.save(tmp_path / "sets.json")
    again = ConformalSets.load(tmp_path / "sets.json")
    assert torch.equal(again.predict(predictions), sets.predict(predictions))
    assert again.guarantee == sets.guarantee
    assert again.pooled_classes == sets.pooled_classes
    folds = torch.arange(len(predictions)) % 2
    plus = ConformalSets.fit(predictions, method=method, folds=folds, estimated=True, target_prior=prior)
    plus.save(tmp_path / "sets.json")
    both = torch.stack([predictions.logits, 0.9 * predictions.logits])
    assert torch.equal(ConformalSets.load(tmp_path / "sets.json").predict(both), plus.predict(both))
    (tmp_path / "sets.json").write_text('{"alpha": 0.1}')
    with pytest.raises(UserError, match="holds no prediction sets"):
        ConformalSets.load(tmp_path / "sets.json")


@pytest.mark.parametrize("score", ["probability", "aps"])
def test_blocks_batches_and_out(score, monkeypatch):
    """A sample's set is the same in any batch, also with random parts."""
    problem = Gaussians(CLASSES)
    sets = ConformalSets.fit(samples(problem, UNIFORM, 300), score=score)
    new, _ = samples(problem, UNIFORM, 500)
    whole = sets.predict(new)
    monkeypatch.setattr("balpoe.deployment.set_inputs.BLOCK_VALUES", 64)
    out = torch.zeros(500, CLASSES, dtype=torch.bool)
    assert sets.predict(new, out=out) is out
    assert torch.equal(out, whole)
    stream = (new[start : start + 77] for start in range(0, 500, 77))
    assert torch.equal(torch.cat(list(sets.predict_blocks(stream))), whole)
    order = torch.randperm(500)
    assert torch.equal(sets.predict(new[order]), whole[order])
    assert torch.equal(sets.predict(new.numpy()), whole)
    assert sets.predict(new[:0]).shape == (0, CLASSES)


def test_random_parts_are_spread_evenly():
    logits, _ = samples(Gaussians(CLASSES), UNIFORM, 4000)
    parts = set_scores._random_part(logits, 0).squeeze(1).sort().values
    assert float((parts - torch.arange(4000) / 4000).abs().max()) < 0.03  # Kolmogorov and Smirnov, at 1 in 1000
    assert not torch.equal(set_scores._random_part(logits, 1), set_scores._random_part(logits, 0))


LOGITS, TARGETS = samples(Gaussians(CLASSES), UNIFORM, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0}, "alpha must lie between 0 and 1.* but is 0"),
        ({"alpha": 1.0}, "alpha must lie between 0 and 1"),
        ({"alpha": 5e-324}, "alpha must lie between 0 and 1, from 1e-06, .* but is 5e-324"),
        ({"alpha": 1e-6}, "sets of alpha=1e-06 need at least 999999"),
        ({"alpha": float("nan")}, "alpha must be a finite number, but is nan"),
        ({"alpha": "0.1"}, "alpha must be a number, but is '0.1'"),
        ({"alpha": None}, "alpha must be a number, but is None"),
        ({"alpha": [0.1, 0.2]}, "alpha must be a number, but is 0.1,0.2"),
        ({"power": "1"}, "power must be a number, but is '1'"),
        ({"alpha": 0.01}, "validation has 40 samples, but sets of alpha=0.01 need at least 99"),
        ({"method": "classwise"}, "unknown method of sets 'classwise'; did you mean|unknown method of sets"),
        ({"method": "per-clas"}, "did you mean 'per-class'"),
        ({"score": "app"}, "unknown score of sets 'app'; did you mean 'aps'"),
        ({"method": "prevalence"}, "needs the share of each class; give target_prior"),
        ({"method": "prevalence", "score": "aps"}, "has a score of its own"),
        ({"method": "prevalence", "target_prior": UNIFORM, "power": float("inf")}, "power must be a finite number"),
        ({"target_prior": [0.5, 0.5]}, "target_prior has 2 entries, but there are 8 classes"),
        ({"target_prior": [1, 0, 0, 0, 0, 0, 0, 0]}, "target_prior rests on so few validation samples"),
        ({"folds": [0, 1]}, "folds must be the number of the network of each of the 40 validation samples"),
        ({"validation_prior": [0.5, 0.5]}, "has 2 entries, but there are 8 classes"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(UserError, match=message):
        ConformalSets.fit((LOGITS, TARGETS), **change)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ((LOGITS, TARGETS[:5]), r"shape \(samples, classes\) for 5 targets, but have \(40, 8\)"),
        ((LOGITS, TARGETS + 5), "outside the 8 classes"),
        ((LOGITS.clone().index_fill_(0, torch.tensor(3), torch.nan), TARGETS), "logits of sample 3 are not numbers"),
        ((LOGITS[:0], TARGETS[:0]), "validation has 0 samples, but sets of alpha=0.1 need at least 9"),
        (LOGITS, r"validation must be Predictions, or \(logits, targets\), but is Tensor"),
    ],
)
def test_bad_validation(validation, message):
    with pytest.raises(UserError, match=message):
        ConformalSets.fit(validation)


def test_bad_samples():
    sets = ConformalSets.fit((LOGITS, TARGETS))
    for wrong, message in (
        (LOGITS[:, :5], r"shape \(samples, 8\) for these 8 classes, but have \(40, 5\)"),
        (LOGITS[0], r"shape \(samples, classes\), but have \(8,\)"),
        (LOGITS * torch.nan, "logits of sample 0 are not numbers"),
        (make(samples=20, classes=5), r"other classes \(5\) than these sets \(8\)"),
    ):
        with pytest.raises(UserError, match=message):
            sets.predict(wrong)
    with pytest.raises(UserError, match="out must hold truth values"):
        sets.predict(LOGITS, out=torch.zeros(40, CLASSES))
    plus = ConformalSets.fit((LOGITS, TARGETS), folds=torch.arange(40) % 2)
    with pytest.raises(UserError, match=r"CV\+ of 2 networks; give the logits of each"):
        plus.predict(LOGITS)


def test_the_benchmark_measures_coverage(tmp_path):
    make(samples=1200, classes=6).save(tmp_path / "made")
    benchmark = script("benchmarks/prediction_sets.py")
    record = tmp_path / "sets.json"
    benchmark.main(["made", str(tmp_path / "made"), "--splits", "3", "--out", str(record)])
    rows = read_json(record)["made"]["sets"]["rows"]
    assert len(rows) == len(benchmark.PRIORS) * len(benchmark.WAYS)
    for row in rows:
        mean, low, high = row["coverage" if row["way"] != "per-class" else "macro"]
        assert 0.8 < low <= mean <= high < 0.97
        assert row["least"][0] <= row["macro"][0]
        assert row["size"][0] > 0
