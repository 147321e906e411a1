"""The router against its formula, and experts that are asked one after the other."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from balpoe import ExpertHead, UserError, expert_network
from balpoe.networks.costs import costs_by_asked, multiply_adds
from balpoe.networks.expert_layers import CosineClassifier, ExpertCopies
from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.router import Router, experts_asked, number_asked, running_means, split_scores, unasked_filled

SIZES = {"resnet32": (3, 16, 16), "mlp": (12,), "head": (12,), "copies": (12,), "shared": (12,)}


def build(kind, num_experts=3, top_logits=3):
    """A network with a router that sends about half of the samples on."""
    torch.manual_seed(0)
    if kind == "copies":
        branches = [ExpertCopies(nn.Sequential(nn.Linear(7, 6), nn.ReLU()) for _ in range(num_experts))]
        network = ExpertNetwork(nn.Linear(12, 7), branches, CosineClassifier(6, 5, num_experts))
    elif kind == "shared":
        network = ExpertNetwork(nn.Linear(12, 7), [], CosineClassifier(7, 5, num_experts))
    elif kind == "head":
        network = ExpertHead(12, 5, num_experts, hidden=8)
    else:
        own = {"width": 4} if kind == "resnet32" else {"num_features": 12, "width": 8}
        network = expert_network(kind, num_classes=5, num_experts=num_experts, **own)
    images = torch.randn(40, *SIZES[kind])
    network.train()(images)  # statistics that are not the initial ones
    network.eval().add_router(hidden=4, top_logits=top_logits)
    router = network.router
    router.hidden_weight[:, 0], router.weight[0] = (
        0.0,
        1.0,
    )  # the first unit holds what the scores lack to a median of 0
    with torch.no_grad():
        features, logits = features_and_logits(network, images)
        router.hidden_bias[:, 0] = 100 - router(features, running_means(logits)).median(dim=0).values
    router.bias.fill_(-100.0)
    return network, images


def features_and_logits(network, images):
    """What the experts say together, as a GPU finds it."""
    shared = network.trunk(images)
    features = network._together(shared) if len(network.branches) else shared[:, None]
    return features, network.classifier(features)


def test_scores_are_those_of_a_loop():
    torch.manual_seed(0)
    router = Router(num_features=6, num_classes=5, num_experts=3, hidden=4, top_logits=2)
    features, logits = torch.randn(7, 3, 6), 10 * torch.randn(7, 3, 5)
    router.hidden_bias.normal_()
    router.bias.normal_()
    found = router(features, running_means(logits))
    assert found.shape == (7, 2)
    for sample in range(7):
        for expert in range(2):
            unit = [float(f) / float(features[sample, expert].norm()) for f in features[sample, expert]]
            score = float(router.bias)
            for number in range(4):
                before = float(router.hidden_bias[expert, number])
                before += sum(float(w) * f for w, f in zip(router.hidden_weight[expert, number], unit, strict=True))
                score += float(router.weight[number]) * max(before, 0.0)
            mean = [sum(float(logits[sample, e, c]) for e in range(expert + 1)) / (expert + 1) for c in range(5)]
            first, second = sorted(mean, reverse=True)[:2]
            score += float(router.weight[4]) * first + float(router.weight[5]) * second
            assert float(found[sample, expert]) == pytest.approx(score, rel=1e-4, abs=1e-4)


def test_there_are_no_more_logits_than_classes():
    assert Router(6, 5, 3, top_logits=30).top_logits == 5


@given(seed=st.integers(0, 10**6), experts=st.integers(2, 5), classes=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_filled_logits_have_the_mean_of_those_asked_and_tell_how_many(seed, experts, classes):
    generator = torch.Generator().manual_seed(seed)
    logits = 30 * torch.randn(20, experts, classes, generator=generator)
    asked = torch.randint(1, experts + 1, (20,), generator=generator)
    filled = unasked_filled(logits, asked)
    for sample in range(20):
        torch.testing.assert_close(filled[sample].mean(dim=0), logits[sample, : asked[sample]].mean(dim=0))
        assert torch.equal(filled[sample, : asked[sample]], logits[sample, : asked[sample]])
    assert torch.equal(experts_asked(filled), asked)


def test_one_score_that_says_stop_ends_it():
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    expected = [1 if row[0] < 0 else 2 if row[1] < 0 else 3 if row[2] < 0 else 4 for row in every.tolist()]
    assert number_asked(every).tolist() == expected
    assert number_asked(torch.zeros(1, 3)).tolist() == [1]


@pytest.mark.parametrize("kind", SIZES)
def test_asked_in_turn_and_all_at_once_they_say_the_same(kind, monkeypatch):
    network, images = build(kind)
    with torch.no_grad():
        found = network(images)
        monkeypatch.setattr(network, "_has_own_features", lambda shared: True)  # as on a GPU
        together = network(images)
        features, logits = features_and_logits(network, images)
        asked = number_asked(network.router(features, running_means(logits)))
    assert len(asked.unique()) == 3  # some of each
    assert torch.equal(together, unasked_filled(logits, asked))
    torch.testing.assert_close(found, together, rtol=1e-4, atol=1e-4)
    assert torch.equal(experts_asked(found), asked)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("num_experts", [2, 3, 4])
def test_always_more_is_the_mean_of_all_and_always_stop_the_first_expert(kind, num_experts):
    network, images = build(kind, num_experts)
    with torch.no_grad():
        plain = network.without_router()(images)
        network.router.bias.fill_(1e9)
        torch.testing.assert_close(network(images), plain, rtol=1e-4, atol=1e-4)
        network.router.bias.fill_(-1e9)
        torch.testing.assert_close(network(images).mean(dim=1), plain[:, 0], rtol=1e-4, atol=1e-4)
        assert experts_asked(network(images)).tolist() == [1] * 40


def test_an_expert_that_is_not_asked_computes_nothing(monkeypatch):
    network, images = build("resnet32")
    layer, seen = network.branches[0], {}
    real = layer.one
    monkeypatch.setattr(layer, "one", lambda x, index: (seen.__setitem__(index, len(x)), real(x, index))[1])
    with torch.no_grad():
        asked = experts_asked(network(images))
    assert seen == {expert: int((asked > expert).sum()) for expert in range(3)}
    assert seen[0] == 40 > seen[1] > seen[2] > 0


def test_a_router_has_no_part_in_training_before_it_is_trained_itself():
    network, images = build("mlp")
    network.train()
    assert torch.equal(network(images), network.without_router()(images))
    network.router.requires_grad_(True)
    logits, scores = split_scores(network(images))
    assert torch.equal(logits, network.without_router()(images))
    assert torch.equal(scores, network.router(*_inputs(network, images)))


def _inputs(network, images):
    features = network._one_by_one(network.trunk(images))
    return features, running_means(network.classifier(features))


def test_heads_share_it_and_single_experts_have_none():
    torch.manual_seed(0)
    network = ExpertHead(12, 5, 3, hidden=8)
    assert not any(name.startswith("router") for name in network.state_dict())
    network.add_router()
    assert network.head().router is network.router
    assert network.expert(1).router is network.without_router().router is None
    assert network.without_router().training is network.training
    other = copy.deepcopy(network)
    other.load_state_dict(network.state_dict())
    assert {"router.weight", "router.hidden_weight"} < set(network.state_dict())


def test_costs_grow_by_an_expert_and_a_decision():
    network, images = build("resnet32")
    example = images[:1]
    costs, decision = costs_by_asked(network, example), 4 * 16 + 4 + 3
    assert network.router.multiply_adds == decision
    alone = multiply_adds(network.expert(0), example)
    whole = multiply_adds(network.without_router(), example)
    assert costs[0] == alone + decision
    assert costs[2] == whole + 2 * decision
    assert costs[1] - costs[0] - decision == costs[2] - costs[1] == alone - multiply_adds(network.trunk, example)


def test_one_expert_has_nothing_to_choose():
    with pytest.raises(UserError, match="a router chooses between experts, but the network has one"):
        ExpertHead(12, 5, 1).add_router()
