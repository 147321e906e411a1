"""evaluate() against loops over samples and classes, and its checks against exact posteriors."""

import json
import math
from dataclasses import asdict, replace
from typing import get_type_hints

import pytest
import torch

from balpoe import Predictions, UserError, compare, evaluate, logit_offsets, tempered_prior
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.scores import Scores
from balpoe.method.intervals import mean_interval
from gaussians import Gaussians, long_tail

COUNTS = torch.tensor([150, 60, 15, 5])


@pytest.fixture
def predictions():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(4, (60,), generator=generator)
    logits = torch.randn(60, 3, 4, generator=generator)
    logits[torch.arange(60), :, targets] += 1.0
    return Predictions(logits, targets, COUNTS, torch.tensor([1.0, 0.0, -1.0]))


def naive(logits, targets, weights, bins=15):
    """Every metric, sample by sample."""
    samples, classes = logits.shape
    probabilities = []
    for row in logits.tolist():
        top = max(row)
        exponentials = [math.exp(value - top) for value in row]
        probabilities.append([value / sum(exponentials) for value in exponentials])
    answers = [max(range(classes), key=lambda c: row[c]) for row in probabilities]
    right = [answer == target for answer, target in zip(answers, targets, strict=True)]
    total = sum(weights)
    per_class = []
    for label in range(classes):
        rows = [i for i in range(samples) if targets[i] == label]
        per_class.append(sum(right[i] for i in rows) / len(rows) if rows else None)
    binned = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for row, hit, w in zip(probabilities, right, weights, strict=True):
        b = min(max(math.ceil(max(row) * bins) - 1, 0), bins - 1)
        for k, value in enumerate((w, w * max(row), w * hit)):
            binned[b][k] += value
    gaps = [(mass / total, abs(confidence - hits) / mass) for mass, confidence, hits in binned if mass]
    classwise = 0.0
    for label in range(classes):
        sums = [[0.0, 0.0] for _ in range(bins)]
        for row, target, w in zip(probabilities, targets, weights, strict=True):
            b = min(max(math.ceil(row[label] * bins) - 1, 0), bins - 1)
            sums[b][0] += w * row[label]
            sums[b][1] += w * (target == label)
        classwise += sum(abs(a - b) for a, b in sums) / total / classes
    present = [value for value in per_class if value is not None]
    return {
        "accuracy": sum(w for w, hit in zip(weights, right, strict=True) if hit) / total,
        "balanced_accuracy": sum(present) / len(present),
        "many": per_class[0],
        "medium": per_class[1],
        "few": (per_class[2] + per_class[3]) / 2,
        "ece": sum(share * gap for share, gap in gaps),
        "mce": max(gap for _, gap in gaps),
        "classwise_ece": classwise,
        "nll": sum(-w * math.log(row[t]) for row, t, w in zip(probabilities, targets, weights, strict=True)) / total,
        "brier": sum(
            w * sum((p - (c == t)) ** 2 for c, p in enumerate(row))
            for row, t, w in zip(probabilities, targets, weights, strict=True)
        )
        / total,
    }


def check(scores, expected):
    for name, value in expected.items():
        assert getattr(scores, name) == pytest.approx(value, abs=1e-9), name


def test_all_metrics_of_ensemble_and_experts_against_loops(predictions):
    evaluation = evaluate(predictions, num_resamples=20)
    targets, ones = predictions.targets.tolist(), [1.0] * 60
    check(evaluation, naive(predictions.expert_logits.double().mean(dim=1), targets, ones))
    for expert in range(3):
        check(evaluation.experts[expert], naive(predictions.expert_logits[:, expert].double(), targets, ones))
    assert evaluation.samples == 60
    assert evaluation.effective_samples == 60


