import json
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from balpoe import Predictions, PriorTable, evaluate, load_predictions
from balpoe.deployment.site_gains import site_gains
from balpoe.experiments.run_paths import is_file_of_run
from commands import QUICK, sentence
from images import picture_folder


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


def test_the_gain_of_each_place(run, tmp_path):
    predictions = saved(tmp_path / "theirs")
    names = predictions.class_names
    sites = ["a" if target == 0 else "b" for target in predictions.targets.tolist()]
    sites[:3] = ["c", "c", "c"]
    (tmp_path / "keys.csv").write_text("\n".join(["site", *sites]) + "\n")
    (tmp_path / "table.csv").write_text('site,cat,"dog, small",🦊\na,90,5,1\nb,0,40,40\n', encoding="utf-8")
    flags = ["--prior-table", "table.csv", "--keys", "site", "--key-table", "keys.csv"]
    code, out, err = run("evaluate", "theirs", *flags, "--out", "gains.json")
    assert (code, err) == (0, "")
    table = PriorTable.read("table.csv", names, ["site"])
    expected = json.loads(json.dumps(site_gains(predictions, table, sites).to_dict()))
    written = json.loads(Path("gains.json").read_text())
    assert {name: written[name] for name in expected} == expected
    assert (written["keys"], written["kind"]) == (["site"], "counts")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert list(rows) == ["b", "a", "(unknown)", "all"]
    value, low, high = expected["all"]["gains"]["accuracy"]["as trained"]
    assert f" {100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) " in rows["all"]
    assert "Note: 3 of 300 samples have keys that the table lacks (c) and get the prior" in out


def test_the_keys_of_a_run_are_in_the_table_that_it_was_trained_on(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    picture_folder(tmp_path / "trees", {"ash": 12, "birch": 9, "cedar": 6})
    files = sorted((tmp_path / "trees").rglob("*.png"))
    rows = [
        f"trees/{file.parent.name}/{file.name},{file.parent.name},site {number % 2}"
        for number, file in enumerate(files)
    ]
    (tmp_path / "images.csv").write_text("\n".join(["path,label,site", *rows]) + "\n")
    flags = ["--network", "test_efficientnet", "--image-size", "32", "--epochs", "2", "--width", "16", "--workers", "0"]
    more = ["--device", "cpu", "--no-baseline", "--no-choose-mixup", "--weights", ""]
    assert run("train", "images.csv", "--name", "trees", *flags, *more)[0] == 0
    (tmp_path / "table.csv").write_text("site,ash,birch,cedar\nsite 0,30,2,1\nsite 1,1,20,9\n")
    table = ["--prior-table", "table.csv", "--keys", "site"]
    code, _, err = run("evaluate", "trees", *table, "--out", "gains.json")
    assert code == 0, err
    found = json.loads(Path("gains.json").read_text())
    keys = dict(row.rsplit(",", 2)[::2] for row in rows)
    from balpoe.experiments.build import recipe_data
    from balpoe.experiments.run_folder import Run

    paths = recipe_data(Run(tmp_path / "runs" / "trees" / "seed-0").recipe())[1].paths
    counts = Counter(keys[str(Path(path).relative_to(tmp_path))] for path in map(Path.absolute, map(Path, paths)))
    assert {site["name"]: site["samples"] for site in found["sites"]} == counts
    code, _, err = run("evaluate", "trees", "--prior-table", "table.csv", "--keys", "place")
    assert "there is no column 'place'" in sentence(err)


def test_mistakes_about_places(run, tmp_path):
    saved(tmp_path / "theirs")
    (tmp_path / "table.csv").write_text('site,cat,"dog, small",🦊\na,90,5,1\n', encoding="utf-8")
    (tmp_path / "keys.csv").write_text("site\na\n")
    table = ["--prior-table", "table.csv", "--keys", "site"]
    for flags, text in (
        (table, "nothing says site of the test samples; give --key-table FILE"),
        ([*table, "--key-table", "keys.csv"], "keys.csv has 1 rows, but there are 300 test samples"),
        ([*table, "--key-table", "keys.csv", "--out", "x.csv"], "--out x.csv is not a .json file"),
        (["--key-table", "keys.csv"], "--key-table is of --prior-table; give that, too"),
        ([*table, "--baseline", "theirs"], "--prior-table compares with the same run as trained"),
        ([*table, "--prior", "train"], "--prior is one prior for all"),
        (table[:2], "--prior-table needs the names of its key columns"),
        ([*table, "--shot-groups", "5,50"], "not of shot groups; leave out --shot-groups"),
        ([*table, "--data-root", "x"], "--data-root is read for a model's file, a run's --prior-table and --views"),
        ([*table, "--prior-template", "t.csv"], "leave out --prior-template"),
        ([*table, "--weights", "absent.safetensors"], "--weights is read for a model's file and for"),
    ):
        code, _, err = run("evaluate", "theirs", *flags)
        assert code == 2
        assert text in sentence(err)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--weights", "absent.safetensors"], "--weights is read for a model's file and for --views"),
        (["--weights", "absent.safetensors", "--metric", "macro_f1"], "--weights is read for a model's file"),
        (["--prior-template", "t.csv", "--prior", "uniform"], "and measures nothing; leave out --prior"),
        (["--prior-template", "t.csv", "--baseline", "x"], "and measures nothing; leave out --baseline"),
        (["--prior-template", "t.csv", "--shot-groups", "5,50"], "and measures nothing; leave out --shot-groups"),
        (["--prior-template", "t.csv", "--metric", "accuracy"], "--prior-template measures something else"),
        (["--baseline", "x", "--sets", "0.1"], "--baseline measures something else than decisions"),
    ],
)
def test_flags_that_would_not_be_read_are_refused(run, tmp_path, flags, text):
    saved(tmp_path / "theirs")
    code, _, err = run("evaluate", "theirs", *flags)
    assert code == 2
    assert text in sentence(err)
    assert not Path("t.csv").exists()


def test_weights_are_for_what_predicts_anew(run):
    """A model's file does, whatever is said of its weights; a run has predicted."""
    run(*QUICK, "--name", "mine")
    code, _, err = run("evaluate", "mine", "--weights", "absent.safetensors")
    assert code == 2
    assert "--weights is read for a model's file" in sentence(err)
    file = "runs/mine/seed-0/model.safetensors"
    for flags in ([], ["--prior-template", "t.csv"]):
        assert run("evaluate", file, "--weights", "absent.safetensors", *flags)[0] == 0
    code, _, err = run("evaluate", "mine", "--data-root", "elsewhere")
    assert code == 2
    assert "--data-root is read for a model's file, a run's --prior-table and --views alone; leave it out" in sentence(
        err
    )


def test_a_run_is_not_overwritten(run, tmp_path):
    run(*QUICK, "--name", "mine")
    folder = tmp_path / "runs/mine/seed-0"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert all(map(is_file_of_run, before))
    for name in ("evaluation.json", "calibration.json", "predictions/predictions.json"):  # the second is not there yet
        code, _, err = run("evaluate", "mine", "--metric", "accuracy", "--out", str(folder / name))
        assert (code, sentence(err)) == (
            2,
            f"balpoe: --out {folder / name} is a file that a run keeps; give another name",
        )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert run("evaluate", "mine", "--metric", "accuracy", "--out", str(folder / "new.json"))[0] == 0
