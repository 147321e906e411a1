import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score

from balpoe import Predictions, PriorTable, Taxonomy
from balpoe.deployment.abstaining import abstained
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.deployment.decision_scores import decision_scores
from balpoe.deployment.place_deciders import PlaceDeciders

NAMES = ("oak", "ash", "elm")
TREE = Taxonomy.from_rows([("oak", "x"), ("ash", "x"), ("elm", "y")], levels=("class", "group"))
PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


def made(samples, seed, groups=None):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (samples,), generator=generator)
    logits = torch.randn(samples, 1, 3, generator=generator) + torch.nn.functional.one_hot(targets, 3)[:, None]
    return Predictions(logits, targets, [500, 50, 5], [0], NAMES, groups=groups)


TEST = made(300, 0)
HELD_OUT = HeldOut(made(500, 1), made(500, 2))


def fitted(wanted, prior=None, test=TEST):
    return Decider.fit(wanted, test, HELD_OUT, prior)


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_the_cost_is_that_of_the_answers_one_by_one(prior):
    costs = torch.tensor([[0.0, 1, 2, 0.5], [3, 0, 1, 0.5], [9, 9, -1, 0.5]])
    decider = fitted(Wanted(costs=costs, answers=(*NAMES, "ask")), prior)
    found = decision_scores(decider, TEST)["cost"]
    counts = torch.bincount(TEST.targets).double()
    weights = [1.0] * 300 if prior is None else [float(prior[y] / counts[y]) for y in TEST.targets]
    plain = (TEST.logits + (torch.zeros(3) if prior is None else prior.log())).argmax(dim=1)
    expected = {
        way: sum(w * float(costs[y, a]) for w, y, a in zip(weights, TEST.targets, answers, strict=True)) / sum(weights)
        for way, answers in (("decision", decider.rule(TEST)), ("most probable class", plain))
    }
    assert found["decision"] == pytest.approx(expected["decision"])
    assert found["most probable class"] == pytest.approx(expected["most probable class"])
    assert found["difference"] == pytest.approx(expected["decision"] - expected["most probable class"])
    low, high = found["interval"]
    assert low < found["difference"] < high
    assert found["difference"] < 0


def test_the_interval_of_the_cost_is_that_of_a_paired_mean():
    decider = fitted(Wanted(costs=torch.tensor([1.0, 1, 9])))
    found = decision_scores(decider, TEST)["cost"]
    costs = np.array([1.0, 1, 9])[TEST.targets.numpy()]
    ours, plain = (costs * (a.numpy() != TEST.targets.numpy()) for a in (decider.rule(TEST), TEST.logits.argmax(dim=1)))
    error = (ours - plain).std() / np.sqrt(300)
    assert found["interval"][1] - found["difference"] == pytest.approx(1.959964 * error)
    twice = TEST.subset(torch.arange(300).repeat(2))  # with each sample there twice, in a group, nothing is gained
    grouped = Predictions(
        twice.expert_logits, twice.targets, [500, 50, 5], [0], NAMES, groups=torch.arange(300).repeat(2)
    )
    assert decision_scores(decider, grouped)["cost"]["interval"] == pytest.approx(found["interval"])


def test_a_rule_for_a_metric_is_measured_by_metrics():
    decider = fitted(Wanted(metric="macro_f1"), PRIOR)
    found = decision_scores(decider, TEST)["metric"]
    weights = (PRIOR / torch.bincount(TEST.targets))[TEST.targets].numpy()
    answers, targets = decider.rule(TEST).numpy(), TEST.targets.numpy()
    assert found["decision"]["macro_f1"] == pytest.approx(
        f1_score(targets, answers, average="macro", sample_weight=weights)
    )
    assert found["decision"]["recall"] == pytest.approx(recall_score(targets, answers, average=None))
    assert found["decision"]["accuracy"] == pytest.approx(weights[targets == answers].sum() / weights.sum())


