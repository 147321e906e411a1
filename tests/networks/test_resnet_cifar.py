import pytest
import torch
from torch import nn
from torch.nn import functional as F

from balpoe import expert_network
from balpoe.networks import multiply_adds, num_parameters
from balpoe.networks.resnet_cifar import Block, start_residuals

# facts of the reference network, counted there: parameters and 10^9 multiply-adds per image
REFERENCE = {
    100: {1: (469_904, 0.0689), 2: (915_984, 0.1137), 3: (1_362_064, 0.1585), 4: (1_808_144, 0.2034)}
    | {5: (2_254_224, 0.2482), 7: (3_146_384, 0.3379)},
    10: {1: (464_144, 0.0689), 2: (904_464, 0.1137), 3: (1_344_784, 0.1585), 4: (1_785_104, 0.2033)}
    | {5: (2_225_424, 0.2482), 7: (3_106_064, 0.3378)},
}


@pytest.mark.parametrize(("classes", "experts"), [(c, e) for c in REFERENCE for e in REFERENCE[c]])
def test_size_and_cost_are_those_of_the_reference(classes, experts):
    network = expert_network("resnet32", num_classes=classes, num_experts=experts)
    parameters, giga = REFERENCE[classes][experts]
    assert num_parameters(network) == parameters
    assert multiply_adds(network, torch.zeros(1, 3, 32, 32)) / 1e9 == pytest.approx(giga, abs=6e-5)


def test_the_reduced_width_of_ride_and_sade():
    network = expert_network("resnet32", num_classes=100, width=(16, 24, 48))
    assert num_parameters(network) == 783_856
    assert multiply_adds(network, torch.zeros(1, 3, 32, 32)) / 1e9 == pytest.approx(0.1004, abs=5e-5)


class PlainBlock(nn.Module):
    """He et al. 2016, option A, with torch's own layers."""

    def __init__(self, in_width, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_width, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - in_width

    def forward(self, x):
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        half = self.extra // 2
        shortcut = F.pad(shortcut, (0, 0, 0, 0, half, self.extra - half))
        return F.relu(out + shortcut)


class PlainResNet32(nn.Module):
    """One expert, written plainly."""

    def __init__(self, classes, width):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        blocks, before = [], width
        for stage in range(3):
            for block in range(5):
                now = width * 2**stage
                blocks.append(PlainBlock(before, now, 2 if stage and not block else 1))
                before = now
        self.blocks = nn.Sequential(*blocks)
        self.weight = nn.Parameter(torch.empty(classes, before))

    def forward(self, x):
        features = self.blocks(F.relu(self.norm(self.stem(x)))).mean(dim=(2, 3))
        return 32 * F.linear(F.normalize(features), F.normalize(self.weight))


@pytest.mark.parametrize(("training", "width", "size"), [(False, 4, 32), (True, 4, 32), (False, 64, 8)])
def test_against_a_plain_resnet32(training, width, size):
    torch.manual_seed(0)
    network = expert_network("resnet32", num_classes=7, num_experts=2, width=width).train(training)
    images = torch.randn(5, 3, size, size)
    together = network(images)
    for expert in range(2):
        alone, plain = network.expert(expert), PlainResNet32(7, width).train(training)
        ours = [tensor for tensor in alone.state_dict().values() if tensor.ndim]
        theirs = [name for name, tensor in plain.state_dict().items() if tensor.ndim]
        # the plain network lists its classifier first: a parameter of its own comes before its children
        order = [name for name in theirs if name != "weight"] + ["weight"]
        values = dict(zip(order, (t.squeeze(0) if t.ndim == 3 else t for t in ours), strict=True))
        plain.load_state_dict(values, strict=False)
        torch.testing.assert_close(plain(images), together[:, expert], rtol=1e-4, atol=1e-4)


def test_first_weights_have_the_reference_s_distribution():
    torch.manual_seed(0)
    network = expert_network("resnet32", num_classes=100)
    for layer in (network.trunk[1].conv1, network.branches[0].conv1, network.branches[3].conv2):
        fan_in = layer.weight[0].numel()
        assert float(layer.weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)


def test_grey_images_and_other_sizes():
    network = expert_network("resnet32", num_classes=10, width=4, in_channels=1)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 3, 10)


def test_blocks_that_begin_by_adding_less():
    """What a block adds is scaled; with 0 it passes on what it gets, which is never negative."""
    torch.manual_seed(0)
    network = expert_network("resnet32", num_classes=4, num_experts=2, width=4).eval()
    blocks = [block for block in network.modules() if isinstance(block, Block)]
    assert len(blocks) == 15
    block = blocks[-1]
    x = torch.rand(3, 32, 5, 5)
    added = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x))))).detach()
    for factor in (1.0, 0.5, 0.0):
        start_residuals(network, factor)
        torch.testing.assert_close(block(x).detach(), F.relu(x + factor * added))
    torch.testing.assert_close(block(x), x)
    assert all(bool((each.norm1.norm.weight == 1).all()) for each in blocks)


def test_blocks_that_begin_by_adding_nothing_are_learnt_all_the_same():
    torch.manual_seed(0)
    network = expert_network("resnet32", num_classes=4, num_experts=2, width=4)
    start_residuals(network, 0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    for _ in range(2):  # the first step changes the scales alone, the second what lies in front of them
        optimizer.zero_grad()
        F.cross_entropy(network(torch.rand(8, 3, 32, 32)).mean(dim=1), torch.arange(8) % 4).backward()
        optimizer.step()
    unchanged = {name for name, weight in network.named_parameters() if torch.equal(weight, before[name])}
    assert not unchanged