def test_a_target_prior_moves_the_logits_and_weights_the_samples(predictions):
    target = [0.1, 0.2, 0.3, 0.4]
    evaluation = evaluate(predictions, target, num_resamples=0)
    targets = predictions.targets.tolist()
    frequency = [targets.count(label) / 60 for label in range(4)]
    weights = [target[t] / frequency[t] for t in targets]
    moved = predictions.expert_logits.double().mean(dim=1) + torch.tensor(target, dtype=torch.float64).log()
    check(evaluation, naive(moved, targets, weights))
    own = predictions.expert_priors.double()
    torch.testing.assert_close(own, tempered_prior(COUNTS.double() / COUNTS.sum(), (1, 0, -1)), rtol=1e-6, atol=0)
    for expert in range(3):
        own_prior = own[expert] / own[expert].sum()
        log_ratio = (torch.tensor(target, dtype=torch.float64) / own_prior).log()
        shifted = predictions.expert_logits[:, expert].double() + log_ratio
        check(evaluation.experts[expert], naive(shifted, targets, weights))
    assert evaluation.effective_samples == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))


def test_adjusted_to_the_test_set_s_own_prior_nothing_is_weighted(predictions):
    counts = torch.bincount(predictions.targets).double()
    evaluation = evaluate(predictions, counts / counts.sum(), num_resamples=0)
    assert evaluation.effective_samples == pytest.approx(60)


def test_weighted_accuracy_agrees_with_a_test_set_drawn_from_the_prior():
    problem = Gaussians(classes=6, separation=0.7)
    target = long_tail(6, 20)
    labels = torch.arange(12_000) % 6
    logits = problem.log_likelihood(problem.sample_of(labels))
    weighted = evaluate(
        Predictions(logits[:, None], labels, COUNTS.repeat(2)[:6], torch.zeros(1)), target, num_resamples=0
    )
    x, drawn = problem.sample(target, 12_000)
    direct = (problem.posterior(x, target).argmax(dim=1) == drawn).double().mean()
    assert weighted.accuracy == pytest.approx(float(direct), abs=0.02)
    assert weighted.effective_samples < 12_000


def test_empty_groups_and_absent_classes_are_none():
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]])
    predictions = Predictions(logits, torch.tensor([0, 0]), torch.tensor([500, 400, 300]), torch.tensor([0.0]))
    evaluation = evaluate(predictions, num_resamples=10)
    assert (evaluation.many, evaluation.medium, evaluation.few) == (0.5, None, None)
    assert evaluation.per_class == (0.5, None, None)
    assert evaluation.per_class_interval[1] is None
    assert evaluation.expert_checks[0].weighted_kl is None
    assert "few" not in evaluation.intervals
    assert evaluate(predictions, shot_groups=(450, 600), num_resamples=0).few is None
    with pytest.raises(UserError, match="gives weight to class '1', of which the test set has no sample"):
        evaluate(predictions, [0.5, 0.5, 0.0])
    assert evaluate(predictions, [1.0, 0.0, 0.0], num_resamples=0).accuracy == 1.0


def test_an_excluded_class_that_occurs_has_no_likelihood(predictions):
    logits = predictions.expert_logits.clone()
    logits[:, :, 0] = float("-inf")
    excluded = Predictions(logits, predictions.targets, COUNTS, predictions.lambdas)
    assert evaluate(excluded, num_resamples=5).nll is None


def test_blocks_change_nothing(predictions, monkeypatch):
    whole = evaluate(predictions, num_resamples=10).to_dict()
    monkeypatch.setattr("balpoe.evaluation.predictions.BLOCK_VALUES", 100)
    parts = evaluate(predictions, num_resamples=10).to_dict()
    for name in ("accuracy", "ece", "classwise_ece", "nll", "brier"):
        assert parts[name] == pytest.approx(whole[name], abs=1e-12)
    checks = [(each["check"], *each["expert_checks"]) for each in (parts, whole)]
    for ours, theirs in zip(*checks, strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-12), name


