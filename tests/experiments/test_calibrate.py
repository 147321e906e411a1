"""Runs that are calibrated by samples outside of training."""

import json

import numpy as np
import pytest
import torch

import balpoe
from balpoe.cli.main import main
from balpoe.deployment.card_text import card_text
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments import calibrate, run_folder
from balpoe.experiments.build import assemble
from balpoe.experiments.calibrate import Choice, below_middle_expert, calibrated_by, calibration_notes
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run, train_run
from balpoe.method.expert_calibration import ExpertCalibration, held_out_losses
from balpoe.report.calibration import reliability_section
from balpoe.report.inputs import read_subject
from balpoe.report.overview import what_section


def features(path, *, samples=240, **extra):
    """Three Gaussian classes of 6 features, long-tailed, with a balanced test part."""
    random = np.random.default_rng(0)
    means = 1.2 * random.normal(size=(3, 6))
    parts = {}
    for prefix, shares in (("", (0.7, 0.2, 0.1)), ("test_", (1 / 3, 1 / 3, 1 / 3))):
        labels = random.choice(3, size=samples, p=shares)
        parts |= {f"{prefix}features": means[labels] + random.normal(size=(samples, 6)), f"{prefix}labels": labels}
    np.savez(path, **parts, **extra)
    return path


def recipe(path, **changes):
    quick = {"epochs": 4, "width": (8,), "threads": 1, "device": "cpu", "data_root": str(path)}
    return updated(preset("own-features"), {**quick, **changes})


