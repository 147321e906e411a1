import copy

import pytest
import torch

from balpoe import expert_network
from balpoe.networks.synchronised import synchronised


@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet32", {"width": 2}), ("test_efficientnet", {"split": 2}), ("test_resnet", {})],
)
def test_only_the_statistics_change(name, settings):
    """In evaluation a converted network gives the same numbers, and its state fits the one it came from."""
    torch.manual_seed(0)
    network = expert_network(name, num_classes=3, num_experts=2, **settings)
    network(torch.randn(4, 3, 32, 32))  # statistics that are not those of the beginning
    converted = synchronised(copy.deepcopy(network))
    layers = [module for module in network.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    assert layers
    assert sum(isinstance(module, torch.nn.SyncBatchNorm) for module in converted.modules()) == len(layers)
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(converted.eval()(images), network.eval()(images))
    network.load_state_dict(converted.state_dict())
