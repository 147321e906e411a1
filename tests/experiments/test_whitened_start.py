"""A whitened first layer: its answers to training patches, one by one, and how a recipe gets first weights."""

import pytest
import torch
from torch.nn import functional as F

from balpoe import UserError, expert_network
from balpoe.experiments.build import assemble
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.whitened_start import start_whitened, whitening_filters
from trainings import features, mlp, tiny_data


def smooth_images(number=40):
    """Images whose neighbouring pixels and colours are alike."""
    noise = torch.randn(number, 1, 6, 6, generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1, 1)
    noise += 0.3 * torch.randn(number, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    return F.interpolate(noise, (12, 12), mode="bilinear")


def test_answers_to_the_patches_are_white():
    images = smooth_images()
    filters = whitening_filters(images, 16, smallest=0)
    patches = torch.stack([
        image[:, top : top + 3, left : left + 3].flatten()
        for image in images for top in range(10) for left in range(10)
    ])  # fmt: skip
    answers = patches @ filters.flatten(1).T
    torch.testing.assert_close(torch.cov(answers[:, :8].T), 2 * torch.eye(8), rtol=0, atol=0.01)
    torch.testing.assert_close(answers[:, 8:], -answers[:, :8])


def test_the_axes_of_largest_deviation_come_first():
    images = smooth_images()
    (first,) = whitening_filters(images, 1)
    spread = F.conv2d(images, (first / first.norm())[None]).std()
    others = F.normalize(torch.randn(50, 27, generator=torch.Generator().manual_seed(2))).view(50, 3, 3, 3)
    assert all(F.conv2d(images, other[None]).std() < spread for other in others)


def test_flat_images_make_no_huge_filters():
    assert bool(torch.isfinite(whitening_filters(torch.zeros(4, 3, 8, 8), 16)).all())


def test_no_more_filters_than_axes():
    with pytest.raises(UserError, match="64 filters are asked for, but patches have 27 axes"):
        whitening_filters(smooth_images(), 64)


def test_a_network_gets_them_whatever_its_seed():
    data = tiny_data()
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = expert_network("resnet32", num_classes=4, num_experts=2, width=2)
        start_whitened(network, data)
        found.append(network.state_dict()["trunk.0.conv.weight"])
    assert torch.equal(*found)
    images = data.preprocessing.normalise(data.images)
    torch.testing.assert_close(found[0], whitening_filters(images, 2))


def test_only_of_a_resnet32():
    with pytest.raises(UserError, match="is for resnet32"):
        start_whitened(mlp(features()), features())
    with pytest.raises(UserError, match="is for network resnet32, not for mlp"):
        Recipe(network="mlp", first_layer="whitened")


def changed_by(changes, monkeypatch):
    """Names of the first weights that a recipe changes, of those that it has otherwise."""
    data = tiny_data(60, (3, 32, 32))
    monkeypatch.setattr("balpoe.experiments.build._benchmark_parts", lambda recipe: (data, data, data))
    plain, other = (
        dict(assemble(Recipe(width=(2,), shot_groups=(2, 4), **each)).network.named_parameters())
        for each in ({}, changes)
    )
    return {name: other[name] for name in plain if not torch.equal(plain[name], other[name])}


def test_a_recipe_asks_for_it(monkeypatch):
    assert set(changed_by({"first_layer": "whitened"}, monkeypatch)) == {"trunk.0.conv.weight"}


def test_a_recipe_asks_for_blocks_that_begin_by_adding_less(monkeypatch):
    changed = changed_by({"residual_start": 0.25}, monkeypatch)
    assert len(changed) == 15
    assert all(name.endswith("norm2.norm.weight") for name in changed)
    assert all(bool((weight == 0.25).all()) for weight in changed.values())
    with pytest.raises(UserError, match="residual_start is for network resnet32, not for mlp; leave it out"):
        Recipe(network="mlp", residual_start=0.5)
    with pytest.raises(UserError, match="residual_start"):
        Recipe(residual_start=1.5)
