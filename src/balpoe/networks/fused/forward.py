"""The training pass of `resnet32` in kernels of our own (`kernels.py`, `direct_kernels.cu`), a fourth of torch's.

A convolution leaves the sums that its normalisation wants; a gradient passes shortcut, rectifier and sums in one go;
the gradients of weights are computed beside the rest, on a stream of their own. docs/performance.md has the times.
Every sum has a fixed order, so that one seed gives one model, to the bit, on the same GPU with the same torch and
Triton. Before a process first captures a step for a shape of batches, the kernels are compiled in threads, and
`self_check` compares what each of them makes of the first batch with what torch makes of the same inputs. Where they
differ, or cannot be compiled, the step is captured from torch's own operations, with a warning.
"""

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.fused.direct import DIRECT_KERNELS, room_of
from balpoe.networks.fused.head import can_be_fused_cosine, cosine_logits
from balpoe.networks.fused.launch import LaunchPlan, Layer, Sizes, layers_of
from balpoe.networks.fused.launch_table import WIDTHS, power
from balpoe.networks.resnet_cifar import Block, Stem
from balpoe.private_apis import add_to_all, copy_to_all, has_hooks

__all__ = ["FusedForward", "block_from", "body_kernels", "can_be_fused", "fused_backward", "fused_forward"]


def can_be_fused(
    network: nn.Module, device: torch.device, widths: tuple[int, ...] = WIDTHS
) -> TypeGuard[ExpertNetwork]:
    """Whether `FusedForward` can train a network there: `resnet32` of these widths, its trunk not frozen, no hooks."""
    if importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return False  # has no bfloat16
    if type(network) is not ExpertNetwork or network.trunk_is_frozen or not isinstance(network.trunk, nn.Sequential):
        return False
    trunk = list(network.trunk)
    if (
        not trunk
        or type(trunk[0]) is not Stem
        or any(type(part) is not Block for part in (*trunk[1:], *network.branches))
    ):
        return False
    if any(map(has_hooks, network.modules())):
        return False
    if network.features_are_frozen or not all(each.requires_grad for each in network.branches.parameters()):
        return False
    stem, *others = layers = list(layers_of(network))
    return (
        stem.in_channels <= min(widths)
        and all(layer.in_channels in widths for layer in others)
        and all(layer.channels in widths for layer in layers)
        and all(type(layer.norm) is nn.BatchNorm2d and layer.norm.momentum is not None for layer in layers)
    )


class FusedForward:
    """`network(images)` of a network in training: the same parameters, running statistics and gradients.

    Args:
        network: Network that `can_be_fused`, on a GPU.
        dtype: Type of activations, and of weights in products; sums and gradients of weights are float32.
    """

    def __init__(self, network: ExpertNetwork, dtype: torch.dtype = torch.bfloat16) -> None:
        self.network, self.dtype, self.layers = network, dtype, list(layers_of(network))
        fits = can_be_fused_cosine(network.classifier, self.layers[-1].experts)
        self.cosine: Any = network.classifier if fits else None
        """The classifier, if it has kernels of its own."""
        self._plans: dict[torch.Size, LaunchPlan] = {}

    def __call__(self, images: Tensor) -> Tensor:
        """Return expert logits (batch, experts, classes)."""
        parameters = [tensor for layer in self.layers for tensor in layer.parameters()]
        add_to_all([layer.norm.num_batches_tracked for layer in self.layers], 1)
        features = _Body.apply(self, images, *parameters)
        if self.cosine is not None:
            return cosine_logits(features, self.cosine.weight, self.cosine.scale)
        logits: Tensor = self.network.classifier(features)
        return logits

    def plan(self, images: Tensor) -> LaunchPlan:
        """Return how the kernels are launched for batches of this shape."""
        if images.shape not in self._plans:
            self._plans[images.shape] = LaunchPlan(self.layers, images, room_of(images.device, self.dtype))
        return self._plans[images.shape]

    def launched(self, images: Tensor) -> tuple[Any, ...]:
        """Return what decides which kernels run on batches of this shape, and how: networks of the same one share them.

        The weights have no part in it.
        """
        layers = tuple(
            (each.experts, each.channels, each.in_channels, each.stride, each.shared, each.shortcut is not None)
            for each in self.layers
        )
        classifier = None if self.cosine is None else tuple(self.cosine.weight.shape)
        return str(images.device), self.dtype, tuple(images.shape), layers, classifier


