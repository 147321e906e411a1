import functools
import pickle
import socket
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.layers import resample_abs_pos_embed
from torch.nn import functional as F

from balpoe import Preprocessing, UserError, expert_network
from balpoe.data.loading.image_files import decoded
from balpoe.networks.costs import multiply_adds, num_parameters
from balpoe.networks.timm_backbones import backbone_preprocessing, is_backbone, timm_network

FAMILIES = {
    "resnet18": 32,
    "resnetv2_18": 32,
    "resnext50_32x4d": 32,
    "convnext_atto": 32,
    "efficientnet_b0": 32,
    "tf_efficientnet_lite0": 32,
    "mobilenetv2_035": 32,
    "mobilenetv3_small_050": 32,
    "mobilenetv4_conv_small_035": 32,
    "swin_tiny_patch4_window7_224": 64,
    "swinv2_tiny_window8_256": 64,
    "swinv2_cr_tiny_224": 64,
    "regnetx_002": 32,
    "regnety_002": 32,
    "vit_tiny_patch16_224": 32,
    "vit_small_patch14_reg4_dinov2": 28,
    "vit_xsmall_patch16_clip_224": 32,
    "test_byobnet": 32,
}
CHANNELS = {"channels": (16, 32, 64, 128)}
NARROW = {  # the wide ones: the same layers, which are cut in the same places
    "resnet18": CHANNELS,
    "resnetv2_18": CHANNELS,
    "resnext50_32x4d": CHANNELS,
    "swin_tiny_patch4_window7_224": {"embed_dim": 24},
    "swinv2_tiny_window8_256": {"embed_dim": 24},
    "swinv2_cr_tiny_224": {"embed_dim": 24},
    "vit_tiny_patch16_224": {"embed_dim": 48},
    "vit_small_patch14_reg4_dinov2": {"embed_dim": 48},
    "vit_xsmall_patch16_clip_224": {"embed_dim": 64},
}


def plain_model(name, size, **settings):
    """The uncut model; no layer is the identity, as it is in many models that have not been trained."""
    torch.manual_seed(0)
    if timm.get_pretrained_cfg(name).fixed_input_size:
        settings["img_size"] = size
    model = timm.create_model(name, num_classes=7, **settings).eval()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor.data.uniform_(0.3, 0.9)
    return model


def written(model, path):
    safetensors.torch.save_file(model.state_dict(), path)
    return str(path)


def plain_features(model, images):
    with torch.no_grad():
        return model.forward_head(model.forward_features(images), pre_logits=True)


def assert_cut_equals_whole(network, model, images):
    """Every expert's logits are those of its classifier on the features of the uncut model."""
    unit = F.normalize(plain_features(model, images))
    with torch.no_grad():
        logits = network.eval()(images)
    for expert, weight in enumerate(network.classifier.weight.detach()):
        expected = 32 * unit @ F.normalize(weight).T
        torch.testing.assert_close(logits[:, expert], expected, rtol=1e-3, atol=1e-3)


def gradients(module):
    return sum(float(p.grad.abs().sum()) for p in module.parameters() if p.grad is not None)


@pytest.fixture
def uniform_weights(monkeypatch):
    """Random weights of transformers from a uniform distribution: half of a test's time goes into the normal one."""
    monkeypatch.setattr(torch.Tensor, "erfinv_", lambda tensor: tensor)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name, tmp_path, uniform_weights, monkeypatch):
    size = FAMILIES[name]
    monkeypatch.setattr(timm, "create_model", functools.partial(timm.create_model, **NARROW.get(name, {})))
    model = plain_model(name, size)
    network = timm_network(name, 5, 2, weights=written(model, tmp_path / "w.safetensors"), split=2, image_size=size)
    images = torch.randn(2, 3, size, size)
    assert_cut_equals_whole(network, model, images)

    together = network(images)
    assert together.shape == (2, 2, 5)
    assert not torch.allclose(together[:, 0], together[:, 1])  # equal stages, different classifiers
    alone = network.expert(1)
    torch.testing.assert_close(alone(images)[:, 0], together[:, 1], rtol=1e-4, atol=1e-4)
    # what is cut away is gone, and nothing is missing
    backbone = num_parameters(model) - num_parameters(model.get_classifier())
    assert num_parameters(alone) == backbone + alone.classifier.weight.numel()

    together[:, 1].square().sum().backward()
    first, second = network.branches[0].experts
    assert gradients(network.trunk) > 0
    assert gradients(second) > 0
    assert gradients(first) == 0


