"""Views of test images, against loops over crops that are written out."""

import pytest
import torch
from torch import nn
from torchvision.transforms.functional import five_crop, hflip

from balpoe import Dataset, Preprocessing, UserError, expert_network, product_of_experts
from balpoe.data.loading.image_files import decoded
from balpoe.evaluation.forward import logits_of
from balpoe.evaluation.image_views import ViewMean, logits_of_views, with_views
from balpoe.experiments.build import recipe_data
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from images import picture_folder


def network():
    torch.manual_seed(0)
    return expert_network("resnet32", num_classes=3, num_experts=2, width=4).eval()


def mean_of(views, model):
    with torch.no_grad():
        return torch.stack([model(view).softmax(dim=-1).log() for view in views]).mean(dim=0)


@pytest.mark.parametrize("views", ["flips", "five-crops", "ten-crops"])
def test_views_of_larger_images(views):
    model, images = network(), torch.randn(5, 3, 36, 36)
    expected = list(five_crop(images, [32, 32])) if "crops" in views else [images]
    expected += [hflip(view) for view in expected] if views != "five-crops" else []
    with torch.no_grad():
        found = ViewMean(model, 32, views)(images)
    torch.testing.assert_close(found, mean_of(expected, model), rtol=1e-4, atol=1e-4)


def test_images_of_a_views_size_are_padded_by_their_edges():
    model, images = network(), torch.randn(5, 3, 32, 32)
    padded = nn.ReplicationPad2d(2)(images)  # 248 / 224 of 32 are 35.4
    padded = padded[..., 1:, 1:]
    with torch.no_grad():
        found = ViewMean(model, 32, "five-crops")(images)
    torch.testing.assert_close(found, mean_of(five_crop(padded, [32, 32]), model), rtol=1e-4, atol=1e-4)


def test_images_in_files_show_more_than_their_middle(tmp_path):
    root = picture_folder(tmp_path / "trees", {"ash": 10, "elm": 8, "oak": 6})
    changes = {"data_root": str(root), "network": "resnet32", "image_size": 16, "tune": "full", "weights": ""}
    train, _ = recipe_data(updated(preset("own"), changes))
    model = network()
    before = train.preprocessing
    found = logits_of_views(model, train, "five-crops", workers=0)
    assert train.preprocessing == before
    _, larger = with_views(model, before, "five-crops")
    assert (larger.size, larger.resize) == ((3, 18, 18), 18)
    images = torch.stack([decoded(path, larger) for path in train.paths])
    expected = mean_of(five_crop(larger.normalise(images), [16, 16]), model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_of_views_that_are_alike_the_answer_is_that_of_one():
    data = Dataset(torch.full((6, 3, 32, 32), 7, dtype=torch.uint8), torch.arange(6) % 3)
    model = network()
    plain, viewed = logits_of(model, data), logits_of_views(model, data, "ten-crops")
    probabilities = [product_of_experts(each).softmax(dim=1) for each in (plain, viewed)]
    torch.testing.assert_close(*probabilities)
    assert not model.training


def test_a_router_and_images_that_are_no_squares():
    model = network()
    wide = Preprocessing((3, 32, 48))
    with pytest.raises(UserError, match="five-crops are crops of square images, but these have 32 x 48 pixels; take f"):
        with_views(model, wide, "five-crops")
    assert with_views(model, wide, "flips")[1] == wide
    model.add_router()
    with pytest.raises(UserError, match="cannot be averaged where a router decides how many experts are asked; leave"):
        with_views(model, Preprocessing((3, 32, 32)), "flips")


def test_what_has_no_views():
    with pytest.raises(UserError, match="unknown views 'six-crops'; did you mean 'five-crops'"):
        with_views(network(), Preprocessing((3, 32, 32)), "six-crops")
    with pytest.raises(UserError, match=r"flips are views of images, but samples have shape \(8,\); leave them out"):
        with_views(network(), Preprocessing((8,)), "flips")
