import re
import shlex
from pathlib import Path

import numpy as np
import torch

from balpoe import Predictions, evaluate, load_predictions
from commands import QUICK, sentence


def test_run_files_that_were_garbled(run, tmp_path):
    folder = tmp_path / "runs" / "mine" / "seed-0"
    run(*QUICK, "--name", "mine")
    evaluation, targets = folder / "evaluation.json", folder / "predictions" / "targets.npy"
    whole = evaluation.read_bytes(), targets.read_bytes()
    for content, text in ((b"{}", "is not an evaluation of this run"), (b"[" * 9999, "is not valid JSON")):
        evaluation.write_bytes(content)
        code, _, err = run("evaluate", folder)
        assert code == 2
        assert text in sentence(err)
    evaluation.write_bytes(whole[0])
    for content in (b"", b"PK\x03\x04", whole[1][:-3]):
        targets.write_bytes(content)
        code, _, err = run("evaluate", folder, "--shot-groups", "5,50")
        assert code == 2
        assert "is not a whole array of numbers; predict again" in sentence(err)


def test_seeds_of_different_experts_are_not_averaged(run):
    run(*QUICK, "--name", "mine", "--seed", "1")
    code, _, err = run(*QUICK, "--name", "mine", "--seed", "2", "--lambdas", "0")
    assert "holds a run of another recipe" in sentence(err)
    run(*QUICK, "--name", "other", "--seed", "2", "--lambdas", "0")
    Path("runs/other/seed-2").rename("runs/mine/seed-2")
    code, _, err = run("evaluate", "runs/mine")
    assert code == 2
    assert "have different lambdas; evaluate them one by one" in sentence(err)


def saved(folder, samples=300, shift=0.0):
    """Predictions of three classes whose logits know something, in a folder."""
    generator = torch.Generator().manual_seed(samples)
    targets = torch.arange(samples) % 3
    logits = torch.randn(samples, 3, 3, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 3)[:, None]
    names = ("cat", "dog, small", "🦊")
    predictions = Predictions(logits + shift, targets, torch.tensor([80, 15, 5]), torch.tensor([1.0, 0.0, -1.0]), names)
    predictions.save(folder)
    return predictions


def test_evaluate_under_a_deployment_prior(run, tmp_path):
    predictions = saved(tmp_path / "theirs")
    code, out, _ = run("evaluate", "theirs")
    assert code == 0
    assert "expert, lambda -1" in out
    (tmp_path / "deployment.csv").write_text('cat,1\n"dog, small",1\n🦊,8\n', encoding="utf-8")
    code, out, _ = run("evaluate", "theirs", "--prior", "deployment.csv")
    assert code == 0
    adjusted = evaluate(predictions, [0.1, 0.1, 0.8], num_resamples=0)
    as_trained = evaluate(predictions, [0.1, 0.1, 0.8], adjust=False, num_resamples=0)
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    for row, evaluation in zip(rows.values(), (as_trained, adjusted), strict=True):
        assert f" {100 * evaluation.accuracy:.1f} " in row
        assert f" {evaluation.nll:.3f} " in row
    assert f"300 samples are worth {adjusted.effective_samples:,.0f}." in out
    saved(tmp_path / "known", samples=120)
    code, out, _ = run("evaluate", "theirs", "--prior", "estimate", "--validation", "known")
    assert code == 0
    assert re.search(r"lambda -?\d\.\d\d \(95 % interval -?\d\.\d\d to -?\d\.\d\d\), p = \d\.\d\d\d: ", out)
    assert "A shift of the labels alone can explain" in out


def test_evaluate_several_seeds_and_an_archive_under_a_deployment_prior(run, tmp_path):
    code, _, _ = run(*QUICK, "--seeds", "0,1", "--name", "two")
    assert code == 0
    code, out, _ = run("evaluate", "runs/two", "--prior", "backward-10")
    assert code == 0
    assert re.search(r"│ adjusted +│ +\d+\.\d ± \d+\.\d │", out)
    assert "weighted to the prior backward-10" in out
    code, _, err = run("evaluate", "runs/two", "--prior", "estimate", "--validation", "runs/two/seed-0")
    assert code == 2
    assert "each with validation predictions of its own" in sentence(err)
    code, _, err = run("evaluate", "runs/two/seed-0", "--prior", "estimate", "--validation", "runs/two/seed-0")
    assert code == 2
    assert "validation are the predictions themselves" in sentence(err)
    predictions = load_predictions("runs/two/seed-0")
    np.savez("x.npz", logits=predictions.logits, targets=predictions.targets, class_counts=predictions.class_counts)
    code, out, _ = run("evaluate", "x.npz", "--prior", "train", "--shot-groups", "5,50")
    assert code == 0
    code, _, err = run("evaluate", "x.npz", "--prior", "uniforme")
    assert code == 2
    assert "unknown prior 'uniforme'; did you mean 'uniform'?" in sentence(err)
    code, _, err = run("evaluate", "x.npz", "--baseline", "runs/two/seed-1")
    assert code == 0


def test_a_template_for_priors(run):
    run(*QUICK, "--name", "mine")
    code, out, _ = run("evaluate", "mine", "--prior-template", "deployment.csv")
    assert code == 0
    assert "deployment.csv: 10 classes with their training shares; edit them, then" in out
    lines = Path("deployment.csv").read_text().splitlines()
    assert lines[0] == "class,weight"
    assert lines[1].startswith("0,0.36")  # 124 of 342
    Path("deployment.csv").write_text("\n".join([*lines[:-1], "9,1"]))
    command = shlex.split(out.splitlines()[-1])[1:]
    assert command == ["evaluate", "runs/mine", "--prior", "deployment.csv"]
    code, out, _ = run(*command)
    assert code == 0
    assert "weighted to the prior deployment.csv" in out
    for path in ("runs/mine/seed-0/model.safetensors", "runs/mine/seed-0/predictions"):
        assert run("evaluate", path, "--prior-template", f"{Path(path).name}.json")[0] == 0
    assert Path("predictions.json").read_text() == Path("model.safetensors.json").read_text()
    for wrong, expected in (("deployment.csv", "is there already"), ("prior.txt", "is neither a .csv nor a .json")):
        code, _, err = run("evaluate", "mine", "--prior-template", wrong)
        assert code == 2
        assert expected in sentence(err)
