import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from balpoe import BalPoELoss, CosineClassifier, UserError, expert_network
from balpoe.networks import ExpertHead, add_adapters, multiply_adds, num_parameters, resnet_cifar
from balpoe.networks.expert_layers import ExpertCopies
from balpoe.networks.experts import ExpertNetwork

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


@pytest.mark.parametrize("chosen", [[2, 0], [1, 2]])
@pytest.mark.parametrize("kind", KINDS)
def test_some_experts_compute_the_same_functions(kind, chosen):
    network, images = build(kind)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(network.some_experts(chosen)(images), network(images)[:, chosen])
    with pytest.raises(UserError, match="expert 3 is asked for, but the network has experts 0 to 2"):
        network.some_experts([0, 3])


@pytest.mark.parametrize("kind", ["lora", "adaptformer"])
def test_some_experts_of_a_transformer_keep_their_own_adapters(kind):
    torch.manual_seed(0)
    network = expert_network("test_vit", num_classes=5, num_experts=3, image_size=32).eval()
    add_adapters(network, kind, split=1)
    for name, weight in network.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(weight, std=0.3)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected = network(images)[:, [2, 0]]
        torch.testing.assert_close(network.some_experts([2, 0])(images), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_start_from_different_weights(kind):
    network, images = build(kind)
    logits = network(images)
    assert not torch.allclose(logits[:, 0], logits[:, 1])
    assert not torch.allclose(logits[:, 1], logits[:, 2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_under_torch_compile(kind, monkeypatch):
    monkeypatch.setattr(resnet_cifar, "BLOCKS_PER_STAGE", 1)
    network, images = build(kind)
    network.eval()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images), rtol=1e-4, atol=1e-4)


def test_cosine_classifier_against_the_formula():
    torch.manual_seed(0)
    classifier = CosineClassifier(4, 3, num_experts=2, scale=32)
    torch.testing.assert_close(classifier.weight.norm(dim=-1), torch.ones(2, 3))
    with torch.no_grad():  # their lengths do not matter
        classifier.weight *= torch.rand(2, 3, 1) * 7 + 0.1
    features = torch.randn(5, 2, 4)
    logits = classifier(features)
    for expert in range(2):
        for label in range(3):
            expected = 32 * F.cosine_similarity(features[:, expert], classifier.weight[expert, label][None])
            torch.testing.assert_close(logits[:, expert, label], expected)
    assert logits.abs().max() <= 32.0001


def test_gradients_of_the_cosine_classifier_are_those_of_normalised_weights():
    torch.manual_seed(0)
    classifier = CosineClassifier(4, 3, num_experts=2, scale=32).double()
    with torch.no_grad():
        classifier.weight *= torch.rand(2, 3, 1) + 0.5
    features, outer = torch.randn(5, 2, 4).double().requires_grad_(), torch.randn(5, 2, 3).double()
    plain = 32 * torch.einsum("bef,ecf->bec", F.normalize(features, dim=-1), F.normalize(classifier.weight, dim=-1))
    inputs = features, classifier.weight
    expected = torch.autograd.grad(plain, inputs, outer)
    torch.testing.assert_close(torch.autograd.grad(classifier(features), inputs, outer), expected)


def test_the_classifier_keeps_float32_under_autocast():
    torch.manual_seed(0)
    classifier = CosineClassifier(16, 10)
    features = torch.randn(4, 1, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = classifier(features.bfloat16())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, classifier(features.bfloat16().float()))


def test_a_head_is_a_hidden_layer_beside_the_features_and_a_cosine_classifier_per_expert():
    torch.manual_seed(0)
    head = ExpertHead(6, 3, num_experts=2, hidden=4, cosine_scale=10)
    x = torch.randn(5, 6)
    for expert in range(2):
        hidden = F.relu(F.linear(x, head.branches[0].weight[expert], head.branches[0].bias[expert]))
        features = torch.cat([x, hidden], dim=1)
        expected = 10 * F.linear(F.normalize(features), F.normalize(head.classifier.weight[expert]))
        torch.testing.assert_close(head(x)[:, expert], expected)
        torch.testing.assert_close(head.classifier(head._together(x))[:, expert], expected)  # as on a GPU
        torch.testing.assert_close(head.expert(expert)(x)[:, 0], expected)
    with pytest.raises(UserError, match="hidden must be at least 1"):
        ExpertHead(6, 3, hidden=0)
    with pytest.raises(UserError, match="at least one feature, class and expert, but got 6, 0 and 3"):
        ExpertHead(6, 0)


def test_experts_that_are_linear_in_shared_features_average_to_one_linear_classifier():
    """Why a head has a hidden layer: without it, three experts can do no more than one."""
    torch.manual_seed(0)
    classifier, x = CosineClassifier(6, 4, num_experts=3), F.normalize(torch.randn(50, 6))
    one = 32 * F.normalize(classifier.weight, dim=-1).mean(dim=0)
    torch.testing.assert_close(classifier(x[:, None]).mean(dim=1), x @ one.T)
    head = ExpertHead(6, 4, hidden=8)
    logits = head(x).mean(dim=1).detach()
    residual = logits - x @ torch.linalg.lstsq(x, logits).solution
    assert residual.norm() > 0.1 * logits.norm()


class Doubled(nn.Module):
    """A module as somebody wrote it for one expert."""

    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(12, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return self.norm(self.linear(x)) * 2


def test_a_module_of_its_own_for_each_expert():
    torch.manual_seed(0)
    modules = [Doubled(4) for _ in range(3)]
    network = ExpertNetwork(nn.Identity(), [ExpertCopies(modules)], CosineClassifier(4, 5, 3))
    x = torch.randn(6, 12)
    torch.testing.assert_close(grouped(copy.deepcopy(network), x), copy.deepcopy(network)(x))
    network(x)
    network.eval()
    features = torch.stack([module(x) for module in modules], dim=1)
    torch.testing.assert_close(network(x), network.classifier(features))
    for index in range(3):
        alone = network.expert(index)
        torch.testing.assert_close(alone(x)[:, 0], network(x)[:, index])
        assert num_parameters(alone) == num_parameters(modules[0]) + 5 * 4
    assert "branches.0.experts.2.norm.running_mean" in network.state_dict()


@pytest.mark.parametrize(("kind", "split"), [("mlp", 0), ("mlp", 1), ("mlp", 2), ("resnet32", 3)])
def test_features_and_head_are_the_network(kind, split):
    network, images = build(kind, split=split)
    network.eval()
    features = network.features(images)
    assert features.shape == (6, features.numel() // 6)
    torch.testing.assert_close(network.head()(features), network(images))
    head = {id(parameter) for parameter in network.head().parameters()}
    assert head == {id(p) for p in network.parameters()} - {id(p) for p in network.trunk.parameters()}


def test_stages_of_an_expert_s_own_are_no_head():
    with pytest.raises(UserError, match=r"begin with feature maps.*split -1"):
        build("resnet32", split=2)[0].head()


def test_to_train_the_head_on_features_is_to_train_the_network_behind_its_frozen_trunk():
    network, images = build("resnet32", split=3)
    network.freeze_trunk()
    other = copy.deepcopy(network)
    targets, loss = torch.arange(6) % 5, BalPoELoss([5, 4, 3, 2, 1])
    features = other.eval().features(images)
    trunk = copy.deepcopy(network.trunk.state_dict())
    for trained, inputs in ((network.train(), images), (other.head().train(), features)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss(trained(inputs), targets).backward()
            optimizer.step()
    torch.testing.assert_close(network.state_dict(), other.state_dict())
    torch.testing.assert_close(network.trunk.state_dict(), trunk, rtol=0, atol=0)  # weights and statistics
    assert not torch.equal(network.classifier.weight, build("resnet32", split=3)[0].classifier.weight)
    assert network.training
    assert not any(module.training for module in network.trunk.modules())
    assert not any(module.training for module in network.expert(1).train().trunk.modules())


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
