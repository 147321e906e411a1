import os

import pytest
import safetensors.torch
import torch
from torch import nn

from balpoe import UserError
from balpoe.networks.pretrained import load_weights, read_weights

STATE = {"weight": torch.arange(4.0).view(2, 2), "bias": torch.ones(2)}


@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.bin", "w.safetensors"])
def test_reads_every_kind_of_file(tmp_path, name):
    path = tmp_path / name
    safetensors.torch.save_file(STATE, path) if path.suffix == ".safetensors" else torch.save(STATE, path)
    torch.testing.assert_close(read_weights(path), STATE)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"state": {}}},
        lambda state: {"model": state},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {
            "model": {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)},
            "model_ema": state,
        },  # the better
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"state_dict": {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}},
        lambda state: state | {"note": "not a tensor"},
    ],
)
def test_finds_the_weights_in_what_training_put_around_them(tmp_path, wrap):
    torch.save(wrap(STATE), tmp_path / "w.pth")
    torch.testing.assert_close(read_weights(tmp_path / "w.pth"), STATE)


class Trap:
    def __reduce__(self):
        return os.mkdir, (f"{os.environ['BALPOE_TRAP']}/sprung",)


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_TRAP", str(tmp_path))
    torch.save({**STATE, "trap": Trap()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"cannot read weights from .*w\.pth: "):
        read_weights(tmp_path / "w.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("w.pth", b""), ("w.pth", b"weights"), ("w.safetensors", b"\x08weights")]
)
def test_files_that_are_no_weights(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        UserError, match=r"cannot read weights from .*; give a .safetensors file or a state dict"
    ) as caught:
        read_weights(tmp_path / name)
    assert "\n" not in str(caught.value)
    reason = str(caught.value).partition(": ")[2].partition("; ")[0]
    assert len(reason.split()) > 3  # words


def test_files_without_weights(tmp_path):
    for content in ([1, 2], {"epoch": 3}, {}, torch.zeros(3)):
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(UserError, match=r"w\.pth holds no weights by name"):
            read_weights(tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"no file .*nowhere\.pth"):
        read_weights(tmp_path / "nowhere.pth")
    with pytest.raises(UserError, match="no file"):
        read_weights(tmp_path)


def test_loads_what_the_model_has_and_ignores_the_rest():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    given = {f"0.{name}": tensor for name, tensor in STATE.items()} | {"fc.weight": torch.ones(9, 9)}
    given |= {f"1.{name}": torch.full((2,), 0.5) for name in ("weight", "bias", "running_mean", "running_var")}
    load_weights(model, given, "w.pth")  # as old files, without a number of batches
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, given.get(name, torch.tensor(0)))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"weight": STATE["weight"]}, "w.pth has no weights 'bias'; give"),
        (STATE | {"weight": torch.zeros(3, 2)}, r"'weight' in w.pth have shape \(3, 2\) instead of \(2, 2\); give"),
    ],
)
def test_weights_that_are_missing_or_have_another_shape(given, sentence):
    model = nn.Linear(2, 2)
    before = model.bias.detach().clone()
    with pytest.raises(UserError, match=sentence):
        load_weights(model, given, "w.pth")
    torch.testing.assert_close(model.bias.detach(), before)
