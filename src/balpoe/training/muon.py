"""Muon (Jordan et al. 2024): steps with orthogonal matrices for the kernels of convolutions, SGD for all other weights.

The momentum of a kernel is replaced by about the nearest matrix whose singular values are all 1: directions that are
rare in the gradients are then learnt as fast as common ones. Newton-Schulz iterations find it with products alone, and
nothing is read from the device, so that a step can be captured. The matrices of all layers and experts go through them
as one stack, padded with zeros, which stay zero: a step of `resnet32` launches three products an iteration.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.private_apis import between_all, copy_to_all, move_all
from balpoe.training.plain_optimizers import SGD

__all__ = ["Muon", "orthogonalise"]

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # published: chosen to lift small singular values fast; the end is 0.7 to 1.2
ROWS, COLUMNS = 64, 64 * 9  # sizes of a stack are multiples of these: all kernels of `resnet32` fit into one


class Muon(SGD):
    """SGD, but for groups with `matrices`: so many in each of their weights, expert after expert, are orthogonalised.

    Of such a group `weight_decay` is decoupled from the gradient: a step multiplies weights by 1 - rate * decay. Its
    momentum is `direction_momentum`, with Nesterov's `look_ahead` or not; that of SGD, which comes behind, must be 0.

    Args:
        params: Weights, or groups of them.
        lr: Learning rate.
        momentum: Momentum of SGD.
        nesterov: Whether it is Nesterov's kind.
        weight_decay: Weight decay of SGD.
        iterations: Number of Newton-Schulz iterations.
        fused: As for `torch.optim.SGD`.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> kernels = {"matrices": 1, "direction_momentum": 0.0, "look_ahead": False, "momentum": 0.0, "nesterov": False}
    >>> Muon([{"params": [weight], **kernels}]).step()
    >>> weight[1, 1] < -0.05  # a step of SGD would be -0.01
    tensor(True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        iterations: int = 5,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused)
        self.iterations = iterations

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Change the weights; the gradients of kernels become the matrices that they were changed by."""
        gradients, directions, matrices = list[Tensor](), list[Tensor](), list[int]()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None and group.get("matrices")]
            if not weights:
                continue
            found = [weight.grad for weight in weights]
            gradients += found
            directions += self._directions(weights, found, group["direction_momentum"], group["look_ahead"])
            matrices += [group["matrices"]] * len(weights)
        if gradients:
            orthogonalise(directions, matrices, out=gradients, iterations=self.iterations)
        return super().step(closure)

    def _directions(
        self, weights: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float, look_ahead: bool
    ) -> list[Tensor]:
        """Take the gradients into their means; return these, or with Nesterov's look ahead what comes next."""
        for weight in weights:
            if "direction" not in self.state[weight]:
                self.state[weight]["direction"] = torch.zeros_like(weight)
        means = [self.state[weight]["direction"] for weight in weights]
        move_all(means, gradients, 1 - momentum)
        return between_all(gradients, means, momentum) if look_ahead else means


def orthogonalise(
    kernels: Sequence[Tensor], matrices: Sequence[int], *, out: Sequence[Tensor], iterations: int = 5
) -> None:
    """Write kernels with singular values of about 1, times the root of rows over columns where there are more rows.

    Args:
        kernels: Kernels, (matrices * rows, ...); all axes but the first are the columns.
        matrices: Number of matrices of each, such as one for each expert.
        out: Tensors of the same shapes, for what is found.
        iterations: Number of Newton-Schulz iterations.

    >>> kernel = torch.diag(torch.tensor([9.0, 1.0]))
    >>> orthogonalise([kernel], [1], out=[kernel])
    >>> kernel.diag().round(decimals=1)
    tensor([0.7000, 0.8000])
    """
    by_size: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    for kernel, number, place in zip(kernels, matrices, out, strict=True):
        pair = kernel.unflatten(0, (number, -1)), place.unflatten(0, (number, -1))
        by_size.setdefault(_padded(pair[0]), []).append(pair)
    for size, pairs in by_size.items():
        ours, places = zip(*pairs, strict=True)
        dtype = torch.bfloat16 if ours[0].is_cuda else torch.float32
        stack = ours[0].new_zeros(sum(map(len, ours)), *size, dtype=dtype)
        copy_to_all(_places(stack, ours), ours)
        copy_to_all(places, _places(_newton_schulz(stack, iterations), ours))
        for place in places:
            rows, columns = _shape(place)
            if rows > columns:
                place *= (rows / columns) ** 0.5


def _newton_schulz(stack: Tensor, iterations: int) -> Tensor:
    a, b, c = COEFFICIENTS
    x: Tensor = stack / (torch.linalg.matrix_norm(stack, keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _shape(kernel: Tensor) -> tuple[int, int]:
    """Rows and columns of each matrix of a kernel (matrices, rows, ...)."""
    return kernel.shape[1], kernel[0, 0].numel()


def _padded(kernel: Tensor) -> tuple[int, int]:
    """The size that its matrices have in a stack, which has no more rows than columns."""
    few, many = sorted(_shape(kernel))
    return -(-few // ROWS) * ROWS, -(-many // COLUMNS) * COLUMNS


def _places(stack: Tensor, kernels: Sequence[Tensor]) -> list[Tensor]:
    """Where each kernel (matrices, rows, ...) lies in a stack, one after the other; lying down, if it is tall."""
    places, start = [], 0
    for kernel in kernels:
        rows, columns = _shape(kernel)
        part = stack[start : start + len(kernel)]
        flat = part[:, :rows, :columns] if rows <= columns else part[:, :columns, :rows].mT
        places.append(flat.unflatten(2, kernel.shape[2:]))
        start += len(kernel)
    return places
