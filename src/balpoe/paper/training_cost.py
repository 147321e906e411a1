"""What a training costs on one H200: its length in steps of three ResNet-32 experts, and seconds a step."""

from balpoe.data.loading.epoch_plan import samples_seen
from balpoe.experiments.recipe import Recipe

__all__ = ["SAMPLES", "SECONDS_A_STEP", "WIDE_WORK", "gpu_seconds", "training_steps"]

# Of three experts, alone on an H200 (results/cifar_step.json). Of five trainings that share it all steps together take
# a sixth less, with seven experts a twelfth less (results/cifar100-lt-50/balpoe-best): all are reckoned as if alone.
SECONDS_A_STEP = 0.0014
SAMPLES = {("cifar100-lt", 100): 10_847, ("cifar100-lt", 50): 12_608, ("cifar100-lt", 10): 19_573,
           ("cifar10-lt", 100): 12_406, ("cifar10-lt", 50): 13_996, ("cifar10-lt", 10): 20_431,
           ("tiny-imagenet-lt", 100): 21_549}  # fmt: skip
WORK = {("vit_tiny_patch8_64", "head"): 0.2, ("vit_tiny_patch8_64", "adapters"): 8.0,
        ("vit_tiny_patch8_64", "full"): 10.0, ("resnet50", "full"): 5.0, ("resnext50_32x4d", "full"): 6.0}  # fmt: skip
"""About how many steps of resnet32 a step of another network takes as long as, by what is tuned."""
WIDE_WORK = {32: 2.3, 64: 6.4}
"""The same of a resnet32 of so many channels in its first stage, of three experts (results/width_steps.json)."""


def training_steps(recipe: Recipe) -> int:
    """Return the length of a training, in steps of three experts and 128 images that take as long.

    Experts share a trunk, and launches: of 128 images one takes three quarters of the time of three, seven 1.6 times
    it. A step of 512 images takes 2.7 times as long as one of 128, of three experts.

    >>> training_steps(Recipe()), training_steps(Recipe(num_experts=7))
    (17000, 26714)
    """
    samples = SAMPLES.get((recipe.dataset, int(recipe.imbalance_ratio)), 1000)
    steps = recipe.epochs * -(-samples_seen(samples, recipe.batch_size, recipe.drop_last) // recipe.batch_size)
    if (work := WORK.get((recipe.network, recipe.tune))) is not None:
        return round(steps * work)
    wide: float = WIDE_WORK.get(recipe.width[0], 1) if recipe.network == "resnet32" else 1
    if recipe.early_image_size:  # of CIFAR's images; work grows with their area
        wide *= 1 - recipe.early_fraction * (1 - (recipe.early_image_size / 32) ** 2)
    return round(wide * steps * (4 + recipe.experts) / 7 * (0.43 + 0.57 * recipe.batch_size / 128))


def gpu_seconds(recipe: Recipe) -> float:
    """Return about how many seconds of a GPU the epochs of a training take.

    >>> round(gpu_seconds(Recipe()))
    24
    """
    return training_steps(recipe) * SECONDS_A_STEP
