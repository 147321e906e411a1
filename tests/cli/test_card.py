"""balpoe card: a folder, the command that uploads it, and mistakes in a sentence each."""

import shutil

from balpoe.deployment.loaded_model import load
from commands import sentence


def test_a_run_becomes_a_folder(run, forest, tmp_path):
    code, out, err = run("card", forest / "runs" / "trees", "--license", "apache-2.0")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "trees-card: model.safetensors, recipe.toml, config.json, README.md",
        "  hf upload USER/trees trees-card",
    ]
    text = (tmp_path / "trees-card" / "README.md").read_text()
    assert 'license: "apache-2.0"' in text
    assert "samples of trees in 3 classes" in text
    assert "It is calibrated by samples outside of training, with temperatures" in text
    assert "It is not calibrated" not in text
    assert load(tmp_path / "trees-card").class_names == ("ash", "birch", "cedar")
    code, _, err = run("card", forest / "runs" / "trees")
    assert code == 2
    assert "README.md is there already" in sentence(err)


def test_a_file_by_itself(run, forest, tmp_path):
    file = tmp_path / "oak.safetensors"
    shutil.copy(forest / "runs" / "trees" / "seed-0" / "model.safetensors", file)
    code, out, _ = run("card", file, "--out", "there")
    assert code == 0
    assert "hf upload USER/oak there" in out
    assert "Not known" in (tmp_path / "there" / "README.md").read_text()


def test_mistakes(run, forest, tmp_path):
    shutil.copytree(forest / "runs" / "trees", tmp_path / "two")
    shutil.copytree(tmp_path / "two" / "seed-0", tmp_path / "two" / "seed-1")
    (tmp_path / "file").write_text("")
    for arguments, words in (
        (["nowhere"], "there is no model nowhere"),
        ([tmp_path / "two"], "holds 2 runs; give one of them"),
        ([forest / "runs" / "trees", "--out", "file"], "file"),
    ):
        code, _, err = run("card", *arguments)
        assert code == 2
        assert words in sentence(err)
