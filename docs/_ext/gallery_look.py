"""The look of the gallery's figures: a script says nothing of colours, and its figure is light or dark as the page."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from balpoe.report.drawing import themed_svg
from balpoe.report.look import STYLE


def use_style(_: dict[str, Any], __: str) -> None:
    """Set matplotlib's defaults; called by the gallery between two scripts."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)


def save_figures(_: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save the open figures and return the text that shows them; called by the gallery for each block of a script."""
    import matplotlib.pyplot as plt
    from sphinx_gallery.scrapers import figure_rst

    paths = []
    for number in plt.get_fignums():
        path = Path(next(variables["image_path_iterator"])).with_suffix(".svg")
        path.write_text(themed_svg(plt.figure(number), path.stem), encoding="utf-8")
        paths.append(str(path))
    plt.close("all")
    return str(figure_rst(paths, settings["src_dir"]))


def forget_placeholders(app: Sphinx) -> None:
    """Remove what a build without the scripts left: the gallery would show it instead of their figures."""
    for path in (Path(app.srcdir) / "gallery" / "images" / "thumb").glob("*.png"):
        path.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Forget before the gallery looks."""
    app.connect("builder-inited", forget_placeholders, priority=1)
    return {"parallel_read_safe": True}
