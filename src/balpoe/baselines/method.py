"""What a method is: everything by which one way of training on a long tail differs from plain cross-entropy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from balpoe.data.augment.operations import Operation
from balpoe.data.loading.epoch_plan import Mixing
from balpoe.networks.experts import ExpertNetwork

__all__ = ["Method", "MethodInputs", "MethodLoss", "Stage"]


@dataclass(frozen=True)
class MethodInputs:
    """What a method is made from, besides its own settings."""

    class_counts: Tensor
    """Training samples of each class, (classes,)."""
    train_prior: Tensor
    """Training prior, (classes,)."""
    lambdas: tuple[float, ...]
    """One number for each expert, of methods whose experts have them."""
    num_experts: int = 1
    cosine_scale: float = 32.0
    """Scale of the network's cosine classifier: expert logits are so many times a cosine."""


class MethodLoss(Protocol):
    """The loss of a method: `progress`, a number on the device, is all that changes it over time.

    So that a step can be captured as a CUDA graph it must not read from the device, nor branch on values there.
    """

    def __call__(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,).

        Args:
            expert_logits: Expert logits, (batch, experts, classes).
            targets: Labels, (batch,), or probabilities, (batch, classes).
            progress: Part of the training that is done, from 0 to 1.
            reduction: "mean" or "none".
        """
        ...


@dataclass(frozen=True)
class Stage:
    """A further training of the network that the one before has trained, with the rate falling along a cosine."""

    name: str
    """Name of its folder below that of the run."""
    loss: MethodLoss
    trains: tuple[str, ...]
    """Beginnings of the names of the parameters that are trained; the others stay as they are."""
    epochs: float = 0.05
    """Number of epochs, as a part of those of the first training; at least one."""
    class_balanced: bool = True
    """Whether classes are drawn alike."""
    keeps_statistics: bool = False
    """Whether batch normalisation keeps its statistics instead of taking those of this stage's batches."""
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    """Factors of the learning rate by beginning of a parameter's name."""


def _train_prior(inputs: MethodInputs, **settings: object) -> Tensor:
    return inputs.train_prior


def _as_the_recipe_says(**settings: object) -> Mixing | None:
    return None


def _no_stages(inputs: MethodInputs, **settings: object) -> Sequence[Stage]:
    return ()


def _nothing_added(network: ExpertNetwork, **settings: object) -> None:
    pass


@dataclass(frozen=True)
class Method:
    """The parts of a method: plain data with functions in it, each with what plain cross-entropy does as its default.

    Every function gets the inputs and, as keyword arguments, the method's settings. A method that needs another part
    (its own mixing or order of samples, views, further heads, a teacher, stages) adds it here as a field with such a
    default, and the loop asks for it; no method that exists has to change for that.
    """

    loss: Callable[..., MethodLoss]
    """loss(inputs, **settings): the loss."""
    lambdas: Callable[..., Tensor] | None = None
    """lambdas(inputs, **settings): one number for each expert, or one for each expert and class; they decide the prior
    of the product's logits. None for methods whose experts have none."""
    source_prior: Callable[..., Tensor | None] = _train_prior
    """source_prior(inputs, **settings), without lambdas: the prior under which the product's logits are posteriors, or
    None where they are no posterior, and cannot be adjusted to another prior."""
    mixing: Callable[..., Mixing | None] = _as_the_recipe_says
    """mixing(**settings): the method's own mixing; None for mixup and CutMix as the recipe has them."""
    second_view: str = ""
    """Augmentation, by its name, that makes a second view of each image for the loss; empty for one view."""
    stages: Callable[..., Sequence[Stage]] = _no_stages
    """stages(inputs, **settings): what is trained after the first training."""
    extend: Callable[..., None] = _nothing_added
    """extend(network, **settings): adds the parameters that this method's network has beside everybody's."""
    test_views: Callable[[Sequence[int]], Sequence[Operation]] | None = None
    """test_views(size): what makes views of test images of a size, (channels, height, width), by which the weights of
    the experts are learnt at test time, as in SADE; None for equal weights."""
