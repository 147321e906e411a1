"""The Hub's own functions, without a network: folders that are here, and a Hub that takes note of what it is sent."""

import os

import huggingface_hub.hub_mixin
import pytest
import torch
from huggingface_hub import ModelCard

import balpoe
from balpoe.cli.main import main
from balpoe.deployment import hub
from balpoe.deployment.hub import HubModel
from commands import QUICK

FILES = ["README.md", "config.json", "model.safetensors", "recipe.toml"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    assert main([*QUICK, "--runs", str(root), "--name", "digits"]) == 0
    return root / "digits" / "seed-0"


@pytest.fixture
def samples(run):
    return torch.randint(0, 256, (5, *balpoe.load(run).preprocessing.size), dtype=torch.uint8)


def test_a_folder_is_saved_and_loaded_without_a_network(run, samples, tmp_path):
    HubModel.from_pretrained(run).save_pretrained(tmp_path / "mine")
    assert sorted(os.listdir(tmp_path / "mine")) == FILES
    model = HubModel.from_pretrained(tmp_path / "mine", local_files_only=True)
    assert isinstance(model, balpoe.Model)
    assert torch.equal(model.predict(samples), balpoe.load(run).predict(samples))
    assert len(ModelCard.load(tmp_path / "mine" / "README.md").data.eval_results) == 8


def test_what_is_pushed_is_the_folder_of_the_card(run, monkeypatch):
    sent = {}

    class Hub:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id, folder_path, **_):
            sent[repo_id] = sorted(os.listdir(folder_path))
            return "done"

    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", Hub)
    assert HubModel.from_pretrained(run).push_to_hub("me/digits") == "done"
    assert sent == {"me/digits": FILES}


def test_a_model_of_the_hub_is_its_file(run, samples, monkeypatch):
    asked = []

    def download(repo_id, filename, **settings):
        asked.append((repo_id, filename, settings["revision"]))
        return str(run / filename)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.hub_mixin, "hf_hub_download", lambda **_: str(run.parent / "none"))
    model = HubModel._from_pretrained(model_id="me/digits", revision="v1")
    assert asked == [("me/digits", "model.safetensors", "v1")]
    assert torch.equal(model.predict(samples), balpoe.load(run).predict(samples))