class _Body(torch.autograd.Function):
    """From images to every expert's features."""

    @staticmethod
    def forward(ctx: Any, fused: FusedForward, images: Tensor, *_: Tensor) -> Tensor:
        passed = fused_forward(fused, images)
        # Without its output, whose `grad_fn` holds it: in a circle everything would wait for the garbage collector.
        ctx.fused, ctx.passed = fused, passed._replace(features=torch.empty(0))
        return passed.features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *fused_backward(ctx.fused, ctx.passed, gradient).gradients


class Forward(NamedTuple):
    """What the layers made of a batch; pixels by channels."""

    plan: LaunchPlan
    weights: list[Tensor]
    inputs: list[Tensor]
    """Inputs of the layers, and the last layer's output."""
    outputs: list[Tensor]
    """Outputs of the convolutions."""
    statistics: list[Tensor]
    """Mean and reciprocal deviation of each expert's channels, as the normalisations used them."""
    features: Tensor


def fused_forward(fused: FusedForward, images: Tensor, kernels: Any = None) -> Forward:
    """Return all that the layers make of images; change the running statistics."""
    kernels = kernels or body_kernels()
    plan, parameters = fused.plan(images), [layer.conv.weight for layer in fused.layers]
    weights = [torch.empty_like(weight, dtype=fused.dtype, memory_format=torch.channels_last) for weight in parameters]
    copy_to_all(weights, parameters)
    inputs, outputs, statistics = [images.permute(0, 2, 3, 1).contiguous()], list[Tensor](), list[Tensor]()
    normalised: tuple[Any, ...] = ()
    for index, (layer, size, weight) in enumerate(zip(fused.layers, plan.sizes, weights, strict=True)):
        y = images.new_empty(size.pixels, layer.experts * layer.channels, dtype=fused.dtype)
        sums = images.new_empty(layer.experts, size.forward.programs, 2, layer.channels, dtype=torch.float32)
        convolve, convolved = getattr(kernels, size.conv_kernel)[size.forward.shape], (weight, y, sums, size.pixels)
        if size.norm_is_merged:
            has_shortcut = fused.layers[index - 1].shortcut is not None
            convolve(*normalised, *convolved, SHORTCUT=has_shortcut, **size.forward.settings)
        else:
            convolve(inputs[-1], *convolved, **size.forward.settings)
        out, stats = torch.empty_like(y), torch.empty_like(sums[:, 0])
        norm, block = layer.norm, layer.shortcut
        normalised = (
            y, sums, norm.weight, norm.bias, norm.running_mean, norm.running_var, stats, inputs[-2 if block else -1],
            out, size.pixels, size.forward.programs, float(norm.momentum), float(norm.eps),
        )  # fmt: skip
        if index + 1 == len(plan.sizes) or not plan.sizes[index + 1].norm_is_merged:
            kernels.norm_forward[size.elementwise.shape](
                *normalised, PROGRAMS=power(size.forward.programs), OUT_H=size.out_height, OUT_W=size.out_width,
                SHORTCUT=block is not None, BEFORE=block.padding // 2 if block else 0,
                # A shortcut begins where the block's first convolution does.
                **(plan.sizes[index - 1] if block else size).shortcut, **size.elementwise.settings,
            )  # fmt: skip
        inputs.append(out)
        outputs.append(y)
        statistics.append(stats)
    last = fused.layers[-1]
    features = inputs[-1].view(len(images), -1, last.experts, last.channels).mean(1, dtype=torch.float32)
    return Forward(plan, weights, inputs, outputs, statistics, features)


class Backward(NamedTuple):
    """What flows back; pixels by channels."""

    gradients: "Gradients"
    dz: list[Tensor]
    """Gradients behind the normalisations."""
    dy: list[Tensor]
    """Gradients behind the convolutions."""


