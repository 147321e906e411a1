"""RIDE's router: its loss against the formula, and runs that have one."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from balpoe import expert_network, load
from balpoe.baselines.method import Stage
from balpoe.baselines.ride import RIDELoss
from balpoe.baselines.ride_router import RouterLoss, further_helps
from balpoe.cli.main import main
from balpoe.data.loading.in_memory import Batch
from balpoe.evaluation.forward import logits_of
from balpoe.experiments import build
from balpoe.experiments.build import assemble
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run, train_run
from balpoe.networks.costs import costs_by_asked
from balpoe.networks.router import experts_asked, join_scores
from balpoe.training import loop
from balpoe.training.concurrent import complete
from balpoe.training.fit import fit_and_predict
from balpoe.training.learner import batch_loss
from balpoe.training.settings import FitSettings
from balpoe.training.stages import fit_stages
from images import picture_folder
from trainings import tiny_data

QUICK_RUN = {"epochs": 8, "width": (8,), "batch_size": 64, "threads": 1, "device": "cpu"}


def made(samples=30, experts=4, classes=3):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(samples, experts, classes, generator=generator, dtype=torch.float64)
    scores = 2 * torch.randn(samples, experts - 1, generator=generator, dtype=torch.float64)
    return logits, scores, torch.arange(samples) % classes


def by_formula(rows, scores, label, weight):
    """Return the loss of a sample, written from the paper: (value, how often a further expert helps)."""
    experts, classes = len(rows), len(rows[0])
    right = []
    for asked in range(1, experts + 1):
        mean = [sum(row[c] for row in rows[:asked]) / asked for c in range(classes)]
        right.append(max(range(classes), key=lambda c: mean[c]) == label)
    total, helped = 0.0, 0
    for expert in range(experts - 1):
        more = 1 / (1 + math.exp(-scores[expert]))
        if not right[expert] and any(right[expert + 1 :]):
            total, helped = total - weight * math.log(more), helped + 1
        else:
            total -= math.log(1 - more)
    return total / (experts - 1), helped


def test_the_loss_is_the_formula_of_the_paper():
    logits, scores, labels = made()
    rows = zip(logits.tolist(), scores.tolist(), labels.tolist(), strict=True)
    values, helped = zip(*(by_formula(*row, weight=7.0) for row in rows), strict=True)
    outputs = join_scores(logits, scores)
    assert RouterLoss(7.0)(outputs, labels, reduction="none").tolist() == pytest.approx(values)
    assert float(RouterLoss(7.0)(outputs, labels, progress=0.5)) == pytest.approx(sum(values) / len(values))
    assert further_helps(logits, labels).sum(dim=1).tolist() == list(helped)
    assert 0 < sum(helped) < 90


def test_gradients_go_to_the_scores_and_large_ones_are_safe():
    logits, scores, labels = made()
    outputs = join_scores(logits, 1e4 * scores).requires_grad_()
    RouterLoss()(outputs, labels).backward()
    assert bool(outputs.grad.isfinite().all())
    assert not outputs.grad[..., :-1].any()
    assert bool(outputs.grad[:, :-1, -1].any())


def test_a_step_of_the_second_stage_can_be_captured():
    """Through network and loss without values: what reads or branches on one raises."""
    network = expert_network("mlp", num_classes=4, num_experts=3, num_features=6, width=8)
    network.add_router()
    network.requires_grad_(False)
    network.router.requires_grad_(True)
    network.freeze_statistics()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        batch = Batch(torch.randn(8, 6), mode.from_tensor(torch.arange(8) % 4))
        batch_loss(network.train(), RouterLoss(), batch, torch.rand(())).backward()
    assert all(each.grad is not None for each in network.router.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_trains_captured_as_eager_and_routes_as_a_cpu():
    data, weights = tiny_data(), []
    stage = Stage("stage-2", RouterLoss(), trains=("router.",), epochs=1.0, keeps_statistics=True)
    for step in ("eager", "captured"):
        torch.manual_seed(0)
        network = expert_network("resnet32", num_classes=4, num_experts=3, width=4)
        network.add_router()
        settings = FitSettings(epochs=2, batch_size=16, lr=0.02, device="cuda", precision="32-true", step=step)
        loss = RIDELoss(data.class_counts, scale=32.0)
        logits = complete(fit_stages(by_step, (stage,), network, loss, data, data, replace(settings, progress=False)))
        weights.append(network.router.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0], rtol=2e-2, atol=2e-2)
    found = logits_of(network.cpu(), data)
    same = experts_asked(found) == experts_asked(logits)
    assert float(same.double().mean()) > 0.9  # but for scores next to 0
    torch.testing.assert_close(found[same], logits[same], rtol=1e-2, atol=5e-2)


def by_step(*parts):
    yield
    return fit_and_predict(*parts)[1]


def recipe(method, **changes):
    return updated(preset("digits-lt"), {"method": method, **QUICK_RUN, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose router has learnt, as its network has not learnt all by heart."""
    return train_run(recipe("ride-router"), tmp_path_factory.mktemp("routed") / "seed-0", progress=False)


