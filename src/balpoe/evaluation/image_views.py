"""Several views of each test image, crops and mirror images, whose answers are averaged."""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import PictureFiles, Samples
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.forward import logits_of

__all__ = ["VIEWS", "ViewMean", "logits_of_views", "with_views"]

LARGER = 248 / 224  # the image of which crops are taken, a side: LIFT's


class _Views(NamedTuple):
    crops: bool
    flips: bool


VIEWS = {"flips": _Views(False, True), "five-crops": _Views(True, False), "ten-crops": _Views(True, True)}
"""Views by name: an image and its mirror image; its corners and its middle; these and their mirror images."""


class ViewMean(nn.Module):
    """A network's log-probabilities, the mean over views of an image; up to a constant, the mean of the logits.

    Args:
        network: Network from images to expert logits.
        size: Pixels a side of a view.
        views: Name of the views, of `VIEWS`.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2), nn.Unflatten(1, (1, 2)))
    >>> ViewMean(network, 8, "ten-crops")(torch.randn(4, 3, 8, 8)).exp().sum(dim=2).shape
    torch.Size([4, 1])
    """

    def __init__(self, network: nn.Module, size: int, views: str) -> None:
        super().__init__()
        if views not in VIEWS:
            raise unknown_name("views", views, VIEWS)
        self.network, self.size, self.views = network, size, VIEWS[views]
        self.train(network.training)

    def forward(self, images: Tensor) -> Tensor:
        """Return log-probabilities (batch, experts, classes); images of a view's size are padded for crops."""
        views = self._crops(images) if self.views.crops else [images]
        views += [view.flip(-1) for view in views] if self.views.flips else []
        answers = (self.network(view).log_softmax(dim=-1) for view in views)  # one by one: memory is that of one
        mean: Tensor = sum(answers, torch.zeros((), device=images.device)) / len(views)
        return mean

    def _crops(self, images: Tensor) -> list[Tensor]:
        if images.shape[-1] == self.size:
            margin = _larger(self.size) - self.size
            sides = (margin // 2, margin - margin // 2)
            images = F.pad(images, (*sides, *sides), mode="replicate")
        end = images.shape[-1] - self.size
        places = ((0, 0), (0, end), (end, 0), (end, end), (round(end / 2), round(end / 2)))
        return [images[..., top : top + self.size, left : left + self.size] for top, left in places]


def with_views(network: nn.Module, preprocessing: Preprocessing, views: str) -> tuple[ViewMean, Preprocessing]:
    """Return a network that looks at several views, and how it wants images from files: larger ones, for crops.

    Args:
        network: Network from images to expert logits.
        preprocessing: How the network wants its images.
        views: Name of the views, of `VIEWS`.

    >>> with_views(nn.Identity(), Preprocessing((3, 224, 224)), "five-crops")[1].size
    (3, 248, 248)
    """
    if len(preprocessing.size) != 3:
        raise UserError(f"{views} are views of images, but samples have shape {preprocessing.size}; leave them out")
    if getattr(network, "router", None) is not None:
        raise UserError(f"{views} cannot be averaged where a router decides how many experts are asked; leave them out")
    viewed = ViewMean(network, preprocessing.size[-1], views)
    if not viewed.views.crops:
        return viewed, preprocessing
    if preprocessing.size[1] != preprocessing.size[2]:
        shape = f"{preprocessing.size[1]} x {preprocessing.size[2]}"
        raise UserError(f"{views} are crops of square images, but these have {shape} pixels; take flips")
    side = _larger(viewed.size)
    size = (preprocessing.size[0], side, side)
    return viewed, replace(preprocessing, size=size, resize=max(side, preprocessing.resize))


def logits_of_views(network: nn.Module, test: Samples, views: str, *, workers: int = -1) -> Tensor:
    """Return the mean over views of a network's log-probabilities, (samples, experts, classes), on the CPU.

    They take the place of expert logits everywhere: in `Predictions`, its calibration and the product of experts.

    Args:
        network: Network, as `predict` takes it.
        test: Images; of those in files crops are taken with what lies around the middle, others are padded.
        views: Name of the views, of `VIEWS`.
        workers: Number of processes that decode image files; -1: as the machine allows.

    >>> import balpoe
    >>> data = balpoe.Dataset(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), [0, 0, 0, 0, 1, 1])
    >>> network = balpoe.expert_network("resnet32", num_classes=2, num_experts=3, width=4)
    >>> logits_of_views(network, data, "flips").shape
    torch.Size([6, 3, 2])
    """
    viewed, larger = with_views(network, test.preprocessing, views)
    if isinstance(test, PictureFiles):
        test = copy.copy(test)
        test.preprocessing = larger
    return logits_of(viewed, test, workers=workers)


def _larger(size: int) -> int:
    return max(size + 2, round(LARGER * size))