def fused_backward(fused: FusedForward, passed: Forward, gradient: Tensor, kernels: Any = None) -> Backward:
    """Return all gradients, from that of the features (batch, experts, features)."""
    kernels = kernels or body_kernels()
    plan, weights, inputs, outputs, statistics, _ = passed
    layers, sizes = fused.layers, plan.sizes
    gradients, parts = Gradients(layers, gradient), _Parts(layers, sizes, gradient)
    dz, dy = [torch.empty_like(y) for y in outputs], [torch.empty_like(y) for y in outputs]
    size, programs = sizes[-1], sizes[-1].elementwise.programs
    sums = gradient.new_empty(layers[-1].experts, programs, 2, layers[-1].channels)
    kernels.pool_backward[size.elementwise.shape](
        gradient.contiguous(), inputs[-1], outputs[-1], statistics[-1], dz[-1], sums, size.pixels,
        AREA=size.out_height * size.out_width, **size.elementwise.settings,
    )  # fmt: skip

    def gradient_of_weights(index: int) -> None:
        size = sizes[index]
        with parts.beside():
            kernel = getattr(kernels, size.weights_kernel)[size.weights.shape]
            kernel(dy[index], inputs[index], parts.of[index], size.images, **size.weights.settings)
            if (table := plan.tables.get(index)) is not None:
                kernels.sum_partials[(len(table),)](parts.flat, table, gradients.flat, **plan.sum_settings[index])

    for index in reversed(range(len(layers))):
        layer, size = layers[index], sizes[index]
        norm = (
            dz[index], outputs[index], sums, statistics[index], layer.norm.weight, dy[index],
            gradients.scales[index], gradients.shifts[index], size.pixels, programs,
        )  # fmt: skip
        if not size.gradient_is_merged:
            kernels.norm_backward[size.elementwise.shape](*norm, PROGRAMS=power(programs), **size.elementwise.settings)
            gradient_of_weights(index)
        if index == 0:
            break
        # Where a block begins, the gradient of its shortcut comes from behind its second convolution.
        block = block_from(layers, index)
        programs = size.backward.programs
        sums = gradient.new_empty(size.groups, programs, 2, layer.in_channels)
        getattr(kernels, size.gradient_kernel)[size.backward.shape](
            *(norm if size.gradient_is_merged else (dy[index],)), weights[index],
            dz[index + 1 if block else index], inputs[index], outputs[index - 1], statistics[index - 1],
            dz[index - 1], sums, size.images,
            RESIDUAL=block is not None, BEFORE=block.padding // 2 if block else 0, **size.backward.settings,
        )  # fmt: skip
        if size.gradient_is_merged:
            gradient_of_weights(index)
    parts.join()
    return Backward(gradients, dz, dy)


@functools.cache
def body_kernels() -> Any:
    """Return those of the whole pass, by name; Triton may be missing where nobody asks for it."""
    from balpoe.networks.fused import kernels

    return SimpleNamespace(**{name: getattr(kernels, name) for name in kernels.__all__}, **DIRECT_KERNELS)


def block_from(layers: list[Layer], index: int) -> Block | None:
    """Return the block whose first convolution a layer is."""
    return layers[index + 1].shortcut if index + 1 < len(layers) else None


class Gradients:
    """The gradients of all parameters, in one tensor: those of the convolutions, then those of the normalisations."""

    def __init__(self, layers: list[Layer], like: Tensor) -> None:
        weights = [layer.conv.weight for layer in layers]
        channels = [len(weight) for weight in weights]
        self.flat = like.new_empty(sum(weight.numel() for weight in weights) + 2 * sum(channels))
        pieces = self.flat.split([*(weight.numel() for weight in weights), *channels, *channels])
        count = len(layers)
        self.weights = [
            piece.view(out_channels, 3, 3, -1).permute(0, 3, 1, 2)
            for piece, out_channels in zip(pieces[:count], channels, strict=True)
        ]
        self.scales, self.shifts = pieces[count : 2 * count], pieces[2 * count :]

    def __iter__(self) -> Iterator[Tensor]:
        """Yield them in the order of the layers' parameters."""
        for three in zip(self.weights, self.scales, self.shifts, strict=True):
            yield from three


class _Parts:
    """The programs' parts of the gradients of weights, which nothing but the last kernel waits for."""

    def __init__(self, layers: list[Layer], sizes: list[Sizes], like: Tensor) -> None:
        numbers = [size.parts * layer.conv.weight.numel() for layer, size in zip(layers, sizes, strict=True)]
        self.flat = like.new_empty(sum(numbers))
        self.of = self.flat.split(numbers)
        self.stream = _side_stream(like.device) if like.is_cuda else None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Launch on another stream what is launched inside, behind all that was launched before."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the main stream wait for the other."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of a priority that torch's streams for trainings do not have: torch gives those out again and again."""
    return torch.cuda.Stream(device, priority=-1)