def test_it_is_plain_json(predictions):
    evaluation = evaluate(predictions, num_resamples=5)
    whole = asdict(evaluation)  # the metrics lie beside the rest in JSON
    for scores in (whole, *whole["experts"]):
        scores |= scores.pop("metrics")
    assert evaluation.to_dict() == whole
    text = json.dumps(evaluation.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["experts"][0]["few"] is not None
    assert len(back["reliability"]["share"]) == 15


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Known accuracy by construction; 95 % intervals over 60 drawn test sets."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for draw in range(60):
        targets = torch.arange(200) % 4
        right = torch.rand(200, generator=generator) < 0.7
        logits = torch.nn.functional.one_hot(torch.where(right, targets, (targets + 1) % 4), 4).float()
        found = evaluate(Predictions(logits[:, None], targets, COUNTS, torch.zeros(1)), num_resamples=100, seed=draw)
        low, high = found.intervals["accuracy"]
        covered += low <= 0.7 <= high
    assert covered >= 50  # 57 expected


def test_wilson_of_each_class(predictions):
    from balpoe.method.intervals import wilson_interval

    evaluation = evaluate(predictions, num_resamples=0)
    totals = torch.bincount(predictions.targets)
    for label in range(4):
        hits = torch.tensor([evaluation.per_class[label] * int(totals[label])])
        expected = wilson_interval(hits, totals[label][None])[:, 0].tolist()
        assert evaluation.per_class_interval[label] == pytest.approx(expected)


def test_a_paired_difference_is_surer_than_two_runs_apart(predictions):
    better = predictions.expert_logits.clone()
    better[:6, :, :] += 3 * torch.nn.functional.one_hot(predictions.targets[:6], 4)[:, None]
    improved = Predictions(better, predictions.targets, COUNTS, predictions.lambdas)
    differences = compare(improved, predictions, num_resamples=300)
    ours, theirs = evaluate(improved, num_resamples=300), evaluate(predictions, num_resamples=300)
    value, low, high = differences["accuracy"]
    assert value == pytest.approx(ours.accuracy - theirs.accuracy)
    assert low <= value <= high
    apart = sum(e.intervals["accuracy"][1] - e.intervals["accuracy"][0] for e in (ours, theirs))
    assert high - low < 0.7 * apart
    assert compare(predictions, predictions, num_resamples=5)["ece"] == (0.0, 0.0, 0.0)
    with pytest.raises(UserError, match="different test samples"):
        compare(predictions, predictions.subset(torch.arange(30)))


def test_an_infinite_loss_has_no_difference(predictions):
    excluding = predictions.expert_logits.clone()
    excluding[:, :, 3] = -torch.inf  # a class that occurs
    other = Predictions(excluding, predictions.targets, COUNTS, predictions.lambdas)
    differences = compare(other, predictions, num_resamples=20)
    assert "nll" not in differences
    assert all(low <= high for _, low, high in differences.values())
    assert evaluate(other, num_resamples=20).intervals.keys() == evaluate(predictions).intervals.keys() - {"nll"}


@pytest.mark.slow
@pytest.mark.parametrize("separation", [0.3, 0.8, 2.0])
def test_the_weighted_check_is_zero_for_exact_experts_and_the_paper_s_is_not(separation):
    """Experts with exact posteriors; the paper's divergence grows with separation all the same."""
    classes = 10
    problem = Gaussians(classes, dimensions=4, separation=separation)
    counts = torch.tensor([500, 350, 250, 180, 120, 80, 50, 30, 20, 10])
    prior = (counts / counts.sum()).double()
    labels = torch.arange(200_000) % classes
    x = problem.sample_of(labels)
    training = problem.log_likelihood(x) + prior.log()
    lambdas = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    expert_logits = training[:, None] - logit_offsets(prior, lambdas)
    evaluation = evaluate(Predictions(expert_logits, labels, counts, lambdas), num_resamples=0)
    for expert in (evaluation.check, *evaluation.expert_checks):
        assert expert.weighted_kl < 1e-3
        assert expert.weighted_ece < 0.02
        assert sum(expert.marginal) == pytest.approx(1)
    head, uniform, tail = (expert.marginal_kl for expert in evaluation.expert_checks)
    assert uniform < 1e-3
    if separation > 1:
        assert head > 0.1
        assert tail > 0.1


def test_the_weighted_check_sees_an_expert_that_is_not_calibrated():
    problem = Gaussians(6, separation=0.7)
    counts = torch.tensor([400, 200, 100, 50, 25, 12])
    prior = (counts / counts.sum()).double()
    labels = torch.arange(30_000) % 6
    exact = problem.log_likelihood(problem.sample_of(labels)) + prior.log()
    sure = Predictions((3 * exact)[:, None], labels, counts, torch.tensor([1.0]))
    check_of_sure = evaluate(sure, num_resamples=0).expert_checks[0]
    assert check_of_sure.weighted_ece > 0.1
    assert check_of_sure.weighted_kl > 1e-3


def test_marginal_divergence_against_the_definition(predictions):
    evaluation = evaluate(predictions, num_resamples=0)
    for expert, found in enumerate(evaluation.expert_checks):
        marginal = predictions.expert_logits[:, expert].double().softmax(dim=1).mean(dim=0)
        prior = predictions.expert_priors[expert].double()
        expected = sum(float(m) * math.log(float(m) / float(p)) for m, p in zip(marginal, prior, strict=True))
        assert found.marginal_kl == pytest.approx(expected, abs=1e-6)
        assert list(found.marginal) == pytest.approx(marginal.tolist())


def test_logits_that_are_not_numbers_are_refused():
    logits = torch.randn(20, 2, 3)
    logits[11, 0, 2] = torch.nan
    broken = Predictions(logits, torch.arange(20) % 3, torch.tensor([9, 5, 1]), torch.zeros(2))
    with pytest.raises(UserError, match="the logits of sample 11 are not numbers"):
        evaluate(broken)


def test_a_class_that_the_target_prior_excludes_has_no_part_in_any_mean():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 2, 4, generator=generator)
    targets = torch.arange(200) % 4
    counts, lambdas = torch.tensor([90, 50, 30, 10]), torch.tensor([1.0, -1.0])
    whole = evaluate(Predictions(logits, targets, counts, lambdas), [0.5, 0.5, 0, 0], num_resamples=0)
    kept = targets < 2
    two = Predictions(logits[kept][:, :, :2], targets[kept], counts[:2], torch.zeros(2))
    alone = evaluate(two, num_resamples=0)
    for name in ("accuracy", "balanced_accuracy", "ece", "nll", "brier"):
        assert getattr(whole, name) == pytest.approx(getattr(alone, name), abs=1e-6), name
    assert whole.per_class[2:] == (None, None)