def test_the_network_is_that_of_ride(run, tmp_path):
    plain = load(train_run(recipe("ride"), tmp_path / "plain", progress=False).folder).network.state_dict()
    routed = load(run.folder).network.state_dict()
    assert {name for name in routed if name not in plain} == {
        "router.hidden_weight", "router.hidden_bias", "router.weight", "router.bias",
    }  # fmt: skip
    assert all(torch.equal(plain[name], routed[name]) for name in plain)
    first = assemble(recipe("ride-router")).network.router
    assert not torch.equal(first.weight, routed["router.weight"])
    assert first.top_logits == 10  # of ten classes


def test_what_is_saved_of_it(run):
    predictions, evaluation = run.predictions(), run.evaluation()
    asked = predictions.experts_asked
    assert len(asked.unique()) > 1
    assert torch.equal(asked, experts_asked(predictions.expert_logits))
    torch.testing.assert_close(predictions.source_prior, torch.full_like(predictions.source_prior, 0.1))
    by_group = evaluation["router"]["experts_asked"]
    assert by_group["all"] == pytest.approx(float(asked.double().mean()))
    few = predictions.class_counts[predictions.targets] < run.recipe().shot_groups[0]
    assert by_group["few"] == pytest.approx(float(asked[few].double().mean()))
    network, test = load(run.folder).network, assemble(recipe("ride-router")).test
    costs, whole = costs_by_asked(network, torch.zeros(1, *test.preprocessing.size)), network.without_router()
    assert evaluation["multiply_adds"] == round(sum(costs[number - 1] for number in asked.tolist()) / len(asked))
    spent = 2 * network.router.multiply_adds  # on decisions
    assert evaluation["router"]["multiply_adds_of_all"] == costs[-1] - spent
    with torch.no_grad():
        right = whole(test.preprocessing.normalise(test.images)).mean(dim=1).argmax(dim=1) == test.targets
    assert evaluation["router"]["with_all_experts"]["accuracy"] == pytest.approx(float(right.double().mean()))
    subset = predictions.subset(torch.tensor([3, 1]))
    assert torch.equal(subset.experts_asked, asked[[3, 1]])


def test_a_comparison_says_how_many_were_asked(tmp_path, monkeypatch, capsys, no_drawings):
    monkeypatch.chdir(tmp_path)
    flags = ["--methods", "ride,ride-router", "--seeds", "1", "--epochs", "2", "--no-calibrate"]
    assert main(["compare", "digits-lt", *flags, "--runs", "runs"]) == 0
    ours, theirs = (line for line in capsys.readouterr().out.splitlines() if "of 2: RIDE" in line)
    assert "experts asked" not in ours
    assert theirs.endswith("experts asked")


