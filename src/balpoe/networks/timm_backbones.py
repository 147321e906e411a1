"""Any model of timm as a backbone: shared as a whole, or cut into a shared trunk and a branch per expert."""

import copy
import functools
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from balpoe.errors import UserError, unknown_name
from balpoe.networks.cutting import EXAMPLES, Features, cut_at, uncuttable
from balpoe.networks.expert_layers import CosineClassifier, ExpertCopies, ExpertLayer
from balpoe.networks.experts import ExpertHead, ExpertNetwork
from balpoe.networks.pretrained import load_weights, read_weights
from balpoe.networks.recomputing import recompute_blocks
from balpoe.networks.weight_files import kept_weights, pretrained_model

__all__ = ["BackbonePreprocessing", "backbone_names", "backbone_preprocessing", "is_backbone", "timm_network"]


class BackbonePreprocessing(NamedTuple):
    """How a backbone wants its images: resized, cut from the middle, normalised."""

    size: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int
    """Pixels of the shorter side before the cut."""
    interpolation: str


def timm_network(
    name: str,
    num_classes: int,
    num_experts: int = 3,
    *,
    weights: str = "",
    split: int = -1,
    hidden: int = 256,
    cosine_scale: float = 32.0,
    image_size: int = 0,
    in_channels: int = 3,
    drop_path: float = 0.0,
    gradient_checkpointing: bool = False,
) -> ExpertNetwork:
    """Return a model of timm with several experts: shared up to a stage, a branch per expert from there on.

    Random experts start from weights of their own; with given weights their stages start equal and their
    classifiers differ. A cut network is compared with the whole model, on one image, before it is returned.

    Args:
        name: Name in timm, with or without a tag: "resnet50", "vit_small_patch14_dinov2.lvd142m".
        num_classes: Number of classes.
        num_experts: Number of branches.
        weights: "" for random ones, "pretrained" for timm's from the hub, or a .safetensors, .pth, .pt or .bin file
            with timm's names, whose classifier is ignored.
        split: Number of stages (blocks of a transformer) that the experts share; -1 for all, which every model of
            timm allows and which gives each expert a hidden layer instead.
        hidden: Units of that layer; with stages of its own an expert needs none.
        cosine_scale: Scale of the classifier, the paper's kappa.
        image_size: Height and width in pixels; 0 for the model's own.
        in_channels: Channels of the images, 3 for colour and 1 for grey.
        drop_path: Part of the samples for which the last block is left out in training, and less for blocks before it.
        gradient_checkpointing: Whether blocks are computed again for their gradients, which saves memory.

    >>> network = timm_network("test_resnet", num_classes=10, num_experts=2, split=2, image_size=32)
    >>> network(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([4, 2, 10])
    """
    size = backbone_preprocessing(name, image_size).size[1:]
    extra = {"drop_path_rate": drop_path} if drop_path else {}
    make = functools.partial(_backbone, name, weights, image_size, in_channels, gradient_checkpointing, **extra)
    model = make()
    cut = cut_at(split, model, name)
    image = torch.randn(1, in_channels, *size, generator=torch.Generator().manual_seed(0))
    features = _evaluated(name, Features(model), image)
    if features.ndim != 2:
        raise UserError(f"network {name!r} does not end in a vector of features; choose another, such as {EXAMPLES}")
    if weights or cut is not None:  # random weights of a whole model are compared with nothing, and are trained anyway
        _check_finite(name, features, weights)
    if cut is None:
        head = ExpertHead(features.shape[1], num_classes, num_experts, hidden=hidden, cosine_scale=cosine_scale)
        return ExpertNetwork(Features(model), cast(Iterable[ExpertLayer], head.branches), head.classifier)
    trunk, branch = cut.trunk(model), cut.branch(model)
    twice = nn.Sequential(trunk, ExpertCopies([branch, branch]))  # the first must leave its input to the second
    if not _are_close(_evaluated(name, twice, image), features[:, None]):
        raise uncuttable(name, model)
    others = (copy.deepcopy(branch) if weights else cut.branch(make()) for _ in range(num_experts - 1))
    classifier = CosineClassifier(features.shape[1], num_classes, num_experts, cosine_scale)
    return ExpertNetwork(trunk, [ExpertCopies([branch, *others])], classifier)


def backbone_names() -> list[str]:
    """Return the names of all models of timm, those with a tag (the data of the pretrained weights) last.

    >>> {"resnet50", "resnet50.a1_in1k"} <= set(backbone_names())
    True
    """
    import timm

    import balpoe.networks.small_vit  # one more, registered there

    assert balpoe.networks.small_vit
    return [*timm.list_models(), *timm.list_models(pretrained=True)]


def is_backbone(name: str) -> bool:
    """Return whether timm has a model of this name; its list, which is put in order each time, is made once for that.

    >>> is_backbone("resnet50"), is_backbone("resnet50.a1_in1k"), is_backbone("resnet51")
    (True, True, False)
    """
    return name in _first_names() or name in backbone_names()  # models may be added later; none is taken away


@functools.cache
def _first_names() -> frozenset[str]:
    return frozenset(backbone_names())


