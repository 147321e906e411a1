"""The step in its kinds: the same numbers, whichever way it is launched."""

import re
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from balpoe import BalPoELoss, UserError, expert_network
from balpoe.baselines.remix import Remix
from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.loading.in_memory import Batch
from balpoe.networks.adapters import add_adapters
from balpoe.networks.fused.forward import FusedForward
from balpoe.training.captured_step import CapturedStep, _check_first_state, _State
from balpoe.training.distributed import launch
from balpoe.training.eager_step import EagerStep
from balpoe.training.fused_loss import kernel_fault
from balpoe.training.learner import Learner, batch_parts
from balpoe.training.optimizers import make_optimizer
from balpoe.training.settings import FitSettings
from balpoe.training.step import training_step
from balpoe.training.weight_averaging import first_mean
from compilations import distances_of_compiled_gradients, number_of_compilations
from processes import READY
from trainings import Stop, features, losses_of_steps, mlp, resnet, tiny_data, train

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def learner_of(data, **settings):
    network, settings = resnet(data), FitSettings(weight_decay=0.0, **settings)
    optimizer, mean = make_optimizer(network, settings, torch.device("cpu")), []
    if settings.weight_average_decay:
        mean = first_mean(network.parameters())
    loss = BalPoELoss(data.class_counts, (1, -1))
    return Learner(network, loss, optimizer, settings.clip_gradients, mean, settings.weight_average_decay)


def test_kinds_on_a_cpu():
    data, fabric = tiny_data(), Fabric(accelerator="cpu")
    assert isinstance(training_step(fabric, learner_of(data), "auto", "32-true"), EagerStep)
    with pytest.raises(UserError, match="needs one CUDA device"):
        training_step(fabric, learner_of(data), "captured", "32-true")
    with pytest.raises(UserError, match="did you mean 'eager'"):
        training_step(fabric, learner_of(data), "eagre", "32-true")


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.filterwarnings("ignore:the training step cannot be captured")
def test_a_capture_that_broke_is_made_once_more(monkeypatch, recwarn, failures):
    data, seen = tiny_data(), []
    learner = learner_of(data)
    weight = next(learner.network.parameters())

    def capture(step, inputs):
        seen.append(weight.detach().clone())
        with torch.no_grad():
            weight.add_(1)  # as the steps that warm up do
        if len(seen) <= failures:
            raise RuntimeError("broken by another")
        return "a capture"

    monkeypatch.setattr(CapturedStep, "_capture", capture)
    step = CapturedStep(Fabric(accelerator="cpu"), learner)
    step.preparation(Batch(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)))()
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], weight)
    assert list(step.captures.values()) == ["a capture"] * (failures == 1)
    assert step.kind == ("captured" if failures == 1 else "eager")
    assert len(recwarn) == (failures == 2)


@pytest.fixture(scope="module")
def new_process():
    """Torch's compiler has state of the whole process, which other tests may have touched; here it is as imported."""
    with ProcessPoolExecutor(1, mp_context=READY) as pool:
        yield pool


def test_many_networks_can_be_compiled_in_one_process(new_process):
    """Torch's own limit is eight; beyond it a step would silently run as it is."""
    assert new_process.submit(number_of_compilations).result() == 12


def test_compiled_gradients_of_a_float32_classifier_are_float32(new_process):
    """By default torch's compiler would compute them in bfloat16, as the network in front of it."""
    assert max(new_process.submit(distances_of_compiled_gradients).result()) < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "weight_average_decay": 0.9, "clip_gradients": 0.5},
        {"momentum": 0.0, "nesterov": False},
        {"optimizer": "muon"},
    ],
    ids=["sgd", "adamw", "adamw-mean-clipped", "plain", "muon"],
)
@pytest.mark.usefixtures("eight_layers")
def test_what_a_step_changes_can_be_undone(settings):
    """All of it: weights, statistics, momentum, AdamW's means and its number of steps, the mean of the weights."""
    data, fabric = tiny_data(), Fabric(accelerator="cpu")
    learner = learner_of(data, **settings)
    step = EagerStep(fabric, learner)
    batch = Batch(data.preprocessing.normalise(data.images), data.targets)

    def steps():
        losses = [float(step(batch, 0.05, 0.0)) for _ in range(3)]
        return losses, [tensor.clone() for tensor in learner.mean]

    def same(ours, theirs):
        return ours[0] == theirs[0] and all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))

    fresh = _State(learner)
    first = steps()
    fresh.restore()
    assert same(steps(), first)  # state that did not exist before is zero after
    later = _State(learner)
    second = steps()
    later.restore()
    assert same(steps(), second)
    assert second[0] != first[0]


