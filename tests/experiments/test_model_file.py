import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from balpoe import UserError, load, load_data
from balpoe.data.loading.image_files import decoded
from balpoe.experiments.build import build_network, recipe_data
from balpoe.experiments.model_file import save_model
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import evaluate_model, train_run
from images import picture_folder

RECIPE = updated(preset("digits-lt"), {"epochs": 3, "width": (16,), "data_root": "secret"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(RECIPE, tmp_path_factory.mktemp("runs") / "quick" / "seed-0", progress=False)


def test_a_run_is_loaded_whole(run):
    model = load(run.folder)
    _, test = load_data("digits-lt", imbalance_ratio=50)
    saved = run.predictions()
    torch.testing.assert_close(model.predictions(test).expert_logits, saved.expert_logits)
    torch.testing.assert_close(model.predict(test.images), saved.logits.softmax(dim=1))
    assert model.class_names == tuple(map(str, range(10)))
    assert model.class_counts.tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert model.recipe == updated(RECIPE, {"data_root": ""})
    torch.testing.assert_close(model.source_prior, torch.full((10,), 0.1))
    assert not model.network.training


def test_another_prior_at_the_place_of_use(run):
    model, (_, test) = load(run.folder), load_data("digits-lt", imbalance_ratio=50)
    target = torch.arange(1.0, 11) / 55
    moved = model.predict(test.images, target_prior=target)
    expected = model.predict(test.images) * target
    torch.testing.assert_close(moved, expected / expected.sum(dim=1, keepdim=True))


def test_half_precision_in_one_file(run, tmp_path):
    model, (_, test) = load(run.folder), load_data("digits-lt", imbalance_ratio=50)
    small = tmp_path / "small.safetensors"
    save_model(small, model, half=True)
    assert small.stat().st_size < 0.7 * (run.folder / "model.safetensors").stat().st_size
    again = load(small)
    assert all(tensor.dtype == torch.float32 for tensor in again.network.parameters())
    difference = (again.predict(test.images) - model.predict(test.images)).abs().max()
    assert 0 < float(difference) < 0.02
    assert b"secret" not in small.read_bytes()


def test_a_file_of_before_interpolations_were_told_apart(run, tmp_path):
    from safetensors.torch import load_file, save_file

    model, file = load(run.folder), tmp_path / "old.safetensors"
    with safe_open(run.folder / "model.safetensors", framework="pt") as opened:
        about = json.loads(opened.metadata()["balpoe"])
    assert about["preprocessing"].pop("interpolation") == "bilinear"
    save_file(load_file(run.folder / "model.safetensors"), file, {"balpoe": json.dumps(about)})
    assert load(file).preprocessing == model.preprocessing
    save_model(file, replace(model, preprocessing=replace(model.preprocessing, interpolation="bicubic")))
    assert load(file).preprocessing.interpolation == "bicubic"


def test_a_file_is_evaluated_with_its_own_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    trees = str(picture_folder(tmp_path / "trees", {"ash": 8, "birch": 8}))
    recipe = updated(
        preset("own"),
        {
            "data_root": trees,
            "network": "test_efficientnet",
            "weights": "",
            "image_size": 32,
            "epochs": 1,
            "workers": 0,
        },
    )
    model = load(train_run(recipe, tmp_path / "run", progress=False).folder)
    assert model.preprocessing.interpolation == "bicubic"
    old = replace(model, preprocessing=replace(model.preprocessing, interpolation="nearest"))
    save_model(tmp_path / "old.safetensors", old)
    _, test = recipe_data(recipe)
    images = torch.stack([decoded(path, old.preprocessing) for path in test.paths])
    found = evaluate_model(load(tmp_path / "old.safetensors"), tmp_path / "again", trees).predictions().expert_logits
    torch.testing.assert_close(found, old.expert_logits(images))
    assert not torch.allclose(found, model.predictions(test).expert_logits)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run of adapters on a backbone whose weights are in a file."""
    folder = tmp_path_factory.mktemp("adapted")
    torch.manual_seed(0)
    weights = folder / "backbone.safetensors"
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), weights)
    images = picture_folder(folder / "trees", {"ash": 8, "elm": 6})
    changes = {
        "data_root": str(images), "network": "test_vit", "weights": str(weights), "image_size": 32, "epochs": 2,
        "tune": "adapters", "adapter_split": 1, "calibrate": False, "workers": 0, "lr": 0.1, "device": "cpu",
    }  # fmt: skip
    return train_run(updated(preset("own"), changes), folder / "runs" / "trees" / "seed-0", progress=False)


def test_adapters_are_saved_without_their_backbone(adapted, tmp_path):
    whole, weights = tmp_path / "whole.safetensors", adapted.folder.parents[2] / "backbone.safetensors"
    model = load(adapted.folder)  # its recipe says where the weights are
    _, test = recipe_data(adapted.recipe())
    saved = adapted.predictions().expert_logits
    torch.testing.assert_close(model.predictions(test).expert_logits, saved)
    file = adapted.folder / "model.safetensors"
    with safe_open(file, "pt") as opened:
        assert set(opened.keys()) == {name for name, each in model.network.named_parameters() if each.requires_grad}
    save_model(str(whole), model, whole=True)
    assert whole.stat().st_size > 3 * file.stat().st_size
    torch.testing.assert_close(load(whole).predictions(test).expert_logits, saved)
    (tmp_path / "alone").mkdir()
    alone = Path(shutil.copy(file, tmp_path / "alone"))
    with pytest.raises(
        UserError,
        match=r"there is no backbone.safetensors beside it; put .* balpoe.load\(..., weights=FILE\)",
    ):
        load(alone)
    torch.testing.assert_close(load(alone, weights=weights).predictions(test).expert_logits, saved)
    shutil.copy(weights, alone.parent)
    torch.testing.assert_close(load(alone).predictions(test).expert_logits, saved)


@pytest.mark.parametrize("split", [0, 1])
def test_changes_of_low_rank_are_part_of_the_weights_of_a_whole_file(adapted, tmp_path, split):
    model, whole, again = load(adapted.folder), tmp_path / "whole.safetensors", tmp_path / "again.safetensors"
    recipe = updated(model.recipe, {"adapter": "lora", "adapter_split": split, "weights": ""})
    network = build_network(recipe, model.num_classes, model.preprocessing.size).eval()
    for name, weight in network.named_parameters():
        if name.endswith(".up"):
            weight.data.normal_(std=0.1)
    model, images = replace(model, network=network, recipe=recipe), torch.randint(256, (5, 3, 32, 32)).byte()
    expected = model.expert_logits(images)
    save_model(whole, model, whole=True)
    with safe_open(whole, "pt") as opened:
        assert not any(name.endswith((".up", ".down")) for name in opened.keys())  # noqa: SIM118 (not a dict)
    found = load(whole)
    torch.testing.assert_close(found.expert_logits(images), expected, rtol=1e-3, atol=1e-3)
    save_model(again, found)  # without adapters there is no backbone to leave out
    assert again.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("views", ["flips", "five-crops", "ten-crops"])
def test_views_of_images(adapted, views):
    model, (_, test) = load(adapted.folder), recipe_data(adapted.recipe())
    found = model.predictions(test, views=views)
    torch.testing.assert_close(found.logits.softmax(dim=1), model.predict([*test.paths], views=views))
    assert not torch.allclose(found.logits.softmax(dim=1), model.predict([*test.paths]), atol=1e-6)
    images = torch.stack([decoded(path, model.preprocessing) for path in test.paths])
    if views == "flips":  # of which no more than the middle is needed
        torch.testing.assert_close(model.predict(images, views=views), model.predict([*test.paths], views=views))
    assert model.predict(images, views=views).shape == (len(test), 2)


def test_adapters_of_another_backbone_are_refused(adapted, tmp_path):
    torch.manual_seed(1)
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "other.safetensors")
    sentence = r"model.safetensors was trained on a backbone of digest [0-9a-f]{12}, not [0-9a-f]{12}; put the weights"
    with pytest.raises(UserError, match=sentence):
        load(adapted.folder, weights=tmp_path / "other.safetensors")
    save_file(timm.create_model("test_vit2", num_classes=0).state_dict(), tmp_path / "more.safetensors")
    with pytest.raises(UserError, match=r"without their backbone: .*more.safetensors.*made for this network"):
        load(adapted.folder, weights=tmp_path / "more.safetensors")


def test_a_run_that_is_not_finished_has_no_model_yet(run, tmp_path, monkeypatch):
    """By the folder of its seeds, by its own and by its short name; what was set aside is not what is asked for."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "mine" / "seed-0"
    for place in (folder, folder.with_name("seed-0.before-1")):
        place.mkdir(parents=True)
        shutil.copy(run.folder / "recipe.toml", place)
    for path in (folder, folder.parent, "mine"):
        with pytest.raises(UserError, match=r"mine/seed-0 is a run that is not finished; continue it with the command"):
            load(path)
    shutil.copy(run.folder / "evaluation.json", folder)  # finished, and its model was deleted
    with pytest.raises(UserError, match="there is no model"):
        load(folder.parent)


def test_what_is_no_model(run, tmp_path):
    with pytest.raises(UserError, match="there is no model"):
        load(tmp_path)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((run.folder / "model.safetensors").read_bytes()[:500])
    with pytest.raises(UserError, match="is not a whole safetensors file"):
        load(broken)
    save_file({"weight": torch.zeros(2)}, broken)
    with pytest.raises(UserError, match="is not a model of balpoe"):
        load(broken)


@pytest.mark.data
@pytest.mark.slow
def test_the_published_model_gives_its_published_numbers(cifar_root):
    """On every 32nd test image, as many right answers as when all of them gave the published numbers."""
    root = Path(__file__).parents[2]
    file = root / "models" / "cifar100-lt-100.safetensors"
    assert file.stat().st_size < 3_000_000
    model = load(file)
    _, test = recipe_data(updated(model.recipe, {"data_root": str(cifar_root)}))
    predictions = model.predictions(test.subset(torch.arange(0, len(test), 32)))
    right = int((predictions.logits.argmax(dim=1) == predictions.targets).sum())
    assert right == pytest.approx(168, abs=1)  # processors round differently
    published = json.loads((root / "results" / "models" / "cifar100-lt-100.json").read_text())
    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    for name in ("accuracy", "many", "medium", "few", "ece"):
        assert re.search(rf"{name}\s{100 * published[name]:.1f}", text, flags=re.IGNORECASE), name
    assert right / len(predictions) == pytest.approx(published["accuracy"], abs=0.056)  # two standard errors
    assert predictions.parameters == published["parameters"] == 1_362_064


def test_a_file_is_evaluated_like_a_run(run, monkeypatch, capsys, tmp_path):
    from balpoe.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(run.folder)]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert main(["evaluate", str(run.folder / "model.safetensors")]) == 0
    again = capsys.readouterr().out.splitlines()
    assert "predicting its test set" in again[0]
    assert [line.partition(";")[0] for line in again[2:]] == [line.partition(";")[0] for line in whole[1:]]
    assert "evaluation.json" not in "".join(again)  # there is no folder that would hold it
    assert not list(tmp_path.iterdir())
