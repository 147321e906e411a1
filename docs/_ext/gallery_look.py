"""The look of the gallery's figures, given to every script before it runs: a script itself says nothing of colours."""

from pathlib import Path
from typing import Any

STYLE = Path(__file__).parents[1] / "gallery.mplstyle"


def use_style(_: dict[str, Any], __: str) -> None:
    """Set matplotlib's defaults; called by the gallery between two scripts."""
    import matplotlib.pyplot as plt

    plt.style.use(STYLE)
