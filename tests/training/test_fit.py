import gc
import json
import os
import pkgutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from balpoe import BalPoELoss, Dataset, UserError, expert_network, fit, load_data, predict
from balpoe.data.augment.operations import AUGMENTATIONS, Rotate
from balpoe.networks import resnet_cifar
from balpoe.training.checkpoints import load_checkpoint, save_checkpoint
from balpoe.training.fit import fit_and_predict
from balpoe.training.loop import Trainer
from balpoe.training.schedules import Constant, Cosine
from balpoe.training.settings import FitSettings
from processes import READY
from trainings import Stop, features, mlp, resnet, same_weights, tiny_data, train


def test_golden_losses_of_ten_steps():
    """Recorded once; a change that is not meant to alter results leaves them."""
    data = features()
    history = train(data, mlp(data), epochs=10, batch_size=80, lr=0.01)
    expected = [8.1493, 4.8334, 3.1642, 2.332, 2.0862, 1.3899, 1.1555, 1.5758, 1.2599, 1.298]
    assert [entry["loss"] for entry in history] == pytest.approx(expected, abs=1e-3)
    # In double precision: in single, ways to convolve that differ between processors are apart by this much in step 2.
    # Nor a rotation, of which rounding decides at some pixels.
    pictures, exact = tiny_data(), [each for each in AUGMENTATIONS["standard"] if not isinstance(each, Rotate)]
    settings = {"epochs": 10, "batch_size": 60, "lr": 0.01, "augmentation": exact, "precision": "64-true"}
    history = train(pictures, resnet(pictures), **settings)
    expected = [9.2334, 6.8371, 4.3383, 3.5706, 3.5554, 2.5393, 2.1755, 2.1217, 2.1335, 1.8505]
    assert [entry["loss"] for entry in history] == pytest.approx(expected, abs=1e-3)


def test_against_a_loop_written_out():
    """SGD with Nesterov momentum and decay, mixup and schedule, step by step, without any of fit's machinery."""
    from balpoe.data.loading.epoch_plan import plan_epoch

    data, network, other = features(), mlp(features()), mlp(features())
    train(data, network, epochs=3, mixup_alpha=0.3, seed=4, weight_decay=1e-3)
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    inputs = data.preprocessing.normalise(data.images)
    momentum = [torch.zeros_like(p) for p in other.parameters()]
    for epoch in range(3):
        plan = plan_epoch(4, epoch, len(data), 16, mixup_alpha=0.3)
        for batch in plan.batches:
            rows = plan.order[batch.start : batch.stop]
            partners, w = rows[batch.partners], batch.weight
            logits = other(w * inputs[rows] + (1 - w) * inputs[partners])
            value = w * loss(logits, data.targets[rows]) + (1 - w) * loss(logits, data.targets[partners])
            gradients = torch.autograd.grad(value, list(other.parameters()))
            with torch.no_grad():
                for parameter, gradient, velocity in zip(other.parameters(), gradients, momentum, strict=True):
                    gradient = gradient + 1e-3 * parameter
                    velocity.mul_(0.9).add_(gradient)
                    parameter -= 0.05 * Cosine()(epoch, 3) * (gradient + 0.9 * velocity)
    for ours, theirs in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("eight_layers")
def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    data = tiny_data()
    networks = [resnet(data) for _ in range(3)]
    settings = {"augmentation": AUGMENTATIONS["standard"], "cutmix_probability": 0.5, "epochs": 2}
    histories = [train(data, n, seed=seed, **settings) for n, seed in zip(networks, (0, 0, 1), strict=True)]
    assert histories[0] == histories[1]
    assert same_weights(networks[0], networks[1])
    assert not same_weights(networks[0], networks[2])


@pytest.mark.slow
@pytest.mark.usefixtures("eight_layers")
def test_a_network_that_is_ready_for_evaluation_is_trained_like_any_other():
    data = tiny_data()
    first, second = resnet(data), resnet(data).eval()
    assert train(data, first, epochs=1) == train(data, second, epochs=1)
    assert same_weights(first, second)


def test_what_torch_draws_is_seeded_and_the_caller_s_generator_is_left_alone():
    class WithDropout(torch.nn.Module):
        num_experts = 1

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))

        def forward(self, x):
            return self.layers(x)[:, None]

    first, second = WithDropout(), WithDropout()
    torch.manual_seed(7)
    train(features(), first)
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(1))
    train(features(), second)
    assert same_weights(first, second)


