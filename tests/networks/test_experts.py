import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from balpoe import BalPoELoss, CosineClassifier, UserError, expert_network
from balpoe.networks import multiply_adds, num_parameters

KINDS = {
    "resnet32": ({"width": 4}, (3, 16, 16)),
    "mlp": ({"num_features": 12, "width": 8}, (12,)),
}


def build(kind, num_experts=3, **settings):
    torch.manual_seed(0)
    fixed, size = KINDS[kind]
    network = expert_network(kind, num_classes=5, num_experts=num_experts, **{**fixed, **settings})
    return network, torch.randn(6, *size)


def grouped(network, images):
    """All experts together, as a GPU runs them."""
    return network.classifier(network._together(network.trunk(images)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("training", [False, True])
def test_together_and_one_by_one_are_the_same(kind, split, training):
    network, images = build(kind, split=split)
    network.train(training)
    other = copy.deepcopy(network)
    if split < (3 if kind == "resnet32" else 2):
        torch.testing.assert_close(network(images), grouped(other, images), rtol=1e-4, atol=1e-4)
        for (name, ours), theirs in zip(network.state_dict().items(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)  # running statistics as well


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_both_ways_are_the_same(kind):
    network, images = build(kind)
    other = copy.deepcopy(network).double()
    network.double()
    targets, loss = torch.arange(6) % 5, BalPoELoss([5, 4, 3, 2, 1])
    loss(network(images.double()), targets).backward()
    loss(grouped(other, images.double()), targets).backward()
    for (name, ours), theirs in zip(network.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [0, 1, 2])
def test_an_expert_alone_computes_the_same_function(kind, split):
    network, images = build(kind, split=split)
    network.train()
    network(images)  # statistics that are not the initial ones
    network.eval()
    together = network(images)
    assert together.shape == (6, 3, 5)
    for index in range(3):
        alone = network.expert(index)
        assert alone.num_experts == 1
        assert num_parameters(alone) == num_parameters(build(kind, num_experts=1, split=split)[0])
        torch.testing.assert_close(alone(images)[:, 0], together[:, index], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="experts 0 to 2"):
        network.expert(3)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_start_from_different_weights(kind):
    network, images = build(kind)
    logits = network(images)
    assert not torch.allclose(logits[:, 0], logits[:, 1])
    assert not torch.allclose(logits[:, 1], logits[:, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_under_torch_compile(kind):
    network, images = build(kind)
    network.eval()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images), rtol=1e-4, atol=1e-4)


def test_cosine_classifier_against_the_formula():
    torch.manual_seed(0)
    classifier = CosineClassifier(4, 3, num_experts=2, scale=32)
    torch.testing.assert_close(classifier.weight.norm(dim=-1), torch.ones(2, 3))
    features = torch.randn(5, 2, 4)
    logits = classifier(features)
    for expert in range(2):
        for label in range(3):
            weight = 7.0 * classifier.weight[expert, label]  # its length does not matter
            expected = 32 * F.cosine_similarity(features[:, expert], weight[None])
            torch.testing.assert_close(logits[:, expert, label], expected)
    assert logits.abs().max() <= 32.0001


def test_the_classifier_keeps_float32_under_autocast():
    torch.manual_seed(0)
    classifier = CosineClassifier(16, 10)
    features = torch.randn(4, 1, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = classifier(features.bfloat16())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, classifier(features.bfloat16().float()))


def test_multiply_adds_of_known_layers():
    convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    assert multiply_adds(convolution, torch.zeros(2, 3, 10, 10)) == 3 * 8 * 9 * 100
    network = nn.Linear(10, 2).train()
    assert multiply_adds(network, torch.zeros(1, 10)) == 20
    assert network.training


def test_wrong_names_and_settings():
    with pytest.raises(UserError, match="did you mean 'resnet32'"):
        expert_network("resnet23", num_classes=3)
    with pytest.raises(UserError, match=r"wrong setting.*depth"):
        expert_network("resnet32", num_classes=3, depth=3)
    with pytest.raises(UserError, match="split must be 0 to 3"):
        expert_network("resnet32", num_classes=3, split=4)
    with pytest.raises(UserError, match="split must be 0 to 2"):
        expert_network("mlp", num_classes=3, num_features=4, split=5)
    with pytest.raises(UserError, match="three that do not fall"):
        expert_network("resnet32", num_classes=3, width=(16, 8, 4))
    with pytest.raises(UserError, match="at least one class"):
        expert_network("mlp", num_classes=3, num_experts=0, num_features=4)
