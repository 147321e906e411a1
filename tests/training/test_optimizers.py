"""Optimisers by name: against torch's own in a loop written out, their groups, and resumption to the same bits."""

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import nn

from balpoe import BalPoELoss, UserError, expert_network, fit
from balpoe.networks.adapters import add_adapters
from balpoe.settings import setting
from balpoe.training.checkpoints import load_checkpoint, save_checkpoint
from balpoe.training.optimizers import BUILDERS, make_optimizer, parameter_groups
from balpoe.training.schedules import Constant
from balpoe.training.settings import OPTIMIZERS, FitSettings, changed_identity
from trainings import Stop, features, mlp, resnet, same_weights, tiny_data, train

PLAIN = {"batch_size": 80, "mixup_alpha": 0.0, "schedule": Constant(), "lr": 0.01}
OTHERS = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.05},
    "adamw-groups": {"optimizer": "adamw", "decay_norms": False, "trunk_lr_factor": 0.1, "depth_lr_decay": 0.5},
    "sgd-groups": {"decay_norms": False, "trunk_lr_factor": 0.1, "clip_gradients": 0.5},
    "mean": {"optimizer": "adamw", "weight_average_decay": 0.9},
}


def test_adamw_against_a_loop_written_out():
    data, network = features(), mlp(features())
    ours, loss = copy.deepcopy(network), BalPoELoss(data.class_counts, (1, 0, -1))
    settings = {
        "optimizer": "adamw",
        "optimizer_settings": {"betas": (0.8, 0.95)},
        "weight_decay": 0.1,
        "clip_gradients": 0.3,
        "epochs": 5,
    }
    history = train(data, ours, **PLAIN, **settings)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    images, losses = data.preprocessing.normalise(data.images), []
    for _ in range(5):
        optimizer.zero_grad()
        value = loss(network(images), data.targets)
        value.backward()
        norm = torch.sqrt(sum((each.grad**2).sum() for each in network.parameters()))
        for each in network.parameters():
            each.grad *= min(1.0, 0.3 / float(norm))
        optimizer.step()
        losses.append(value.item())
    assert [entry["loss"] for entry in history] == pytest.approx(losses, rel=1e-4)
    for mine, theirs in zip(ours.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_a_network_that_has_nothing_to_learn_is_refused():
    data = features()
    for network in (mlp(data).requires_grad_(False), nn.Unflatten(1, (2, 3))):
        with pytest.raises(UserError, match=r"no parameter of the network learns: .* set requires_grad of some"):
            train(data, network, BalPoELoss(data.class_counts))


def test_the_exponential_mean_against_a_loop_written_out():
    data, weights = features(), []
    for epochs in range(6):  # one step an epoch: the weights after each are those of a shorter training
        network = mlp(data)
        if epochs:
            train(data, network, **PLAIN, epochs=epochs)
        weights.append([each.detach().clone() for each in network.parameters()])
    mean = weights[0]
    for after in weights[1:]:
        mean = [0.7 * one + 0.3 * other for one, other in zip(mean, after, strict=True)]
    averaged = mlp(data)
    train(data, averaged, **PLAIN, epochs=5, weight_average_decay=0.7)
    for ours, theirs in zip(averaged.parameters(), mean, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-5, atol=1e-6)


def rates_of(network, **settings):
    groups = parameter_groups(network, FitSettings(**settings))
    return {id(each): (group["rate"], group["weight_decay"]) for group in groups for each in group["params"]}


def test_groups_by_default_are_one_in_the_network_s_order():
    network = resnet(tiny_data())
    (group,) = parameter_groups(network, FitSettings())
    assert [id(each) for each in group["params"]] == [id(each) for each in network.parameters()]
    assert (group["rate"], group["weight_decay"]) == (1.0, 5e-4)


def test_rates_and_decay_of_groups():
    network = expert_network("resnet32", num_classes=3, num_experts=2, width=2)
    found = rates_of(network, trunk_lr_factor=0.1, decay_norms=False, weight_decay=0.2)
    assert len(found) == len(list(network.parameters()))
    for name, parameter in network.named_parameters():
        expected = (0.1 if name.startswith("trunk.") else 1.0, 0.2 if parameter.ndim > 1 else 0.0)
        assert found[id(parameter)] == expected, name


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 2))
        self.embedding = nn.Linear(2, 2)
        self.blocks = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
        self.norm = nn.LayerNorm(2)