def test_an_epoch_begins_before_the_losses_of_the_one_before_are_read(monkeypatch):
    order, begin, read = [], Trainer._begin, Trainer._read
    monkeypatch.setattr(
        Trainer, "_begin", lambda self, epoch, first=0: order.append(epoch) or begin(self, epoch, first)
    )
    monkeypatch.setattr(Trainer, "_read", lambda self, *losses: order.append("read") or read(self, *losses))
    data = features()
    train(data, mlp(data), epochs=3)
    assert order == [0, 1, "read", 2, "read", "read"]


def test_no_file_is_written_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = features()
    history = train(data, mlp(data))
    assert [entry["epoch"] for entry in history] == [0, 1, 2, 3]
    assert [entry["lr"] for entry in history] == pytest.approx([0.05 * Cosine()(e, 4) for e in range(4)])
    assert not list(tmp_path.iterdir())


def test_files_of_a_run(tmp_path):
    data = features()
    history = train(data, mlp(data), run=tmp_path)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    timing = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert len(timing) == 4
    assert all(entry["seconds"] > 0 and entry["images_per_second"] > 0 for entry in timing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "history.jsonl", "timing.jsonl"]


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


def crash_at(monkeypatch, name, number):
    """Make the `number`-th call of os.NAME the last thing that happens; after it for a rename, before it otherwise."""
    real, calls = getattr(os, name), []

    def dying(*arguments):
        calls.append(arguments)
        if len(calls) < number:
            return real(*arguments)
        if name == "replace":
            real(*arguments)
        raise Crash

    monkeypatch.setattr(os, name, dying)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_crash_at_any_file_operation_resumes_to_the_same_bits(tmp_path, monkeypatch, name):
    data, straight = features(), mlp(features())
    settings = {"checkpoint_seconds": 0, "epochs": 3, "weight_average_fraction": 0.7}
    expected = train(data, straight, run=tmp_path / "straight", **settings)
    crashes = 0
    for number in range(1, 40):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch:
            crash_at(patch, name, number)
            try:
                train(data, mlp(data), run=folder, **settings)
            except Crash:
                crashes += 1
        network = mlp(data)
        assert train(data, network, run=folder, **settings) == expected
        assert same_weights(network, straight)
        assert (folder / "history.jsonl").read_bytes() == (tmp_path / "straight" / "history.jsonl").read_bytes()
        if crashes < number:
            break  # this one was never reached: all operations have been tried
    assert crashes > 6


