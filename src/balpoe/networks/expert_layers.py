"""Layers of several experts, and the cosine classifier.

The experts of a layer share one parameter tensor, expert after expert along the first axis. They can run as one
grouped operation, which is faster on a GPU, or one by one, each with its part of the tensor, which is faster on a CPU;
both give the same numbers. Right behind the trunk all experts read the same input, and the grouped convolution is an
ordinary one with more outputs.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.errors import UserError

__all__ = ["CosineClassifier", "ExpertBatchNorm2d", "ExpertConv2d", "ExpertCopies", "ExpertLayer", "ExpertLinear"]


class ExpertLayer(nn.Module):
    """A layer of several experts, whose parameters lie one after the other along the first axis.

    `forward` maps all experts together, in one tensor; `each` maps a list with one tensor per expert.
    """

    num_experts: int
    shared: tuple[str, ...] = ()
    """Names of parameters that are one for all experts."""

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the experts' outputs, computed one after the other from their own inputs."""
        raise NotImplementedError

    def one(self, x: Tensor, index: int) -> Tensor:
        """Return the output of one expert; the others get no samples."""
        return self.each([x if number == index else x[:0] for number in range(self.num_experts)])[index]

    def parts(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return each expert's part of a parameter: split once, so that its gradient is joined once."""
        return tensor.chunk(self.num_experts)


class ExpertConv2d(ExpertLayer):
    """A 3 x 3 convolution per expert, without bias; the weights of all experts lie one after the other.

    Args:
        in_channels: Input channels of one expert.
        out_channels: Output channels of one expert.
        num_experts: Number of experts.
        stride: Pixels from one window to the next.
        shared_input: Whether all experts read the same input, as right behind the trunk.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_experts: int = 1, stride: int = 1, shared_input: bool = False
    ) -> None:
        super().__init__()
        self.num_experts, self.stride, self.shared_input = num_experts, stride, shared_input
        self.weight = nn.Parameter(torch.empty(num_experts * out_channels, in_channels, 3, 3))
        nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, experts * in_channels, height, width), or (batch, in_channels, ...) if the input is shared."""
        groups = 1 if self.shared_input else self.num_experts
        return F.conv2d(x, self.weight, stride=self.stride, padding=1, groups=groups)

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map (batch, in_channels, height, width) of each expert."""
        pairs = zip(inputs, self.parts(self.weight), strict=True)
        return [F.conv2d(x, weight, stride=self.stride, padding=1) for x, weight in pairs]


class ExpertBatchNorm2d(ExpertLayer):
    """Batch normalisation of each expert's channels."""

    def __init__(self, channels: int, num_experts: int = 1) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.norm = nn.BatchNorm2d(channels * num_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, experts * channels, height, width)."""
        normalised: Tensor = self.norm(x)
        return normalised

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map (batch, channels, height, width) of each expert."""
        norm = self.norm
        assert norm.running_mean is not None  # for mypy: statistics are always kept here
        assert norm.running_var is not None
        if self.training and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        momentum = norm.momentum
        if momentum is None:  # torch's word for statistics in which every batch counts alike
            momentum = 1 / float(norm.num_batches_tracked or 1)
        tensors = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        rows = zip(inputs, *(self.parts(tensor) for tensor in tensors), strict=True)
        return [
            F.batch_norm(x, mean, variance, weight, bias, self.training, momentum, norm.eps)
            for x, mean, variance, weight, bias in rows
        ]


class ExpertLinear(ExpertLayer):
    """A fully connected layer per expert, with the rectifier behind it.

    Args:
        in_features: Input features of one expert.
        out_features: Output features of one expert.
        num_experts: Number of experts.
        beside_input: Whether the output has the input in front of it.
    """

    def __init__(
        self, in_features: int, out_features: int, num_experts: int = 1, *, beside_input: bool = False
    ) -> None:
        super().__init__()
        self.num_experts, self.beside_input = num_experts, beside_input
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(num_experts, out_features))
        nn.init.normal_(self.weight, std=(2 / in_features) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, features), or (batch, experts, features) behind another such layer."""
        equation = "bi,eoi->beo" if x.ndim == 2 else "bei,eoi->beo"
        hidden = F.relu(torch.einsum(equation, x, self.weight) + self.bias)
        if not self.beside_input:
            return hidden
        return torch.cat([(x[:, None] if x.ndim == 2 else x).expand(-1, self.num_experts, -1), hidden], dim=2)

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map (batch, features) of each expert."""
        rows = zip(inputs, self.weight.unbind(), self.bias.unbind(), strict=True)
        hidden = [F.relu(F.linear(*row)) for row in rows]
        if not self.beside_input:
            return hidden
        return [torch.cat(pair, dim=1) for pair in zip(inputs, hidden, strict=True)]


