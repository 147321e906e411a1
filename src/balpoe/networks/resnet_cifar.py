"""ResNet-32 for images of 32 x 32 (He et al. 2016), cut into a shared trunk and one branch per expert."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.errors import UserError
from balpoe.networks.expert_layers import CosineClassifier, ExpertBatchNorm2d, ExpertConv2d, ExpertLayer
from balpoe.networks.experts import ExpertNetwork

__all__ = ["resnet32", "start_residuals"]

BLOCKS_PER_STAGE = 5


def resnet32(
    num_classes: int,
    num_experts: int = 3,
    *,
    cosine_scale: float = 32.0,
    width: int | Sequence[int] = 16,
    split: int = 1,
    in_channels: int = 3,
) -> ExpertNetwork:
    """Return the paper's CIFAR network: stem and first stage shared, the other two stages per expert.

    Args:
        num_classes: Number of classes.
        num_experts: Number of branches; each starts from weights of its own.
        cosine_scale: Scale of the classifier, the paper's kappa.
        width: Channels of the first stage, doubled in each next one; or the channels of all three
            (16, 24, 48 is the reduced width of RIDE and SADE).
        split: Number of the three stages that the experts share; 3 leaves them a classifier each.
        in_channels: Channels of the images, 3 for colour and 1 for grey.

    >>> from balpoe.networks.costs import num_parameters
    >>> num_parameters(resnet32(100, 3)), num_parameters(resnet32(100, 1))
    (1362064, 469904)
    """
    widths = _widths(width)
    if not 0 <= split <= 3:
        raise UserError(f"split must be 0 to 3, the number of stages that the experts share, but is {split}")
    stem = [Stem(in_channels, widths[0])]
    stages = [
        _stage(
            widths[max(stage - 1, 0)],
            widths[stage],
            stride=2 if stage else 1,
            num_experts=1 if stage < split else num_experts,
            shared_input=stage == split,
        )
        for stage in range(3)
    ]
    trunk = nn.Sequential(*stem, *(block for stage in stages[:split] for block in stage))
    branches = [block for stage in stages[split:] for block in stage]
    classifier = CosineClassifier(widths[2], num_classes, num_experts, cosine_scale)
    return ExpertNetwork(trunk, branches, classifier)


def start_residuals(network: ExpertNetwork, factor: float) -> None:
    """Scale what each block of a `resnet32` adds to its input, in place: by its last normalisation, which learns on.

    With 0 a block begins as if it were not there, and the network as a shallow one (Goyal et al. 2017).

    Args:
        network: Network with first weights.
        factor: What the scales begin at.

    >>> network = resnet32(10, num_experts=1)
    >>> start_residuals(network, 0.5)
    >>> network.branches[-1].norm2.norm.weight.unique()
    tensor([0.5000], grad_fn=<Unique2Backward0>)
    """
    for module in network.modules():
        if isinstance(module, Block):
            nn.init.constant_(module.norm2.norm.weight, factor)


class Stem(nn.Module):
    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv = ExpertConv2d(in_channels, width)
        self.norm = ExpertBatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Block(ExpertLayer):
    """conv - norm - relu - conv - norm, plus the input, then relu; the shortcut has no parameters."""

    def __init__(self, in_width: int, width: int, stride: int, num_experts: int, shared_input: bool) -> None:
        super().__init__()
        self.num_experts, self.stride, self.shared_input = num_experts, stride, shared_input
        self.padding = width - in_width
        self.conv1 = ExpertConv2d(in_width, width, num_experts, stride, shared_input)
        self.norm1 = ExpertBatchNorm2d(width, num_experts)
        self.conv2 = ExpertConv2d(width, width, num_experts)
        self.norm2 = ExpertBatchNorm2d(width, num_experts)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return _joined(self.norm2(self.conv2(out)), self.shortcut(x))

    def each(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [F.relu(out, inplace=True) for out in self.norm1.each(self.conv1.each(inputs))]
        outputs = self.norm2.each(self.conv2.each(outputs))
        return [_joined(out, self._widened(x, 1)) for out, x in zip(outputs, inputs, strict=True)]

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input of all experts as it is added to their outputs."""
        if self.shared_input and self.num_experts > 1:
            return self._widened(x, 1).repeat(1, self.num_experts, 1, 1)
        return self._widened(x, self.num_experts)

    def _widened(self, x: Tensor, num_experts: int) -> Tensor:
        """Every second pixel, and zeros around each expert's channels where the block is wider than its input."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.padding:
            before = self.padding // 2
            around = (0, 0, 0, 0, before, self.padding - before)
            if num_experts == 1:  # without a detour over five axes, on which exported graphs lose sight of the batch
                return F.pad(x, around)
            x = F.pad(x.unflatten(1, (num_experts, -1)), around).flatten(1, 2)
        return x


def _joined(out: Tensor, shortcut: Tensor) -> Tensor:
    # In place: the output of a normalisation is not needed for its gradient.
    return F.relu(out.add_(shortcut), inplace=True)


def _stage(in_width: int, width: int, *, stride: int, num_experts: int, shared_input: bool) -> list[Block]:
    first = Block(in_width, width, stride, num_experts, shared_input)
    return [first, *(Block(width, width, 1, num_experts, False) for _ in range(BLOCKS_PER_STAGE - 1))]


def _widths(width: int | Sequence[int]) -> tuple[int, int, int]:
    widths = tuple([width] if isinstance(width, int) else width)
    if len(widths) == 1:
        widths = (widths[0], 2 * widths[0], 4 * widths[0])
    if len(widths) != 3 or min(widths) < 1 or not widths[0] <= widths[1] <= widths[2]:
        raise UserError(f"width must be one number of channels, or three that do not fall, but is {widths}")
    return widths[0], widths[1], widths[2]