def test_as_trained_weights_the_samples_and_leaves_the_logits(predictions):
    target = [0.1, 0.2, 0.3, 0.4]
    evaluation = evaluate(predictions, target, adjust=False, num_resamples=0)
    targets = predictions.targets.tolist()
    weights = [target[t] / targets.count(t) for t in targets]
    check(evaluation, naive(predictions.expert_logits.double().mean(dim=1), targets, weights))
    for expert in range(3):
        check(evaluation.experts[expert], naive(predictions.expert_logits[:, expert].double(), targets, weights))
    adjusted = evaluate(predictions, target, num_resamples=0)
    assert evaluation.effective_samples == adjusted.effective_samples
    assert evaluation.check == adjusted.check


def test_the_old_name_of_adjust_is_read(predictions):
    assert evaluate(predictions, "train", told=False, num_resamples=0) == evaluate(
        predictions, "train", adjust=False, num_resamples=0
    )
    with pytest.raises(UserError, match="told is the old name of adjust"):
        evaluate(predictions, "train", told=False, adjust=False)


def test_words_and_names_are_the_priors_they_stand_for(predictions):
    def scores(target):
        found = evaluate(predictions, target, num_resamples=0)
        return [found.accuracy, found.ece, found.mce, found.nll, found.effective_samples, found.experts[2].brier]

    profile = torch.tensor([16 ** (-rank / 3) for rank in range(4)], dtype=torch.float64)
    for word, prior in (
        ("uniform", [0.25] * 4),
        ("train", (COUNTS / COUNTS.sum()).double()),
        ({"3": 4, "2": 3, "1": 2, "0": 1}, [0.1, 0.2, 0.3, 0.4]),
        ("forward-16", profile / profile.sum()),
        ("backward-16", (profile / profile.sum()).flip(0)),
    ):
        assert scores(word) == pytest.approx(scores(prior), rel=1e-6)
    with pytest.raises(UserError, match="did you mean 'uniform'"):
        scores("unifrm")
    with pytest.raises(UserError, match="sums to 10, not to 1"):
        scores([1, 2, 3, 4])