def test_rates_fall_with_the_distance_from_the_output():
    network = Transformer()
    rates = rates_of(network, depth_lr_decay=0.5)
    of = {name: rates[id(parameter)][0] for name, parameter in network.named_parameters()}
    assert of["position"] == of["embedding.weight"] == 0.5**4
    assert [of[f"blocks.{number}.weight"] for number in range(3)] == [0.5**3, 0.5**2, 0.5]
    assert of["norm.weight"] == 1.0


def test_every_block_of_a_timm_backbone_is_one_step_of_depth():
    network = expert_network("test_vit", num_classes=3, num_experts=2, split=-1, hidden=8, image_size=160)
    rates, blocks = rates_of(network, depth_lr_decay=0.5), {}
    for name, parameter in network.named_parameters():
        if ".blocks." in name:
            number = int(name.split(".blocks.")[1].split(".")[0])
            blocks.setdefault(number, set()).add(rates[id(parameter)][0])
    ordered = [blocks[number] for number in sorted(blocks)]
    assert len(ordered) > 3
    assert all(len(each) == 1 for each in ordered)
    assert all(max(later) == 2 * max(former) for former, later in itertools.pairwise(ordered))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_rate_of_nearly_nothing_leaves_the_trunk_as_it_was(optimizer):
    data, network = tiny_data(), resnet(tiny_data())
    before = copy.deepcopy(network)
    train(data, network, epochs=1, optimizer=optimizer, trunk_lr_factor=1e-9, weight_decay=0.0)
    for (name, now), old in zip(network.named_parameters(), before.parameters(), strict=True):
        moved = float((now - old).abs().max().detach())
        assert moved < 1e-6 if name.startswith("trunk.") else moved > 1e-4, name


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path, settings):
    data, straight, again = features(), mlp(features()), mlp(features())
    common = {"epochs": 4, "batch_size": 16, "lr": 0.01, "device": "cpu", "progress": False, **settings}
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    expected = fit(straight, loss, data, **common)
    with pytest.raises(KeyboardInterrupt):
        fit(mlp(features()), Stop(loss, 14), data, run=tmp_path, **common)
    assert fit(again, Stop(loss, 0), data, run=tmp_path, **common) == expected
    assert same_weights(again, straight)


def adapted(data, kind="adaptformer", seed=1):
    torch.manual_seed(seed)
    network = expert_network("test_vit", num_classes=len(data.class_names), image_size=16, hidden=4)
    torch.manual_seed(1)
    add_adapters(network, kind, split=2)
    return network


@pytest.mark.parametrize(("kind", "precision"), [("adaptformer", "bf16-mixed"), ("lora", "32-true")])
def test_adapters_are_trained_alone_and_go_on_to_the_same_bits(tmp_path, kind, precision):
    data = tiny_data(20, (3, 16, 16))
    straight, loss = adapted(data, kind), BalPoELoss(data.class_counts, (1, 0, -1))
    before = copy.deepcopy(straight)
    common = {"epochs": 2, "batch_size": 8, "optimizer": "adamw", "lr": 0.01, "weight_average_decay": 0.5}
    common["precision"] = precision
    expected = train(data, straight, loss, **common)
    for (name, now), old in zip(straight.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(now, old) != now.requires_grad, name
    with pytest.raises(KeyboardInterrupt):
        train(data, adapted(data, kind), Stop(loss, 6), run=tmp_path, **common)
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert set(state["network"]) == {name for name, each in straight.named_parameters() if each.requires_grad}
    assert len(state["optimizer"]) == len(state["network"])
    again = adapted(data, kind)
    assert train(data, again, Stop(loss, 0), run=tmp_path, **common) == expected
    assert same_weights(again, straight)
    other = adapted(data, kind, seed=2)
    with pytest.raises(
        UserError, match=r"checkpoint.pt was trained on a backbone of digest [0-9a-f]{12}, not [0-9a-f]"
    ):
        train(data, other, Stop(loss, 0), run=tmp_path, **common)


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path):
    """It has an old name, and lacks the settings that it did not know."""
    data, straight, network = features(), mlp(features()), mlp(features())
    expected, loss = train(data, straight), BalPoELoss(data.class_counts, (1, 0, -1))
    with pytest.raises(KeyboardInterrupt):
        train(data, mlp(data), run=tmp_path, loss=Stop(loss, 14))
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    later = {"optimizer", "optimizer_settings", "decay_norms", "trunk_lr_factor", "depth_lr_decay", "clip_gradients"}
    later |= {"weight_average_decay", "unmixed_statistics"}
    old = {name: value for name, value in state["identity"].items() if name not in later}
    old["averaged_end"] = old.pop("weight_average_fraction")
    del state["frozen"]
    save_checkpoint(tmp_path / "checkpoint.pt", {**state, "identity": old})
    assert train(data, network, run=tmp_path, loss=Stop(loss, 0)) == expected
    assert same_weights(network, straight)


