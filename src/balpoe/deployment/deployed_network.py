"""The whole way from raw samples to probabilities as one module: what an exported file holds.

Experts stand beside each other with weights of their own, and the lengths of the classifiers' weights are divided out
once: other runtimes then see plain convolutions and matrix products, and fold the normalisation into them.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.experiments.model_file import Model
from balpoe.method.ensemble import product_of_experts
from balpoe.networks.adapters import merged
from balpoe.networks.expert_layers import ExpertLinear
from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.resnet_cifar import Block
from balpoe.networks.router import number_asked, running_means, unasked_filled

__all__ = ["DeployedNetwork", "SeparateExperts"]


class SeparateExperts(nn.Module):
    """A copy of a network that says the same, each expert's weights in tensors of their own.

    Args:
        network: Network from normalised samples to expert logits.

    >>> from balpoe import expert_network
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> rows = torch.randn(5, 4)
    >>> torch.allclose(SeparateExperts(network)(rows), network(rows), atol=1e-5)
    True
    """

    def __init__(self, network: ExpertNetwork) -> None:
        super().__init__()
        whole = merged(network).cpu().float().eval().requires_grad_(False)
        behind = ExpertNetwork(nn.Identity(), whole.branches, whole.classifier)  # type: ignore[arg-type]
        experts = range(whole.num_experts)
        self.trunk, self.router = whole.trunk, whole.router
        self.branches = nn.ModuleList(behind.expert(index).branches for index in experts)
        _use_plain_layers(self)
        weight = whole.classifier.weight.double()
        scale = whole.classifier.scale / torch.linalg.vector_norm(weight, dim=-1).clamp_min(1e-12)
        if whole.classifier.class_scale is not None:
            scale = scale * whole.classifier.class_scale.double()
        directions = (weight * scale[..., None]).transpose(1, 2).float()
        for index in experts:
            self.register_buffer(f"directions_{index}", directions[index].contiguous())

    def forward(self, samples: Tensor) -> Tensor:
        """Return expert logits (batch, experts, classes)."""
        shared = self.trunk(samples)
        features = [self._features(shared, index) for index in range(len(self.branches))]
        logits = torch.stack(
            [_unit(each) @ self.get_buffer(f"directions_{index}") for index, each in enumerate(features)],
            dim=1,
        )
        if self.router is None:
            return logits
        scores = self.router(torch.stack(features, dim=1), running_means(logits))
        return unasked_filled(logits, number_asked(scores))

    def _features(self, shared: Tensor, index: int) -> Tensor:
        """Features of one expert, (batch, features)."""
        layers = self.branches[index]
        assert isinstance(layers, nn.ModuleList)
        own = shared.ndim == 3 and (not len(layers) or isinstance(layers[0], _PlainLinear))
        x = shared[:, min(index, shared.shape[1] - 1)] if own else shared
        for layer in layers:
            x = layer(x)
        return x.mean(dim=(2, 3)) if x.ndim == 4 else x.flatten(1)


class _WideningBlock(nn.Module):
    """A block that adds its input through a convolution with ones and zeros.

    ONNX Runtime keeps activations in a layout of its own from one convolution to the next, and adds sums and ReLUs to
    them. Pixels cut out and channels of zeros put around are in another layout, and so would be every sum behind them.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        width, in_width = block.conv1.weight.shape[:2]
        self.shortcut = nn.Conv2d(in_width, width, 1, block.stride, bias=False)
        weight = torch.zeros(width, in_width, 1, 1)
        weight[range(block.padding // 2, block.padding // 2 + in_width), range(in_width)] = 1
        self.shortcut.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.block.norm1(self.block.conv1(x)))
        return F.relu(self.block.norm2(self.block.conv2(out)) + self.shortcut(x))


class _PlainLinear(nn.Module):
    """The fully connected layer of one expert as a matrix product.

    As an Einsum, ONNX Runtime would lay out its weights anew for every batch, which takes longer than the product.
    """

    def __init__(self, layer: ExpertLinear) -> None:
        super().__init__()
        self.beside_input = layer.beside_input
        self.weight = nn.Parameter(layer.weight[0].T.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(layer.bias[0].clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(x @ self.weight + self.bias)
        return torch.cat([x, hidden], dim=1) if self.beside_input else hidden


def _use_plain_layers(network: nn.Module) -> None:
    """Replace layers, each of one expert here, that other runtimes are slow with."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Block) and (child.stride > 1 or child.padding):
                setattr(parent, name, _WideningBlock(child))
            elif isinstance(child, ExpertLinear):
                setattr(parent, name, _PlainLinear(child))


def _unit(features: Tensor) -> Tensor:
    """Features of length one, as `F.normalize` has them, which would be exported with the shape of the batch."""
    length: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(1e-12)
    return features / length


def _separated(network: nn.Module) -> nn.Module:
    """A copy of a network, or of one that has networks of experts inside."""
    if isinstance(network, ExpertNetwork):
        return SeparateExperts(network)
    inside = {id(child): _separated(child) for child in network.children()}
    return copy.deepcopy(network, inside)


class DeployedNetwork(nn.Module):
    """Raw samples and the log of a deployment prior to logits, probabilities and expert logits.

    Args:
        model: Model whose way it goes: normalisation, experts, calibration, product, prior.

    >>> from balpoe import Model, Preprocessing, expert_network
    >>> from balpoe.experiments.recipe import Recipe
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> _, probabilities, _ = DeployedNetwork(model)(torch.zeros(3, 4), prior.log())
    >>> torch.allclose(probabilities, model.predict(torch.zeros(3, 4), "train"), atol=1e-5)
    True
    """

    mean: Tensor
    std: Tensor
    scales: Tensor
    shift: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = _separated(model.network)
        size, experts = model.preprocessing.size, model.network.num_experts
        self.takes_images = len(size) == 3
        for name in ("mean", "std"):
            values = torch.tensor(getattr(model.preprocessing, name)) * (255.0 if self.takes_images else 1.0)
            self.register_buffer(name, values.view(-1, *[1] * (len(size) - 1)))
        zeros = torch.zeros(1, experts, model.num_classes, dtype=torch.float64)
        fixed, ones = model.calibrated(zeros)[0], model.calibrated(zeros + 1)[0]
        shift = fixed.mean(dim=0)
        if model.source_prior is not None:
            shift = shift - model.source_prior.double().log()
        self.register_buffer("scales", (ones - fixed)[:, :1].float())
        self.register_buffer("shift", shift.float())

    def forward(self, samples: Tensor, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits and probabilities, (batch, classes), and expert logits as the network gives them.

        Args:
            samples: Images (batch, channels, height, width), uint8, or features (batch, features).
            log_prior: Log of the deployment prior, (classes,), up to a constant; None for logits that are no posterior.
        """
        expert_logits = self.network((samples.float() - self.mean) / self.std)
        logits = product_of_experts(expert_logits * self.scales) + self.shift
        if log_prior is not None:
            logits = logits + log_prior
        return logits, logits.softmax(dim=1), expert_logits
