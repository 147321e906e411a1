"""Muon: against the published algorithm, one matrix at a time, and against a training step written out."""

import copy

import pytest
import torch
from torch import nn

from balpoe import BalPoELoss, UserError, expert_network
from balpoe.training.captured_step import _check_first_state
from balpoe.training.muon import Muon, orthogonalise
from balpoe.training.optimizers import make_optimizer, parameter_groups
from balpoe.training.schedules import Constant
from balpoe.training.settings import FitSettings
from trainings import Stop, resnet, same_weights, tiny_data, train

CPU = torch.device("cpu")


def published(matrix, iterations):
    """Newton-Schulz as its authors print it, in float64, for one matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.double()
    x = x / (x.norm() + 1e-7)
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


SHAPES = [((16, 3, 3, 3), 1), ((96, 16, 3, 3), 3), ((192, 64, 3, 3), 3), ((130, 2, 3, 3), 1), ((6, 5), 2)]


def drawn(shape, memory_format=torch.contiguous_format):
    return torch.randn(shape).contiguous(memory_format=memory_format)


@pytest.mark.parametrize("iterations", [1, 5])
def test_every_matrix_of_a_stack_is_as_published(iterations):
    torch.manual_seed(1)
    layouts = [torch.channels_last if len(shape) == 4 else torch.contiguous_format for shape, _ in SHAPES]
    kernels = [drawn(shape, layout) for (shape, _), layout in zip(SHAPES, layouts, strict=True)]
    found = [torch.empty_like(kernel) for kernel in kernels]
    numbers = [number for _, number in SHAPES]
    orthogonalise(kernels, numbers, out=found, iterations=iterations)
    for kernel, result, number in zip(kernels, found, numbers, strict=True):
        assert result.stride() == kernel.stride()
        for matrix, ours in zip(kernel.chunk(number), result.chunk(number), strict=True):
            flat = matrix.flatten(1)
            theirs = published(flat, iterations) * max(1, flat.shape[0] / flat.shape[1]) ** 0.5
            torch.testing.assert_close(ours.flatten(1).double(), theirs, rtol=1e-3, atol=1e-4)


def test_singular_values_come_near_one_and_their_directions_stay():
    torch.manual_seed(2)
    (kernel, place), shape = (torch.randn(64, 64, 3, 3), torch.empty(64, 64, 3, 3)), (64, 576)
    left, _, right = torch.linalg.svd(kernel.view(shape), full_matrices=False)
    orthogonalise([kernel], [1], out=[place])
    assert torch.linalg.svdvals(place.view(shape)).sub(1).abs().max() < 0.35
    assert torch.nn.functional.cosine_similarity(place.flatten(), (left @ right).flatten(), dim=0) > 0.97


def test_no_gradient_gives_no_step():
    place = torch.ones(4, 2, 3, 3)
    orthogonalise([torch.zeros(4, 2, 3, 3)], [2], out=[place])
    assert not place.any()


def groups_of(network, **settings):
    names = {id(each): name for name, each in network.named_parameters()}
    optimizer = make_optimizer(network, FitSettings(optimizer="muon", **settings), CPU)
    return [({names[id(each)] for each in group["params"]}, group) for group in optimizer.param_groups]


def test_kernels_and_other_weights_are_told_apart():
    network = resnet(tiny_data())
    found = groups_of(network, optimizer_settings={"others_factor": 0.5, "kernel_decay": 0.1}, weight_decay=1e-3)
    numbers = {name: group["matrices"] for names, group in found for name in names}
    for name, weight in network.named_parameters():
        experts = 1 if name.startswith("trunk") else network.num_experts
        assert numbers[name] == (experts if weight.ndim == 4 else 0), name
    for _, group in found:
        kernels = bool(group["matrices"])
        expected = (1.0, 0.1, 0.0, False) if kernels else (0.5, 1e-3, 0.9, True)
        assert (group["rate"], group["weight_decay"], group["momentum"], group["nesterov"]) == expected
        assert group.get("direction_momentum") == (0.9 if kernels else None)


def test_groups_of_ordinary_convolutions():
    network = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Linear(8, 2))
    groups = parameter_groups(network, FitSettings(optimizer="muon"))
    assert [(len(group["params"]), group["matrices"]) for group in groups] == [(1, 2), (3, 0)]


def test_a_training_against_a_loop_written_out():
    data = tiny_data()
    network = resnet(data)
    ours, loss = copy.deepcopy(network), BalPoELoss(data.class_counts, (1, -1))
    own = {"kernel_decay": 0.2, "others_factor": 0.5, "iterations": 2}
    plain = {"batch_size": len(data), "mixup_alpha": 0.0, "schedule": Constant(), "lr": 0.05, "weight_decay": 0.01}
    history = train(data, ours, loss, **plain, epochs=3, optimizer="muon", optimizer_settings=own)
    images, losses, means = data.preprocessing.normalise(data.images), [], {}
    for _ in range(3):
        network.zero_grad()
        value = loss(network.train()(images), data.targets)
        value.backward()
        losses.append(value.item())
        with torch.no_grad():
            for name, weight in network.named_parameters():
                if weight.ndim == 4:
                    mean = means[name] = 0.9 * means.get(name, 0) + 0.1 * weight.grad
                    ahead = 0.1 * weight.grad + 0.9 * mean
                    parts = ahead.chunk(1 if name.startswith("trunk") else network.num_experts)
                    step = torch.cat([published(part.flatten(1), 2).float().view_as(part) for part in parts])
                    weight *= 1 - 0.05 * 0.2
                    weight -= 0.05 * step
                else:
                    gradient = weight.grad + 0.01 * weight
                    mean = means[name] = 0.9 * means.get(name, 0) + gradient
                    weight -= 0.05 * 0.5 * (gradient + 0.9 * mean)
    assert [entry["loss"] for entry in history] == pytest.approx(losses, rel=1e-4)
    for mine, theirs in zip(ours.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("eight_layers")
def test_goes_on_to_the_same_bits(tmp_path):
    data, loss = tiny_data(), BalPoELoss(tiny_data().class_counts, (1, -1))
    common = {"epochs": 2, "batch_size": 16, "optimizer": "muon", "lr": 0.05, "weight_average_fraction": 0.5}
    straight, again = resnet(data), resnet(data)
    expected = train(data, straight, loss, **common)
    with pytest.raises(KeyboardInterrupt):
        train(data, resnet(data), Stop(loss, 3), run=tmp_path, **common)
    assert train(data, again, Stop(loss, 0), run=tmp_path, **common) == expected
    assert same_weights(again, straight)


def test_what_muon_cannot_train_is_refused():
    with pytest.raises(UserError, match="muon wants whole kernels"):
        FitSettings(optimizer="muon", shard=True, devices=2)
    with pytest.raises(UserError, match=r"lr times kernel_decay .* but is 1; make one of them smaller"):
        FitSettings(optimizer="muon", lr=0.5, optimizer_settings={"kernel_decay": 2.0})
    with pytest.raises(UserError, match="muon is for kernels of convolutions, but none learn here"):
        make_optimizer(torch.nn.Linear(2, 2), FitSettings(optimizer="muon"), CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("step", ["captured", "fused"])
def test_a_captured_step_is_the_eager_one(step):
    """In bfloat16, as all products on a GPU: the first losses agree to its rounding, and all weights are finite."""
    data = tiny_data(64, (3, 32, 32))

    def losses(kind):
        torch.manual_seed(1)
        network = expert_network("resnet32", num_classes=len(data.class_names), num_experts=3)
        same = {"epochs": 2, "batch_size": 32, "optimizer": "muon", "lr": 0.05, "device": "cuda", "mixup_alpha": 0.0}
        loss = BalPoELoss(data.class_counts, (1, 0, -1))
        history = train(data, network, loss, **same, step=kind, precision="bf16-mixed")
        assert all(bool(torch.isfinite(each).all()) for each in network.parameters())
        return [entry["loss"] for entry in history]

    assert losses(step) == pytest.approx(losses("eager"), rel=0.05)


def test_its_first_state_is_zero_so_that_warm_up_steps_can_be_undone():
    _check_first_state(make_optimizer(resnet(tiny_data()), FitSettings(optimizer="muon"), CPU))


def test_muon_has_sgd_for_weights_without_matrices():
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    ours, theirs = Muon([weights[0]], lr=0.1), torch.optim.SGD([weights[1]], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(3):
        for weight in weights:
            weight.grad = weight.detach().clone()
        ours.step()
        theirs.step()
    assert torch.equal(*weights)