def test_a_changed_setting_is_told():
    before = FitSettings(lr=0.1).identity()
    assert changed_identity(before, FitSettings(lr=0.1).identity()) == []
    assert changed_identity(before, FitSettings(lr=0.2).identity()) == ["lr=0.1 (now 0.2)"]
    assert changed_identity(None, {"lr": "0.1"}) == ["lr=? (now 0.1)"]


def test_the_signature_of_fit_has_the_defaults_of_its_settings():
    """Written out there, for whoever reads or completes it."""
    defaults = {item.name: getattr(FitSettings(), item.name) for item in dataclasses.fields(FitSettings)}
    del defaults["label"]  # what a run calls itself in its progress
    assert fit.__wrapped__.__kwdefaults__ == defaults


def test_the_old_name_of_an_argument_is_still_read():
    data, networks = features(), [mlp(features()) for _ in range(2)]
    train(data, networks[0], averaged_end=0.5)
    train(data, networks[1], weight_average_fraction=0.5)
    assert same_weights(*networks)
    with pytest.raises(UserError, match="averaged_end is the old name of weight_average_fraction, and both are given"):
        train(data, networks[0], averaged_end=0.5, weight_average_fraction=0.5)


def test_every_optimiser_has_a_builder_and_its_settings():
    assert set(BUILDERS) == set(OPTIMIZERS)


def test_another_optimiser_is_a_builder_and_a_name(monkeypatch):
    def build(groups, settings, on_cuda):
        return torch.optim.RMSprop(groups, lr=settings.lr, **settings.all_optimizer_settings())

    monkeypatch.setitem(BUILDERS, "rmsprop", build)
    monkeypatch.setitem(OPTIMIZERS, "rmsprop", {"alpha": setting(0.9, "decay of the mean of squares", at_least=0)})
    data, network = features(), mlp(features())
    history = train(data, network, lr=0.001, optimizer="rmsprop", optimizer_settings={"alpha": 0.95}, nesterov=False)
    assert history[-1]["loss"] < history[0]["loss"]
    with pytest.raises(UserError, match="unknown setting of optimizer rmsprop 'beta'"):
        FitSettings(optimizer="rmsprop", optimizer_settings={"beta": 1.0})


def test_nesterov_wants_momentum():
    for name in ("sgd", "muon"):
        with pytest.raises(UserError, match="nesterov needs a momentum"):
            FitSettings(optimizer=name, momentum=0.0)
        assert FitSettings(optimizer=name, momentum=0.0, nesterov=False).optimizer == name
    assert FitSettings(optimizer="adamw", momentum=0.0).optimizer == "adamw"


def test_on_a_cpu_they_are_fused_but_not_capturable():
    optimizer = make_optimizer(nn.Linear(2, 2), FitSettings(optimizer="adamw"), torch.device("cpu"))
    assert not optimizer.defaults["capturable"]
    assert optimizer.defaults["fused"]