def test_an_optimiser_whose_first_state_is_not_zero_is_not_captured():
    """NAdam begins with a product of 1, Rprop with step sizes: after a warm-up zeros would stand for them."""
    weights = [torch.nn.Parameter(torch.ones(2))]
    for build in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RAdam, torch.optim.Adagrad):
        _check_first_state(build(weights, lr=0.1))
    _check_first_state(torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True))
    for build in (torch.optim.NAdam, torch.optim.Rprop):
        with pytest.raises(RuntimeError, match=r"begins with a \w+ that is not zero"):
            _check_first_state(build(weights, lr=0.1))


@pytest.mark.usefixtures("eight_layers")
def test_the_losses_of_steps_are_noted(monkeypatch):
    """What the comparisons of steps rest on; an epoch's loss is the mean over its samples."""
    data, losses = tiny_data(), losses_of_steps(monkeypatch)
    history = train(data, resnet(data), epochs=2, batch_size=16)
    assert len(losses) == 8
    sizes = torch.tensor([16.0, 16, 16, 12])
    means = torch.stack(losses).view(2, 4) @ sizes / 60
    assert means.tolist() == pytest.approx([entry["loss"] for entry in history], rel=1e-5)


@pytest.fixture
def _without_tf32():
    """With it, which algorithms cuDNN has tried before decides about more than rounding."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.gpu
@cuda
@pytest.mark.usefixtures("_without_tf32")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_captured_and_eager_give_the_same_losses(monkeypatch, precision):
    """Twenty steps, of two shapes of batch, with mixup and CutMix, learning rates that change."""
    data, losses = tiny_data(), {}
    for name in ("eager", "captured"):
        with monkeypatch.context() as patch:
            losses[name] = losses_of_steps(patch)
            train(
                data, resnet(data), epochs=5, batch_size=16, lr=0.02, device="cuda", precision=precision, step=name,
                augmentation=AUGMENTATIONS["standard"], cutmix_probability=0.5,
            )  # fmt: skip
    eager, captured = ([float(loss) for loss in losses[name]] for name in ("eager", "captured"))
    assert len(eager) == len(captured) == 20
    assert captured == pytest.approx(eager, rel=1e-3 if precision == "32-true" else 2e-2)


OPTIMIZED = {
    "adamw": {"optimizer": "adamw", "lr": 1e-3},
    "groups": {"optimizer": "adamw", "lr": 1e-3, "trunk_lr_factor": 0.1, "depth_lr_decay": 0.9, "decay_norms": False},
    "mean": {"optimizer": "adamw", "lr": 1e-3, "weight_average_decay": 0.8, "clip_gradients": 0.5},
    "sgd-groups": {"lr": 0.01, "trunk_lr_factor": 0.1, "clip_gradients": 0.5},
}


@pytest.mark.gpu
@cuda
@pytest.mark.usefixtures("_without_tf32")
@pytest.mark.parametrize("settings", OPTIMIZED.values(), ids=OPTIMIZED)
def test_captured_and_eager_agree_with_every_optimiser(monkeypatch, settings):
    """From the first step on: what the steps that warm a capture up leave in an optimiser would show at once."""
    data, losses, networks = tiny_data(), [], []
    for kind in ("eager", "captured"):
        with monkeypatch.context() as patch:
            noted, network = losses_of_steps(patch), resnet(data)
            train(data, network, epochs=3, batch_size=16, device="cuda", precision="32-true", step=kind, **settings)
        losses.append([float(loss) for loss in noted])
        networks.append(network)
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    for ours, theirs in zip(*(network.parameters() for network in networks), strict=True):
        assert float((ours - theirs).norm().detach()) <= 0.05 * float(theirs.norm().detach()) + 1e-4


@pytest.mark.gpu
@cuda
def test_a_capture_leaves_nothing_in_the_optimiser():
    """A rate of 0 after a capture: AdamW's means and its number of steps are those of the one step taken."""

    def work(engine, network):
        data = tiny_data()
        loss, optimizer = BalPoELoss(data.class_counts, (1, -1)).cuda(), make_optimizer(network, adamw, engine.device)
        learner = Learner(network, loss, optimizer)
        step = training_step(engine, learner, "captured", "32-true")
        step(Batch(data.preprocessing.normalise(data.images).cuda(), data.targets.cuda()), 1e-3, 0.0)
        assert step.kind == "captured"
        return {float(state["step"]) for state in learner.optimizer.state.values()}

    adamw = FitSettings(optimizer="adamw")
    assert launch(work, resnet(tiny_data()), device="cuda", precision="32-true") == {1.0}