def test_a_loaded_model_routes_as_the_run_did(run, capsys):
    test = assemble(recipe("ride-router")).test
    model, saved = load(run.folder / "model.safetensors"), run.predictions()
    found = model.expert_logits(test.images)
    torch.testing.assert_close(found, saved.expert_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(test.images), saved.logits.softmax(dim=1), rtol=1e-3, atol=1e-4)
    again = model.predictions(test)
    assert again.multiply_adds == saved.multiply_adds
    assert main(["evaluate", str(run.folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"The router asked {run.evaluation()['router']['experts_asked']['all']:.2f} of 3 experts a sample (" in out
    assert "% with all experts asked." in out


def test_a_run_that_was_stopped_ends_as_one_that_was_not(run, tmp_path, monkeypatch):
    real = loop.Trainer._end_epoch

    def stop(self, *arguments):
        real(self, *arguments)
        if self.settings.run.name == "stage-2":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_end_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(recipe("ride-router"), tmp_path / "seed-0", progress=False)
    again = train_run(recipe("ride-router"), tmp_path / "seed-0", progress=False)
    assert torch.equal(again.predictions().expert_logits, run.predictions().expert_logits)
    before, after = (each.folder / "model.safetensors" for each in (run, again))
    assert before.read_bytes() == after.read_bytes()


def test_features_of_ones_own_and_their_calibration(tmp_path):
    random = np.random.default_rng(0)
    labels, tests = random.choice(3, size=240, p=(0.7, 0.2, 0.1)), np.arange(90) % 3
    means = 0.8 * random.normal(size=(3, 6))
    made = [means[each] + random.normal(size=(len(each), 6)) for each in (labels, tests)]
    np.savez(
        tmp_path / "x.npz", features=made[0].astype("f4"), labels=labels, test_features=made[1].astype("f4"),
        test_labels=tests,
    )  # fmt: skip
    changes = {"data_root": str(tmp_path / "x.npz"), "method": "ride-router", "method_settings": {"router_epochs": 1.0}}
    own = updated(preset("own-features"), {**QUICK_RUN, **changes})
    run = train_run(own, tmp_path / "seed-0", progress=False, look_longer=False)
    predictions = run.predictions()
    assert predictions.calibration is not None
    assert 1 < float(predictions.experts_asked.double().mean()) < 3
    whole = load(run.folder).predictions(assemble(run.recipe()).test)
    torch.testing.assert_close(whole.logits, predictions.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("frozen", [True, False])
def test_images_of_ones_own(frozen, tmp_path, monkeypatch, capsys, no_drawings):
    """The head of a frozen network routes as the whole network then does; a tuned one has experts that are copies."""
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    root, folder = picture_folder(tmp_path / "photos", {"ash": 14, "birch": 7}), tmp_path / "runs" / "it" / "seed-0"
    flags = ["--network", "test_efficientnet", "--image-size", "32", "--width", "16", "--weights", "", "--epochs", "2"]
    flags += [] if frozen else ["--no-frozen", "--augmentation", "resized-crop", "--split", "2", "--lr", "0.01"]
    flags += ["--workers", "0", "--device", "cpu", "--no-calibrate", "--no-baseline", "--method", "ride-router"]
    assert main(["train", str(root), "--runs", str(tmp_path / "runs"), "--name", "it", *flags]) == 0
    assert "The router asked" in capsys.readouterr().out
    run, model = Run(folder), load(folder)
    files = build.own_data(run.recipe()).test
    torch.testing.assert_close(
        model.predictions(files).expert_logits, run.predictions().expert_logits, rtol=1e-3, atol=1e-3
    )
    assert main(["predict", str(folder), str(root / "ash")]) == 0
    if frozen:  # once is enough
        assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
        assert "The router asked" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_an_evaluation_whose_router_is_garbled_is_refused(run, tmp_path, capsys):
    evaluation = json.loads((run.folder / "evaluation.json").read_text())
    for wrong in (3, {}, {"experts_asked": {"all": "x"}, "multiply_adds_of_all": 3}, {"experts_asked": {"all": 1.0}}):
        folder = tmp_path / "seed-0"
        folder.mkdir(exist_ok=True)
        (folder / "recipe.toml").write_bytes((run.folder / "recipe.toml").read_bytes())
        (folder / "evaluation.json").write_text(json.dumps({**evaluation, "router": wrong}))
        with pytest.raises(Exception, match="is not an evaluation of this run"):
            Run(folder).evaluation()
