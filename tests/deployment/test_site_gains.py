import json
import math

import numpy as np
import pytest
import torch

from balpoe import Predictions, PriorTable, UserError, shift_prior
from balpoe.deployment.site_gains import site_gains

NAMES = ("oak", "ash", "elm")
SITES = ("a", "b", "new")


@pytest.fixture
def made():
    """Logits of three classes that know something, for the prior 0.5, 0.3, 0.2; two known sites and an unknown one."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(3, (300,), generator=generator)
    logits = torch.randn(300, 2, 3, generator=generator) + torch.nn.functional.one_hot(targets, 3)[:, None]
    predictions = Predictions(logits, targets, [50, 30, 20], [1, 1], NAMES)
    keys = [SITES[number] for number in torch.randint(3, (300,), generator=generator).tolist()]
    table = PriorTable.read({"a": {"oak": 40, "ash": 10}, "b": {"ash": 5, "elm": 60}}, NAMES, ["site"], strength=4)
    return predictions, table, keys


def test_scores_of_each_place_sample_by_sample(made):
    predictions, table, keys = made
    found = site_gains(predictions, table, keys, num_resamples=50)
    assert {site.name for site in found.sites} == {"a", "b", "(unknown)"}
    assert sum(site.samples for site in found.sites) == found.overall.samples == 300
    assert found.unknown == {("new",): keys.count("new")}
    logits = predictions.logits.double()
    for site in found.sites:
        rows = [row for row, key in enumerate(keys) if key == site.name.replace("(unknown)", "new")]
        node = table.row_of[(site.name,)] if site.name in "ab" else 0
        right, loss, unlisted = {}, {}, 0
        for way in ("as trained", "yes/no list", "prior"):
            right[way], loss[way] = [], []
            for row in rows:
                scores = logits[row].clone()
                if way == "prior":
                    scores = shift_prior(scores, table.priors[node], predictions.source_prior)
                elif way == "yes/no list":
                    scores[~table.seen[node]] = -math.inf
                    unlisted += not bool(table.seen[node, predictions.targets[row]])
                right[way].append(int(scores.argmax()) == int(predictions.targets[row]))
                loss[way].append(-float(scores.log_softmax(0)[predictions.targets[row]]))
        assert site.scores["accuracy"] == pytest.approx({way: np.mean(each) for way, each in right.items()})
        assert site.excluded == pytest.approx(unlisted / len(rows))
        for way in ("as trained", "yes/no list"):
            value, low, high = site.gains["accuracy"][way]
            assert value == pytest.approx(np.mean(right["prior"]) - np.mean(right[way]))
            assert low <= value <= high
        for way, each in loss.items():
            expected = np.mean(each)
            assert site.scores["nll"][way] == (pytest.approx(expected) if math.isfinite(expected) else None)
        if site.excluded:
            assert site.gains["nll"]["yes/no list"] is None
        assert site.gains["nll"]["as trained"][0] == pytest.approx(np.mean(loss["prior"]) - np.mean(loss["as trained"]))
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_intervals_hold_the_true_gain():
    """Of two Gaussians that overlap, at a site with a share of 0.9: the exact gain, from the error function."""
    edge = math.log(9) / 2  # where 0.9 N(-1, 1) and 0.1 N(1, 1) cross

    def share(x):
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    gain = 0.9 * share(edge + 1) + 0.1 * share(1 - edge) - share(1)
    table = PriorTable.read({"s": {"x": 0.9, "y": 0.1}}, "xy", ["site"])
    held = {"accuracy": 0, "nll": 0}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        targets = (rng.random(400) < 0.1).astype(int)
        x = torch.from_numpy(2.0 * targets - 1 + rng.normal(size=400))
        predictions = Predictions(torch.stack([-x, x], 1)[:, None], torch.from_numpy(targets), [1, 1], [0], ("x", "y"))
        found = site_gains(predictions, table, ["s"] * 400, num_resamples=200).overall
        _, low, high = found.gains["accuracy"]["as trained"]
        held["accuracy"] += low <= gain <= high
        value, low, high = found.gains["nll"]["as trained"]
        held["nll"] += low <= value <= high < 0
    assert held["accuracy"] >= 53  # of 57 expected
    assert held["nll"] == 60


def test_few_samples_have_no_interval_and_groups_count_as_one(made):
    predictions, table, _ = made
    few = predictions.subset(torch.arange(3))
    gain = site_gains(few, table, ["a"] * 3, num_resamples=20).sites[0]
    assert gain.gains["accuracy"]["as trained"][1:] == (None, None)
    together = Predictions(
        predictions.expert_logits, predictions.targets, predictions.class_counts, [1, 1], NAMES,
        groups=torch.arange(300) // 50,
    )  # fmt: skip
    wide, narrow = (site_gains(each, table, ["a"] * 300).overall for each in (together, predictions))
    spans = [each.gains["accuracy"]["as trained"] for each in (wide, narrow)]
    assert spans[0][2] - spans[0][1] != pytest.approx(spans[1][2] - spans[1][1], rel=0.02)


def test_mistakes(made):
    predictions, table, keys = made
    with pytest.raises(UserError, match="there are 299 keys for 300 samples; give one each"):
        site_gains(predictions, table, keys[1:])
    margin = Predictions(predictions.expert_logits, predictions.targets, predictions.class_counts, None, NAMES)
    with pytest.raises(UserError, match="logits that are no posterior"):
        site_gains(margin, table, keys)
    with pytest.raises(UserError, match="there is no test sample"):
        site_gains(predictions.subset(torch.arange(0)), table, [])
