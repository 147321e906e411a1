import json
import socket
from pathlib import Path

import pytest
import torch

from balpoe import Predictions
from balpoe.cli.main import main
from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.serve.server import loaded_service
from balpoe.deployment.serve.settings import ServeSettings
from commands import sentence
from served import client_of


@pytest.fixture
def settings(monkeypatch):
    """What a command would serve, without serving."""
    found = []
    monkeypatch.setattr("balpoe.deployment.serve.start._run", lambda settings, listening: found.append(settings))
    return found


def test_flags_become_settings(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("BALPOE_TOKEN", "from-the-environment")
    flags = (
        "--port 0 --prior backward-5 --taxonomy tree.csv --window 50 --most-images 8 --most-seconds 2.5 --device cpu "
        "--workers 2"
    )
    assert main(["serve", "some/run", *flags.split()]) == 0
    found = settings[0]
    assert (found.model, found.prior, found.taxonomy, found.window) == ("some/run", "backward-5", "tree.csv", 50)
    assert (found.limits.images, found.limits.seconds, found.limits.batch) == (8, 2.5, 32)
    assert found.token == "from-the-environment"
    assert (found.host, found.device, found.workers) == ("127.0.0.1", "cpu", 2)
    (tmp_path / "token").write_text("from-the-token-file")
    table = ["--prior-table", "sites.csv", "--keys", "site,month"]
    assert main(["serve", "some/run", "--port", "0", "--token-file", str(tmp_path / "token"), *table]) == 0
    assert settings[1].token == "from-the-token-file"
    assert settings[1].table.keys == ("site", "month")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "-1"], "--port must be at least 0"),
        (["--port", "99999"], "at most 65535"),
        (["--host", "no.such.host.invalid", "--port", "0"], "cannot listen"),
        (["--window", "1"], "--window"),
        (["--workers", "0"], "--workers"),
        (["--most-images", "500"], "only 256 may wait"),
        (["--most-seconds", "0"], "seconds"),
        (["--most-batch", "x"], "invalid int"),
        (["--keys", "site"], "--prior-table"),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_have_one_sentence(settings, capsys, flags, words):
    assert main(["serve", "some/run", *flags]) == 2
    assert words in sentence(capsys.readouterr().err)
    assert not settings


def test_a_port_in_use_is_named(settings, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "some/run", "--port", str(port)]) == 2
    assert f"port {port}" in sentence(capsys.readouterr().err)


def test_what_is_not_installed_is_named(settings, capsys, monkeypatch):
    monkeypatch.setattr("balpoe.deployment.serve.start.find_spec", lambda name: None)
    assert main(["serve", "some/run"]) == 2
    assert "pip install 'balpoe[serve]'" in sentence(capsys.readouterr().err)


def test_an_open_door_is_noted(settings, capsys, monkeypatch):
    monkeypatch.delenv("BALPOE_TOKEN", raising=False)
    assert main(["serve", "some/run", "--host", "0.0.0.0", "--port", "0"]) == 0
    assert "no token is asked for" in sentence(capsys.readouterr().err)
    assert main(["serve", "some/run", "--port", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_a_served_run_says_what_predict_says(forest, capsys):
    run = str(forest / "runs" / "trees" / "seed-0")
    images = sorted(map(str, (forest / "trees").rglob("*.png")))[::9]
    flags = ["--prior", "backward-3", "--sets", "0.2", "--taxonomy", str(forest / "tree.csv"), "--confidence", "0.8"]
    flags += ["--unknown", "energy", "--abstain-cost", "0.4", "--top", "2", "--experts", "--format", "jsonl"]
    assert main(["predict", run, *images, *flags]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked = {"prior": "backward-3", "sets": 0.2, "level": 0.8, "unknown": "energy", "abstain_cost": 0.4}
    asked |= {"top_k": 2, "experts": "true"}
    settings = ServeSettings(run, taxonomy=str(forest / "tree.csv"), device="cpu")
    with client_of(loaded_service(settings, here=True)) as client:
        files = [("images", ("x", Path(path).read_bytes())) for path in images]
        response = client.post("/predict", files=files, data={name: str(value) for name, value in asked.items()})
    assert response.status_code == 200, response.text
    found = response.json()["answers"]
    for row, theirs in zip(found, expected, strict=True):
        for name in ("label", "decision", "set", "level", "level_label", "unknown"):
            assert row[name] == theirs[name]
        assert [each["label"] for each in row["experts"]] == theirs["experts"]
        assert row["probability"] == pytest.approx(theirs["probability"], abs=1e-5)
    assert len({row["probability"] for row in found}) == len(images)


def test_drift_is_checked_by_what_the_runs_own_network_said(forest):
    run = forest / "runs" / "trees" / "seed-0"
    assert HeldOut.of_run(run).cross_fitted  # by other networks
    service = loaded_service(ServeSettings(str(run), device="cpu"), here=True)
    test = Predictions.load(run / "predictions")
    assert service.drift.reference.targets.tolist() == test.targets.tolist()
    assert torch.equal(service.drift.reference.logits, test.logits)
    alone = forest / "alone" / "model.safetensors"
    alone.parent.mkdir()
    alone.write_bytes((run / "model.safetensors").read_bytes())
    assert loaded_service(ServeSettings(str(alone), device="cpu"), here=True).drift.reference is None
    lent = ServeSettings(str(alone), held_out=str(run), device="cpu")
    assert loaded_service(lent, here=True).drift.reference is not None