def mean_loss(predictions):
    return float(held_out_losses(predictions.logits, predictions.targets, predictions.source_prior).mean())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run at its defaults but for its size."""
    folder = tmp_path_factory.mktemp("calibrated")
    return train_run(recipe(features(folder / "x.npz")), folder / "run", progress=False)


def test_what_a_calibrated_run_keeps(run, capsys):
    held_out = Predictions.load(run.folder / "predictions" / "held-out")
    about = json.loads((run.folder / "calibration.json").read_text())
    assert len(held_out) == 240  # every sample was outside of the training of one network
    tried = about["tried"]
    best = min((each for each in tried if each["epochs"] == 4), key=lambda each: each["nll"])  # that many are asked for
    assert {**best, **{name: about[name] for name in ("lr", "mixup_alpha", "epochs")}} == best
    assert mean_loss(held_out) <= best["nll"] + 1e-5  # by one temperature; there may be more
    assert mean_loss(held_out) < mean_loss(held_out.uncalibrated())
    assert not (run.folder / "cross-fit").exists()
    assert main(["evaluate", str(run.folder), "--prior", "estimate"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Estimated prior: P_train^lambda with lambda" in said
    assert "It is approximate, for networks of cross-fitting said the held-out samples" in said


def test_trials_are_judged_by_one_temperature_and_the_best_gets_the_whole_calibration(tmp_path, monkeypatch):
    fitted = []

    def whole(logits, *given, groups=None):
        fitted.append((logits, groups))
        return ExpertCalibration((1.5, 2.5, 3.5), 0.25)

    monkeypatch.setattr(calibrate, "fit_expert_calibration", whole)
    groups = np.arange(240) // 4
    run = train_run(recipe(features(tmp_path / "x.npz", groups=groups)), tmp_path / "run", progress=False)
    choice = Choice.load(run.folder)
    ((logits, of_samples),) = fitted  # once, however much was tried
    assert len(choice.tried) > 3
    assert choice.held_out.calibration == run.predictions().calibration == ExpertCalibration((1.5, 2.5, 3.5), 0.25)
    torch.testing.assert_close(logits, choice.held_out.expert_logits)
    assert len(of_samples.unique()) == 60  # groups are judged as wholes
    best = min(each["nll"] for each in choice.tried if each["epochs"] == 4)
    assert mean_loss(calibrated_by(choice.held_out, one_temperature=True)) == pytest.approx(best, abs=1e-5)


def test_the_calibration_is_used_by_all_that_reads_the_run(run):
    predictions, model = run.predictions(), balpoe.load(run.folder)
    raw = torch.from_numpy(np.load(run.folder / "predictions" / "expert_logits.npy"))
    assert torch.equal(predictions.expert_logits, raw)
    assert not torch.allclose(predictions.logits, raw.mean(dim=1))
    data = np.load(run.recipe().data_root)["test_features"].astype(np.float32)
    torch.testing.assert_close(model.predict(torch.from_numpy(data)), predictions.logits.softmax(dim=1))
    torch.testing.assert_close(model.expert_logits(torch.from_numpy(data)), raw)
    evaluation = run.evaluation()
    assert evaluation["nll"] == pytest.approx(balpoe.evaluate(predictions, num_resamples=0).nll)
    before = balpoe.evaluate(predictions.uncalibrated(), num_resamples=0)
    assert evaluation["calibration"]["before"]["nll"] == pytest.approx(before.nll)
    assert evaluation["nll"] != pytest.approx(before.nll)
    note, *_ = calibration_notes(run.folder, run.recipe(), evaluation)
    assert note.startswith("Calibrated by 240 samples outside of training: learning rate ")


def test_validation_arrays_of_features_calibrate(tmp_path):
    random = np.random.default_rng(1)
    labels = np.tile([0, 1, 2], 30)
    validation = random.normal(size=(90, 6)) + labels[:, None]
    path = features(tmp_path / "x.npz", samples=60, X_val=validation, y_val=labels)
    run = train_run(recipe(path, choose_mixup=False), tmp_path / "run", progress=False)
    held_out = Predictions.load(run.folder / "predictions" / "held-out")
    assert held_out.targets.tolist() == labels.tolist()
    own = balpoe.load(run.folder).expert_logits(torch.from_numpy(validation).float())
    torch.testing.assert_close(held_out.expert_logits, own)  # of the run's own network, which has not seen them
    assert run.predictions().calibration == held_out.calibration is not None


def test_groups_are_held_out_as_wholes(tmp_path, monkeypatch):
    """Copies of a sample that lie on both sides of a fold would be predicted too well."""
    seen = []
    real = calibrate.split_folds
    monkeypatch.setattr(calibrate, "split_folds", lambda *given: seen.append(real(*given)) or seen[-1])
    groups = np.arange(240) // 4
    train_run(recipe(features(tmp_path / "x.npz", groups=groups), mixup_alpha=0.0), tmp_path / "run", progress=False)
    (folds,) = seen
    of_group = folds.fold.view(-1, 4)
    assert bool((of_group == of_group[:, :1]).all())
    assert len(folds.fold.unique()) > 3


@pytest.mark.parametrize("method", ["balpoe", "remix", "mislas"])
def test_every_method_is_judged_by_all_samples_each_by_a_network_that_has_not_seen_it(method, tmp_path, monkeypatch):
    """Also one that mixes by labels, or has a second stage, and so cannot be trained side by side."""
    trained, asked, real_fit, real_logits = [], [], run_folder.fitting, calibrate.held_out_logits

    def fitting(*given):
        fit = real_fit(*given)

        def recorded(network, loss, train, test, settings):
            trained.append(train)
            return fit(network, loss, train, test, settings)

        return recorded

    def logits(network, data, folds):
        if len(folds.rows[0]) == 1:
            theirs = {tuple(row) for row in data.images[folds.fold >= 0].flatten(1).tolist()}
            asked.append(theirs & {tuple(row) for row in trained[-1].images.flatten(1).tolist()})
        return real_logits(network, data, folds)

    monkeypatch.setattr(run_folder, "fitting", fitting)
    monkeypatch.setattr(calibrate, "held_out_logits", logits)
    path = features(tmp_path / "x.npz")
    changes = {"method": method, "epochs": 2, "choose_mixup": False, "choose_lr": False}
    generator = run_folder.train_run_by_step(
        recipe(path, **changes), tmp_path / "run", progress=False, look_longer=False
    )
    for work in generator:
        if work is not None:
            work()
    held_out = Predictions.load(tmp_path / "run" / "predictions" / "held-out")
    assert held_out.targets.tolist() == np.load(path)["labels"].tolist()
    assert asked == ([] if method == "balpoe" else [set()] * 5)
    assert not (tmp_path / "run" / "cross-fit").exists()


def test_without_calibration(tmp_path):
    run = train_run(recipe(features(tmp_path / "x.npz"), calibrate=False), tmp_path / "run", progress=False)
    assert run.predictions().calibration is None
    assert not (run.folder / "calibration.json").exists()
    assert "calibration" not in run.evaluation()
    assert calibration_notes(run.folder, run.recipe(), run.evaluation()) == []


@pytest.mark.parametrize("method", ["balpoe", "cross-entropy", "ride"])
def test_a_known_temperature_divides_the_logits_of_the_ensemble(tmp_path, method):
    changes = {"method": method, "epochs": 2, "width": (16,)}
    plain = train_run(updated(preset("digits-lt"), changes), tmp_path / "plain", progress=False)
    run = train_run(updated(preset("digits-lt"), {**changes, "temperature": 0.5}), tmp_path / "run", progress=False)
    ours, theirs = run.predictions(), plain.predictions()
    assert torch.equal(ours.expert_logits, theirs.expert_logits)
    torch.testing.assert_close(ours.logits.softmax(dim=1), (2 * theirs.logits).softmax(dim=1), atol=1e-4, rtol=1e-3)
    evaluation = run.evaluation()
    assert evaluation["accuracy"] == plain.evaluation()["accuracy"]
    assert evaluation["calibration"]["before"]["nll"] == pytest.approx(plain.evaluation()["nll"])
    (note,) = calibration_notes(run.folder, run.recipe(), evaluation)
    assert note == (
        "Logits divided by a temperature of 0.5: on the test samples the ECE was "
        f"{100 * plain.evaluation()['ece']:.1f} % before, and is {100 * evaluation['ece']:.1f} %."
    )
    model = balpoe.load(run.folder)
    assert not model.calibration.fitted
    assert not ours.calibration.fitted
    said = " ".join(reliability_section(read_subject(str(run.folder))).sentences)
    assert "Its logits are divided by a temperature of 0.500: as trained the ECE was" in said
    card = card_text("run", model)
    assert "Its logits are divided by a temperature of 0.5, which was known before." in card
    assert "outside of training" not in said + card


def test_benchmarks_are_calibrated_by_samples_that_their_subset_leaves_out(tmp_path, capsys):
    changes = {"calibrate": True, "epochs": 3, "width": (16,)}
    run = train_run(updated(preset("digits-lt"), changes), tmp_path / "run", progress=False)
    plain = train_run(updated(preset("digits-lt"), {**changes, "calibrate": False}), tmp_path / "plain", progress=False)
    assert torch.equal(run.predictions().expert_logits, plain.predictions().expert_logits)  # the training is the same
    assert run.evaluation()["calibration"]["before"]["nll"] == pytest.approx(plain.evaluation()["nll"])
    assert run.evaluation()["nll"] < plain.evaluation()["nll"]
    assert len(Choice.load(run.folder).held_out) > 500
    assert main(["evaluate", str(run.folder), "--prior", "estimate"]) == 0  # they are its own network's
    said = capsys.readouterr().out
    assert "Estimated prior" in said
    assert "explain" in said
    assert "not checked" not in said


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    given = recipe(features(tmp_path / "x.npz"))
    straight = train_run(given, tmp_path / "straight", progress=False)
    real, calls = calibrate.held_out_logits, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(calibrate, "held_out_logits", stop)
    with pytest.raises(KeyboardInterrupt):
        train_run(given, tmp_path / "run", progress=False)
    assert len(list((tmp_path / "run" / "cross-fit").iterdir())) == 3  # what was trained is kept
    again = train_run(given, tmp_path / "run", progress=False)
    for name in ("calibration.json", "model.safetensors", "evaluation.json"):
        assert (again.folder / name).read_bytes() == (straight.folder / name).read_bytes(), name


def test_epochs_grow_while_held_out_samples_gain(tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.experiments.build.LEAST_EPOCHS", 1)
    monkeypatch.setattr("balpoe.experiments.build.LEAST_STEPS", 1)
    monkeypatch.setattr(calibrate, "MOST_DOUBLINGS", 3)
    given = recipe(features(tmp_path / "x.npz"), epochs=0, mixup_alpha=0.0, lr=0.003)
    run = train_run(given, tmp_path / "run", progress=False)
    choice = Choice.load(run.folder)
    assert choice.epochs == 8  # one epoch is far too few: doubled as often as is allowed
    assert choice.rising
    assert len(run.losses()) == 8
    notes = calibration_notes(run.folder, run.recipe(), run.evaluation())
    assert any("ended; try --epochs 16" in note for note in notes)
    given = updated(run.recipe(), {"epochs": 8})
    said = " ".join(calibration_notes(run.folder, given, run.evaluation()))
    assert "leave out --epochs, so that enough are chosen, or try --epochs 16" in said
    assert ["epochs", "8"] in what_section(read_subject(str(run.folder))).exhibits[0].rows


def test_a_rival_that_still_learns_is_told_of(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("balpoe.experiments.build.LEAST_EPOCHS", 1)
    monkeypatch.setattr("balpoe.experiments.build.LEAST_STEPS", 1)
    monkeypatch.setattr("balpoe.experiments.calibrate.MOST_DOUBLINGS", 1)
    monkeypatch.chdir(tmp_path)
    given = ["--lr", "0.003", "--mixup-alpha", "0", "--width", "8", "--device", "cpu", "--threads", "1"]
    assert main(["train", str(features(tmp_path / "x.npz")), *given]) == 0
    rival = Choice.load(tmp_path / "runs" / "x-cross-entropy" / "seed-0")
    assert rival.rising
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"Cross-entropy was still learning where its training ended: be fair, try --epochs {2 * rival.epochs}" in said
    )


def test_whether_more_epochs_would_help_is_asked_only_if_wanted(tmp_path):
    quick = recipe(features(tmp_path / "x.npz"), choose_mixup=False, choose_lr=False, epochs=2)
    for look, epochs in ((True, [2, 1]), (False, [2])):
        run = train_run(quick, tmp_path / str(look), progress=False, look_longer=look)
        assert [each["epochs"] for each in Choice.load(run.folder).tried] == epochs


def test_few_samples_make_small_batches_and_choices_begin_with_half_the_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.experiments.build.LEAST_EPOCHS", 4)
    monkeypatch.setattr("balpoe.experiments.build.LEAST_STEPS", 8)
    given = recipe(features(tmp_path / "x.npz"), epochs=0)
    settings = assemble(given).settings
    assert (settings.batch_size, settings.epochs) == (30, 4)
    run = train_run(given, tmp_path / "run", progress=False)
    tried = Choice.load(run.folder).tried
    assert [each["epochs"] for each in tried[:2]] == [2, 2]
    assert tried[-1]["epochs"] >= 4


def outcomes(monkeypatch, nll, samples=400):
    """Let a search find the held-out NLL that a function of lr, alpha and epochs says, each sample near it."""
    noise = torch.linspace(-0.04, 0.04, samples, dtype=torch.float64)

    def trial(self, mixup_alpha, lr, epochs):
        self.tried.append((mixup_alpha, lr, epochs))
        return Choice(mixup_alpha, nll(lr, mixup_alpha, epochs) + epochs * noise, epochs=epochs, lr=lr)
        yield

    monkeypatch.setattr(calibrate._Search, "trial", trial)
    monkeypatch.setattr(calibrate, "_losses", lambda losses: losses)
    search = calibrate._Search(None, None, None, None)

    def finished(work):
        with pytest.raises(StopIteration) as end:
            next(work)
        return end.value.value, search.tried

    return search, finished


def test_a_search_stops_where_held_out_samples_no_longer_gain(monkeypatch):
    search, finished = outcomes(monkeypatch, lambda lr, alpha, epochs: abs(lr - 0.1) + 1)
    first = Choice(0.0, torch.full((400,), 2.0).double(), epochs=1, lr=0.01)
    best, tried = finished(search.climb(first, ({"lr": lr} for lr in (0.03, 0.1, 0.3, 1.0))))
    assert best.lr == 0.1
    assert [lr for _, lr, _ in tried] == [0.03, 0.1, 0.3]  # not the fourth


@pytest.mark.parametrize(("samples", "epochs"), [(30, 5), (4000, 10)])
def test_epochs_that_only_seem_to_help_are_not_paid_for(monkeypatch, samples, epochs):
    """Twice the epochs save 4 %, twice as many again 2 %, which is not worth it; few samples cannot tell."""
    saved = {10: 0.04, 20: 0.06}
    search, finished = outcomes(monkeypatch, lambda lr, alpha, epochs: 1.0 - saved[epochs], samples)
    first = Choice(0.0, torch.ones(samples).double(), epochs=5, lr=0.03)
    longest, _ = finished(calibrate._long_enough(search, first, may_grow=True))
    assert longest.epochs == epochs
    assert not longest.rising


def test_an_ensemble_below_its_middle_expert_is_noticed():
    torch.manual_seed(0)
    targets = torch.arange(300) % 3
    right = torch.nn.functional.one_hot(targets).double() * 4
    logits = torch.stack([6 * torch.randn(300, 3).double(), right, 6 * torch.randn(300, 3).double()], dim=1)
    counts = torch.tensor([100, 100, 100])
    assert below_middle_expert(Predictions(logits, targets, counts, torch.tensor([1.0, 0.0, -1.0])))
    same = right[:, None].expand(-1, 3, -1)
    assert not below_middle_expert(Predictions(same, targets, counts, torch.tensor([1.0, 0.0, -1.0])))
    assert not below_middle_expert(Predictions(right[:, None], targets, counts, torch.tensor([0.0])))


def test_a_garbled_calibration_is_one_sentence(run, tmp_path):
    (tmp_path / "calibration.json").write_text('{"temperatures": [1.0]}')
    with pytest.raises(UserError, match=r"garbled .*--fresh"):
        Choice.load(tmp_path)
    assert Run(run.folder).finished
