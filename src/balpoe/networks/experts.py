"""A shared trunk, one branch per expert, a cosine classifier: the shape of every network here.

The layers of the experts (`expert_layers`) can run as one grouped operation or one by one. `ExpertNetwork` lets the
device decide. Experts made of timm's models (`cutting`) are copies that run one after the other.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from balpoe.errors import UserError
from balpoe.networks.expert_layers import CosineClassifier, ExpertCopies, ExpertLayer, ExpertLinear
from balpoe.networks.router import Router, join_scores, number_asked, running_means, unasked_filled

__all__ = ["ExpertHead", "ExpertNetwork"]


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

    def __init__(self, trunk: nn.Module, branches: Iterable[ExpertLayer], classifier: CosineClassifier) -> None:
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
