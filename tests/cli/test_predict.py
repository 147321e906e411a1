import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import balpoe
from balpoe.cli.main import main
from balpoe.data.loading.image_files import decoded
from images import picture, picture_folder

COUNTS = {"ash": 14, "birch": 7, "cedar": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of images and a run trained on it through the command line."""
    root = tmp_path_factory.mktemp("own")
    picture_folder(root / "trees", COUNTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BALPOE_CACHE", str(root / "cache"))
        flags = [
            "--network",
            "test_efficientnet",
            "--image-size",
            "32",
            "--epochs",
            "8",
            "--width",
            "16",
            "--workers",
            "0",
            "--device",
            "cpu",
            "--no-baseline",
            "--no-choose-mixup",
            "--weights",
        ]
        assert main(["train", str(root / "trees"), "--runs", str(root / "runs"), "--name", "trees", *flags, ""]) == 0
    return root


@pytest.fixture
def run(place):
    return str(place / "runs" / "trees" / "seed-0")


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_files_folders_patterns_and_tables_give_the_same_rows(place, run, capsys, tmp_path):
    folder = place / "trees" / "ash"
    files = sorted(map(str, folder.iterdir()))
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(files) + "\n")
    answers = []
    for inputs in (files, [str(folder)], [str(folder / "*.png")], [str(tmp_path / "list.csv")]):
        assert main(["predict", run, *inputs]) == 0
        answers.append(rows(capsys.readouterr().out))
    assert [row["file"] for row in answers[0]] == files
    assert all(answer == answers[0] for answer in answers[1:])


def test_python_says_the_same(place, run, capsys):
    files = sorted(map(str, (place / "trees").rglob("*.png")))
    assert main(["predict", run, *files, "--top", "3", "--prior", "train"]) == 0
    answers = rows(capsys.readouterr().out)
    model = balpoe.load(run)
    probabilities, labels = model.predict(files, target_prior="train").sort(dim=1, descending=True)
    for row, shares, order in zip(answers, probabilities.tolist(), labels.tolist(), strict=True):
        assert [row["label"], row["label 2"], row["label 3"]] == [model.class_names[label] for label in order]
        printed = [float(row[name]) for name in ("probability", "probability 2", "probability 3")]
        assert printed == pytest.approx(shares, abs=1e-5)
        assert sum(printed) == pytest.approx(1, abs=1e-4)


def test_what_the_run_measured_is_what_the_model_says(place, run):
    """The head was trained on cached features; the whole network on the images themselves gives the same."""
    from balpoe.experiments.build import recipe_data
    from balpoe.experiments.run_folder import Run

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BALPOE_CACHE", str(place / "cache"))
        _, test = recipe_data(Run(run).recipe())
    saved = Run(run).predictions()
    model = balpoe.load(run)
    torch.testing.assert_close(model.expert_logits(test.paths), saved.expert_logits, atol=1e-4, rtol=1e-4)
    assert saved.parameters == sum(parameter.numel() for parameter in model.network.parameters())
    assert saved.class_names == ("ash", "birch", "cedar")


def test_the_deployment_prior_moves_the_answers(place, run, tmp_path):
    files = sorted(map(str, (place / "trees").rglob("*.png")))
    model = balpoe.load(run)
    only = model.predict(files, target_prior={"ash": 0, "birch": 1, "cedar": 0})
    assert torch.equal(only.argmax(dim=1), torch.ones(len(files), dtype=torch.long))
    (tmp_path / "place.json").write_text(json.dumps({"ash": 0, "birch": 1, "cedar": 0}))
    assert (
        main(["predict", run, *files, "--prior", str(tmp_path / "place.json"), "--out", str(tmp_path / "x.csv")]) == 0
    )
    assert {row["label"] for row in rows((tmp_path / "x.csv").read_text())} == {"birch"}


def test_each_image_gets_the_prior_of_its_place_and_season(place, run, capsys, tmp_path):
    files = sorted(map(str, (place / "trees").rglob("*.png")))[:6]
    places = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "9"), ("c", "1"), ("a", "1")]
    lines = [f"{file};{site};{month}" for file, (site, month) in zip(files, places, strict=True)]
    (tmp_path / "images.csv").write_text("\n".join(["path;site;Month", *lines]) + "\n")
    table = "site,month,ash,birch,cedar\na,1,9,1,0\na,2,1,never,7\nb,1,0,30,1\n"
    (tmp_path / "table.csv").write_text(table)
    flags = ["--prior-table", str(tmp_path / "table.csv"), "--keys", "site,month", "--prior-strength", "3"]
    assert main(["predict", run, str(tmp_path / "images.csv"), "--top", "3", *flags]) == 0
    out, err = capsys.readouterr()
    assert "note: 2 of 6 samples have keys that the table lacks (b/9, c/1)" in err
    model = balpoe.load(run)
    priors = balpoe.PriorTable.read(tmp_path / "table.csv", model.class_names, ["site", "month"], strength=3)
    for row, file, rank in zip(rows(out), files, priors.match(places).rows.tolist(), strict=True):
        shares = model.predict(file, target_prior=priors.priors[rank])[0]
        best = shares.argmax()
        assert row["label"] == model.class_names[best]
        assert float(row["probability"]) == pytest.approx(float(shares[best]), abs=1e-5)
    assert float(rows(out)[1]["probability 3"]) == 0  # birch, which is never there
    assert rows(out)[1]["label 3"] == "birch"


def test_mistakes_with_a_table_of_priors(place, run, capsys, tmp_path):
    file = str(next((place / "trees" / "ash").iterdir()))
    (tmp_path / "images.csv").write_text(f"path,site\n{file},a\n")
    (tmp_path / "table.csv").write_text("site,month,ash,birch,cedar\na,1,1,1,1\n")
    images, table = str(tmp_path / "images.csv"), ["--prior-table", str(tmp_path / "table.csv")]
    for arguments, sentence in (
        ([images, *table], "give --keys, such as --keys site,month"),
        ([images, "--prior-strength", "3"], "--prior-strength says how a table of priors is read; give --prior-table"),
        ([images, "--prior-kind", "counts"], "--prior-kind says how a table of priors is read; give --prior-table"),
        ([images, "--keys", "site"], "--keys are the keys of a table of priors; give --prior-table"),
        ([images, *table, "--keys", "site,month", "--prior", "train"], "--prior is one prior for all"),
        (
            [images, *table, "--keys", "site,month"],
            "images.csv, line 1: there is no column 'month', only 'path'",
        ),
        ([images, *table, "--keys", "place"], "table.csv, line 1: there is no column 'place'"),
        ([images, *table, "--keys", "site"], "table.csv, line 1, beside the keys: unknown class 'month'"),
        ([images, *table, "--keys", "site,month", "--out", table[1]], "is read, and would be lost"),
        ([file, *table, "--keys", "site,month"], "is no table, so that nothing says site, month of an image"),
    ):
        assert main(["predict", run, *arguments]) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert err.count("\n") == 1


def test_an_unreadable_file_gets_a_row_with_its_error(place, run, capsys, tmp_path):
    picture(0, 5).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no picture")
    assert main(["predict", run, str(tmp_path / "bad.png"), str(tmp_path / "good.png"), "gone.png"]) == 2
    assert "there is nothing at gone.png" in capsys.readouterr().err
    assert main(["predict", run, str(tmp_path), "--format", "jsonl", "--experts"]) == 1
    out, err = capsys.readouterr()
    bad, good = map(json.loads, out.splitlines())
    assert "bad.png" in bad["error"]
    assert "label" not in bad
    assert set(good) == {"file", "label", "probability", "experts"}
    assert len(good["experts"]) == 3
    assert "1 of 2 images could not be read" in err
    assert main(["predict", run, str(tmp_path), "--experts"]) == 1
    bad, good = rows(capsys.readouterr().out)
    assert bad["label"] == ""
    assert good["error"] == ""
    assert good["expert 3"] in COUNTS


def test_a_link_that_leads_nowhere_gets_a_row_with_its_error(place, run, capsys, tmp_path):
    picture(0, 5).save(tmp_path / "good.png")
    (tmp_path / "gone.png").symlink_to("nowhere")
    (tmp_path / "loop.png").symlink_to("loop.png")
    for inputs in (sorted(tmp_path.iterdir()), [tmp_path / "*.png"], [tmp_path]):
        assert main(["predict", run, *map(str, inputs)]) == 1
        good, gone, loop = sorted(rows(capsys.readouterr().out), key=lambda row: row["error"])
        assert good["label"] in COUNTS
        assert gone["error"] == f"cannot read {tmp_path / 'gone.png'}: no such file or directory; check the path"
        assert loop["error"].startswith(f"cannot read {tmp_path / 'loop.png'}: too many levels of")


def test_images_that_pillow_has_opened(run):
    model = balpoe.load(run)
    assert model.predict([picture(0, 1), picture(1, 1, size=50)]).shape == (2, 3)
    for wrong in ([], 3, [3], torch.zeros(3, 50, 50, dtype=torch.uint8), np.zeros(7)):
        with pytest.raises(balpoe.UserError, match=r"predict wants|damaged|pixels of type float64"):
            model.predict(wrong)
    with pytest.raises(balpoe.UserError, match=r"cannot read one\.png: no such file"):
        model.predict("one.png")


def test_one_image_in_whatever_form_is_the_first_of_a_list(place, run):
    model = balpoe.load(run)
    path = sorted((place / "trees").rglob("*.png"))[0]
    with Image.open(path) as image:
        pixels = np.asarray(image)
        forms = [str(path), path, path.read_bytes(), image, pixels, pixels[None], [pixels]]
        expected = model.predict([path])
        assert expected.shape == (1, 3)
        for form in forms:
            assert torch.equal(model.predict(form), expected), type(form)
    raw = decoded(path, model.preprocessing)
    for form in (raw, raw[None], raw.numpy(), raw[None].numpy()):
        assert torch.equal(model.predict(form), expected)
    grey = pixels[..., 0]
    assert torch.equal(model.predict(grey), model.predict(np.stack([grey] * 3, axis=2)))


def test_mistakes_are_told_in_a_sentence(run, place, capsys, tmp_path):
    file = str(next((place / "trees" / "ash").iterdir()))
    (tmp_path / "empty.csv").write_text("name\nx\n")
    for arguments, sentence in (
        ([run, file, "--top", "9"], "--top must be 1 to 3"),
        ([run, file, "--prior", "nowhere"], "prior 'nowhere'"),
        ([str(tmp_path), file], "there is no model"),
        ([run, str(tmp_path / "empty.csv")], "line 1: there is no column of paths"),
    ):
        assert main(["predict", *arguments]) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert err.count("\n") == 1


def test_nothing_is_half_written(run, place, tmp_path, monkeypatch):
    import balpoe.cli.predict_rows as predicting

    file = str(next((place / "trees" / "ash").iterdir()))
    monkeypatch.setattr(predicting._Answers, "__call__", lambda *_: (_ for _ in ()).throw(MemoryError))
    (tmp_path / "out.csv").write_text("before")
    with pytest.raises(MemoryError):
        main(["predict", run, file, "--out", str(tmp_path / "out.csv")])
    assert (tmp_path / "out.csv").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_any_number_of_files_takes_no_more_memory(run, place):
    """Rows come as they are made: of a stream without end the first ones are there at once."""
    import itertools

    from balpoe.cli.predict_priors import Adjustment
    from balpoe.cli.predict_rows import _Answers, _look, _rows

    file = str(next((place / "trees" / "ash").iterdir()))
    model = balpoe.load(run)
    answers = _Answers(model, _look(model, ""), Adjustment(), 1, False)
    endless = _rows(answers, None, itertools.repeat((file, ())))
    assert len(list(itertools.islice(endless, 70))) == 70
    endless.close()


def test_a_pattern_gives_each_image_once(place, run, capsys):
    assert main(["predict", run, str(place / "trees" / "**")]) == 0
    assert len(rows(capsys.readouterr().out)) == sum(COUNTS.values())


def test_nothing_that_is_read_is_overwritten(place, run, capsys, tmp_path):
    import os

    file = next((place / "trees" / "ash").iterdir())
    before = file.read_bytes()
    (tmp_path / "list.csv").write_text(f"path\n{file}\n")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for arguments, sentence in (
        ([str(file), "--out", str(file)], "would be lost"),
        ([str(tmp_path / "list.csv"), "--out", str(tmp_path / "list.csv")], "would be lost"),
        ([str(tmp_path / "empty")], "there are no images in"),
        ([str(file), "--device", "mps"], "torch sees none here"),
    ):
        assert main(["predict", run, *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["predict", run, str(tmp_path / "pipe.png")]) == 1
    assert "is no file" in capsys.readouterr().out


def test_no_other_file_that_is_read_is_overwritten_either(place, run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(next((place / "trees" / "ash").iterdir()))
    (tmp_path / "prior.json").write_text('{"ash": 1, "birch": 1, "cedar": 1}')
    (tmp_path / "model.safetensors").write_bytes((place / "runs/trees/seed-0/model.safetensors").read_bytes())
    (tmp_path / "list.csv").write_text(f"path\n{file}\n")
    (tmp_path / "link.csv").symlink_to("list.csv")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        [run, file, "--prior", "prior.json", "--out", "prior.json"],
        ["model.safetensors", file, "--out", "model.safetensors"],
        [run, "l*t.csv", "--out", "list.csv"],
        [run, "list.csv", "--out", "link.csv"],
    ):
        assert main(["predict", *arguments]) == 2
        assert "is an image or is read, and would be lost; give" in capsys.readouterr().err
    for name in ("history.jsonl", "history.csv", "stage-2/timing.jsonl"):
        assert main(["predict", run, file, "--out", str(place / "runs/trees/seed-0" / name)]) == 2
        assert "is a file that a run keeps; give another .csv" in capsys.readouterr().err
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    assert main(["predict", run, file, "--out", "loop.csv"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (tmp_path / "loop.csv").unlink()
    monkeypatch.setattr("balpoe.cli.predict_rows.load", lambda path, weights: balpoe.load(path))
    assert main(["predict", run, file, "--weights", "prior.json", "--out", "prior.json"]) == 2
    assert "is an image or is read, and would be lost; give" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main(["predict", run, "l*t.csv", "--out", "new.csv"]) == 0


def test_the_only_seed_of_a_run_is_taken(place, run, capsys, monkeypatch, tmp_path):
    import shutil

    file = str(next((place / "trees" / "ash").iterdir()))
    monkeypatch.chdir(place)
    answers = []
    for name in (run, "runs/trees", "trees", "latest"):
        assert main(["predict", name, file]) == 0
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1
    shutil.copytree(place / "runs", tmp_path / "runs")
    shutil.copytree(run, tmp_path / "runs" / "trees" / "seed-0.before-1")
    assert main(["predict", str(tmp_path / "runs" / "trees"), file]) == 0
    shutil.copytree(run, tmp_path / "runs" / "trees" / "seed-1")
    assert main(["predict", str(tmp_path / "runs" / "trees"), file]) == 2
    assert "holds 2 runs; give one of them" in capsys.readouterr().err
