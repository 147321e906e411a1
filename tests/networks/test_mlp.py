import torch
from torch.nn import functional as F

from balpoe import expert_network
from balpoe.networks import num_parameters


def test_against_the_layers_written_out():
    torch.manual_seed(0)
    network = expert_network("mlp", num_classes=3, num_experts=2, num_features=6, width=5)
    x = torch.randn(4, 6)
    shared = F.relu(F.linear(x, network.trunk[1].weight, network.trunk[1].bias))
    for expert in range(2):
        layer = network.branches[0]
        hidden = F.relu(F.linear(shared, layer.weight[expert], layer.bias[expert]))
        logits = 32 * F.linear(F.normalize(hidden), F.normalize(network.classifier.weight[expert]))
        torch.testing.assert_close(network(x)[:, expert], logits)


def test_widths_and_images():
    network = expert_network("mlp", num_classes=10, num_experts=2, num_features=64, width=(32, 16, 8), split=2)
    assert network(torch.zeros(3, 1, 8, 8)).shape == (3, 2, 10)
    shared = 64 * 32 + 32 + 32 * 16 + 16
    assert num_parameters(network) == shared + 2 * (16 * 8 + 8) + 2 * 10 * 8
