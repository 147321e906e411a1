"""A model of timm, cut into what the experts share and what each of them has for itself.

timm's models run in two parts, `forward_features` and `forward_head`, and their layers are attributes. So the
trunk is the model with the identity in place of all that comes behind the cut, and a branch is the model with the
identity in place of all that comes before it. Both run timm's own code and keep the names of its weights.
"""

import copy
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from balpoe.errors import UserError
from balpoe.private_apis import leave_out_positions

__all__ = ["CutPoint", "Features", "Stages", "cut_at", "uncuttable"]

EXAMPLES = "resnet50, convnext_tiny, efficientnet_b0, regnety_016, swin_tiny_patch4_window7_224, vit_small_patch16_224"


class _Anatomy(NamedTuple):
    stem: tuple[str, ...]
    """What runs before the first stage; what is named neither here nor below runs behind the last one."""
    stages: tuple[str, ...]
    """Names in order; a single name is that of a sequence of stages."""


ANATOMIES = {
    "ByobNet": _Anatomy(("stem",), ("stages",)),
    "ConvNeXt": _Anatomy(("stem",), ("stages",)),
    "EfficientNet": _Anatomy(("conv_stem", "bn1"), ("blocks",)),
    "MobileNetV3": _Anatomy(("conv_stem", "bn1"), ("blocks",)),
    "RegNet": _Anatomy(("stem",), ("s1", "s2", "s3", "s4")),
    "ResNet": _Anatomy(("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4")),
    "ResNetV2": _Anatomy(("stem",), ("stages",)),
    "SwinTransformer": _Anatomy(("patch_embed",), ("layers",)),
    "SwinTransformerV2": _Anatomy(("patch_embed",), ("layers",)),
    "SwinTransformerV2Cr": _Anatomy(("patch_embed",), ("stages",)),
    "VisionTransformer": _Anatomy(
        ("patch_embed", "cls_token", "reg_token", "pos_embed", "pos_drop", "patch_drop", "norm_pre"), ("blocks",)
    ),
}
"""By timm's class; EfficientNet is also MobileNet v2, MobileNetV3 also v4, VisionTransformer also DINOv2 and CLIP."""


class Stages(nn.Module):
    """A model up to a cut."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, images: Tensor) -> Tensor:
        """Return what the experts share."""
        shared: Tensor = self.model.forward_features(images)
        return shared


class Features(nn.Module):
    """A model from a cut, or from its beginning, to its pooled features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor) -> Tensor:
        """Return features (batch, features)."""
        features: Tensor = self.model.forward_head(self.model.forward_features(x), pre_logits=True)
        return features


class CutPoint(NamedTuple):
    """The names of a model's parts on both sides."""

    before: tuple[str, ...]
    behind: tuple[str, ...]

    def trunk(self, model: nn.Module) -> Stages:
        """Return a copy of what comes before."""
        return Stages(_without(model, self.behind))

    def branch(self, model: nn.Module) -> Features:
        """Return a copy of what comes behind."""
        return Features(_without(model, self.before))


def cut_at(split: int, model: nn.Module, name: str) -> CutPoint | None:
    """Return where to cut a model; None for one that is shared as a whole.

    Args:
        split: Number of stages that are shared; -1 for all.
        model: Model of timm.
        name: Its name there, for the message.

    >>> import timm
    >>> cut_at(3, timm.create_model("test_vit"), "test_vit").before[-3:]
    ('blocks.0', 'blocks.1', 'blocks.2')
    """
    if split == -1:
        return None
    anatomy = next((ANATOMIES[kind.__name__] for kind in type(model).mro() if kind.__name__ in ANATOMIES), None)
    if anatomy is None:
        raise uncuttable(name, model)
    stages = anatomy.stages
    if len(stages) == 1:
        stages = tuple(f"{stages[0]}.{index}" for index, _ in enumerate(model.get_submodule(stages[0]).children()))
    if not 0 <= split <= len(stages):
        raise UserError(
            f"split must be 0 to {len(stages)}, the number of stages of {name} that the experts share, "
            f"or -1 for all, but is {split}"
        )
    if split == len(stages):
        return None
    tail = (child for child, _ in model.named_children() if child not in (*anatomy.stem, *anatomy.stages))
    return CutPoint((*anatomy.stem, *stages[:split]), (*stages[split:], *tail))


def uncuttable(name: str, model: nn.Module) -> UserError:
    """Return the error for a model whose anatomy is not known, or not what it was known to be."""
    return UserError(
        f"network {name!r} ({type(model).__name__}) cannot be cut into a shared part and a branch per expert; "
        f"share it whole (split -1), or choose another, such as {EXAMPLES}"
    )


def _without(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """A copy with the identity in place of some parts, which are not even copied."""
    parts = [functools.reduce(getattr, name.split("."), model) for name in names]
    gaps = {id(part): nn.Identity() if isinstance(part, nn.Module) else None for part in parts}
    cut: Any = copy.deepcopy(model, gaps)
    if "pos_embed" in names:
        leave_out_positions(cut)
    return cast(nn.Module, cut)
