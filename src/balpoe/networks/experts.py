"""A shared trunk, one branch per expert, a cosine classifier: the shape of every network here.

The experts of a layer share one parameter tensor, expert after expert along the first axis. They can run as one
grouped operation, which is faster on a GPU, or one by one, each with its part of the tensor, which is faster on a CPU.
`ExpertNetwork` lets the device decide; both give the same numbers. Right behind the trunk all experts read the same
input, and the grouped convolution is an ordinary one with more outputs. Experts made of timm's models (`cutting`) are
copies that run one after the other.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from balpoe.errors import UserError
from balpoe.networks.router import Router, join_scores, number_asked, running_means, unasked_filled

__all__ = [
    "CosineClassifier",
    "ExpertBatchNorm2d",
    "ExpertConv2d",
    "ExpertCopies",
    "ExpertHead",
    "ExpertLayer",
    "ExpertLinear",
    "ExpertNetwork",
    "costs_by_asked",
    "multiply_adds",
    "num_parameters",
]


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


class ExpertNetwork(nn.Module):
    """Images (batch, ...) to expert logits (batch, experts, classes), also with one expert.

    Args:
        trunk: Layers that the experts share; or that give each its own features, (batch, experts, features).
        branches: Layers that each expert has for itself, in order.
        classifier: Map from features (batch, experts or 1, features) to expert logits.

    >>> network = ExpertNetwork(nn.Identity(), [ExpertLinear(6, 4, num_experts=3)], CosineClassifier(4, 2, 3))
    >>> network(torch.zeros(5, 6)).shape, network.expert(0)(torch.zeros(5, 6)).shape
    (torch.Size([5, 3, 2]), torch.Size([5, 1, 2]))
    """

    router: Router | None

    def __init__(self, trunk: nn.Module, branches: Iterable[ExpertLayer], classifier: "CosineClassifier") -> None:
        super().__init__()
        self.trunk = trunk
        self.branches = nn.ModuleList(branches)
        self.classifier = classifier
        self.register_module("router", None)
        self.trunk_is_frozen = self.features_are_frozen = False

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return self.classifier.num_experts

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.classifier.num_classes

    def forward(self, images: Tensor) -> Tensor:
        """Return expert logits (batch, experts, classes) of normalised images or feature vectors.

        With a router they are filled as `unasked_filled` says; while it is trained, its scores lie behind the classes.
        """
        shared = self.trunk(images)
        if self.router is not None and not self.training and self._goes_one_by_one(shared):
            return self._in_turn(shared, self.router)
        features = self._branched(shared)
        logits: Tensor = self.classifier(features)
        if self.router is None or (self.training and not self.router.is_trained):
            return logits
        scores = self.router(features, running_means(logits))
        return join_scores(logits, scores) if self.training else unasked_filled(logits, number_asked(scores))

    def expert_features(self, images: Tensor) -> Tensor:
        """Return what the classifier is given, (batch, experts, features); one expert's, where they share them."""
        return self._branched(self.trunk(images))

    def _branched(self, shared: Tensor) -> Tensor:
        if not len(self.branches):
            return _pooled(shared, 1)
        return self._one_by_one(shared) if self._goes_one_by_one(shared) else self._together(shared)

    def _goes_one_by_one(self, shared: Tensor) -> bool:
        """Whether experts run one after the other: on a CPU, if they have layers of their own for a common input."""
        several = bool(len(self.branches)) and self.num_experts > 1 and shared.device.type == "cpu"
        return several and not self._has_own_features(shared)

    def add_router(self, hidden: int = 16, top_logits: int = 30) -> None:
        """Add a router, which from then on decides in evaluation how many experts are asked about a sample.

        Args:
            hidden: Number of its hidden units.
            top_logits: Number of logits that it looks at.
        """
        if self.num_experts < 2:
            raise UserError("a router chooses between experts, but the network has one; give it two or more")
        num_features = self.classifier.weight.shape[-1]
        self.router = Router(num_features, self.num_classes, self.num_experts, hidden, top_logits)

    def without_router(self) -> "ExpertNetwork":
        """Return the network with all its experts asked: the same layers, not a copy of them."""
        branches = (layer for layer in self.branches if isinstance(layer, ExpertLayer))  # all, but for mypy
        whole = ExpertNetwork(self.trunk, branches, self.classifier)
        whole.trunk_is_frozen, whole.features_are_frozen = self.trunk_is_frozen, self.features_are_frozen
        whole.training = self.training
        return whole

    def expert(self, index: int) -> "ExpertNetwork":
        """Return a copy that holds one expert alone: the same trunk, that expert's branch and classifier."""
        return self.some_experts([index])

    def some_experts(self, indices: Sequence[int]) -> "ExpertNetwork":
        """Return a copy that holds some experts alone, in this order, and no router."""
        for index in indices:
            if not 0 <= index < self.num_experts:
                raise UserError(f"expert {index} is asked for, but the network has experts 0 to {self.num_experts - 1}")
        some = copy.deepcopy(self)
        for layer in some.trunk.modules():  # adapters that each expert has for itself
            if isinstance(layer, ExpertLayer) and layer.num_experts > 1:
                _keep_tensors(layer, indices, self.num_experts)
                layer.num_experts = len(indices)
        _keep_experts(some.branches, indices, self.num_experts)
        _keep_experts(some.classifier, indices, self.num_experts)
        some.router = None
        return some

    def features(self, images: Tensor) -> Tensor:
        """Return what the trunk makes of images, pooled: (batch, features), the input of `head()`."""
        return _pooled(self.trunk(images), 1).squeeze(1)

    def head(self) -> "ExpertNetwork":
        """Return the part behind the trunk, from features to expert logits: the same layers, not a copy of them.

        To train it trains this network, which with a frozen trunk can be done on features that were computed once.
        """
        layers = [layer for layer in self.branches if isinstance(layer, ExpertLinear)]
        if len(layers) < len(self.branches):
            raise UserError(
                "the experts of this network begin with feature maps, not with features; "
                "share the whole backbone (split -1) to train its head alone"
            )
        head = ExpertNetwork(nn.Identity(), layers, self.classifier)
        head.router = self.router
        return head

    def freeze_trunk(self) -> None:
        """Exclude the trunk from training: no gradients, and statistics and dropout as in evaluation."""
        self.trunk_is_frozen = True
        self.trunk.requires_grad_(False)
        self.train(self.training)

    def freeze_statistics(self) -> None:
        """Keep all in front of the classifier as in evaluation: statistics and dropout, also while it is trained."""
        self.features_are_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation, for which what is frozen always stays ready."""
        super().train(mode)
        if self.trunk_is_frozen or self.features_are_frozen:
            self.trunk.eval()
        if self.features_are_frozen:
            self.branches.eval()
        return self

    def _in_turn(self, shared: Tensor, router: Router) -> Tensor:
        """Ask one expert after the other, each about those samples alone that the router sends to it."""
        rows, total, logits = torch.arange(len(shared)), torch.zeros(()), torch.zeros(())
        for expert in range(self.num_experts):
            x = shared[rows]
            for layer in self.branches:
                assert isinstance(layer, ExpertLayer)
                x = layer.one(x, expert)
            features = _pooled(x, 1)
            own = self.classifier(features, expert)
            total = total + own if expert else own
            mean = total * (1 / (expert + 1))  # as in `running_means`
            if not expert:
                logits = own.repeat(1, self.num_experts, 1)
            else:
                logits[rows, expert], logits[rows, expert + 1 :] = own[:, 0], mean
            if expert + 1 == self.num_experts:
                break
            further = router(features, mean, expert)[:, 0] > 0
            rows, total = rows[further], total[further]
            if not len(rows):
                break
        return logits

    def _has_own_features(self, shared: Tensor) -> bool:
        """Whether each expert gets features of its own; before other layers three axes are an image's tokens."""
        return shared.ndim == 3 and isinstance(self.branches[0], ExpertLinear)

    def _together(self, x: Tensor) -> Tensor:
        """One grouped operation per layer: few large kernels, which is what a GPU wants."""
        for layer in self.branches:
            x = layer(x)
        return _pooled(x, self.num_experts)

    def _one_by_one(self, x: Tensor) -> Tensor:
        """An operation per layer and expert: a CPU has no fast kernel for grouped convolutions."""
        outputs = [x] * self.num_experts
        for layer in self.branches:
            assert isinstance(layer, ExpertLayer)
            outputs = layer.each(outputs)
        return torch.cat([_pooled(output, 1) for output in outputs], dim=1)


