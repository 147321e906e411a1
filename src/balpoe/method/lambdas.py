"""The paper's sets of lambdas; apart from `priors`, so that a recipe can be read without torch."""

from collections.abc import Sequence

from balpoe.errors import UserError

__all__ = ["equidistant_lambdas", "expert_names"]


def equidistant_lambdas(num_experts: int, mean: float = 0.0, spread: float = 1.0) -> tuple[float, ...]:
    """Return evenly spaced lambdas from mean + spread down to mean - spread; a single expert has the mean.

    >>> equidistant_lambdas(3)
    (1.0, 0.0, -1.0)
    >>> equidistant_lambdas(1)
    (0.0,)
    """
    if num_experts < 1:
        raise UserError(f"num_experts must be at least 1, but is {num_experts}")
    if num_experts == 1:
        return (float(mean),)
    return tuple(mean + spread * (1 - 2 * expert / (num_experts - 1)) for expert in range(num_experts))


def expert_names(lambdas: Sequence[float]) -> list[str]:
    """Return a name for each expert by its lambda, with a number where two have the same.

    >>> expert_names([1, 0, -1]), expert_names([1, 1])
    (['expert, lambda 1', 'expert, lambda 0', 'expert, lambda -1'], ['expert 1, lambda 1', 'expert 2, lambda 1'])
    """
    alike = len(set(lambdas)) < len(lambdas)
    return [f"expert{f' {number}' if alike else ''}, lambda {value:g}" for number, value in enumerate(lambdas, 1)]