def test_what_is_not_finite_is_refused():
    targets, counts = torch.tensor([0, 1]), torch.tensor([9, 1])
    for logits in (torch.full((2, 1, 2), torch.inf), torch.full((2, 1, 2), -torch.inf)):
        with pytest.raises(UserError, match="the logits of sample 0"):
            evaluate(Predictions(logits, targets, counts, torch.zeros(1)), num_resamples=0)
    apart = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]).expand(2, 2, 2)  # the experts exclude each other
    with pytest.raises(UserError, match="the logits of sample 0"):
        evaluate(Predictions(apart, targets, counts, torch.zeros(2)), num_resamples=0)
    with pytest.raises(UserError, match="no test sample"):
        evaluate(Predictions(torch.zeros(0, 1, 2), targets[:0], counts, torch.zeros(1)), num_resamples=0)


def test_weighted_and_subsampled_accuracy_agree_for_a_cross_entropy_model():
    """Posteriors of the training prior, adjusted to a backward one: weights against a test set cut to that prior."""
    problem, train = Gaussians(classes=6, separation=0.7), long_tail(6, 20)
    counts = (10_000 * train).round().long()
    labels = torch.arange(30_000) % 6
    logits = problem.posterior(problem.sample_of(labels), counts.double() / counts.sum()).log()
    predictions = Predictions(logits[:, None], labels, counts, torch.ones(1))
    weighted = evaluate(predictions, "backward-20", num_resamples=0)
    target = long_tail(6, 20).flip(0)
    kept = [(labels == label).nonzero()[: int(5000 * target[label] / target.max()), 0] for label in range(6)]
    cut = predictions.subset(torch.cat(kept))
    answers = (cut.logits + (target / (counts / counts.sum())).log()).argmax(dim=1)
    direct = float((answers == cut.targets).double().mean())  # nothing weighted
    deviation = math.sqrt(direct * (1 - direct) / len(cut))
    assert weighted.accuracy == pytest.approx(direct, abs=3 * deviation)
    assert weighted.accuracy > evaluate(predictions, "backward-20", adjust=False, num_resamples=0).accuracy + 0.02
    assert weighted.ece < 0.02  # exact posteriors, rightly moved, are calibrated


def test_every_metric_is_completed_and_typed(predictions):
    """`dir` lists the catalogue's metrics, and a type checker knows them; those that can be None as such."""
    evaluation = evaluate(predictions, num_resamples=0)
    assert {*METRICS, "samples", "to_dict"} <= {*dir(evaluation)}
    assert {*METRICS} <= {*dir(evaluation.experts[0])}
    types = get_type_hints(Scores)
    for name, metric in METRICS.items():
        assert types[name] == (float | None if metric.optional else float)


def test_frames_of_one_track_are_one_observation():
    """Every sample ten times, as a group: intervals are about those of the samples once, not narrower."""
    torch.manual_seed(0)
    once = Predictions(torch.randn(60, 2, 3), torch.arange(60) % 3, [60, 30, 10], [1, -1])
    rows = torch.arange(60).repeat_interleave(10)
    repeated = once.subset(rows)
    grouped = replace(repeated, groups=rows)
    single, many, tracks = (evaluate(each, num_resamples=500) for each in (once, repeated, grouped))
    assert tracks.metrics == many.metrics
    for ours, theirs in zip(tracks.per_class_interval, single.per_class_interval, strict=True):
        assert ours == pytest.approx(theirs)
    width = {name: [high - low for low, high in (each.intervals[name] for each in (single, many, tracks))]
             for name in ("accuracy", "balanced_accuracy", "nll", "brier")}  # fmt: skip
    for alone, copied, tracked in width.values():
        assert copied < 0.5 * alone
        assert tracked == pytest.approx(alone, rel=0.2)
    difference = compare(grouped, replace(grouped, expert_logits=-grouped.expert_logits), num_resamples=500)["accuracy"]
    unaware = compare(repeated, replace(repeated, expert_logits=-repeated.expert_logits), num_resamples=500)["accuracy"]
    assert difference[0] == unaware[0]
    assert difference[2] - difference[1] > 2 * (unaware[2] - unaware[1])