class ExpertHead(ExpertNetwork):
    """Features (batch, features) to expert logits: a nonlinear layer and a cosine classifier per expert.

    For features of one's own, of any backbone. Experts that are linear in features which they share average to one
    linear classifier; so each has a hidden layer of its own. The classifier sees the features themselves beside it:
    through a hidden layer alone, rare classes lose (docs/own-backbone.md has the numbers).

    Args:
        num_features: Number of features of a sample.
        num_classes: Number of classes.
        num_experts: Number of experts.
        hidden: Units of each expert's own layer, beside the features.
        cosine_scale: Scale of the classifier, the paper's kappa.

    >>> ExpertHead(num_features=16, num_classes=4, num_experts=3)(torch.zeros(5, 16)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        num_experts: int = 3,
        *,
        hidden: int = 256,
        cosine_scale: float = 32.0,
    ) -> None:
        sizes = (num_features, num_classes, num_experts)
        if min(sizes) < 1:
            raise UserError("a head wants at least one feature, class and expert, but got {}, {} and {}".format(*sizes))
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, for linear experts average to one, but is {hidden}")
        layer = ExpertLinear(num_features, hidden, num_experts, beside_input=True)
        classifier = CosineClassifier(num_features + hidden, num_classes, num_experts, cosine_scale)
        super().__init__(nn.Identity(), [layer], classifier)


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
            features: Features of the experts.
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


class ExpertConv2d(ExpertLayer):
    """A 3 x 3 convolution per expert, without bias; the weights of all experts lie one after the other.

    Args:
        in_channels: Input channels of one expert.
        out_channels: Output channels of one expert.
        num_experts: Number of experts.
        stride: Stride of the convolution.
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


