"""What a training leaves as it is, and what it changes: only the latter is saved, with the digest of the former."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from balpoe.errors import UserError

__all__ = ["check_frozen", "frozen_digest", "load_trained", "tensor_bytes", "trained_state", "weights_digest"]


def trained_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network that training may change, by name: all but frozen parameters.

    >>> network = nn.Linear(2, 1)
    >>> network.weight.requires_grad_(False)
    Parameter containing:
    tensor(...)
    >>> list(trained_state(network))
    ['bias']
    """
    frozen = _frozen(network)
    return {name: tensor for name, tensor in network.state_dict().items() if name not in frozen}


def load_trained(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `trained_state` returned, or all tensors of the network; others that are missing are a RuntimeError."""
    ours = network.state_dict()
    network.load_state_dict({**{name: ours[name] for name in _frozen(network)}, **state})


def frozen_digest(network: nn.Module) -> str:
    """Return the SHA-256 of a network's frozen parameters, in order, whatever their names; empty if none is frozen.

    >>> frozen_digest(nn.Linear(2, 1))
    ''
    """
    parameters = _frozen(network).values()
    return _digest(parameters) if parameters else ""


def weights_digest(network: nn.Module) -> str:
    """Return the SHA-256 of all tensors of a network, in order, whatever their names.

    >>> weights_digest(nn.Identity())[:8]
    'e3b0c442'
    """
    return _digest(network.state_dict().values())


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the numbers of a tensor as bytes, row by row; of any type, also of those that numpy does not have.

    >>> tensor_bytes(torch.ones(1, dtype=torch.bfloat16)).tolist()
    [128, 63]
    """
    if not tensor.numel():  # its stride may be 0, of which torch makes no bytes
        return memoryview(b"")
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def check_frozen(found: str, digest: str, what: str, advice: str = "give it its weights (--weights)") -> None:
    """Refuse weights that were trained beside other frozen ones.

    Args:
        found: `frozen_digest` of the network that they are meant for.
        digest: That of the network that they were trained in.
        what: What holds them, for the message.
        advice: What to do, for the message.

    >>> check_frozen("1a2b3c", "4d5e6f", "a")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: a was trained on a backbone of digest 4d5e6f, not 1a2b3c; give it its weights (--weights)
    """
    if found != digest:
        raise UserError(
            f"{what} was trained on a backbone of digest {digest[:12] or 'none'}, not {found[:12] or 'none'}; {advice}"
        )


def _frozen(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in network.named_parameters() if not parameter.requires_grad}
