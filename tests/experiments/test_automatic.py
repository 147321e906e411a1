"""What is chosen for own images, for every kind of machine."""

import pytest
import timm

from balpoe.experiments.automatic import (
    CONVNEXTS,
    TRANSFORMERS,
    Offer,
    adaptable_networks,
    all_choices,
    automatic_choice,
)
from balpoe.experiments.presets import preset

HEADS = ("own", "tf_efficientnet_lite0.in1k")
VIT, CONVNEXT = TRANSFORMERS[0], CONVNEXTS[0]


@pytest.mark.parametrize(
    ("offer", "chosen", "reason"),
    [
        (Offer(5000, 10), HEADS, "no GPU is used"),
        (Offer(5000, 10, weights=[VIT]), HEADS, "no GPU is used"),
        (Offer(5000, 10, "H200", [VIT, CONVNEXT]), ("own-adapters", VIT), "there is a GPU (H200)"),
        (Offer(5000, 10, "H200", [CONVNEXT]), ("own-adapters", CONVNEXT), "there is a GPU (H200)"),
        (Offer(5000, 10, "H200"), HEADS, "no weights of a network for adapters; balpoe weights get vit_small_patch16"),
        (Offer(199, 10, "H200", [VIT]), HEADS, "199 images of 10 classes are few"),
        (Offer(200, 10, "H200", [VIT]), ("own-adapters", VIT), "there is a GPU"),
        (Offer(999, 100, "H200", [VIT]), HEADS, "999 images of 100 classes are few"),
        (Offer(1000, 100, "H200", [VIT]), ("own-adapters", VIT), "there is a GPU"),
    ],
)
def test_choice(offer, chosen, reason):
    found = automatic_choice(offer)
    assert (found.preset, found.network) == chosen
    assert reason in found.reason


def test_every_choice_is_known_beforehand():
    """A run that was begun with it on another machine is recognised by that."""
    offers = [Offer(5000, 10), *(Offer(5000, 10, "H200", [name]) for name in adaptable_networks())]
    choices = [automatic_choice(offer)._replace(reason="") for offer in offers]
    assert choices == all_choices()
    assert preset("own-adapters").network == choices[1].network


def test_networks_that_timm_has_and_patches_that_divide_the_image():
    known = timm.list_models(pretrained=True)
    for name in adaptable_networks():
        assert name in known
        assert timm.get_pretrained_cfg(name).input_size[-1] == 224
    assert all("patch16" in name for name in TRANSFORMERS)
    assert adaptable_networks(96) == adaptable_networks()
    assert adaptable_networks(100) == list(CONVNEXTS)