@pytest.mark.parametrize(("name", "stages"), [("test_resnet", 4), ("test_vit", 6)])
def test_every_split(name, stages, tmp_path):
    model = plain_model(name, 32)
    weights = written(model, tmp_path / "w.safetensors")
    images = torch.randn(2, 3, 32, 32)
    shared = []
    for split in range(stages):
        network = timm_network(name, 5, 2, weights=weights, split=split, image_size=32)
        assert_cut_equals_whole(network, model, images)
        shared.append(num_parameters(network.trunk))
    assert shared == sorted(set(shared))  # each stage adds to what is shared
    for split in (-1, stages):
        network = timm_network(name, 5, 2, weights=weights, split=split, image_size=32, hidden=8).eval()
        torch.testing.assert_close(network.features(images), plain_features(model, images))
        assert network.branches[0].weight.shape[:2] == (2, 8)
        assert network(images).shape == (2, 2, 5)
    for split in (-2, stages + 1):
        with pytest.raises(UserError, match=f"0 to {stages}, .* or -1 for all, but is {split}"):
            timm_network(name, 5, split=split)


@pytest.mark.parametrize(
    ("name", "size", "others"),
    [("vit_tiny_patch16_224", 30, "16 or 32"), ("test_vit", 9, "16"), ("vit_small_patch14_dinov2", 32, "28 or 42")],
)
def test_images_that_patches_do_not_divide(name, size, others, uniform_weights):
    with pytest.raises(UserError, match=f"images of {size} pixels cannot be cut .* give an image size of {others}$"):
        timm_network(name, 3, image_size=size)


def test_random_experts_start_from_weights_of_their_own():
    torch.manual_seed(0)
    network = timm_network("test_resnet", 5, 3, split=2, image_size=32)
    assert network.training
    experts = network.branches[0].experts
    for name, weight in experts[0].named_parameters():
        others = [expert.get_parameter(name) for expert in experts[1:]]
        assert weight.ndim == 1 or not any(torch.equal(weight, other) for other in others), name
        if weight.ndim > 1:
            assert [float(other.detach().std()) for other in others] == pytest.approx(
                [float(weight.detach().std())] * 2, rel=0.3
            )


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_saved_and_loaded_compiled_and_sent_to_another_process(name):
    torch.manual_seed(0)
    first, second = (timm_network(name, 5, 2, split=2, image_size=32).eval() for _ in range(2))
    images = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(first(images), second(images))
    second.load_state_dict(safetensors.torch.load(safetensors.torch.save(first.state_dict())))
    torch.testing.assert_close(first(images), second(images))
    torch.testing.assert_close(pickle.loads(pickle.dumps(first))(images), first(images))
    compiled = torch.compile(first, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), first(images), rtol=1e-4, atol=1e-4)