class ExpertCopies(ExpertLayer):
    """A module of its own for each expert, from what the experts share to that expert's features (batch, features).

    For networks that were written for one: their layers cannot be laid beside each other in one tensor.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.num_experts = len(self.experts)

    def forward(self, x: Tensor) -> Tensor:
        """Map one input, the same for all, to (batch, experts, features)."""
        return torch.stack(self.each([x] * self.num_experts), dim=1)

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map the input of each expert."""
        return [expert(x) for expert, x in zip(self.experts, inputs, strict=True)]

    def one(self, x: Tensor, index: int) -> Tensor:
        """Map the input of one expert."""
        output: Tensor = self.experts[index](x)
        return output


class CosineClassifier(nn.Module):
    """The paper's classifier: scale * cosine of features and class weights, one set of weights per expert.

    Computed in float32 also under autocast: a logit of 30 in bfloat16 is off by up to 1/16.

    >>> logits = CosineClassifier(num_features=4, num_classes=2, num_experts=3, scale=32)(torch.randn(5, 3, 4))
    >>> logits.shape, bool((logits.abs() <= 32.001).all())
    (torch.Size([5, 3, 2]), True)
    """

    def __init__(self, num_features: int, num_classes: int, num_experts: int = 1, scale: float = 32.0) -> None:
        super().__init__()
        if not 0 < scale < float("inf"):
            raise UserError(f"the scale of the cosine classifier must be above 0, but is {scale}")
        self.num_experts, self.num_classes, self.scale = num_experts, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_experts, num_classes, num_features).uniform_(-1, 1))
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight, dim=-1))
        self.register_parameter("class_scale", None)

    def add_class_scale(self) -> None:
        """Add a factor for each expert and class, ones at first, which is not trained before somebody asks for it."""
        self.class_scale = nn.Parameter(torch.ones(self.weight.shape[:2]), requires_grad=False)

    def forward(self, features: Tensor, expert: int | None = None) -> Tensor:
        """Return expert logits (batch, experts, classes) of features (batch, experts or 1, features).

        Args:
            features: Features of the experts, (batch, experts or 1, features).
            expert: Number of the only expert whose logits are wanted; None for all.
        """
        weight: Tensor = self.weight
        class_scale: Tensor | None = self.class_scale
        if expert is not None:  # not all of them by default: a slice of all would cost a copy in each training step
            weight = weight[expert : expert + 1]
            class_scale = None if class_scale is None else class_scale[expert : expert + 1]
        with torch.autocast(features.device.type, enabled=False):
            unit = F.normalize(features.to(weight.dtype), dim=-1).expand(-1, len(weight), -1)
            # Weights of unit length, divided after the product: those of many classes are more than a batch's logits.
            lengths = torch.linalg.vector_norm(weight, dim=-1).clamp_min(1e-12)
            logits: Tensor = torch.einsum("bef,ecf->bec", unit, weight) * (self.scale / lengths)
            return logits if class_scale is None else logits * class_scale

    def extra_repr(self) -> str:
        """Return the sizes, for `print(network)`."""
        experts, classes, features = self.weight.shape
        return f"features={features}, classes={classes}, experts={experts}, scale={self.scale:g}"
