"""Whether our own kernels are right on this machine: compilers of GPU code are sometimes wrong, and say nothing."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.networks.fused.compiling import compile_kernels
from balpoe.networks.fused.forward import Backward, Forward, FusedForward, block_from, fused_backward, fused_forward
from balpoe.networks.fused.head import blended_cross_entropy, cosine_backward, cosine_forward
from balpoe.networks.fused.launch import Sizes

__all__ = ["kernel_error", "loss_error"]


def kernel_error(fused: FusedForward, images: Tensor) -> float:
    """Return how far any kernel's output is from what torch makes of the same inputs; 0.002 is rounding.

    The largest of all relative differences, by norms and by single numbers, for these images and a random gradient of
    the features. Changes the network's running statistics.
    """
    images = images.clone()  # lies in memory as a captured batch does
    compile_kernels(fused, images)
    before = [(layer.norm.running_mean.clone(), layer.norm.running_var.clone()) for layer in fused.layers]
    with torch.no_grad():
        passed = fused_forward(fused, images)
        gradient = _random(passed.features.shape, images.device)
        flow = fused_backward(fused, passed, gradient)
    pairs = chain(
        _pairs(fused, passed, flow, gradient),
        _statistics(fused, passed, before),
        _of_classifier(fused, passed.features),
    )
    return _largest(pairs)


def loss_error(offsets: Tensor, targets: Tensor, partners: Tensor, weight: Tensor) -> float:
    """Return the same of the loss of random logits, and of its gradient, for arguments of `blended_cross_entropy`."""
    logits, found = _random((len(targets), *offsets.shape), offsets.device), []
    for blended in (blended_cross_entropy, _blended):
        inputs = logits.detach().requires_grad_()
        value = blended(inputs, offsets, targets, partners, weight)
        found.append((value.detach(), *torch.autograd.grad(value, inputs)))
    return _largest(zip(*found, strict=True))


def _random(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers that are not from the GPU's own generator, which belongs to a graph while one is being captured."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def _largest(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    return float(torch.stack([_difference(ours.float(), theirs) for ours, theirs in pairs]).max())


def _blended(logits: Tensor, offsets: Tensor, targets: Tensor, partners: Tensor, weight: Tensor) -> Tensor:
    said = F.log_softmax(logits + offsets, dim=-1)
    kept, mixed = (said.gather(2, each[:, None, None].expand(-1, said.shape[1], 1)) for each in (targets, partners))
    weight = weight.reshape(-1, 1, 1)
    return -(weight * kept + (1 - weight) * mixed).mean()


def _of_classifier(fused: FusedForward, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and their gradients."""
    if (classifier := fused.cosine) is None:
        return
    features = features.detach().requires_grad_()
    with torch.autocast(features.device.type, enabled=False):
        theirs = classifier(features)
    yield cosine_forward(features, classifier.weight, classifier.scale), theirs.detach()
    gradient = _random(theirs.shape, features.device)
    ours = cosine_backward(gradient, features.detach(), classifier.weight, classifier.scale)
    yield from zip(ours, torch.autograd.grad(theirs, [features, classifier.weight], gradient), strict=True)


def _difference(ours: Tensor, theirs: Tensor) -> Tensor:
    """The relative difference by norms, or of the number that differs most, whichever is larger."""
    away, size = (ours - theirs).abs(), theirs.square().mean().sqrt().clamp_min(1e-30)
    return torch.maximum(away.square().mean().sqrt() / size, (away / (theirs.abs() + size)).max())


def _pairs(fused: FusedForward, passed: Forward, flow: Backward, gradient: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What each kernel made, and what torch makes of the same inputs, layer by layer."""
    layers, sizes = fused.layers, passed.plan.sizes
    x = before = passed.inputs[0].permute(0, 3, 1, 2).to(fused.dtype).float()
    for index, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        dz, dy, y = (_maps(of[index], size) for of in (flow.dz, flow.dy, passed.outputs))
        weight = layer.conv.weight.detach().to(fused.dtype).float()
        yield passed.weights[index].float(), weight
        tensors = (x, weight, y, layer.norm.weight, layer.norm.bias)
        inputs = [tensor.detach().requires_grad_() for tensor in tensors]
        made = F.conv2d(inputs[0], inputs[1], stride=layer.stride, padding=1, groups=size.groups)
        normal = F.batch_norm(inputs[2], None, None, inputs[3], inputs[4], True, 0.0, layer.norm.eps)
        shortcut = layer.shortcut.shortcut(before) if layer.shortcut else 0
        out = _maps(passed.inputs[index + 1], size)
        yield y, made.detach()
        yield out, F.relu(normal.detach() + shortcut)
        flows, gradients = [made, normal], [dy, dz]
        if (block := block_from(layers, index)) is not None:
            flows.append(block.shortcut(inputs[0]))
            gradients.append(_maps(flow.dz[index + 1], sizes[index + 1]))
        dx, *others = torch.autograd.grad(flows, inputs, gradients)
        ours = flow.gradients
        yield from zip((ours.weights[index], dy, ours.scales[index], ours.shifts[index]), others, strict=True)
        if index:
            yield _maps(flow.dz[index - 1], sizes[index - 1]), torch.where(x > 0, dx, 0)
        before, x = x, out
    spread = gradient.flatten(1)[:, :, None, None] / (x.shape[2] * x.shape[3])
    yield _maps(flow.dz[-1], sizes[-1]), torch.where(x > 0, spread, 0)


def _statistics(
    fused: FusedForward, passed: Forward, before: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The changes of the running statistics, ours and torch's."""
    for layer, size, y, old in zip(fused.layers, passed.plan.sizes, passed.outputs, before, strict=True):
        new = [tensor.clone() for tensor in old]
        F.batch_norm(_maps(y, size), new[0], new[1], training=True, momentum=layer.norm.momentum)
        for ours, theirs, start in zip((layer.norm.running_mean, layer.norm.running_var), new, old, strict=True):
            yield ours - start, theirs - start


def _maps(pixels: Tensor, size: Sizes) -> Tensor:
    """Pixels by channels as feature maps (batch, channels, height, width)."""
    return pixels.view(size.images, size.out_height, size.out_width, -1).permute(0, 3, 1, 2).float()
