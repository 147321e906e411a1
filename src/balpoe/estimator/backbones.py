"""Pretrained backbones for the classifier: images of any size, their features, and the network that learns."""

from collections.abc import Iterator
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import decoded
from balpoe.errors import UserError, unknown_name
from balpoe.estimator.inputs import FeatureInputs
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe
from balpoe.networks import NETWORKS, ExpertNetwork, add_adapters, backbone_preprocessing, expert_network
from balpoe.networks.memory import forward_that_fits
from balpoe.networks.timm_backbones import backbone_names, is_backbone
from balpoe.training.distributed import chosen_device

__all__ = [
    "PRESETS",
    "BackboneFeatures",
    "BackboneImages",
    "backbone_name",
    "image_rows",
    "tuned_network",
    "usual_recipe",
]

PRESETS = {"head": "own", "adapters": "own-adapters", "full": "own-full"}
"""Presets of own images by how much of the backbone learns: their networks and settings are the classifier's, too."""
IMAGES_AT_ONCE = 64  # of one forward pass
WANTED = "images: an array uint8 (samples, height, width, 3), or a list of paths, Pillow's images or such arrays"


def usual_recipe(tune: Any) -> Recipe:
    """Return the recipe whose settings are those of a way to tune, unless others are given.

    Args:
        tune: "head", "adapters" or "full".

    >>> usual_recipe("full").optimizer
    'adamw'
    """
    if not isinstance(tune, str) or tune not in PRESETS:
        raise unknown_name("tune", tune, PRESETS)
    return preset(PRESETS[tune])


def backbone_name(tune: str, network: Any) -> str:
    """Return the name in timm of the backbone that is meant.

    Args:
        tune: What learns: "head", "adapters" or "full".
        network: Value of the classifier's `network`.

    >>> backbone_name("head", "auto"), backbone_name("full", "convnext_tiny")
    ('tf_efficientnet_lite0.in1k', 'convnext_tiny')
    """
    name = usual_recipe(tune).network if isinstance(network, str) and network == "auto" else network
    if not isinstance(name, str):
        raise UserError(f"network must be a model of timm, by its name, where tune is given, but is {name!r}")
    if name in NETWORKS:
        raise UserError(f"tune is for backbones of timm, but network is {name!r}; leave one of the two out")
    if not is_backbone(name):
        raise unknown_name("network", name, backbone_names())
    return name


def image_rows(X: Any) -> np.ndarray:
    """Return images as an array (samples,) of single ones, or refuse what is none; nothing is copied or read.

    Args:
        X: Images, one array or one by one.

    >>> image_rows(np.zeros((5, 8, 8, 3), np.uint8)).shape, image_rows(["a.jpg", "b.png"]).shape
    ((5,), (2,))
    """
    if isinstance(X, Tensor):
        X = X.numpy()
    if isinstance(X, np.ndarray) and X.ndim != 1:
        _check_pixels("X", X.dtype, X.shape[1:])
    if isinstance(X, str | bytes) or not hasattr(X, "__len__"):
        raise UserError(f"tune wants {WANTED}, but X is of type {type(X).__name__}")
    if not len(X):
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
    rows = np.empty(len(X), dtype=object)
    for number, image in enumerate(X):
        if isinstance(image, np.ndarray):
            _check_pixels(f"sample {number} of X", image.dtype, image.shape)
        elif isinstance(image, Number | list | tuple):
            raise UserError(f"tune wants {WANTED}, but X holds {type(image).__name__}; leave tune out for tables")
        rows[number] = str(image) if isinstance(image, str) else image  # and not numpy's own kind of text
    return rows


def _check_pixels(what: str, kind: np.dtype, shape: tuple[int, ...]) -> None:
    if kind != np.uint8 or len(shape) not in (2, 3) or (len(shape) == 3 and shape[-1] != 3) or 0 in shape:
        hint = "; leave tune out for tables" if len(shape) == 1 else ""
        if len(shape) == 3 and shape[0] == 3:
            hint = "; its channels come first, so give X.transpose(0, 2, 3, 1)"
        raise UserError(f"tune wants {WANTED}, but {what} has images of shape {shape} and type {kind}{hint}")


class BackboneImages:
    """From images of any size to those that a backbone wants, uint8 (samples, 3, side, side).

    Args:
        network: Name in timm.
        image_size: Pixels a side; 0 for the network's own.

    >>> BackboneImages("test_vit", 32)(image_rows(np.zeros((5, 8, 9, 3), np.uint8))).shape
    torch.Size([5, 3, 32, 32])
    """

    def __init__(self, network: str, image_size: int) -> None:
        self.preprocessing = Preprocessing(*backbone_preprocessing(network, image_size))

    def __call__(self, rows: np.ndarray) -> Tensor:
        """Return raw images."""
        return torch.stack([decoded(image, self.preprocessing) for image in rows])


class BackboneFeatures:
    """From images of any size to features of a frozen backbone, standardised as those of the training images.

    Args:
        images: What makes images as the backbone wants them.
        network: Network whose trunk is the backbone.
        rows: Training images.
        weights: One a sample.
        device: Device for these; further ones are computed on the CPU.
    """

    def __init__(
        self, images: BackboneImages, network: ExpertNetwork, rows: np.ndarray, weights: np.ndarray, device: str
    ) -> None:
        self.images, self.network = images, network
        network.freeze_trunk()
        network.to(chosen_device(device)).eval()
        self.table = FeatureInputs(self._features(rows), weights)
        network.to("cpu")
        self.preprocessing = self.table.preprocessing

    def __call__(self, rows: np.ndarray) -> Tensor:
        """Return features (samples, features) in float32."""
        return self.table(self._features(rows))

    def _features(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate(list(self._blocks(rows)))

    def _blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        device = next(self.network.parameters()).device

        def features(raw: Tensor) -> Tensor:
            return self.network.features(self.images.preprocessing.normalise(raw.to(device))).float().cpu()

        with torch.inference_mode():
            for start in range(0, len(rows), IMAGES_AT_ONCE):
                yield forward_that_fits(features, self.images(rows[start : start + IMAGES_AT_ONCE])).numpy()


def tuned_network(
    tune: str,
    name: str,
    *,
    weights: str,
    image_size: int,
    cosine_scale: float,
    num_classes: int,
    num_experts: int,
) -> ExpertNetwork:
    """Return a backbone of timm with experts behind it, ready to be trained.

    Args:
        tune: What learns: "head", "adapters" or "full".
        name: Name in timm.
        weights: First weights, as for `balpoe.expert_network`, or "random".
        image_size: Pixels a side; 0 for the network's own.
        cosine_scale: Scale of the classifier.
        num_classes: Number of classes.
        num_experts: Number of experts.
    """
    usual = usual_recipe(tune)
    network = expert_network(
        name, num_classes=num_classes, num_experts=num_experts, split=-1, hidden=usual.width[0],
        weights="" if weights == "random" else weights, image_size=image_size, cosine_scale=cosine_scale,
        drop_path=usual.drop_path,
    )  # fmt: skip
    if tune == "adapters":
        add_adapters(network)
    return network
