"""Adapters: a few weights in every block of a transformer or ConvNeXt that learn, while the rest of it stays as it is.

An AdaptFormer is a bottleneck beside a block's MLP, a LoRA a low-rank change of its attention's projections. Both begin
at zero, so that the network first says what its backbone says, bit for bit. All experts share them; or, in the last
blocks, each has its own: there the tokens are repeated, once for each expert, and the frozen layers run on all of them
at once. Under autocast, tokens between blocks are in its type (`autocast_tokens`).
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.errors import UserError, unknown_name
from balpoe.networks.autocast_tokens import LayerScale, keep_autocast_type, normalised
from balpoe.networks.cutting import Features
from balpoe.networks.expert_layers import ExpertLayer, ExpertLinear
from balpoe.networks.experts import ExpertNetwork

__all__ = [
    "ADAPTERS",
    "AdaptFormer",
    "LowRankLinear",
    "OwnLinear",
    "adapter_size",
    "add_adapters",
    "has_adapters",
    "merged",
]

EXAMPLES = "vit_small_patch16_224, vit_small_patch14_reg4_dinov2 or convnext_tiny"


class AdaptFormer(ExpertLayer):
    """scale * up(relu(down(normalised tokens))), one set of weights or one for each expert; zero at first.

    Args:
        width: Number of a token's features.
        size: Units of the bottleneck.
        num_experts: Number of sets; tokens of several come one expert after the other.

    >>> AdaptFormer(width=8, size=2)(torch.randn(3, 5, 8)).abs().max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    def __init__(self, width: int, size: int, num_experts: int = 1) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.norm_weight = nn.Parameter(torch.ones(num_experts, width))
        self.norm_bias = nn.Parameter(torch.zeros(num_experts, width))
        self.down = nn.Parameter(_random(num_experts, width, size))
        self.down_bias = nn.Parameter(torch.zeros(num_experts, size))
        self.up = nn.Parameter(torch.zeros(num_experts, size, width))
        self.up_bias = nn.Parameter(torch.zeros(num_experts, width))
        self.scale = nn.Parameter(torch.ones(num_experts, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what is added to tokens (experts * batch, ..., width)."""
        rows = tokens.reshape(self.num_experts, -1, tokens.shape[-1])
        # Weights of the norm and the scale are taken into the small matrices: of the tokens less is kept for gradients.
        down = self.norm_weight[:, :, None] * self.down
        down_bias = torch.baddbmm(self.down_bias[:, None], self.norm_bias[:, None], self.down)
        hidden = F.relu(torch.baddbmm(down_bias, normalised(F.layer_norm, rows), down))
        change = torch.baddbmm((self.scale * self.up_bias)[:, None], hidden, self.scale[:, None] * self.up)
        return change.view(tokens.shape)


class LowRankLinear(nn.Linear, ExpertLayer):
    """A linear layer that stays as it is, and a change of low rank that learns (LoRA); zero at first.

    Args:
        linear: Layer whose weights it takes.
        size: Rank of the change.
        num_experts: Number of changes; rows of several experts come one expert after the other.

    >>> linear, rows = nn.Linear(8, 4), torch.randn(3, 8)
    >>> torch.equal(LowRankLinear(linear, size=2)(rows), linear(rows))
    True
    """

    shared = ("weight", "bias")

    def __init__(self, linear: nn.Linear, size: int, num_experts: int = 1) -> None:
        nn.Linear.__init__(self, linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.num_experts = num_experts
        self.down = nn.Parameter(_random(num_experts, linear.in_features, size))
        self.up = nn.Parameter(torch.zeros(num_experts, size, linear.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts * batch, ..., features)."""
        rows = x.reshape(self.num_experts, -1, x.shape[-1])
        change = torch.bmm(torch.bmm(rows, self.down), self.up)
        return F.linear(x, self.weight, self.bias) + change.view(*x.shape[:-1], -1)

    def plain(self) -> "nn.Linear | OwnLinear":
        """Return a layer that says the same, without adapters: the change is added to the weights."""
        with torch.no_grad():
            weights = self.weight.T + self.down @ self.up
        if self.num_experts > 1:
            return OwnLinear(weights, self.bias)
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = nn.Parameter(weights[0].T.contiguous()), self.bias
        return linear


class OwnLinear(ExpertLayer):
    """A linear layer for each expert, with one bias: what a low-rank change for each of them is merged into.

    Args:
        weights: Weights, (experts, inputs, outputs).
        bias: Bias of all of them, or None.

    >>> OwnLinear(torch.ones(2, 3, 1), None)(torch.ones(4, 3)).shape  # two rows of each expert
    torch.Size([4, 1])
    """

    shared = ("bias",)

    def __init__(self, weights: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.num_experts = len(weights)
        self.weight = nn.Parameter(weights)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts * batch, ..., features)."""
        rows = torch.bmm(x.reshape(self.num_experts, -1, x.shape[-1]), self.weight)
        out = rows.view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias.to(out.dtype)


class ParallelMlp(nn.Module):
    """A block's way through its MLP, with an adapter beside all of it: the layer scale of DINOv2 is the MLP's alone."""

    def __init__(self, norm: nn.Module, mlp: nn.Module, layer_scale: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp, self.layer_scale, self.adapter = norm, mlp, layer_scale, adapter

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what the block adds to its tokens."""
        change: Tensor = self.layer_scale(self.mlp(self.norm(tokens))) + self.adapter(tokens)
        return change


class ChannelsFirst(nn.Module):
    """A layer for tokens (..., width), on images (batch, width, height, width of the image)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """Map the pixels."""
        pixels: Tensor = self.layer(images.permute(0, 2, 3, 1))
        return pixels.permute(0, 3, 1, 2)


class RepeatedBlock(ExpertLayer):
    """The first block with adapters of single experts: tokens (batch, ...) become (experts * batch, ...) before it."""

    def __init__(self, block: nn.Module, num_experts: int) -> None:
        super().__init__()
        self.block, self.num_experts = block, num_experts

    def forward(self, tokens: Tensor, **more: Any) -> Tensor:
        """Map tokens that are repeated as a whole; `more` is the same for all of them, as positions are."""
        out: Tensor = self.block(tokens.repeat(self.num_experts, *[1] * (tokens.ndim - 1)), **more)
        return out


class OwnFeatures(ExpertLayer):
    """A backbone whose last blocks run once for each expert, to features (batch, experts, features)."""

    def __init__(self, features: Features, num_experts: int) -> None:
        super().__init__()
        self.features, self.num_experts = features, num_experts

    def forward(self, images: Tensor) -> Tensor:
        """Return each expert's features."""
        features: Tensor = self.features(images)
        own: Tensor = features.unflatten(0, (self.num_experts, -1))
        return own.transpose(0, 1)


def adapter_size(num_classes: int, num_blocks: int) -> int:
    """Return the units of an adapter by LIFT's rule: together about as many weights as a linear classifier has.

    >>> adapter_size(100, 12), adapter_size(1000, 12), adapter_size(8142, 12), adapter_size(5, 12)
    (4, 32, 256, 1)
    """
    return 1 << max(0, math.floor(math.log2(num_classes / (2 * num_blocks))))


def add_adapters(network: ExpertNetwork, kind: str = "adaptformer", *, size: int = 0, split: int = 0) -> None:
    """Put adapters into every block of a network's backbone, in place; of the trunk only they are trained then.

    Args:
        network: Network of `timm_network`, its backbone shared as a whole (split -1).
        kind: "adaptformer", a bottleneck beside each MLP, or "lora", a change of low rank of each attention, which a
            ConvNeXt does not have.
        size: Units of a bottleneck, or rank; 0 for `adapter_size`.
        split: Number of blocks, at the end, with a set of adapters for each expert; the others share one.

    >>> import balpoe
    >>> network = balpoe.expert_network("test_vit", num_classes=100, image_size=32)
    >>> add_adapters(network)
    >>> trained = [name for name, weight in network.trunk.named_parameters() if weight.requires_grad]
    >>> len(trained), trained[0]
    (42, 'model.blocks.0.mlp.adapter.norm_weight')
    """
    if kind not in ADAPTERS:
        raise unknown_name("adapter", kind, ADAPTERS)
    blocks = _blocks(network, kind)
    if not 0 <= split <= len(blocks):
        raise UserError(f"adapter_split must be 0 to {len(blocks)}, the number of blocks, but is {split}")
    if size < 0:
        raise UserError(f"adapter_size must be at least 1, or 0 for a size by the classes, but is {size}")
    network.trunk.requires_grad_(False)
    first_own = len(blocks) - split if network.num_experts > 1 else len(blocks)
    for index, place in enumerate(blocks):
        experts = network.num_experts if index >= first_own else 1
        ADAPTERS[kind](place.block, size or adapter_size(network.num_classes, len(blocks)), experts)
    keep_autocast_type([place.block for place in blocks])
    if first_own < len(blocks):
        assert isinstance(network.trunk, Features)
        place = blocks[first_own]
        place.owner[place.number] = RepeatedBlock(place.block, network.num_experts)
        network.trunk = OwnFeatures(network.trunk, network.num_experts)


def merged(network: ExpertNetwork) -> ExpertNetwork:
    """Return a copy for export in which changes of low rank are part of the weights that they change.

    Where each expert has a change of its own, it has weights of its own then. AdaptFormers stay: what they add is not
    linear in the tokens, so that no weights of the block can take it up.

    >>> import balpoe
    >>> network = balpoe.expert_network("test_vit", num_classes=5, image_size=32)
    >>> add_adapters(network, "lora")
    >>> balpoe.networks.num_parameters(merged(network)) < balpoe.networks.num_parameters(network)
    True
    """
    whole = copy.deepcopy(network)
    for module in list(whole.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LowRankLinear):
                setattr(module, name, child.plain())
    return whole


def has_adapters(network: nn.Module) -> bool:
    """Return whether a network has adapters that are layers of their own.

    >>> has_adapters(nn.Linear(8, 4)), has_adapters(LowRankLinear(nn.Linear(8, 4), size=2))
    (False, True)
    """
    return any(isinstance(module, AdaptFormer | LowRankLinear) for module in network.modules())


def _add_adaptformer(block: Any, size: int, num_experts: int) -> None:
    if type(block).__name__ == "ConvNeXtBlock":
        _add_to_convnext(block, AdaptFormer(block.conv_dw.out_channels, size, num_experts))
        return
    if type(block).__name__ == "Block":
        layer_scale, block.ls2 = block.ls2, nn.Identity()
    else:
        layer_scale = nn.Identity() if block.gamma_2 is None else LayerScale(block.gamma_2)
        block.gamma_2 = None
    adapter = AdaptFormer(block.attn.proj.out_features, size, num_experts)
    block.mlp, block.norm2 = ParallelMlp(block.norm2, block.mlp, layer_scale, adapter), nn.Identity()


def _add_to_convnext(block: Any, adapter: nn.Module) -> None:
    layer_scale: nn.Module = nn.Identity() if block.gamma is None else LayerScale(block.gamma)
    if block.use_conv_mlp:
        layer_scale, adapter = ChannelsFirst(layer_scale), ChannelsFirst(adapter)
    block.mlp = ParallelMlp(block.norm, block.mlp, layer_scale, adapter)
    block.norm, block.gamma = nn.Identity(), None


def _add_lora(block: Any, size: int, num_experts: int) -> None:
    for name in ("qkv", "q_proj", "k_proj", "v_proj", "proj"):  # one projection for all three, or one for each
        if isinstance(linear := getattr(block.attn, name, None), nn.Linear):
            setattr(block.attn, name, LowRankLinear(linear, size, num_experts))


ADAPTERS = {"adaptformer": _add_adaptformer, "lora": _add_lora}
"""How each kind is put into a block of timm's transformers, by name."""


class _Place(NamedTuple):
    """Where a block is."""

    owner: nn.Sequential | nn.ModuleList
    number: int

    @property
    def block(self) -> Any:
        return self.owner[self.number]


KNOWN_BLOCKS = {"Block": "ls2", "EvaBlock": "gamma_2", "ConvNeXtBlock": "gamma"}
"""Classes of timm's blocks, by name as in `cutting`, and where their layer scale is: BEiT, PVT, TNT and others have a
`Block`, too, without it. What they do with layers of the same names is not known."""


def _blocks(network: ExpertNetwork, kind: str) -> list[_Place]:
    """The blocks to adapt, of a backbone whose layers are where they are expected."""
    trunk = network.trunk
    if not isinstance(trunk, Features) or not all(isinstance(layer, ExpertLinear) for layer in network.branches):
        raise UserError(
            "adapters go into a backbone of timm that the experts share as a whole; "
            "take one (--network), with --split -1"
        )
    places = list(_places(trunk.model))
    kinds = {type(place.block).__name__ for place in places}
    if len(kinds) != 1 or not all(_is_known(place.block) for place in places):
        raise UserError(
            f"this network ({type(trunk.model).__name__}) has no blocks that can be adapted; choose a vision "
            f"transformer or a ConvNeXt, such as {EXAMPLES}, or --tune head or full"
        )
    if kinds != {"ConvNeXtBlock"}:
        _check_attention([place.block.attn for place in places], kind)
    elif kind == "lora":
        raise UserError(
            f"lora changes attention, which this network ({type(trunk.model).__name__}) does not have; "
            "choose adaptformer (--adapter)"
        )
    return places


def _is_known(block: nn.Module) -> bool:
    layer_scale = KNOWN_BLOCKS.get(type(block).__name__)
    return layer_scale is not None and hasattr(block, layer_scale)


def _places(model: Any) -> Iterator[_Place]:
    """Where blocks are: in one sequence, as a transformer's, or in each stage."""
    for owner in (model, *getattr(model, "stages", ())):
        blocks: Any = getattr(owner, "blocks", ())
        yield from (_Place(blocks, number) for number in range(len(blocks)))


def _check_attention(layers: list[Any], kind: str) -> None:
    attention = {type(layer).__name__ for layer in layers}
    by_parts = any(getattr(layer, "q_bias", None) is not None for layer in layers)  # EVA's, beside the projection
    if not attention <= {"Attention", "AttentionRope", "EvaAttention"} or (kind == "lora" and by_parts):
        raise UserError(
            f"the attention of this network ({', '.join(sorted(attention))}) cannot be adapted so; "
            f"choose adaptformer (--adapter), or another network, such as {EXAMPLES}"
        )


def _random(num_experts: int, inputs: int, outputs: int) -> Tensor:
    """First weights as torch's own linear layers have them (Kaiming's, uniform), for `torch.bmm`."""
    bound: float = inputs**-0.5
    return torch.empty(num_experts, inputs, outputs).uniform_(-bound, bound)
