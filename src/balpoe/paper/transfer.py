"""Results beyond the paper, each in tables of its own: a pretrained transformer on CIFAR-100-LT, and Tiny-ImageNet-LT.

The transformer is trained on all of Tiny-ImageNet (benchmarks/pretrain_vit.py) and meets CIFAR-100-LT at 64 pixels:
heads on its frozen features, adapters in its blocks, or all of its weights. How fast each learns was chosen by
`SEARCH`, on training images that are held out; `CHOSEN` names the best trial of each. On Tiny-ImageNet-LT the paper's
networks for ImageNet-LT are trained from random weights.
"""

from collections.abc import Iterator
from typing import Any

from balpoe.paper.fast import FAST_TABLES
from balpoe.paper.paper_result import PaperResult, PaperTable

__all__ = ["CHOSEN", "FURTHER_TABLES", "METHODS", "SEARCH", "TINY_IMAGENET", "TRANSFER", "TUNES", "UNMIXED"]

WEIGHTS = "models/vit_tiny_patch8_64.tiny_imagenet.safetensors"
COMMON: dict[str, Any] = {
    "network": "vit_tiny_patch8_64", "weights": WEIGHTS, "image_size": 64, "split": -1, "width": (256,),
    "schedule": "cosine", "batch_size": 256,
}  # fmt: skip
"""What all trainings of the transformer have in common."""

TUNES: dict[str, dict[str, Any]] = {
    "head": {"tune": "head", "augmentation": "none", "epochs": 60, "warmup_epochs": 0, "head_start": "class-means"},
    "adapters": {"tune": "adapters", "augmentation": "autoaugment", "epochs": 30, "warmup_epochs": 2},
    "full": {
        "tune": "full", "augmentation": "autoaugment", "epochs": 30, "warmup_epochs": 2, "head_start": "class-means",
        "optimizer": "adamw", "weight_decay": 0.05, "decay_norms": False, "depth_lr_decay": 0.8,
        "clip_gradients": 1.0, "weight_average_decay": 0.99,
    },
}  # fmt: skip
"""How much of the transformer learns, and what belongs to that."""

SEARCH: dict[str, tuple[str, dict[str, Any]]] = {
    "head-0.03": ("head", {"lr": 0.03, "mixup_alpha": 0.0}),
    "head-0.1": ("head", {"lr": 0.1, "mixup_alpha": 0.0}),
    "head-0.3": ("head", {"lr": 0.3, "mixup_alpha": 0.0}),
    "head-0.1-mixup": ("head", {"lr": 0.1, "mixup_alpha": 0.4}),
    "adapters-0.03": ("adapters", {"lr": 0.03, "adapter_size": 32, "mixup_alpha": 0.0}),
    "adapters-0.1": ("adapters", {"lr": 0.1, "adapter_size": 32, "mixup_alpha": 0.0}),
    "adapters-0.3": ("adapters", {"lr": 0.3, "adapter_size": 32, "mixup_alpha": 0.0}),
    "adapters-0.1-mixup": ("adapters", {"lr": 0.1, "adapter_size": 32, "mixup_alpha": 0.4}),
    "full-3e-4": ("full", {"lr": 3e-4, "mixup_alpha": 0.0}),
    "full-1e-3": ("full", {"lr": 1e-3, "mixup_alpha": 0.0}),
    "full-2e-3": ("full", {"lr": 2e-3, "mixup_alpha": 0.0}),
    "full-1e-3-mixup": ("full", {"lr": 1e-3, "mixup_alpha": 0.4}),
}
"""Trials, one logit-adjusted expert each, measured on held-out training images: what is tuned, and its settings."""

CHOSEN = {"head": "head-0.1", "adapters": "adapters-0.3", "full": "full-1e-3-mixup"}
"""The trial of each that has the best balanced accuracy there; every method is then trained with its settings."""

UNMIXED = {"full": "full-2e-3"}
"""The best trial without mixup, where the chosen one has it: what mixup is worth to all methods alike."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "cross-entropy": ("cross-entropy", {"lambdas": (1,)}),
    "logit-adjusted": ("one logit-adjusted expert", {"lambdas": (0,)}),
    "uniform": ("uniform ensemble", {"lambdas": (0, 0, 0)}),
    "balpoe": ("BalPoE", {"lambdas": (1, 0, -1)}),
}
OWN_BLOCKS = 4
"""Blocks, at the end, in which each expert has adapters of its own, in the rows that say so."""


def _search() -> Iterator[PaperResult]:
    for name, (tune, changes) in SEARCH.items():
        trial = {**COMMON, **TUNES[tune], **changes, "lambdas": (0,), "validation": 20}
        yield PaperResult(f"transfer-search/{name}", name, "cifar100-lt", trial, 1)


def _transfer() -> Iterator[PaperResult]:
    unmixed = {(tune, "-unmixed", ", without mixup"): name for tune, name in UNMIXED.items()}
    for (tune, ending, remark), name in ({(tune, "", ""): name for tune, name in CHOSEN.items()} | unmixed).items():
        settings = {**COMMON, **TUNES[tune], **SEARCH[name][1]}
        for method, (title, changes) in METHODS.items():
            folder = f"transfer/{tune}{ending}-{method}"
            yield PaperResult(folder, f"{tune}{remark}: {title}", "cifar100-lt", {**settings, **changes})
        if tune == "adapters":
            own = {**settings, **METHODS["balpoe"][1], "adapter_split": OWN_BLOCKS}
            title = f"adapters, own in the last {OWN_BLOCKS} blocks: BalPoE"
            yield PaperResult("transfer/adapters-own-balpoe", title, "cifar100-lt", own)


def _tiny_imagenet() -> Iterator[PaperResult]:
    for network in ("resnet50", "resnext50"):
        for method, (title, changes) in METHODS.items():
            lambdas = {} if method == "balpoe" else changes  # the paper's for ImageNet-LT, which the preset has
            plain = {"mixup_alpha": 0.0} if method == "cross-entropy" else {}
            yield PaperResult(
                f"tiny-imagenet/{network}-{method}", f"{network}: {title}", f"tiny-imagenet-lt-{network}",
                {**lambdas, **plain, "epochs": 60, "workers": 5},
            )  # fmt: skip


TRANSFER: PaperTable = tuple(_transfer())
TINY_IMAGENET: PaperTable = tuple(_tiny_imagenet())
FURTHER_TABLES: dict[str, PaperTable] = {
    "transfer-search": tuple(_search()),
    "transfer": TRANSFER,
    "tiny-imagenet": TINY_IMAGENET,
    **FAST_TABLES,
}
"""By name; `balpoe reproduce` trains them when they are asked for, and not as part of the paper."""
