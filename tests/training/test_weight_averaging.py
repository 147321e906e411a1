"""Weights averaged over the last epochs, against trainings that end there and statistics measured batch by batch."""

import copy
import functools

import pytest
import torch
from torch import nn

from balpoe import BalPoELoss, UserError, expert_network
from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.loading.epoch_plan import plan_epoch
from balpoe.data.loading.in_memory import ResidentData
from balpoe.training.checkpoints import load_checkpoint, save_checkpoint
from balpoe.training.concurrent import complete, side_by_side
from balpoe.training.eager_step import EagerStep
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.interrupts import Interrupt
from balpoe.training.schedules import Constant, Cosine
from balpoe.training.settings import FitSettings
from balpoe.training.weight_averaging import averaged, fresh_statistics, norms_in_training
from trainings import features, mlp, same_weights, tiny_data, train

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
pytestmark = pytest.mark.usefixtures("eight_layers")


def resnet(width=2):
    torch.manual_seed(1)
    return expert_network("resnet32", num_classes=4, num_experts=2, width=width)


def norms_of(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def test_the_mean_of_many():
    sets = torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0))
    mean = []
    for number, (first, second) in enumerate(sets, start=1):
        mean = averaged(mean, [nn.Parameter(first.clone()), second.clone()], number)
    torch.testing.assert_close(torch.stack(mean), sets.mean(dim=0))
    assert not any(tensor.requires_grad for tensor in mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_long_mean_in_sixteen_bits(dtype):
    values, mean = torch.linspace(1, 2, 640).to(dtype), []
    for number, value in enumerate(values, start=1):
        mean = averaged(mean, [value], number)
    torch.testing.assert_close(mean[0], values.float().mean())


def check_against_trainings_that_end_there(kind, device, precision, width, size, unmixed=False, **tolerance):
    data = tiny_data(size=size)
    settings = {
        "schedule": Constant(), "augmentation": AUGMENTATIONS["standard"], "cutmix_probability": 0.5, "lr": 0.01,
        "device": device, "precision": precision, "step": kind,
    }  # fmt: skip
    ends = []
    for epochs in (3, 4):
        ends.append(resnet(width))
        train(data, ends[-1], epochs=epochs, **settings)
    network = resnet(width)
    history = train(
        data, network, epochs=4, weight_average_fraction=0.5, unmixed_statistics=unmixed, **settings
    )  # fmt: skip
    assert [entry["epoch"] for entry in history] == [0, 1, 2, 3]
    for ours, third, fourth in zip(*(each.parameters() for each in (network, *ends)), strict=True):
        torch.testing.assert_close(ours, (third + fourth) / 2, **tolerance)
    # The statistics of each batch by themselves, of the epoch that would come next, mixed or not; their mean.
    slow = copy.deepcopy(network).train()
    for norm in norms_of(slow):
        norm.momentum = 1.0
    mixing = {} if unmixed else {"mixup_alpha": 0.4, "cutmix_probability": 0.5}
    plan = plan_epoch(0, 4, len(data), 16, **mixing)
    found = []
    for batch in ResidentData(data, next(slow.parameters()).device, settings["augmentation"], 0).batches(plan, 4):
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
            slow(batch.images)
        found.append([(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms_of(slow)])
    assert len(found) == 4
    for place, norm in enumerate(norms_of(network)):
        means, variances = (torch.stack([each[place][part] for each in found]).mean(dim=0) for part in (0, 1))
        torch.testing.assert_close(norm.running_mean, means, **tolerance)
        torch.testing.assert_close(norm.running_var, variances, **tolerance)
        assert norm.momentum == 0.1
    assert len(norms_of(network)) == 7


@pytest.mark.parametrize("unmixed", [False, True])
def test_the_network_gets_the_mean_and_statistics_that_belong_to_it(unmixed):
    check_against_trainings_that_end_there("eager", "cpu", "32-true", 2, (3, 8, 8), unmixed, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@cuda
def test_of_a_captured_step():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check_against_trainings_that_end_there("captured", "cuda", "32-true", 2, (3, 8, 8), rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@cuda
def test_of_a_fused_step():
    sizes = 16, (3, 32, 32)
    check_against_trainings_that_end_there("fused", "cuda", "bf16-mixed", *sizes, unmixed=True, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("epochs", "part", "number"), [(10, 0.7, 7), (200, 0.1, 20), (3, 0.1, 1), (7, 1.0, 7), (9, 0.0, 0)]
)
def test_a_part_of_the_epochs_is_rounded_to_whole_ones(epochs, part, number):
    assert FitSettings(epochs=epochs, weight_average_fraction=part).averaged_epochs == number


def test_the_mean_of_the_last_epoch_is_its_weights():
    data, networks = tiny_data(), [resnet() for _ in range(3)]
    for network, part in zip(networks, (0.0, 0.1, 0.5), strict=True):
        train(data, network, weight_average_fraction=part)
    last, one, several = (list(network.parameters()) for network in networks)
    assert all(map(torch.equal, last, one))  # a tenth of four epochs is one
    assert not all(map(torch.equal, last, several))
    assert not same_weights(*networks[:2])  # statistics are computed anew


@functools.cache
def straight_training():
    """Network and history of a training that nothing stopped."""
    data, network = tiny_data(), resnet()
    return network, train(data, network, weight_average_fraction=0.5)


@pytest.mark.parametrize("epochs_before", [2, 3, 4])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(tmp_path, epochs_before):
    """Before the first epoch that counts, between those, and before the pass for the statistics."""
    data, again, (straight, expected) = tiny_data(), resnet(), straight_training()
    settings = {
        "epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": Cosine(), "device": "cpu", "progress": False,
        "weight_average_fraction": 0.5, "run": tmp_path, "checkpoint_seconds": 0.0,
    }  # fmt: skip
    loss, interrupt = BalPoELoss(data.class_counts, (1, -1)), Interrupt()
    history = tmp_path / "history.jsonl"
    steps = fit_and_predict_by_step(resnet(), loss, data, data, FitSettings(**settings), interrupt)
    for aside in steps:
        if aside is not None:
            aside()
        if history.exists() and len(history.read_text().splitlines()) == epochs_before:
            break
    steps.close()
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["epoch"] == epochs_before
    assert bool(state["mean"]) == (epochs_before > 2)
    assert train(data, again, weight_average_fraction=0.5, run=tmp_path) == expected
    assert same_weights(again, straight)


def test_of_two_processes_the_statistics_are_those_of_the_first_one_s_rows(ready_processes):
    data, network = tiny_data(), resnet()
    train(data, network, devices=2, weight_average_fraction=0.5)
    again = copy.deepcopy(network).train()
    plan = plan_epoch(0, 4, len(data), 16, mixup_alpha=0.4, smallest_batch=4)
    with fresh_statistics(norms_of(again)), torch.no_grad():
        for batch in ResidentData(data, torch.device("cpu"), (), 0).batches(plan, 4):
            again(batch.images[::2])
    assert same_weights(again, network)


def test_a_checkpoint_s_mean_of_other_weights_is_refused(tmp_path):
    data, path = features(), tmp_path / "checkpoint.pt"
    train(data, mlp(data), weight_average_fraction=0.5, run=tmp_path)
    state = load_checkpoint(path)
    for mean in ([torch.zeros(3)], None, "mean"):
        save_checkpoint(path, {**state, "mean": mean})
        with pytest.raises(UserError, match="does not fit this network"):
            train(data, mlp(data), weight_average_fraction=0.5, run=tmp_path)


class Twice(nn.Module):
    """Normalises twice with the same module."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=0.3)

    def forward(self, x):
        return self.norm(self.norm(x))


def test_statistics_are_those_of_what_passes_and_all_else_is_left():
    torch.manual_seed(0)
    network = nn.Sequential(Twice(), nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None))
    norms, before, batches = norms_in_training(network), copy.deepcopy(network), 5 + 2 * torch.randn(7, 64, 3)
    assert norms == [network[0].norm, network[2]]
    network(torch.randn(64, 3) - 40)
    theirs = copy.deepcopy(network)
    torch.optim.swa_utils.update_bn(batches, theirs)
    with fresh_statistics(norms), torch.no_grad():
        for batch in batches:
            network(batch)
    assert same_weights(network, theirs)
    assert [norm.momentum for norm in norms] == [0.3, None]
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before.parameters(), strict=True))
    with pytest.raises(ZeroDivisionError), fresh_statistics(norms):
        raise ZeroDivisionError  # what goes wrong in between leaves the momenta as they were
    assert [norm.momentum for norm in norms] == [0.3, None]


def test_our_own_normalisation_counts_every_batch_alike_where_torch_s_does():
    torch.manual_seed(0)
    ours, theirs = resnet(), resnet()
    batches = torch.randn(5, 8, 3, 8, 8)
    torch.optim.swa_utils.update_bn(batches, theirs)
    with fresh_statistics(norms_in_training(ours)), torch.no_grad():
        for batch in batches:
            ours(batch)
    assert same_weights(ours, theirs)


def test_frozen_statistics_and_weights_stay_as_they_are():
    data, network = tiny_data(), resnet()
    network.freeze_trunk()
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    before = copy.deepcopy(network.state_dict())
    train(data, network, weight_average_fraction=0.5)
    kept = {name for name, tensor in network.state_dict().items() if torch.equal(tensor, before[name])}
    assert frozen
    assert frozen <= kept
    trunk = {name.rpartition(".")[0] for name in frozen}
    statistics = {name for name in before if "running" in name and name.rpartition(".")[0] in trunk}
    assert statistics
    assert statistics <= kept


class Dropping(nn.Module):
    """Draws from torch's generator, and normalises."""

    num_experts = 3

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(), nn.BatchNorm1d(16), nn.Linear(16, 9))

    def forward(self, x):
        return self.layers(x).unflatten(1, (3, 3))


def test_a_neighbour_that_takes_its_mean_does_not_change_a_training_s_chances():
    """Torch has one generator for all trainings of a process."""
    data = features()
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    settings = {"batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False, "weight_average_fraction": 0.5}

    def work(network, epochs):
        return fit_and_predict_by_step(network, loss, data, data, FitSettings(epochs=epochs, **settings), Interrupt())

    alone, beside = [Dropping(), Dropping()], [Dropping(), Dropping()]
    for network, epochs in zip(alone, (3, 8), strict=True):
        complete(work(network, epochs))
    list(side_by_side([work(network, epochs) for network, epochs in zip(beside, (3, 8), strict=True)], 2))
    assert same_weights(alone[0], beside[0])
    assert same_weights(alone[1], beside[1])


def test_an_interrupt_in_the_pass_for_the_statistics(tmp_path, monkeypatch):
    data, again, (straight, expected) = tiny_data(), resnet(), straight_training()
    interrupt, real = Interrupt(), EagerStep.outputs

    def outputs(self, images):
        interrupt.request()
        return real(self, images)

    settings = {
        "epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": Cosine(), "device": "cpu", "progress": False,
        "weight_average_fraction": 0.5, "run": tmp_path,
    }  # fmt: skip
    loss = BalPoELoss(data.class_counts, (1, -1))
    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "outputs", outputs)
        with pytest.raises(KeyboardInterrupt, match="epoch 4 of 4"):
            complete(fit_and_predict_by_step(resnet(), loss, data, data, FitSettings(**settings), interrupt))
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["epoch"] == 4
    assert state["mean"]
    assert train(data, again, weight_average_fraction=0.5, run=tmp_path) == expected
    assert same_weights(again, straight)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["mean"] == []


def test_the_pass_is_seen(capsys):
    train(tiny_data(), resnet(), weight_average_fraction=0.5, progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert "epoch 4/4" in line
    assert "0:00 left" in line
    train(features(), mlp(features()), weight_average_fraction=0.5, progress=True)  # nothing is normalised: no pass
    assert "0:00 left" in capsys.readouterr().err