@pytest.mark.gpu
@cuda
def test_compiled_and_eager_give_the_same_losses_and_updates():
    """A small network amplifies rounding tenfold with each step: at a low rate there is nothing to amplify."""
    data, losses, updates = tiny_data(), [], []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for kind in ("eager", "compiled"):
            settings = {"batch_size": 16, "lr": 1e-5, "device": "cuda", "precision": "32-true", "step": kind}
            losses.append([e["loss"] for e in train(data, resnet(data), epochs=5, cutmix_probability=0.5, **settings)])
            network, before = resnet(data), resnet(data)
            train(data, network, epochs=1, **{**settings, "batch_size": 60})  # one step
            pairs = zip(network.parameters(), before.parameters(), strict=True)
            updates.append([after.detach().cpu() - first.detach() for after, first in pairs])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for ours, theirs in zip(*updates, strict=True):
        assert float((ours - theirs).norm()) <= 0.02 * float(theirs.norm()) + 1e-9


@pytest.mark.gpu
@cuda
@pytest.mark.usefixtures("_without_tf32")
@pytest.mark.parametrize("kind", ["eager", "captured"])
def test_a_captured_run_is_resumed(kind, tmp_path, monkeypatch):
    """Stopped by an interrupt in the middle of an epoch, then taken up by either kind of step.

    At this rate rounding stays rounding (2e-6 of the loss), and lost momentum is 17 % of it.
    """
    from balpoe.training.interrupts import Interrupt

    data, settings = tiny_data(), {"lr": 1e-3, "device": "cuda", "precision": "32-true"}
    whole = train(data, resnet(data), step="captured", **settings)
    count = 0

    def stop_after_six(self):
        nonlocal count
        count += 1
        return count >= 8

    network = resnet(data)
    with monkeypatch.context() as patch:
        patch.setattr(Interrupt, "requested", property(stop_after_six, lambda self, value: None), raising=False)
        with pytest.raises(KeyboardInterrupt):
            train(data, network, step="captured", run=tmp_path, **settings)
    rest = train(data, resnet(data), step=kind, run=tmp_path, **settings)
    assert [e["loss"] for e in rest] == pytest.approx([e["loss"] for e in whole], rel=2e-3)