def num_parameters(network: nn.Module) -> int:
    """Return how many weights a network has, frozen ones included.

    >>> num_parameters(nn.Linear(10, 2))
    22
    """
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, example: Tensor) -> int:
    """Return the multiply-adds of one forward pass of one sample: convolutions and matrix products alone.

    >>> multiply_adds(nn.Linear(10, 2), torch.zeros(1, 10))
    20
    """
    training = network.training
    network.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(example)
    network.train(training)
    return int(counter.get_total_flops()) // (2 * len(example))


def costs_by_asked(network: ExpertNetwork, example: Tensor) -> tuple[int, ...]:
    """Return the multiply-adds of one sample if 1, 2, ... experts are asked about it; experts cost alike.

    >>> network = ExpertNetwork(nn.Linear(6, 5), [ExpertLinear(5, 4, num_experts=3)], CosineClassifier(4, 2, 3))
    >>> costs_by_asked(network, torch.zeros(1, 6))
    (58, 86, 114)
    """
    whole = multiply_adds(network.without_router(), example)
    shared = multiply_adds(network.trunk, example)
    decision = 0 if network.router is None else network.router.multiply_adds
    experts = network.num_experts
    return tuple(
        shared + asked * (whole - shared) // experts + min(asked, experts - 1) * decision
        for asked in range(1, experts + 1)
    )


def _keep_experts(module: nn.Module, indices: Sequence[int], num_experts: int) -> None:
    """Leave some experts' parts of every tensor of a module that holds several."""
    if isinstance(module, ExpertCopies):
        module.experts = nn.ModuleList([module.experts[index] for index in indices])
    else:
        _keep_tensors(module, indices, num_experts)
        for child in module.children():
            _keep_experts(child, indices, num_experts)
    if isinstance(module, ExpertLayer | CosineClassifier):
        module.num_experts = len(indices)


def _keep_tensors(module: nn.Module, indices: Sequence[int], num_experts: int) -> None:
    shared = module.shared if isinstance(module, ExpertLayer) else ()
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if tensor.ndim and name not in shared:
            parts = tensor.detach().chunk(num_experts)
            part = torch.cat([parts[index] for index in indices])
            setattr(module, name, nn.Parameter(part) if isinstance(tensor, nn.Parameter) else part)


def _pooled(x: Tensor, num_experts: int) -> Tensor:
    """Feature maps (batch, experts * features, height, width), or vectors, to (batch, experts, features)."""
    if x.ndim == 4:
        x = x.mean(dim=(2, 3))
    return x if x.ndim == 3 else x.unflatten(1, (num_experts, -1))  # not by len: a traced batch would be frozen