@pytest.fixture
def nan_memory():
    """What nobody has filled is NaN, and not by chance the zeros of fresh memory."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# counted in the reference implementation, with ImageNet's 1000 classes: million parameters, 10^9 multiply-adds
@pytest.mark.parametrize(
    ("name", "parameters", "giga"), [("resnet50", 73.778, 8.64), ("resnext50_32x4d", 72.259, 9.02)]
)
def test_size_and_cost_are_those_of_the_reference(name, parameters, giga, monkeypatch, nan_memory):
    for draw in ("normal_", "uniform_"):  # only shapes matter
        monkeypatch.setattr(torch.Tensor, draw, lambda tensor, *_, **__: tensor.zero_())
    network = expert_network(name, num_classes=1000, num_experts=3, split=2)
    assert num_parameters(network) / 1e6 == pytest.approx(parameters, abs=6e-4)
    assert multiply_adds(network, torch.zeros(1, 3, 224, 224)) / 1e9 == pytest.approx(giga, abs=6e-3)


def test_weights_for_another_size_and_other_channels(tmp_path):
    model = plain_model("test_vit", 64)
    path = written(model, tmp_path / "w.safetensors")
    network = timm_network("test_vit", 5, weights=path, image_size=32, in_channels=1, split=1)
    resampled = resample_abs_pos_embed(model.pos_embed, (2, 2), num_prefix_tokens=1)
    torch.testing.assert_close(network.trunk.model.pos_embed, resampled)
    grey = model.patch_embed.proj.weight.sum(dim=1, keepdim=True)  # a grey image stands for three equal channels
    torch.testing.assert_close(network.trunk.model.patch_embed.proj.weight, grey)
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 3, 5)

    own = timm_network("test_vit", 5, image_size=32, in_channels=1)
    again = timm_network(
        "test_vit", 5, image_size=32, in_channels=1, weights=written(own.trunk.model, tmp_path / "own.safetensors")
    )
    torch.testing.assert_close(again.trunk.model.patch_embed.proj.weight, own.trunk.model.patch_embed.proj.weight)


@pytest.mark.parametrize(
    "name", ["resnet50", "tf_efficientnet_lite0", "vit_base_patch16_clip_224.openai", "convnext_atto"]
)
@pytest.mark.parametrize("image_size", [0, 96])
def test_preprocessing_is_that_of_timm_s_own_transform(name, image_size):
    config = timm.get_pretrained_cfg(name).to_dict()
    options = resolve_data_config({"img_size": image_size} if image_size else {}, pretrained_cfg=config)
    resize, crop, *_, normalise = create_transform(**options).transforms
    found = backbone_preprocessing(name, image_size)
    assert found.size == (3, *crop.size)
    assert found.resize == resize.size
    assert found.interpolation == resize.interpolation.value
    torch.testing.assert_close(torch.tensor(found.mean), torch.as_tensor(normalise.mean))
    torch.testing.assert_close(torch.tensor(found.std), torch.as_tensor(normalise.std))
    if image_size:
        assert found.size == (3, 96, 96)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0.in1k", "resnet50", "vit_base_patch16_224", "test_resnet"])
def test_a_file_is_decoded_as_timm_s_own_transform_does(name, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 401, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    preprocessing = Preprocessing(*backbone_preprocessing(name))
    config = resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    theirs = create_transform(**config)(Image.open(tmp_path / "noise.png"))
    ours = preprocessing.normalise(decoded(tmp_path / "noise.png", preprocessing)[None])[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    other = replace(preprocessing, interpolation="bilinear" if preprocessing.interpolation == "bicubic" else "bicubic")
    assert not torch.equal(decoded(tmp_path / "noise.png", other), decoded(tmp_path / "noise.png", preprocessing))


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    """The hub's client with a cache of its own and no way to the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("balpoe.networks.pretrained.getproxies", dict)

    def nowhere(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    return tmp_path


def test_pretrained_weights_that_were_fetched_before_need_no_network(hub_cache):
    folder = hub_cache / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    torch.manual_seed(0)
    model = timm.create_model("test_resnet")
    written(model, folder / "snapshots" / ("0" * 40) / "model.safetensors")
    network = timm_network("test_resnet", 5, weights="pretrained", split=2, image_size=32)
    torch.testing.assert_close(network.trunk.model.layer2.state_dict(), model.layer2.state_dict())
    for expert in network.branches[0].experts:
        torch.testing.assert_close(expert.model.layer3.state_dict(), model.layer3.state_dict())


def test_without_a_network_one_sentence_says_what_to_do(hub_cache, capfd):
    with pytest.raises(UserError, match=r"weights of test_resnet cannot be fetched: .* \(--weights FILE\)$"):
        timm_network("test_resnet", 5, weights="pretrained")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("convnext_tinny", {}, "unknown network 'convnext_tinny'; did you mean 'convnext_tiny'"),
        ("resnet50.a1_in2k", {}, "did you mean 'resnet50.a1_in1k'"),
        ("densenet121", {"split": 1}, r"'densenet121' \(DenseNet\) cannot be cut .* \(split -1\), or .* resnet50"),
        ("test_vit", {"image_size": 8}, "images of 8 pixels cannot be cut into the patches of 16 pixels of test_vit"),
        ("test_vit", {"image_size": -8}, "number of pixels, or 0 .*, but is -8"),
        ("test_resnet", {"in_channels": 0}, "in_channels must be at least 1, but is 0"),
        ("test_resnet", {"hidden": 0, "image_size": 32}, "hidden must be at least 1"),
        ("test_resnet", {"width": 8}, "wrong setting: .*'width'"),
        ("test_resnet", {"weights": "nowhere.pth"}, "no file nowhere.pth"),
    ],
)
def test_wrong_settings(name, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        expert_network(name, num_classes=3, **settings)


def test_a_name_that_is_unknown_to_timm():
    for ask in (lambda name: timm_network(name, 3), backbone_preprocessing):
        with pytest.raises(UserError, match="unknown network 'convnext_tinny'; did you mean 'convnext_tiny'"):
            ask("convnext_tinny")


def test_a_class_that_only_looks_as_if_it_could_be_cut_is_refused(monkeypatch):
    """Verification at construction: a model whose forward pass does more than its stages say."""
    kind = timm.models.resnet.ResNet
    plain = kind.forward_features
    monkeypatch.setattr(kind, "forward_features", lambda self, x: plain(self, x) + 1)
    with pytest.raises(UserError, match=r"'test_resnet' \(ResNet\) cannot be cut"):
        timm_network("test_resnet", 3, split=2, image_size=32)
    timm_network("test_resnet", 3, image_size=32)


def test_a_stage_that_writes_into_its_input_is_refused(monkeypatch):
    """All experts read the same one."""
    kind = timm.models.resnet.ResNet
    plain = kind.forward_features

    def greedy(self, x):
        out = plain(self, x)
        if x.shape[1] > 3:
            x.zero_()
        return out

    monkeypatch.setattr(kind, "forward_features", greedy)
    with pytest.raises(UserError, match=r"'test_resnet' \(ResNet\) cannot be cut"):
        timm_network("test_resnet", 3, split=2, image_size=32)


def test_features_are_compared_by_their_own_size(monkeypatch, tmp_path):
    """Those of random weights can be so small that any are equal to within a fixed tolerance."""
    model = plain_model("test_resnet", 32)
    for parameter in model.layer4.parameters():
        if parameter.ndim == 1:  # of the normalisation, which has the last word
            parameter.data *= 1e-7
    assert plain_features(model, torch.ones(1, 3, 32, 32)).abs().max() < 1e-6
    settings = {"weights": written(model, tmp_path / "w.safetensors"), "split": 2, "image_size": 32}
    timm_network("test_resnet", 3, **settings)
    kind = timm.models.resnet.ResNet
    plain = kind.forward_features
    monkeypatch.setattr(kind, "forward_features", lambda self, x: 2 * plain(self, x))
    with pytest.raises(UserError, match=r"'test_resnet' \(ResNet\) cannot be cut"):
        timm_network("test_resnet", 3, **settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("split", [-1, 2])
def test_weights_that_are_not_finite(value, split, tmp_path):
    """Not that the network cannot be cut: NaN differs from NaN."""
    model = plain_model("test_resnet", 32)
    model.layer1[0].conv1.weight.data[0, 0, 0, 0] = value
    path = written(model, tmp_path / "w.safetensors")
    sentence = r"'test_resnet' gives features that are not finite with the weights in .*w\.safetensors; give other"
    with pytest.raises(UserError, match=sentence):
        timm_network("test_resnet", 3, weights=path, split=split, image_size=32)


def test_random_weights_that_are_not_finite(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "normal_", lambda tensor, *_, **__: tensor.fill_(1e30))
    with pytest.raises(UserError, match="'test_resnet' gives features that are not finite with random weights; give"):
        timm_network("test_resnet", 3, split=2, image_size=32)
    timm_network("test_resnet", 3, image_size=32)  # compared with nothing; training would say so


def test_weights_of_another_network(tmp_path):
    path = written(plain_model("test_resnet", 32), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"w\.safetensors has no weights 'cls_token'"):
        timm_network("test_vit", 5, weights=path, image_size=32)
    odd = {**plain_model("test_vit", 32).state_dict(), "pos_embed": torch.zeros(3)}  # which timm cannot resample
    torch.save(odd, tmp_path / "odd.pth")
    with pytest.raises(UserError, match=r"^the weights 'pos_embed' in .*odd\.pth have shape \(3,\) instead of \(1, 5"):
        timm_network("test_vit", 5, weights=str(tmp_path / "odd.pth"), image_size=32)


def test_models_of_any_other_class_can_be_shared_whole():
    network = timm_network("ghostnet_050", 4, 2, image_size=32, hidden=8)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 2, 4)


def test_a_random_resnet_starts_with_every_block_switched_on():
    """As the paper's code does; timm's own default begins with the last normalisation of each block at zero."""
    network = timm_network("resnet18", 5, 2, split=2, image_size=32)
    scales = [value for name, value in network.named_parameters() if name.endswith("bn2.weight")]
    assert scales
    assert all(bool((scale == 1).all()) for scale in scales)


def test_a_model_that_is_added_later_is_found(monkeypatch):
    assert is_backbone("test_vit")
    assert not is_backbone("added_later")
    monkeypatch.setattr(timm, "list_models", lambda pretrained=False: [] if pretrained else ["added_later"])
    assert is_backbone("added_later")
    assert is_backbone("test_vit")
