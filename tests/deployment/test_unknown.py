"""Scores of unknown samples by their formulas, and a threshold that keeps what it says."""

import functools
from dataclasses import replace

import pytest
import torch

from balpoe import Predictions, split_validation
from balpoe.deployment import unknown_scores as scores_file
from balpoe.deployment.class_means import ClassMeans
from balpoe.deployment.unknown import UnknownDetector
from balpoe.deployment.unknown_metrics import auroc
from balpoe.deployment.unknown_scores import OF_LOGITS, unknown_scores
from balpoe.deployment.unknown_threshold import Basis
from balpoe.errors import UserError
from balpoe.experiments.calibrate import Choice, calibrated_by
from balpoe.method.expert_calibration import ExpertCalibration
from balpoe.method.priors import tempered_prior
from made_predictions import make
from scripts import script

PREDICTIONS = make(samples=400, classes=6)


def balanced():
    """Logits of each expert with its prior taken out, up to a constant for all classes."""
    log_priors = tempered_prior(PREDICTIONS.train_prior.double(), PREDICTIONS.lambdas).log()
    return PREDICTIONS.expert_logits.double() - log_priors + log_priors.mean(dim=1, keepdim=True)


def test_scores_of_logits_by_their_formulas():
    logits = balanced().mean(dim=1)
    expected = {
        "energy": -logits.exp().sum(dim=1).log(),
        "max-logit": -logits.max(dim=1).values,
        "probability": 1 - logits.softmax(dim=1).max(dim=1).values,
    }
    for name, values in expected.items():
        torch.testing.assert_close(unknown_scores(PREDICTIONS, name), values)


def test_disagreement_is_the_mean_divergence_of_the_product_from_its_experts():
    log_p = balanced().log_softmax(dim=2)
    product = log_p.mean(dim=1).log_softmax(dim=1)
    divergence = (product.exp()[:, None] * (product[:, None] - log_p)).sum(dim=2).mean(dim=1)
    torch.testing.assert_close(unknown_scores(PREDICTIONS, "disagreement"), divergence)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_bare_logits_with_their_priors_are_the_same(name, monkeypatch):
    bare = unknown_scores(PREDICTIONS.expert_logits, name, expert_priors=PREDICTIONS.expert_priors)
    torch.testing.assert_close(bare, unknown_scores(PREDICTIONS, name))
    monkeypatch.setattr(scores_file, "BLOCK_VALUES", 50)
    again = unknown_scores(PREDICTIONS.expert_logits, name, expert_priors=PREDICTIONS.expert_priors)
    torch.testing.assert_close(again, bare)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_experts_count_by_their_weights(name):
    """Weights of 1/2, 1/2 and 0 are two experts; the prior of each is taken out by itself."""
    weighted = replace(PREDICTIONS, expert_weights=torch.tensor([0.5, 0.5, 0.0]))
    two = unknown_scores(PREDICTIONS.expert_logits[:, :2], name, expert_priors=PREDICTIONS.expert_priors[:2])
    torch.testing.assert_close(unknown_scores(weighted, name), two)


def test_one_expert_agrees_with_itself():
    one = Predictions(PREDICTIONS.expert_logits[:, :1], PREDICTIONS.targets, PREDICTIONS.class_counts, [0.0])
    assert float(unknown_scores(one, "disagreement").max()) < 1e-12