def test_the_interval_of_the_error_is_that_of_as_many_answers():
    test = made(3000, 3)
    decider = fitted(Wanted(abstain_cost=0.4), test=test)
    row, answers = decision_scores(decider, test)["abstaining"]["all"], decider(test).answers
    given = answers < 3
    error = float((answers != test.targets)[given].double().mean())
    margin = 1.96 * (error * (1 - error) / int(given.sum())) ** 0.5
    assert row["error"] == pytest.approx(error)
    assert row["error_interval"] == pytest.approx((error - margin, error + margin), abs=margin / 4)
    nothing = decision_scores(fitted(Wanted(abstain_cost=-1.0)), TEST)["abstaining"]["all"]
    assert nothing["error"] is None
    assert nothing["error_interval"] is None


def test_sets_abstaining_levels_and_unknown_by_shot_group():
    wanted = Wanted(abstain_cost=0.4, alpha=0.2, taxonomy=TREE, confidence=0.6, unknown="energy")
    decider = fitted(wanted, PRIOR)
    decided, found = decider(TEST), decision_scores(decider, TEST)
    few = TEST.targets == 2
    assert found["sets"]["few"]["coverage"] == pytest.approx(float(decided.sets[few, 2].double().mean()))
    assert found["sets"]["few"]["size"] == pytest.approx(float(decided.sets[few].sum(dim=1).double().mean()))
    by_class = [decided.sets[TEST.targets == y, y].double().mean() for y in range(3)]
    assert found["sets"]["mean over classes"]["coverage"] == pytest.approx(float(sum(by_class) / 3))
    assert found["sets"]["all"]["coverage"] == pytest.approx(float(sum(PRIOR * torch.stack(by_class))))
    rows = {row.name: row for row in abstained(TEST, decided.answers, target_prior=PRIOR)}
    assert {name: row["answered"] for name, row in found["abstaining"].items()} == {
        name: 1 - row.abstained for name, row in rows.items()
    }
    assert found["unknown"]["few"]["share"] == pytest.approx(float(decided.unknown[few].double().mean()))
    shares = [level["share"] for level in found["levels"]]
    assert [level["level"] for level in found["levels"]] == ["class", "group", "any"]
    assert sum(shares) == pytest.approx(1)
    probabilities = (TEST.logits + PRIOR.log()).softmax(dim=1)
    weights = (PRIOR / torch.bincount(TEST.targets))[TEST.targets]
    best = [score.accuracy for score in TREE.scores(probabilities, TEST.targets, weights)]
    assert [level["most_probable"] for level in found["levels"]] == pytest.approx([*best, None])


def test_every_share_and_size_lies_in_its_interval():
    wanted = Wanted(alpha=0.2, taxonomy=TREE, confidence=0.6, unknown="energy")
    found = decision_scores(fitted(wanted, PRIOR), TEST)
    pairs = [
        (row[name], row[interval])
        for row in (found["sets"][group] for group in ("all", "many", "medium", "few", "mean over classes"))
        for name, interval in (("coverage", "interval"), ("size", "size_interval"))
    ]
    pairs += [(row["share"], row["interval"]) for row in found["unknown"].values()]
    pairs += [
        (level[name], level[f"{name}_interval"])
        for level in found["levels"]
        for name in ("share", "accuracy", "most_probable")
        if (level["level"], name) not in (("any", "accuracy"), ("any", "most_probable"))  # right by definition
    ]
    assert len(pairs) == 10 + 4 + 7
    for value, (low, high) in pairs:
        assert low <= value <= high
        assert low < high
    assert found["levels"][-1]["accuracy_interval"] is found["levels"][-1]["most_probable_interval"] is None
    # By hand: a share within one class is a binomial one.
    few = found["sets"]["few"]
    width = 2 * 1.96 * (few["coverage"] * (1 - few["coverage"]) / int((TEST.targets == 2).sum())) ** 0.5
    assert few["interval"][1] - few["interval"][0] == pytest.approx(width, rel=0.25)


def test_samples_that_have_the_prior_already_are_not_weighted():
    decider = fitted(Wanted(alpha=0.2), PRIOR)
    found = decision_scores(decider, TEST, as_they_come=True)["sets"]["all"]["coverage"]
    inside = decider(TEST).sets[torch.arange(300), TEST.targets]
    assert found == pytest.approx(float(inside.double().mean()))