@pytest.mark.gpu
@cuda
def test_what_cannot_be_captured_runs_eagerly():
    class Curious(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = expert_network("mlp", num_classes=3, num_experts=3, num_features=6, width=8)
            self.num_experts = 3

        def forward(self, x):
            return self.network(x) + 0 * float(x.sum())  # reads from the device

    data, losses = features(), []
    for kind in ("eager", "captured"):
        torch.manual_seed(0)
        network = Curious()
        if kind == "captured":
            with pytest.warns(UserWarning, match="cannot be captured and runs eagerly"):
                history = train(data, network, device="cuda", precision="32-true", step=kind)
        else:
            history = train(data, network, device="cuda", precision="32-true", step=kind)
        losses.append([entry["loss"] for entry in history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert torch.rand(2, device="cuda").isfinite().all()  # random numbers are no longer captured


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("broken", [4, 8])  # of each shape of batches three steps warm up, and the next is captured
def test_what_breaks_a_capture_once_is_captured_after_all(broken):
    class CuriousOnce(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = expert_network("mlp", num_classes=3, num_experts=3, num_features=6, width=8)
            self.num_experts, self.calls = 3, 0

        def forward(self, x):
            self.calls += 1
            return self.network(x) + (0 * float(x.sum()) if self.calls == broken else 0)

    losses = []
    for kind in ("eager", "captured"):
        torch.manual_seed(0)
        network = CuriousOnce()
        history = train(features(88), network, device="cuda", precision="32-true", step=kind)
        losses.append([entry["loss"] for entry in history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert network.calls == 12  # Python sees none of the replays


@pytest.mark.gpu
@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("step", ["captured", "fused"])
def test_nothing_is_read_from_the_device_within_an_epoch(monkeypatch, step):
    """Torch raises where the CPU would wait for the GPU, except where losses are read and checkpoints made."""
    from balpoe.training.loop import Trainer

    reads = []

    def allowed(function):
        def reads_from_the_device(*args):
            reads.append(function.__name__)
            torch.cuda.set_sync_debug_mode("default")
            function(*args)
            torch.cuda.set_sync_debug_mode("error")

        return reads_from_the_device

    for name in ("_read", "save"):
        monkeypatch.setattr(Trainer, name, allowed(getattr(Trainer, name)))
    augmentation = AUGMENTATIONS["autoaugment-cutout"]
    settings = {"device": "cuda", "epochs": 3, "augmentation": augmentation, "cutmix_probability": 0.5}
    settings["checkpoint_seconds"] = 1e9  # none but the last, however long the GPU takes to prepare
    try:
        network = expert_network("resnet32", num_classes=4, num_experts=2, width=16)
        train(tiny_data(), network, step=step, **settings)
        with pytest.raises(RuntimeError):
            torch.zeros(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reads == ["_read", "_read", "_read", "save"]  # the first epoch also prepares, and is not watched


@pytest.mark.parametrize(
    "mixing", [{"mixup_alpha": 0.0}, {"mixup_alpha": 0.4}, {"mixup_alpha": 0.0, "mixing": Remix()}]
)
@pytest.mark.parametrize("parts", [2, 3, 16])
def test_a_batch_in_parts_makes_the_same_step(parts, mixing):
    data, straight, ours = features(), mlp(features()), mlp(features())
    settings = {"epochs": 2, "clip_gradients": 0.5, "weight_average_decay": 0.5, **mixing}
    expected = train(data, straight, **settings)
    found = train(data, ours, **settings, accumulate=parts)
    assert [entry["loss"] for entry in found] == pytest.approx([entry["loss"] for entry in expected], rel=1e-5)
    for mine, theirs in zip(ours.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_parts_of_a_batch():
    batch = Batch(torch.arange(10.0), torch.arange(10), torch.arange(10) + 1, torch.arange(10) / 10, 0.5)
    parts = batch_parts(batch, 3)
    assert [len(part.images) for part in parts] == [4, 3, 3]
    assert sum(part.part for part in parts) == pytest.approx(0.5)
    for name in ("images", "targets", "partner_targets", "weight"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    assert batch_parts(batch, 1)[0] is batch
    assert len(batch_parts(batch, 99)) == 10
    with pytest.raises(UserError, match="two views of each image cannot be parted; set accumulate to 1"):
        FitSettings(accumulate=2, second_view=(), mixup_alpha=0.0)


def normed(data):
    torch.manual_seed(1)
    layers = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2 * len(data.class_names))
    return nn.Sequential(*layers, nn.Unflatten(1, (2, -1)))


@pytest.mark.parametrize(
    ("parts", "expected"), [(5, [4, 3, 3, 3, 3] * 2 + [3, 2, 2, 2]), (99, [2] * 16 + [3, 2, 2, 2])]
)
def test_no_part_leaves_batch_normalisation_a_single_sample(parts, expected):
    """Of batches of 16, 16 and 9."""
    data, seen = features(41), []
    network = normed(data)
    network[0].register_forward_hook(lambda layer, inputs, outputs: seen.append(len(outputs)))
    train(data, network, BalPoELoss(data.class_counts, (1, -1)), accumulate=parts, epochs=1)
    assert seen == expected


def test_a_single_sample_for_batch_normalisation_is_refused():
    data = features()
    with pytest.raises(UserError, match=r"leave each process at least two samples in every step and part \(batch_size"):
        train(data, normed(data), BalPoELoss(data.class_counts, (1, -1)), batch_size=1)
    train(data, mlp(data), batch_size=1, epochs=1)


def test_parts_that_fit_are_those_that_batch_normalisation_can_have():
    data, loss = features(), BalPoELoss(features().class_counts, (1, -1))
    with pytest.raises(UserError, match=r"16 samples in 8 parts does not fit .*, nor does one of two samples; take"):
        train(data, normed(data), Memory(loss, 1), accumulate=99, epochs=1)
    with pytest.raises(UserError, match=r"; add --accumulate 8 .* in parts of 2, which fit, or"):
        train(data, normed(data), Memory(loss, 2), accumulate=5, epochs=1)


def adapted(data, **settings):
    torch.manual_seed(1)
    settings = {"image_size": 32, "hidden": 4, **settings}
    network = expert_network("test_vit", num_classes=len(data.class_names), **settings)
    add_adapters(network, split=1)
    return network


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"drop_path": 0.2}])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_adapters_are_captured(monkeypatch, settings, accumulate):
    data, losses = tiny_data(size=(3, 32, 32)), []
    for kind in ("eager", "captured"):
        with monkeypatch.context() as patch:
            noted = losses_of_steps(patch)
            same = {"epochs": 2, "batch_size": 16, "device": "cuda", "precision": "32-true", "lr": 0.01}
            train(data, adapted(data, **settings), step=kind, accumulate=accumulate, **same)
        losses.append([float(loss) for loss in noted])
    if "drop_path" not in settings:  # a graph draws on its own
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert len(losses[1]) == 8


@pytest.mark.slow
def test_two_processes_train_adapters_in_parts_as_one_does(tmp_path, ready_processes):
    """With clipping and an exponential mean, from a checkpoint; batches of 18 and 19 in four parts of each process."""
    data = tiny_data(37, (3, 16, 16))
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    same = {"epochs": 2, "batch_size": 18, "lr": 0.01, "accumulate": 4, "clip_gradients": 0.5}
    same["weight_average_decay"] = 0.5
    networks = [adapted(data, image_size=16) for _ in range(2)]
    one = train(data, networks[0], Stop(loss, 0), **same)
    with pytest.raises(KeyboardInterrupt, match="epoch 1 of 2"):
        train(data, adapted(data, image_size=16), Stop(loss, 1), **same, run=tmp_path)
    two = train(data, networks[1], Stop(loss, 0), **same, devices=2, run=tmp_path)
    assert [entry["loss"] for entry in two] == pytest.approx([entry["loss"] for entry in one], rel=1e-4)
    for ours, theirs in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


class Memory:
    """A loss on a GPU whose memory is enough for a number of rows."""

    def __init__(self, loss, rows):
        self.loss, self.rows = loss, rows

    def __call__(self, expert_logits, targets, **more):
        if len(targets) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.loss(expert_logits, targets, **more)


@pytest.mark.parametrize(
    ("rows", "parts", "sentence"),
    [
        (8, 1, "; add --accumulate 2 .* in parts of 8, which fit, or"),
        (4, 1, "; add --accumulate 4 .* in parts of 4, which fit, or"),
        (1, 3, "; add --accumulate 16 .* in parts of 1, which fit, or"),
        (0, 1, ", nor does one of a single sample; take smaller images"),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_too_little_memory_names_parts_that_fit(rows, parts, sentence, optimizer):
    data, settings = features(), {"optimizer": optimizer, "epochs": 1}
    network, loss = mlp(data), BalPoELoss(data.class_counts, (1, 0, -1))
    said = f"^a step of 16 samples in {parts} parts? does not fit into the memory of the GPU{sentence}"
    before = [weight.clone() for weight in network.parameters()]
    with pytest.raises(UserError, match=said) as found:
        train(data, network, Memory(loss, rows), accumulate=parts, **settings)
    assert all(map(torch.equal, network.parameters(), before))
    if number := re.search(r"--accumulate (\d+)", str(found.value)):
        train(data, network, Memory(loss, rows), accumulate=int(number[1]), **settings)


def test_too_little_memory_for_two_views_names_a_smaller_batch():
    data = tiny_data(32)
    with pytest.raises(UserError, match=r"of the GPU; take a smaller --batch-size, such as 8$"):
        train(data, resnet(data), Memory(None, 0), second_view=(), mixup_alpha=0.0, epochs=1)


@pytest.mark.usefixtures("eight_layers")
def test_kernels_are_checked_once_for_what_is_launched(monkeypatch):
    """Whatever the weights; a fault is not remembered, for what was in the way may be gone."""
    errors, images = [0.5, 0.001, float("nan"), 0.002], torch.zeros(4, 3, 8, 8)
    monkeypatch.setattr("balpoe.training.fused_loss.CHECKED", set())
    monkeypatch.setattr("balpoe.training.fused_loss.kernel_error", lambda forward, images: errors.pop(0))

    def fault(experts, batch=images):
        forward = FusedForward(expert_network("resnet32", num_classes=4, num_experts=experts))
        return kernel_fault(forward, torch.nn.Identity(), Batch(batch, torch.zeros(len(batch), dtype=torch.int64)))

    assert fault(3) == "its kernels differ from torch's by 0.5"
    assert fault(3) == fault(3) == ""
    assert len(errors) == 2
    assert fault(2) == "its kernels differ from torch's by nan"
    assert fault(3, images[:2]) == ""
    assert not errors


@pytest.mark.usefixtures("eight_layers")
def test_the_kernel_of_the_loss_is_checked_for_each_way_to_launch_it(monkeypatch):
    """Number of classes, one share for all samples or one for each: beside a pass that was found to be right."""
    errors, passes, size = [], [], (4, 3, 8, 8)
    monkeypatch.setattr("balpoe.training.fused_loss.CHECKED", set())
    monkeypatch.setattr(
        "balpoe.training.fused_loss.kernel_error", lambda forward, images: passes.append(images) or 0.001
    )
    monkeypatch.setattr("balpoe.training.fused_loss.loss_error", lambda *inputs: errors.pop(0))

    def fault(classes=4, weight=None, loss=BalPoELoss):
        forward = FusedForward(expert_network("resnet32", num_classes=classes, num_experts=3))
        labels = torch.arange(4)
        batch = Batch(torch.zeros(size), labels, None if weight is None else labels.flip(0), weight)
        return kernel_fault(forward, loss(range(1, classes + 1)), batch)

    for way in ({}, {"weight": torch.rand(4)}, {"classes": 5}):
        errors += [0.3, 0.001]
        assert fault(**way) == "its kernels differ from torch's by 0.3"
        assert fault(**way) == fault(**way) == ""
        assert not errors
    assert fault(weight=torch.tensor(0.5)) == ""  # is what a batch without partners has
    assert len(passes) == 4  # the second time of 4 and of 5 classes; what stood beside a wrong loss was not kept

    class Other(BalPoELoss):
        """Has no kernel."""

    assert fault(classes=6, loss=Other) == ""
    assert fault(classes=6, loss=lambda counts: BalPoELoss([1, 2])) == ""  # for other logits: the loss itself says so
