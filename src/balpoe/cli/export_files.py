"""A model exported, and what is printed of it."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from balpoe.data.loading.image_files import PictureFiles, Samples
from balpoe.data.user.image_paths import image_paths
from balpoe.deployment.export import FORMATS, MOST_IMAGES, Export, export
from balpoe.deployment.loaded_model import Model, load
from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run, samples_to_test

__all__ = ["export_model"]

CHECKED = 64  # test images, where none are given


def export_model(
    run: str,
    *,
    out: str | None,
    kind: str | None,
    precision: str,
    experts: Sequence[int] | None,
    images: Sequence[str],
    license: str,  # noqa: A002
    data_root: str | None,
) -> Export:
    """Write a model's file, and print how it compares.

    Args:
        run: A run, or a model's file.
        out: The file to write; None: model.onnx or model.pt2 in the run, or beside the file.
        kind: "onnx" or "torch"; None: as `out` ends, or onnx.
        precision: Precision of an ONNX file.
        experts: Numbers of the experts that are kept; None: all.
        images: Images to check with, as `balpoe predict` takes them.
        license: License of the weights.
        data_root: Where the test set of the run is; None: where its recipe says.
    """
    model = load(run)
    path = Path(out) if out is not None else _beside(run, model, kind or "onnx")
    if path.resolve() in {Path(each).resolve() for each in (run, *images)}:
        raise UserError(f"--out {path} is read, and would be lost; give another name")
    if images and len(model.preprocessing.size) != 3:
        raise UserError(f"{run} takes features, not images; leave --images out, or use balpoe.export in Python")
    changed = precision != "fp32" or experts is not None
    test, why = _test_samples(model, data_root)
    made = export(
        model, path, format=kind or "", precision=precision, experts=experts, license=license,
        images=_given(images) if images else _some(test), test=test if changed else None,
    )  # fmt: skip
    where = (
        "given images" if images else "test samples" if test is not None else "random samples, as no image was given"
    )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, format {made.format}, {precision}")
    print(
        f"Against the model, on {made.check.samples} {where}: probabilities differ by at most "
        f"{made.check.difference:.2g}, and {100 * made.check.agreement:.1f} % of the answers are the same."
    )
    if changed:
        print(_compared(made, test) if test is not None else f"Not measured on labelled samples: {why}")
    return made


def _beside(run: str, model: Model, kind: str) -> Path:
    name = f"model{FORMATS[kind]}"
    return model.run / name if model.run is not None else Path(run).with_suffix(FORMATS[kind])


def _given(images: Sequence[str]) -> list[str]:
    found = list(itertools.islice(image_paths(images), MOST_IMAGES))
    if not found:
        raise UserError(f"there are no images in {', '.join(images)}; give files, or folders that hold some")
    return found


def _test_samples(model: Model, data_root: str | None) -> tuple[Samples | None, str]:
    """The labelled test samples of the model's run, or why there are none at hand."""
    recipe = model.recipe if model.run is None else Run(model.run).recipe()
    try:
        return samples_to_test(model, recipe if data_root is None else updated(recipe, {"data_root": data_root})), ""
    except UserError as error:
        if data_root is not None:
            raise
        return None, str(error)


def _some(test: Samples | None) -> Any:
    if test is None:
        return None
    if isinstance(test, PictureFiles):
        return test.paths[:CHECKED]
    return test.images[:CHECKED]


def _compared(made: Export, test: Samples) -> str:
    parts = [
        f"{METRICS[name].title} {METRICS[name].shown(made.before[name])} before, {METRICS[name].shown(value)} after"
        for name, value in made.after.items()
    ]
    return f"On {len(test):,} labelled test samples: {'; '.join(parts)}."
