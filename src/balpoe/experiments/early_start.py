"""What a training waits for, begun in threads while Python imports the rest of what it needs."""

from balpoe.data.cifar import CIFAR_FILES, read_ahead
from balpoe.data.registry import DATASETS
from balpoe.experiments.recipe import Recipe
from balpoe.training.early_gpu import wake_gpu

__all__ = ["start_early"]


def start_early(recipe: Recipe) -> None:
    """Begin to make the GPU ready and to read CIFAR's files, for a recipe whose images are held in memory.

    Other images are decoded by processes, which are forked: not beside a thread that makes a GPU ready.

    Args:
        recipe: Recipe that will be trained.

    >>> start_early(Recipe(dataset="own", data_root="photos"))
    """
    if recipe.dataset not in DATASETS or not DATASETS[recipe.dataset].in_memory:
        return
    wake_gpu(recipe.device, recipe.devices)
    if recipe.dataset in CIFAR_FILES and not recipe.download:
        read_ahead(recipe.dataset, recipe.data_root)