def test_the_prior_of_the_logits_does_not_make_rare_classes_unknown():
    """Logits of cross-entropy and balanced ones of the same likelihoods have the same scores."""
    log_prior = PREDICTIONS.train_prior.log()
    likelihoods = PREDICTIONS.expert_logits[:, 1:2]
    plain = Predictions(
        likelihoods + log_prior - log_prior.mean(), PREDICTIONS.targets, PREDICTIONS.class_counts, [1.0]
    )
    even = Predictions(likelihoods, PREDICTIONS.targets, PREDICTIONS.class_counts, [0.0])
    for name in OF_LOGITS:
        torch.testing.assert_close(unknown_scores(plain, name), unknown_scores(even, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["energy", ("energy", "disagreement")])
def test_as_many_known_samples_are_kept_as_asked_for(score):
    kept = []
    for seed in range(20):
        predictions = make(samples=900, classes=6, seed=seed)
        order = torch.randperm(900, generator=torch.Generator().manual_seed(seed))
        detector = UnknownDetector.fit(predictions.subset(order[:300]), score, keep=0.9)
        kept.append(float((~detector.predict(predictions.subset(order[300:]))).double().mean()))
    assert 0.89 <= sum(kept) / 20 <= 0.92


def test_the_share_is_kept_under_a_prior():
    """Of a class that looks unknown many are turned away, unless deployment has many of it."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(4000, generator=generator) < 0.1).long()
    logits = torch.randn(4000, 1, 2, generator=generator) - 3.0 * targets[:, None, None]

    def kept(**settings):
        detector = UnknownDetector.fit(logits[:2000], keep=0.9, targets=targets[:2000], **settings)
        known = ~detector.predict(logits[2000:])
        return [float(known[targets[2000:] == label].double().mean()) for label in (0, 1)]

    plain, shifted = kept(), kept(target_prior=[0.2, 0.8])
    assert 0.9 * plain[0] + 0.1 * plain[1] == pytest.approx(0.9, abs=0.02)
    assert 0.2 * shifted[0] + 0.8 * shifted[1] == pytest.approx(0.9, abs=0.03)
    assert shifted[1] > plain[1] + 0.3


def test_distance_and_combination():
    """Unknown samples between the classes, which logits do not tell from known ones, and features do."""
    generator = torch.Generator().manual_seed(0)
    centres = 6 * torch.eye(4)
    targets = torch.arange(400) % 4
    features = centres[targets] + torch.randn(400, 4, generator=generator)
    strange = -6 + torch.randn(100, 4, generator=generator)
    means = ClassMeans.fit(features[:200], targets[:200])
    logits, other = (torch.randn(size, 3, 4, generator=generator) for size in (400, 100))
    for score in ("mahalanobis", "cosine", ("energy", "mahalanobis", "cosine")):
        detector = UnknownDetector.fit(logits[200:], score, features=features[200:], means=means)
        known, found = detector.score(logits[200:], features[200:]), detector.score(other, strange)
        assert auroc(known, found) > 0.95
    assert abs(auroc(unknown_scores(logits[200:]), unknown_scores(other)) - 0.5) < 0.1


def test_several_scores_count_alike_whatever_their_units():
    """Each in units of samples of its own: those that set the threshold change nothing of the units."""
    names = ("energy", "probability")
    detector = UnknownDetector.fit(PREDICTIONS, names)
    values = [unknown_scores(PREDICTIONS, name) for name in names]
    expected = [(each - mean) / spread for each, (mean, spread) in zip(values, detector.references, strict=True)]
    torch.testing.assert_close(detector.score(PREDICTIONS), (expected[0] + expected[1]) / 2)
    for each, (mean, spread) in zip(values, detector.references, strict=True):
        assert mean == pytest.approx(float(each.mean()), abs=0.3 * spread)
        assert spread == pytest.approx(float(each.std()), rel=0.3)
    basis = Basis.split(400, PREDICTIONS.targets, None, 6, None, 0, for_means=False)
    torch.testing.assert_close(values[0][basis.reference].mean(), torch.tensor(detector.references[0][0]).double())
    assert int(basis.threshold.sum()) == 320
    assert not bool((basis.reference & basis.threshold).any())


def kept_of_new_samples(fit, repeats=150, samples=60, size=12):
    """Mean share of new samples that a detector of few held-out ones keeps, where their features are many."""
    kept = []
    for seed in range(repeats):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (samples + 200,), generator=generator)
        features = 2 * torch.eye(size)[targets] + torch.randn(len(targets), size, generator=generator)
        logits = features[:, None, :3] + torch.randn(len(targets), 2, 3, generator=generator)
        detector = fit(logits[:samples], features[:samples], targets[:samples], seed)
        kept.append(float((~detector.predict(logits[samples:], features[samples:])).double().mean()))
    return sum(kept) / repeats


@pytest.mark.parametrize("score", ["mahalanobis", ("disagreement", "mahalanobis", "cosine")])
def test_class_means_and_units_have_samples_of_their_own_so_that_the_share_is_kept(score):
    """If the same samples gave the class means and the threshold, far fewer new ones would be kept."""

    def apart(logits, features, targets, seed):
        return UnknownDetector.fit(logits, score, keep=0.9, targets=targets, features=features, seed=seed)

    def twice(logits, features, targets, seed):
        means = ClassMeans.fit(features, targets)
        return UnknownDetector.fit(logits, score, keep=0.9, targets=targets, features=features, means=means)

    assert 0.89 < kept_of_new_samples(apart) < 0.95
    assert kept_of_new_samples(twice, repeats=40) < 0.87


def lacking(label=5):
    return PREDICTIONS.subset((PREDICTIONS.targets != label).nonzero().squeeze(1))


def test_a_class_that_was_never_held_out_is_named():
    detector = UnknownDetector.fit(lacking())
    share = float(PREDICTIONS.train_prior[5])
    assert detector.uncovered == ("5",)
    assert detector.notes == (
        "No held-out sample of '5' set the threshold: it may be called unknown too often. Of all samples at least "
        f"{95 * (1 - share):.1f} % are kept, if none of these ({100 * share:.1f} %) is.",
    )
    assert UnknownDetector.fit(PREDICTIONS).notes == ()
    known = UnknownDetector.fit(lacking(), target_prior=[0.2, 0.2, 0.2, 0.2, 0.2, 0.0])  # where it does not occur
    assert known.notes == known.uncovered == ()


def test_what_the_note_says_is_the_least_that_is_kept():
    """A class that looks unknown and was never held out: the share of the others is kept, and none of it."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(4000, generator=generator) < 0.3).long()
    logits = torch.randn(4000, 1, 2, generator=generator) - 30.0 * targets[:, None, None]
    rest = (targets[:2000] == 0).nonzero().squeeze(1)
    held_out = Predictions(logits[rest], targets[rest], [70, 30], [0.0])
    detector = UnknownDetector.fit(held_out, keep=0.9)
    assert "at least 63.0 % are kept, if none of these (30.0 %) is" in detector.notes[0]
    kept = float((~detector.predict(logits[2000:])).double().mean())
    assert kept == pytest.approx(0.63, abs=0.025)


def test_a_distance_knows_classes_by_their_training_means():
    """Also those that were never held out: their samples are not far, though none set the threshold."""
    generator = torch.Generator().manual_seed(0)
    centres = 8 * torch.eye(4)
    train, test = (torch.arange(size) % 4 for size in (400, 800))
    features = [centres[each] + torch.randn(len(each), 4, generator=generator) for each in (train, test)]
    held = (torch.arange(800) < 400) & (test != 3)
    logits = torch.zeros(800, 1, 4)
    settings = {"targets": test[held], "features": features[1][held]}
    detector = UnknownDetector.fit(logits[held], "mahalanobis", means=ClassMeans.fit(features[0], train), **settings)
    assert detector.uncovered == ("3",)
    new = (torch.arange(800) >= 400) & (test == 3)
    assert float(detector.predict(logits[new], features[1][new]).double().mean()) < 0.12
    without = ClassMeans.fit(features[0][train != 3], train[train != 3], 4)
    blind = UnknownDetector.fit(logits[held], "mahalanobis", means=without, **settings)
    assert "There is no class mean of '3': such samples look unknown by distance." in blind.notes
    assert float(blind.predict(logits[new], features[1][new]).double().mean()) > 0.95


def test_groups_are_not_split_and_are_said():
    groups = torch.arange(400) // 10
    grouped = replace(PREDICTIONS, groups=groups)
    basis = Basis.split(400, grouped.targets, None, 6, groups, 0, for_means=False)
    assert not set(groups[basis.reference].tolist()) & set(groups[basis.threshold].tolist())
    assert "come in groups" in UnknownDetector.fit(grouped, ("energy", "probability")).notes[-1]


@pytest.mark.parametrize("cross_fitted", [False, True])
def test_of_a_run_the_half_that_fitted_nothing_sets_the_threshold(tmp_path, cross_fitted, monkeypatch):
    quick = functools.partial(calibrated_by, one_temperature=True)
    monkeypatch.setattr("balpoe.deployment.validation_split.calibrated_by", quick)
    Choice(0.0, quick(PREDICTIONS), cross_fitted=cross_fitted).save(tmp_path)
    detector = UnknownDetector.of_run(tmp_path, "energy", seed=2, keep=0.9)
    expected = UnknownDetector.fit(split_validation(PREDICTIONS, 2)[1], keep=0.9)
    assert detector.threshold == pytest.approx(expected.threshold)
    assert ("networks other than the model" in " ".join(detector.notes)) == cross_fitted


def test_detectors_bring_their_calibration_along():
    calibrated = Predictions(
        PREDICTIONS.expert_logits, PREDICTIONS.targets, PREDICTIONS.class_counts, PREDICTIONS.lambdas,
        calibration=ExpertCalibration((2.0,) * 3),
    )  # fmt: skip
    detector = UnknownDetector.fit(calibrated)
    assert torch.equal(detector.predict(PREDICTIONS), detector.predict(calibrated))
    assert float(detector.predict(PREDICTIONS).double().mean()) < 0.06


def test_saved_detectors_are_the_same(tmp_path):
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(400, 5, generator=generator), PREDICTIONS.targets
    means = ClassMeans.fit(features, targets)
    detector = UnknownDetector.fit(PREDICTIONS, ("disagreement", "mahalanobis"), features=features, means=means)
    detector.save(tmp_path / "unknown.json")
    means.save(tmp_path / "means.npz")
    again = UnknownDetector.load(tmp_path / "unknown.json", ClassMeans.load(tmp_path / "means.npz"))
    assert torch.equal(again.predict(PREDICTIONS, features), detector.predict(PREDICTIONS, features))
    named = UnknownDetector.fit(lacking())
    named.save(tmp_path / "named.json")
    again = UnknownDetector.load(tmp_path / "named.json")
    assert (again.uncovered, again.notes) == (named.uncovered, named.notes)
    (tmp_path / "unknown.json").write_text('{"scores": ["energy"]}')
    with pytest.raises(UserError, match="holds no detector of unknown samples"):
        UnknownDetector.load(tmp_path / "unknown.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "enery"}, "unknown score of unknown samples 'enery'; did you mean 'energy'"),
        ({"score": ()}, "score must name one score or more"),
        ({"score": "cosine"}, "'cosine' is a distance in feature space; give features and means"),
        ({"keep": 1.0}, "keep must lie between 0 and 1"),
        ({"keep": "most"}, "keep must be a number, but is 'most'"),
        ({"keep": 0.999}, "there are 400 held-out samples, but to keep 99.9 % takes at least 999"),
        (
            {"target_prior": [0.995, 0.001, 0.001, 0.001, 0.001, 0.001], "keep": 0.99},
            "rests on so few held-out samples",
        ),
        ({"target_prior": [1.0, 1.0]}, "has 2 entries, but there are 6 classes"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(UserError, match=message):
        UnknownDetector.fit(PREDICTIONS, **arguments)


def test_bad_logits():
    with pytest.raises(UserError, match=r"shape \(samples, experts, classes\), but have \(5, 4\)"):
        unknown_scores(torch.zeros(5, 4))
    with pytest.raises(UserError, match="logits of sample 1 are not numbers"):
        unknown_scores(torch.tensor([[[0.0, 1.0]], [[torch.nan, 0.0]]]))
    with pytest.raises(UserError, match="give targets"):
        UnknownDetector.fit(torch.zeros(40, 1, 3), target_prior=[0.2, 0.3, 0.5])
    with pytest.raises(UserError, match="class means take features and targets of the 40 held-out samples"):
        UnknownDetector.fit(torch.zeros(40, 1, 3), "cosine", features=torch.ones(40, 2))
    with pytest.raises(UserError, match="4 held-out samples are too few"):
        UnknownDetector.fit(torch.zeros(4, 1, 3), ("energy", "max-logit"))


def test_the_benchmark_leaves_classes_out(tmp_path, capsys):
    benchmark = script("benchmarks/unknown.py")
    record = tmp_path / "unknown.json"
    benchmark.main(["--data", "digits-lt", "--left-out", "2", "--seeds", "1", "--epochs", "6", "--out", str(record)])
    found = benchmark.read_json(record)["digits-lt"]["runs"][0]
    assert len(found["left_out"]) == 2
    assert found["accuracy"] > 0.5
    assert {"energy", "disagreement", "cosine", "energy + disagreement"} <= set(found["rows"])
    groups = found["rows"]["probability"]["left out"]
    assert set(groups) <= {"all", "many", "medium", "few"}
    assert groups["all"]["auroc"] > 0.6
    assert "AUROC / FPR95 / kept" in capsys.readouterr().out