@pytest.mark.parametrize("wanted", [Wanted(costs=torch.tensor([1.0, 2, 9])), Wanted(metric="macro_f1")])
def test_places_have_the_same_numbers_as_a_loop_over_the_samples(wanted):
    """Each sample decided alone, by what is fitted for the prior of its place."""
    wanted = wanted._replace(alpha=0.2, taxonomy=TREE, confidence=0.6, unknown="energy")
    counts = {"a": {"oak": 9, "ash": 3, "elm": 1}, "b": {"oak": 2, "ash": 30, "elm": 4}, "c": {"oak": 5, "elm": 9}}
    table = PriorTable.read(counts, NAMES, ["site"])
    places = table.match([("a", "b", "c", "?")[number % 4] for number in range(len(TEST))]).rows
    found = decision_scores(PlaceDeciders(wanted, TEST, HELD_OUT, table).at(places), TEST)
    deciders = {place: fitted(wanted, table.priors[place]) for place in places.unique().tolist()}
    rows = {"cost": [], "plain cost": [], "inside": [], "size": [], "unknown": [], "class": [], "answer": []}
    for number, (place, target) in enumerate(zip(places.tolist(), TEST.targets.tolist(), strict=True)):
        sample = TEST.subset(torch.tensor([number]))
        decided = deciders[place](sample)
        plain = int((sample.logits[0] + table.priors[place].log()).argmax())
        costs = [1, 2, 9]
        rows["answer"].append(int(decided.answers[0]))
        rows["cost"].append(costs[target] * (int(decided.answers[0]) != target))
        rows["plain cost"].append(costs[target] * (plain != target))
        rows["inside"].append(bool(decided.sets[0, target]))
        rows["size"].append(int(decided.sets[0].sum()))
        rows["unknown"].append(bool(decided.unknown[0]))
        rows["class"].append(decided.levels.levels[0] == "class")
    mean = {name: float(np.mean(values)) for name, values in rows.items()}
    assert found["sets"]["all"]["coverage"] == pytest.approx(mean["inside"])
    assert found["sets"]["all"]["size"] == pytest.approx(mean["size"])
    assert found["unknown"]["all"]["share"] == pytest.approx(mean["unknown"])
    assert found["levels"][0]["share"] == pytest.approx(mean["class"])
    if wanted.metric is None:
        assert found["cost"]["decision"] == pytest.approx(mean["cost"])
        assert found["cost"]["most probable class"] == pytest.approx(mean["plain cost"])
    else:
        expected = f1_score(TEST.targets, rows["answer"], average="macro")
        assert found["metric"]["decision"]["macro_f1"] == pytest.approx(expected)


def test_answers_that_are_no_classes_have_nothing_to_be_compared_with():
    costs = torch.tensor([[0.0, 1], [1, 0], [9, 0]])
    found = decision_scores(fitted(Wanted(costs=costs, answers=("wait", "treat"))), TEST)
    assert set(found["cost"]) == {"decision"}
    assert "abstaining" not in found


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_a_yes_or_no_to_each_class_is_measured_as_scikit_learn_does(prior):
    decider = fitted(Wanted(thresholds={"recall": 0.7}), prior)
    found = decision_scores(decider, TEST)["thresholds"]
    yes, counts = decider.thresholds(TEST).numpy(), torch.bincount(TEST.targets).double()
    weights = None if prior is None else (prior / counts)[TEST.targets].numpy()
    targets = np.eye(3, dtype=bool)[TEST.targets.numpy()]
    measures = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    for name, measure in measures.items():
        each = [measure(targets[:, label], yes[:, label], sample_weight=weights) for label in range(3)]
        assert found["all"][name] == pytest.approx(np.mean(each))
        for label, group in enumerate(("many", "medium", "few")):
            assert found[group][name] == pytest.approx(each[label])
    assert (found["aim"], found["flagged"], found["all"]["classes"]) == ("recall 0.7", 0, 3)


def test_thresholds_that_nothing_reaches_have_no_precision():
    decider = fitted(Wanted(thresholds={"costs": (1.0, 0.0)}))  # a miss costs nothing
    found = decision_scores(decider, TEST)["thresholds"]["all"]
    assert (found["precision"], found["recall"], found["f1"]) == (None, 0.0, 0.0)
