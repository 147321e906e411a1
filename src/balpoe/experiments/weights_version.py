"""Which file of weights a recipe means, whatever it is called."""

import hashlib
from pathlib import Path

from balpoe.experiments.recipe import Recipe, updated

__all__ = ["with_weights_version"]


def with_weights_version(recipe: Recipe) -> Recipe:
    """Return a recipe that tells one file of weights from another, whatever they are called."""
    file = Path(recipe.weights)
    if not recipe.weights or not file.is_file():
        return recipe
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return updated(recipe, {"weights_version": digest[:8]})
