"""What a bare `balpoe train FOLDER` chooses and says, on a machine with a GPU and on one without."""

import re

import pytest
import timm
from safetensors.torch import save_file

from balpoe.cli import train_choice, train_seeds
from balpoe.cli.main import main
from balpoe.experiments import automatic
from balpoe.experiments.run_folder import Run
from balpoe.networks.weight_files import full_name
from images import picture_folder

FLAGS = [
    *("--image-size", "32", "--width", "16", "--epochs", "1", "--workers", "0", "--device", "auto"),
    *("--no-calibrate", "--no-baseline"),
]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with some weights and, if it has a name, a GPU; and no way to a hub."""
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for name, value in {"TRANSFORMERS": ("test_vit",), "CONVNEXTS": ("test_convnext",), "FEW": 10}.items():
        monkeypatch.setattr(automatic, name, value)
    monkeypatch.setattr(automatic, "_heads", lambda: automatic.AutomaticChoice("own", "test_efficientnet"))

    def make(gpu, *names):
        monkeypatch.setattr(train_choice, "_gpu", lambda device: gpu)
        folder = tmp_path / "cache" / "weights"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            save_file(timm.create_model(name).state_dict(), folder / f"{full_name(name)}.safetensors")

    return make


@pytest.fixture
def train(tmp_path, capsys):
    root = picture_folder(tmp_path / "photos", {"ash": 20, "elm": 15})

    def command(*flags, code=0):
        assert main(["train", str(root), "--runs", str(tmp_path / "runs"), *FLAGS, *flags]) == code
        out, err = capsys.readouterr()
        return " ".join((out if code == 0 else err).split())

    return command


def recipe_of(tmp_path, name="photos"):
    return Run(tmp_path / "runs" / name / "seed-0").recipe()


def test_without_a_gpu_heads(tmp_path, machine, train):
    machine("", "test_efficientnet", "test_vit")
    text = train()
    assert "Chosen: heads for the experts, on features of test_efficientnet that are computed once, because no" in text
    cost = r"That takes about \d+ \w+: 35 images at 32 pixels, one training, by the t"
    assert re.search(cost, text)
    assert "--tune head, adapters or full, --network NAME and --weights FILE choose otherwise." in text
    recipe = recipe_of(tmp_path)
    assert (recipe.tune, recipe.network, recipe.weights) == ("head", "test_efficientnet", "pretrained")


def test_with_a_gpu_adapters_and_so_on_any_other_machine(tmp_path, machine, train):
    machine("H200", "test_efficientnet", "test_vit", "test_convnext")
    text = train()
    assert "Chosen: adapters in every block of test_vit, and heads for the experts, because there is a GPU (H" in text
    recipe = recipe_of(tmp_path)
    assert (recipe.tune, recipe.network, recipe.cosine_scale) == ("adapters", "test_vit", 25.0)
    run = tmp_path / "runs" / "photos" / "seed-0"
    (run / "evaluation.json").unlink()  # as if it had been killed
    machine("")
    text = train()
    assert f"adapters in every block of test_vit, and heads for the experts, because {run} was begun so" in text
    assert f"{run} continues where it stopped" in text
    assert Run(run).finished
    assert "is finished already" in train()
    text = train("--epochs", "2")  # another experiment, for which this machine decides
    assert "because no GPU is used" in text
    assert recipe_of(tmp_path, "photos-2").tune == "head"
    assert "because no GPU is used" in train("--fresh", "--name", "photos")
    assert recipe_of(tmp_path).tune == "head"


def test_a_convnext_where_no_transformer_is_here(tmp_path, machine, train):
    machine("H200", "test_efficientnet", "test_convnext")
    assert "Chosen: adapters in every block of test_convnext" in train()
    assert recipe_of(tmp_path).network == "test_convnext"


def test_heads_where_no_weights_for_adapters_are_here(machine, train):
    machine("H200", "test_efficientnet")
    text = train()
    assert "Chosen: heads for the experts, on features of test_efficientnet" in text
    assert "but here are no weights of a network for adapters; balpoe weights get test_vit fetches some" in text


def test_without_any_weights_one_sentence(tmp_path, machine, train):
    machine("H200")
    text = train(code=2)
    assert "the pretrained weights of test_efficientnet cannot be fetched: the hub cannot be reached; type" in text
    assert "or give a file of them (--weights FILE)" in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "tune", "network"),
    [
        (["--tune", "head", "--network", "test_convnext"], "head", "test_convnext"),
        (["--network", "test_resnet"], "head", "test_resnet"),
        (["--frozen", "--network", "test_resnet"], "head", "test_resnet"),
        (["--tune", "full", "--network", "test_vit"], "full", "test_vit"),
        (["--adapter-size", "2", "--network", "test_vit"], "adapters", "test_vit"),
    ],
)
def test_flags_win(train, monkeypatch, flags, tune, network):
    asked = []
    monkeypatch.setattr(train_seeds, "train", lambda recipe, seeds, **options: asked.append((recipe, options)))
    train(*flags, "--weights", "")
    ((recipe, options),) = asked
    assert (recipe.tune, recipe.network, recipe.weights) == (tune, network, "")
    assert options["automatic"] is None


def test_what_leaves_the_choice_and_what_does_not(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(train_seeds, "train", lambda recipe, seeds, **options: asked.append(options["automatic"]))
    root = picture_folder(tmp_path / "photos", {"ash": 2, "elm": 2})
    (tmp_path / "features.npz").touch()
    for words in (["own", "--data-root", root], [tmp_path / "features.npz"], ["digits-lt"], [root, "--lr", "0.1"]):
        assert main(["train", *map(str, words)]) == 0
    assert [automatic is None for automatic in asked] == [True, True, True, False]


def test_flags_of_adapters_without_adapters(tmp_path, capsys):
    """They would change nothing, and nobody would hear of it."""
    for words in ([picture_folder(tmp_path / "photos", {"ash": 2, "elm": 2}), "--tune", "head"], ["digits-lt"]):
        tune = "head" if len(words) > 1 else "full"
        assert main(["train", *map(str, words), "--adapter-size", "2"]) == 2
        said = f"balpoe: --adapter-size is for adapters, but tune is {tune}; add --tune adapters, or leave it out\n"
        assert capsys.readouterr().err == said
