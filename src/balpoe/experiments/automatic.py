"""How much of which backbone learns from own images where nobody says so: decided by what is found.

The decision is a function of what was found alone, so that it is the same everywhere, and can be tested without a GPU.
"""

from collections.abc import Sequence
from typing import NamedTuple

from balpoe.experiments.presets import preset

__all__ = ["AutomaticChoice", "Offer", "adaptable_networks", "all_choices", "automatic_choice", "what_learns"]

TRANSFORMERS = (
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "deit3_small_patch16_224.fb_in22k_ft_in1k",
    "vit_small_patch16_224.augreg_in1k",
    "deit_small_patch16_224.fb_in1k",
    "vit_base_patch16_224.augreg2_in21k_ft_in1k",
)
CONVNEXTS = ("convnext_tiny.in12k_ft_in1k", "convnext_tiny.fb_in22k_ft_in1k", "convnext_tiny.fb_in1k")
PATCH = 16  # pixels a side, of all these transformers
FEW = 200  # images of which a tenth, held out to calibrate by, would be fewer than 20
FEW_OF_A_CLASS = 10  # and of which a tenth would be no whole image


class Offer(NamedTuple):
    """What a machine and the data offer."""

    images: int
    """Number of training images."""
    classes: int
    gpu: str = ""
    """Name of the GPU; empty where none is used."""
    weights: Sequence[str] = ()
    """Networks of `adaptable_networks` whose pretrained weights are here, the preferred ones first."""


class AutomaticChoice(NamedTuple):
    """What is trained, and why."""

    preset: str
    network: str
    reason: str = ""

    @property
    def sentence(self) -> str:
        """What learns, in words.

        >>> AutomaticChoice("own-adapters", "convnext_tiny").sentence
        'adapters in every block of convnext_tiny, and heads for the experts'
        """
        return what_learns(preset(self.preset).tune, self.network)


def what_learns(tune: str, network: str) -> str:
    """Return how much of a network learns, in words.

    Args:
        tune: "head", "adapters" or "full", as a recipe has it.
        network: Name of the network.

    >>> what_learns("full", "convnext_tiny")
    'all of convnext_tiny, and heads for the experts'
    """
    return {
        "head": f"heads for the experts, on features of {network} that are computed once",
        "adapters": f"adapters in every block of {network}, and heads for the experts",
        "full": f"all of {network}, and heads for the experts",
    }[tune]


def automatic_choice(offer: Offer) -> AutomaticChoice:
    """Return what to train: adapters where there are a GPU, weights and enough images, else heads.

    Args:
        offer: What was found.

    >>> automatic_choice(Offer(images=5000, classes=10)).reason
    'no GPU is used'
    >>> automatic_choice(Offer(5000, 10, gpu="H200", weights=["convnext_tiny.fb_in1k"])).preset
    'own-adapters'
    """
    heads = _heads()
    if not offer.gpu:
        return heads._replace(reason="no GPU is used")
    if offer.images < FEW or offer.images < FEW_OF_A_CLASS * offer.classes:
        few = f"{offer.images:,} images of {offer.classes:,} classes are few"
        return heads._replace(reason=f"{few}: heads are calibrated by all of them, adapters by a tenth, held out")
    if not offer.weights:
        here = f"there is a GPU ({offer.gpu}), but here are no weights of a network for adapters"
        return heads._replace(reason=f"{here}; balpoe weights get {TRANSFORMERS[0]} fetches some, where it can")
    return AutomaticChoice("own-adapters", offer.weights[0], f"there is a GPU ({offer.gpu})")


def adaptable_networks(image_size: int = 0) -> list[str]:
    """Return the networks that an automatic choice puts adapters into, the preferred ones first.

    Args:
        image_size: Pixels a side that were asked for, which patches must divide; 0 for a network's own.

    >>> adaptable_networks(100)[0]
    'convnext_tiny.in12k_ft_in1k'
    """
    return [*(TRANSFORMERS if image_size % PATCH == 0 else ()), *CONVNEXTS]


def all_choices() -> list[AutomaticChoice]:
    """Return every choice that there is, without a reason: what a run may have been begun with, on any machine."""
    return [_heads(), *(AutomaticChoice("own-adapters", network) for network in adaptable_networks())]


def _heads() -> AutomaticChoice:
    return AutomaticChoice("own", preset("own").network)
