"""About how long a training takes: sums, against loops that are written out, and times that are measured."""

import pytest
import torch

from balpoe.experiments import cost_estimate
from balpoe.experiments.build import recipe_data
from balpoe.experiments.cost_estimate import UnitCosts, estimated_seconds, in_words, measured_costs
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from images import picture_folder

COSTS = UnitCosts(decode=0.004, forward=0.03, step=0.1)


def counted(recipe, costs, train, test, trainings):
    """The same image by image, for adapters."""
    seconds = 0.0
    for _ in range(trainings):
        for _ in range(train + test):  # class means, and predictions
            seconds += max(costs.decode, costs.forward) if costs.overlap else costs.decode + costs.forward
        for _ in range(recipe.epochs):
            for _ in range(train):
                seconds += max(costs.decode, costs.step) if costs.overlap else costs.decode + costs.step
    return seconds


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("decode", [0.004, 0.2])
def test_adapters(overlap, decode):
    recipe, costs = updated(preset("own-adapters"), {"epochs": 3}), COSTS._replace(overlap=overlap, decode=decode)
    found = estimated_seconds(recipe, costs, train=50, test=20, trainings=2)
    assert found == pytest.approx(counted(recipe, costs, 50, 20, 2))


def test_heads_compute_their_features_once():
    recipe = updated(preset("own"), {"calibrate": False, "epochs": 7})
    one, four = (estimated_seconds(recipe, COSTS, train=50, test=20, trainings=number) for number in (1, 4))
    assert one == pytest.approx(70 * 0.034 + 7 * 50 * 0.1)
    assert four - one == pytest.approx(3 * 7 * 50 * 0.1)
    searched = updated(preset("own"), {"epochs": 7})
    assert estimated_seconds(searched, COSTS, train=50, test=20) > one


def test_as_many_epochs_as_the_training_will_have():
    """None is given, and few images get more: 600 steps of 100 images are 600 epochs."""
    recipe, costs = preset("own-adapters"), UnitCosts(0.0, 0.0, 1.0)
    assert estimated_seconds(recipe, costs, train=100, test=0) == 600 * 100
    assert estimated_seconds(recipe, costs, train=100_000, test=0) == 30 * 100_000


@pytest.mark.parametrize(
    ("name", "network"), [("own", "test_efficientnet"), ("own-adapters", "test_vit"), ("own-full", "test_convnext")]
)
def test_measured(tmp_path, name, network):
    root = picture_folder(tmp_path / "trees", {"ash": 9, "elm": 8})
    changes = {
        "network": network,
        "image_size": 32,
        "data_root": str(root),
        "device": "cpu",
        "width": (16,),
        "weights": "",
    }
    recipe = updated(preset(name), {**changes, "weights": ""})
    costs = measured_costs(recipe, recipe_data(recipe)[0])
    assert min(costs.decode, costs.forward, costs.step) > 0
    assert not costs.overlap


@pytest.mark.parametrize(
    ("an_image", "at_once", "timed"), [(0.001, 128, [8, 32, 128]), (0.001, 20, [8, 20]), (1.0, 128, [8]), (1.0, 3, [3])]
)
def test_as_many_images_are_timed_as_take_long_enough(monkeypatch, an_image, at_once, timed):
    """A step costs a tenth of a second and something for each image, and is no longer than a training's."""
    seen = []

    def seconds(work, device):
        work()
        return 0.1 + an_image * seen[-1]

    monkeypatch.setattr(cost_estimate, "_seconds", seconds)
    found = cost_estimate._each(lambda batch: seen.append(len(batch)), torch.zeros(1, 3, 2, 2), at_once)
    assert seen == timed
    assert found == pytest.approx(an_image + 0.1 / timed[-1])


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "10 seconds"), (89, "90 seconds"), (91, "2 minutes"), (5300, "88 minutes"),
                           (5401, "1.5 hours"), (1e6, "280 hours")]
)  # fmt: skip
def test_words(seconds, words):
    assert in_words(seconds) == f"about {words}"