def test_one_test_track_is_no_evidence():
    """Thirty right frames of one track: a mean over classes cannot be as sure as over thirty images."""
    targets = torch.arange(2).repeat_interleave(30)
    right = Predictions(torch.nn.functional.one_hot(targets)[:, None] * 9.0, targets, [30, 30], [0])
    for name in ("balanced_accuracy", "accuracy"):
        low, high = evaluate(right).intervals[name]
        track_low, _ = evaluate(replace(right, groups=targets)).intervals[name]
        assert 0.9 < low < high == 1
        assert track_low < 0.5
    assert evaluate(replace(right, groups=targets)).per_class_interval[0][0] < 0.25


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8])
def test_no_interval_of_few_groups_is_without_width(number):
    """All right, or two that agree: that so few groups say the same does not make it sure."""
    targets = (torch.arange(60) % number) % 3
    classes = int(targets.max()) + 1
    logits = torch.nn.functional.one_hot(targets, 3)[:, None] * 3.0
    logits = logits + 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    right = Predictions(logits, targets, [30, 20, 10], [0], groups=torch.arange(60) % number)
    evaluation = evaluate(right)
    assert evaluation.accuracy == 1
    for name, (low, high) in evaluation.intervals.items():
        assert low < high, name
    low, _ = evaluation.intervals["accuracy"]
    assert low < 1 - 0.5 / number
    assert ("nll" in evaluation.intervals) == (number >= 4)
    found = compare(right, right)
    assert found["balanced_accuracy"][0] == 0
    assert found["balanced_accuracy"][2] > 0.4 / number
    assert found["balanced_accuracy"][1] == -found["balanced_accuracy"][2]
    assert ("nll" in found) == (number >= 4)
    (sentence,) = right.about_groups
    assert ("too few" in sentence) == (number < 4)
    assert classes == min(3, number)


def test_an_interval_of_all_right_answers_has_a_width_without_groups_too():
    targets = torch.arange(45) % 3
    right = Predictions(torch.nn.functional.one_hot(targets)[:, None] * 3.0, targets, [9, 5, 2], [0])
    for name in ("accuracy", "balanced_accuracy", "few"):
        low, high = evaluate(right).intervals[name]
        assert 0.85 < low < 0.98, name
        assert high == 1


def test_accuracies_of_groups_are_not_resampled_however_many():
    """Twelve tracks a class of uneven length, some wrong: the interval is that of method/intervals.py, from tracks."""
    lengths = torch.arange(24) % 5 + 3
    groups = torch.arange(24).repeat_interleave(lengths)
    targets = groups % 2
    right = torch.isin(groups, torch.tensor([3, 8, 9]), invert=True)
    logits = torch.nn.functional.one_hot(torch.where(right, targets, 1 - targets))[:, None] * 3.0
    found = evaluate(Predictions(logits, targets, [90, 10], [0], groups=groups), num_resamples=50).intervals
    shares = torch.isin(torch.arange(24), torch.tensor([3, 8, 9]), invert=True).double()
    tracks = torch.arange(24) % 2
    assert found["balanced_accuracy"] == pytest.approx(mean_interval(shares, tracks, sizes=lengths))
    weights = torch.bincount(targets)
    assert found["accuracy"] == pytest.approx(mean_interval(shares, tracks, sizes=lengths, class_weights=weights))