def killed_command(place, number, command):
    """Run a command of ours whose process is killed for good after the `number`-th call of the function at a place."""
    from balpoe.cli.main import main

    owner, _, name = place.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    real, calls = getattr(owner, name), []

    def dying(*arguments):
        calls.append(arguments)
        result = real(*arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    main(command)


@pytest.mark.slow
def test_sigkill_at_several_moments(tmp_path):
    """The command of the user, killed for good while it writes, between files, and while it trains."""
    from balpoe.cli.main import main

    command = ["train", "digits-lt", "--epochs", "4", "--checkpoint-seconds", "0", "--threads", "1", "--runs"]
    assert main([*command, str(tmp_path / "straight")]) == 0
    run = Path("digits-lt-epochs-4", "seed-0")
    straight = tmp_path / "straight" / run
    for place, number in (
        ("os.fsync", 9),
        ("os.replace", 12),
        ("os.replace", 17),  # the predictions, after the last epoch
        ("balpoe.training.eager_step.EagerStep.__call__", 17),
    ):
        folder = tmp_path / f"{place}-{number}"
        process = READY.Process(target=killed_command, args=(place, number, [*command, str(folder)]))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (folder / run / "evaluation.json").exists()
        assert main([*command, str(folder)]) == 0
        for name in ("model.safetensors", "history.jsonl", "predictions/expert_logits.npy", "evaluation.json"):
            assert (folder / run / name).read_bytes() == (straight / name).read_bytes(), (place, number, name)


@pytest.mark.parametrize("at", [1, 7, 10, 13, 17])  # the last one within the mean of the weights
def test_ctrl_c_stops_cleanly_after_any_step_and_resumes_to_the_same_bits(tmp_path, at):
    data, straight = features(), mlp(features())
    expected = train(data, straight, weight_average_fraction=0.5)
    network, loss = mlp(data), BalPoELoss(data.class_counts, (1, 0, -1))
    settings = {"epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": Cosine(), "device": "cpu", "progress": False}
    settings["weight_average_fraction"] = 0.5
    with pytest.raises(KeyboardInterrupt, match="of 4"):
        fit(network, Stop(loss, 2 * at), data, run=tmp_path, **settings)
    loss = Stop(loss, 0)  # the same kind of loss, which does not press it again
    assert load_checkpoint(tmp_path / "checkpoint.pt")["epoch"] == at // 5
    again = mlp(data)
    assert fit(again, loss, data, run=tmp_path, **settings) == expected
    assert same_weights(again, straight)


def test_fit_works_in_a_thread_where_signals_cannot_be_caught():
    data, results = features(), []
    thread = threading.Thread(target=lambda: results.append(train(data, mlp(data))))
    thread.start()
    thread.join()
    assert len(results[0]) == 4


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path):
    data, network = features(), mlp(features())

    class Diverging(BalPoELoss):
        def forward(self, expert_logits, targets, progress=None):
            value = super().forward(expert_logits, targets)
            return value * float("nan") if progress >= 0.5 + 0.25 * 2 / 5 else value

    loss = Diverging(data.class_counts, (1, 0, -1))
    settings = {"epochs": 4, "batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False}
    what = "the loss became nan in epoch 3 of 4, step 3 of 5: lower the learning rate (now 0.05) or check the data"
    with pytest.raises(UserError) as error:  # there is no checkpoint to be kept
        fit(mlp(data), loss, data, **settings)
    assert str(error.value) == what
    with pytest.raises(UserError) as error:
        fit(network, loss, data, run=tmp_path, checkpoint_seconds=0, **settings)
    assert str(error.value) == f"{what}; {tmp_path / 'checkpoint.pt'} of an earlier epoch is kept"
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["epoch"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in state["network"].values())


def test_a_training_that_fails_puts_torchs_generator_back_at_once():
    """Not when its traceback is forgotten: by then somebody may have seeded the generator, and be drawing from it."""
    data, network, before = features(), mlp(features()), torch.manual_seed(3).get_state()
    with pytest.raises(UserError, match="the loss became nan") as error:
        train(data, network, lambda *_, **__: torch.tensor(float("nan"), requires_grad=True))
    assert torch.equal(torch.get_rng_state(), before)
    seeded = torch.manual_seed(4).get_state()
    del error
    gc.collect()
    assert torch.equal(torch.get_rng_state(), seeded)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    data = features()
    train(data, mlp(data), run=tmp_path)
    with pytest.raises(UserError, match=r"belongs to a training with lr=0.05 \(now 0.1\); choose another folder"):
        train(data, mlp(data), run=tmp_path, lr=0.1)
    loss = BalPoELoss(data.class_counts, (0, 0, 0))
    with pytest.raises(UserError, match="belongs to a training with loss=BalPoELoss-"):
        fit(mlp(data), loss, data, run=tmp_path, epochs=4, batch_size=16, lr=0.05, schedule=Cosine(), progress=False)
    other = Dataset(data.images + 1, data.targets)
    with pytest.raises(UserError, match="belongs to a training with data=Dataset-"):
        train(other, mlp(data), run=tmp_path)
    wide = expert_network("mlp", num_classes=3, num_experts=3, num_features=6, width=9)
    with pytest.raises(UserError, match="does not fit this network"):
        train(data, wide, run=tmp_path)


def linear(epoch, epochs):
    return 1 - epoch / epochs


def test_a_schedule_of_one_s_own_is_known_by_its_factors(tmp_path):
    """In another process a function has another address, as a copy of it has here."""
    data, networks = features(), [mlp(features()) for _ in range(2)]
    first = train(data, networks[0], run=tmp_path, schedule=lambda *epochs: linear(*epochs))
    assert train(data, networks[1], run=tmp_path, schedule=lambda *epochs: linear(*epochs)) == first
    assert same_weights(*networks)
    with pytest.raises(UserError, match=r"a training with schedule=factors-\w{8} \(now factors-\w{8}\)"):
        train(data, mlp(data), run=tmp_path, schedule=lambda *epochs: linear(*epochs) ** 2)
    with pytest.raises(UserError, match=r"schedule=factors-\w{8} \(now Cosine\(warmup_epochs=0\)\)"):
        train(data, mlp(data), run=tmp_path)


def test_labels_without_a_class_are_refused():
    data, more = features(classes=3), features(classes=4)
    with pytest.raises(UserError, match="have a label 3, but the loss is made for 3 classes, 0 to 2; make loss and"):
        train(more, mlp(data), BalPoELoss(data.class_counts))

    def own(expert_logits, targets, progress=None):
        return torch.nn.functional.cross_entropy(expert_logits.mean(dim=1), targets)

    with pytest.raises(UserError, match="have a label 3, but the network has fewer classes; make loss and network"):
        train(more, mlp(data), own, mixup_alpha=0.0)


def test_a_loss_of_one_s_own_may_call_anything_offsets():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("offsets", torch.zeros(3))  # one for each expert

        def forward(self, expert_logits, targets, progress=None):
            return torch.nn.functional.cross_entropy((expert_logits + self.offsets[:, None]).mean(dim=1), targets)

    data = features(classes=4)
    assert len(train(data, mlp(data), Shifted(), mixup_alpha=0.0, epochs=1)) == 1


def test_a_loss_in_bfloat16(tmp_path):
    data, losses = features(), [BalPoELoss(features().class_counts).bfloat16() for _ in range(2)]
    train(data, mlp(data), losses[0], run=tmp_path)
    losses[1].offsets += 1
    with pytest.raises(UserError, match="belongs to a training with loss=BalPoELoss-"):
        train(data, mlp(data), losses[1], run=tmp_path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_checkpoints_that_are_broken_foreign_or_malicious(tmp_path):
    data, path = features(), tmp_path / "checkpoint.pt"
    train(data, mlp(data), run=tmp_path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not a checkpoint", whole[100:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as a checkpoint"):
            train(data, mlp(data), run=tmp_path)
    torch.save({"version": 1, "evil": Evil(tmp_path / "pwned")}, path)
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        train(data, mlp(data), run=tmp_path)
    assert not (tmp_path / "pwned").exists()
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(UserError, match="not a checkpoint of balpoe"):
        train(data, mlp(data), run=tmp_path)
    for version in (1, 99):
        save_checkpoint(path, {"version": version})
        with pytest.raises(UserError, match=f"format {version}, but this balpoe reads format 2"):
            train(data, mlp(data), run=tmp_path)


def test_numbers_of_numpy_and_torch_are_numbers():
    data, networks = features(), [mlp(features()) for _ in range(2)]
    train(
        data,
        networks[0],
        lr=np.float32(0.5),
        weight_decay=torch.tensor(0.25),
        nesterov=np.bool_(False),
        epochs=np.int8(2),
    )
    train(data, networks[1], lr=0.5, weight_decay=0.25, nesterov=False, epochs=2)
    assert same_weights(*networks)


def test_wrong_settings():
    data = features()
    for settings, sentence in (
        ({"epochs": 0}, "epochs must be at least 1, but is 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": 1.5}, "epochs must be a whole number, but is 1.5"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"lr": float("nan")}, "lr must be a finite number, but is nan"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; did you mean 'adamw'"),
        ({"optimizer": "adamw", "optimizer_settings": {"betas": (0.9,)}}, "betas wants 2 numbers"),
        ({"weight_average_decay": 0.9, "weight_average_fraction": 0.5}, "are two means of the weights"),
        ({"unmixed_statistics": True}, "are those of a mean of the weights; set weight_average_fraction"),
        ({"precision": "foo"}, "precision 'foo' is not known; use auto"),
        ({"devices": 2, "batch_size": 1}, "leaves nothing for some of 2 processes"),
        ({"devices": 100, "batch_size": 100}, "a training set of 80 leaves nothing for some of 100 processes"),
        ({"num_nodes": 2}, "type on each: torchrun --nnodes 2"),
        ({"sync_batchnorm": True}, "sync_batchnorm works between GPUs alone"),
        ({"step": "captured"}, "needs one CUDA device"),
        ({"mixup_alpha": -1}, "mixup_alpha must be at least 0"),
        ({"weight_average_fraction": 10}, "weight_average_fraction must be at most 1, but is 10"),
        ({"device": "gpu0"}, "unknown device 'gpu0'"),
        ({"devices": 0}, "devices must be at least 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            train(data, mlp(data), **settings)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="torch sees no GPU"):
            train(data, mlp(data), device="cuda")
    with pytest.raises(UserError, match="CutMix wants images"):
        train(data, mlp(data), cutmix_probability=1.0)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, ready_processes):
    """Without batch normalisation and augmentation: ten losses and the weights, mixup included."""
    data, alone, together = features(), mlp(features()), mlp(features())
    settings = {
        "epochs": 10,
        "batch_size": 80,
        "schedule": Constant(),
        "mixup_alpha": 0.4,
        "weight_average_fraction": 0.3,
    }
    expected = [entry["loss"] for entry in train(data, alone, **settings)]
    found = [entry["loss"] for entry in train(data, together, devices=2, run=tmp_path, **settings)]
    assert found == pytest.approx(expected, abs=1e-5)
    for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 10


def test_prediction_after_training_is_that_of_the_trained_network():
    data, network = features(), mlp(features())
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    settings = {"epochs": 2, "batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False}
    history, logits = fit_and_predict(network, loss, data, data, FitSettings(**settings))
    assert [entry["epoch"] for entry in history] == [0, 1]
    about = {"class_counts": data.class_counts, "lambdas": (1, 0, -1)}
    assert torch.equal(logits, predict(network, data, **about).expert_logits)


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_processes_and_says_so(tmp_path, ready_processes):
    """One process, in the middle of an epoch two, which also predict, then one again.

    Losses that are already known count once, not once for each process.
    """
    data, network = features(), mlp(features())
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    settings = {
        "epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": Constant(), "mixup_alpha": 0.0, "device": "cpu",
        "progress": False,
    }  # fmt: skip
    expected = fit(mlp(data), loss, data, **settings)
    settings.update(run=tmp_path, track=("csv",))
    with pytest.raises(KeyboardInterrupt, match="epoch 2 of 4"):
        fit(mlp(data), Stop(loss, 7), data, **settings)
    test = data.subset(torch.arange(7))
    history, logits = fit_and_predict(network, Stop(loss, 0), data, test, FitSettings(devices=2, **settings))
    assert [entry["epoch"] for entry in history] == [0, 1, 2, 3]
    losses = [[entry["loss"] for entry in entries] for entries in (history, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["processes"] == 2
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + 4
    found = predict(network, test, class_counts=data.class_counts, lambdas=(1, 0, -1)).expert_logits
    torch.testing.assert_close(logits, found)  # in order, and the weights came back
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    unfinished = {**state, "epoch": 3, "history": state["history"][:3], "timing": state["timing"][:3]}
    save_checkpoint(tmp_path / "checkpoint.pt", unfinished)
    said = "continues with 1 process where 2 began: not bit for bit what 2 would have given"
    with pytest.warns(UserWarning, match=said):
        fit(mlp(data), Stop(loss, 0), data, **settings)


@pytest.mark.slow
def test_two_processes_with_batch_normalisation_and_augmentation_end_within_noise(ready_processes, monkeypatch):
    monkeypatch.setattr(resnet_cifar, "BLOCKS_PER_STAGE", 1)  # eight layers
    train_set, test_set = load_data("digits-lt", imbalance_ratio=10)
    data = train_set.subset(torch.arange(len(train_set))[::2])
    accuracies = {}
    for devices in (1, 2):
        torch.manual_seed(0)
        network = expert_network("resnet32", num_classes=10, num_experts=2, width=4, in_channels=1)
        train(data, network, epochs=8, batch_size=32, lr=0.1, devices=devices, augmentation=(Rotate(10.0),))
        network.eval()
        with torch.no_grad():
            logits = network(test_set.preprocessing.normalise(test_set.images)).mean(dim=1)
        accuracies[devices] = float((logits.argmax(dim=1) == test_set.targets).float().mean())
    assert accuracies[1] > 0.5
    assert accuracies[2] == pytest.approx(accuracies[1], abs=0.15)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    """In float32 as on the CPU, through grouped convolutions; in bfloat16 it learns as well."""
    data, losses = tiny_data(), {}
    for device, precision in (("cpu", "32-true"), ("cuda", "32-true"), ("cuda", "auto")):
        network = resnet(data)
        history = train(data, network, device=device, precision=precision, epochs=4, lr=0.002)
        losses[device, precision] = [entry["loss"] for entry in history]
        assert next(network.parameters()).device.type == device
    # So small a network amplifies rounding tenfold a step: later epochs are compared loosely.
    assert losses["cuda", "32-true"][:2] == pytest.approx(losses["cpu", "32-true"][:2], rel=0.02)
    assert losses["cuda", "32-true"] == pytest.approx(losses["cpu", "32-true"], rel=0.25)
    assert losses["cuda", "auto"] == pytest.approx(losses["cpu", "32-true"], rel=0.25)
    assert losses["cuda", "auto"] != losses["cuda", "32-true"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_synchronised_batch_normalisation_on_two_gpus_trains_as_one():
    """With each GPU's own statistics the losses differ; with those of both together they are one GPU's."""
    data, losses, states = tiny_data(), {}, {}
    for devices, sync in ((1, True), (2, True), (2, False)):
        network = resnet(data)
        settings = {"device": "cuda", "precision": "32-true", "epochs": 3, "lr": 0.002, "step": "eager"}
        history = train(data, network, devices=devices, sync_batchnorm=sync, **settings)
        losses[devices, sync] = [entry["loss"] for entry in history]
        states[devices, sync] = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
        assert not any(isinstance(module, torch.nn.SyncBatchNorm) for module in network.modules())
    assert losses[2, True] == pytest.approx(losses[1, True], rel=0.01)
    assert losses[2, False] != pytest.approx(losses[1, True], rel=0.01)
    resnet(data).load_state_dict(states[2, True])
