"""How large the tensors are that operations make: what a function holds, without a clock or the system's memory."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorSizes(TorchDispatchMode):
    """Notes the number of elements of every tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        self.sizes.extend(each.numel() for each in tree_leaves(found) if isinstance(each, torch.Tensor))
        return found