def backbone_preprocessing(name: str, image_size: int = 0) -> BackbonePreprocessing:
    """Return how a model of timm wants its images.

    Args:
        name: Name in timm.
        image_size: Height and width in pixels, in place of the model's own.

    >>> size, mean, std, resize, interpolation = backbone_preprocessing("tf_efficientnet_lite0")
    >>> size, mean, std, resize, interpolation
    ((3, 224, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 256, 'bicubic')
    """
    from timm.data import resolve_data_config

    if image_size < 0:
        raise UserError(f"image_size must be a number of pixels, or 0 for the model's own, but is {image_size}")
    settings = {"img_size": image_size} if image_size else {}
    data = resolve_data_config(settings, pretrained_cfg=_configuration(name).to_dict())
    resize = math.floor(data["input_size"][-1] / data["crop_pct"])
    return BackbonePreprocessing(data["input_size"], data["mean"], data["std"], resize, data["interpolation"])


def _configuration(name: str) -> Any:
    import timm

    if not is_backbone(name):
        raise unknown_name("network", name, backbone_names())
    return timm.get_pretrained_cfg(name)


def _backbone(
    name: str, weights: str, image_size: int, in_channels: int, recomputed: bool = False, **settings: Any
) -> nn.Module:
    """A model without its classifier."""
    model = _plain_backbone(name, weights, image_size, in_channels, settings)
    if recomputed:
        recompute_blocks(model, name)
    return model


def _plain_backbone(name: str, weights: str, image_size: int, in_channels: int, settings: dict[str, Any]) -> nn.Module:
    import timm
    from timm.models import is_model_in_modules

    settings = {"num_classes": 0, "in_chans": in_channels, **settings}
    if not weights and is_model_in_modules(name.partition(".")[0], ("resnet",)):
        settings["zero_init_last"] = False  # as the paper's code has it; timm begins with every block switched off
    if in_channels < 1:
        raise UserError(f"in_channels must be at least 1, but is {in_channels}")
    if image_size and _configuration(name).fixed_input_size:
        settings["img_size"] = image_size
    if weights == "pretrained" and (kept := kept_weights(name)) is not None:
        weights = str(kept)
    size = backbone_preprocessing(name, image_size).size[1:]
    if weights == "pretrained":
        fetched = pretrained_model(name, **settings)
        _check_patches(name, fetched, size)
        return fetched
    try:
        model: nn.Module = timm.create_model(name, **settings)
    except Exception as error:  # a model may refuse its settings in its own way
        raise _unfit(name, image_size, error) from error
    _check_patches(name, model, size)  # before weights, which fit no other sizes
    if weights:
        load_weights(model, _fitted(read_weights(weights), model, in_channels), weights)
    return model


def _check_patches(name: str, model: Any, size: tuple[int, ...]) -> None:
    """Refuse images of which a transformer's patches would leave a rest, which timm leaves out without a word."""
    layer = getattr(model, "patch_embed", None)
    patch = getattr(layer, "patch_size", None)
    if not isinstance(patch, tuple) or not hasattr(model, "blocks") or getattr(layer, "dynamic_img_pad", False):
        return
    if not any(side % each for side, each in zip(size, patch, strict=True)):
        return
    fitting = max(1, size[-1] // patch[-1]) * patch[-1]
    others = f"{fitting}" if fitting > size[-1] else f"{fitting} or {fitting + patch[-1]}"
    raise UserError(
        f"images of {size[-1]} pixels cannot be cut into the patches of {patch[-1]} pixels of {name}; "
        f"give an image size of {others}"
    )


def _check_finite(name: str, features: Tensor, weights: str) -> None:
    """Refuse weights that make no features: nothing could be compared with them, nor be learnt from them."""
    if bool(features.isfinite().all()):
        return
    given = {"": "random weights", "pretrained": "its pretrained weights"}.get(weights, f"the weights in {weights}")
    raise UserError(
        f"network {name!r} gives features that are not finite with {given}; "
        f"give other weights, or choose another network, such as {EXAMPLES}"
    )


def _are_close(found: Tensor, features: Tensor) -> bool:
    """Whether two are the same but for rounding, measured by their own size: random ones have any, 1e-6 or 1e5."""
    return bool(((found - features).abs() <= 1e-4 * features.abs().max()).all())


def _fitted(weights: Mapping[str, Tensor], model: Any, in_channels: int) -> Mapping[str, Tensor]:
    """Weights made for another size of images or number of channels, changed as timm changes its own."""
    from timm.models import adapt_input_conv

    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    first = model.pretrained_cfg["first_conv"]
    try:
        fitted = dict(convert(weights, model) if convert else weights)
        for name in (f"{layer}.weight" for layer in ([first] if isinstance(first, str) else first or ())):
            if name in fitted and fitted[name].shape[1] != in_channels:
                fitted[name] = adapt_input_conv(in_channels, fitted[name])
    except Exception:  # weights that anybody made can fail in any way; `load_weights` says by name what does not fit
        return weights
    return fitted


def _evaluated(name: str, network: nn.Module, image: Tensor) -> Tensor:
    network.eval()
    try:
        with torch.no_grad():
            output: Tensor = network(image)
    except Exception as error:  # a model may refuse an image's size in its own way
        raise _unfit(name, image.shape[-1], error) from error
    network.train()
    return output


def _unfit(name: str, image_size: int, error: Exception) -> UserError:
    wanted = f"for images of {image_size} pixels " if image_size else ""
    return UserError(
        f"network {name!r} cannot be made {wanted}({_reason(error)}); choose another image size or network"
    )


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
