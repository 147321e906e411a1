"""The test images of a run, small, inside a page: read where the run found them, by the loader of its training."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import torch

from balpoe.data.dataset import Dataset
from balpoe.data.jpeg import jpeg
from balpoe.data.loading.decode import read_image
from balpoe.data.loading.image_files import PictureFiles, Samples
from balpoe.data.png import png
from balpoe.errors import UserError
from balpoe.experiments.build import own_data, recipe_data
from balpoe.experiments.recipe import Recipe, updated
from balpoe.report.inputs import Subject
from balpoe.report.render import Fragment

__all__ = ["SampleImages", "Shown", "gallery", "load_images"]

SIDE = 96  # pixels of an image on the page
NOT_THERE = "The test images are not where the run found them, so none is shown: --data-root says where they are now."
CHANGED = (
    "The images have changed since the run was trained, so none is shown: nobody knows which ones it was tested on."
)


@dataclass(frozen=True)
class SampleImages:
    """The images of the test samples, in the order of the predictions; or why there are none."""

    samples: Samples | None = None
    why_not: str = ""
    """A sentence; empty where there is nothing to say, because the samples are no images."""

    def tag(self, row: int, words: str) -> str | None:
        """Return an image as an HTML element; None if its file cannot be read any more."""
        if self.samples is None:
            return None
        try:
            if isinstance(self.samples, Dataset):
                kind, data, tiny = "png", png(self.samples.images[row]), ' class="tiny"'
            else:
                way = self.samples.preprocessing.interpolation
                kind, data, tiny = "jpeg", jpeg(read_image(self.samples.paths[row], SIDE, SIDE, way)), ""
        except UserError:
            return None
        source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        return f'<img{tiny} src="{source}" alt="{html.escape(words)}" title="{html.escape(self.file(row))}">'

    def file(self, row: int) -> str:
        """Return the name of the file without its folders, which are nobody else's business."""
        return PurePath(self.samples.paths[row]).name if isinstance(self.samples, PictureFiles) else ""


def load_images(subject: Subject, data_root: str = "") -> SampleImages:
    """Return the test images of a run, if its data are still there and still the same.

    Args:
        subject: Run; predictions from elsewhere have no images.
        data_root: Folder of the data, if not the one that the run has read.
    """
    if not subject.runs:
        return SampleImages()
    recipe = updated(subject.runs[0].recipe(), {"download": False, **({"data_root": data_root} if data_root else {})})
    try:
        samples = _test_samples(recipe)
    except UserError:
        return SampleImages(why_not=NOT_THERE)
    if isinstance(samples, Dataset) and samples.images.ndim != 4:
        return SampleImages()
    if samples is None or not torch.equal(samples.targets, subject.predictions[0].targets):
        return SampleImages(why_not=CHANGED)
    return SampleImages(samples)


def _test_samples(recipe: Recipe) -> Samples | None:
    """The test data of a recipe; None for own data of another version than it was trained on."""
    if recipe.dataset != "own":
        return recipe_data(recipe)[1]
    found = own_data(recipe)
    return found.test if recipe.data_version in ("", found.version) else None


@dataclass(frozen=True)
class Shown:
    """Some test samples that a page shows together."""

    rows: Sequence[int]
    words: str
    """What is to be seen; also read aloud in place of each image."""
    note: str = ""


def gallery(images: SampleImages, groups: Sequence[Shown]) -> list[Fragment]:
    """Return images with their captions, and a sentence about files that are missing."""
    if images.samples is None:
        return [_sentence(images.why_not)] if images.why_not else []
    items, missing = [], []
    for group in groups:
        tags = {row: images.tag(row, group.words) for row in group.rows}
        missing += [images.file(row) for row, tag in tags.items() if tag is None]
        if shown := "".join(tag for tag in tags.values() if tag is not None):
            note = f"<small>{html.escape(group.note)}</small>" if group.note else ""
            items.append(f"<li>{shown}<br><bdi>{html.escape(group.words)}</bdi>{note}</li>")
    kind = "images" if all(len(group.rows) == 1 for group in groups) else "images wide"
    found = [Fragment(f'<ul class="{kind}">{"".join(items)}</ul>')] if items else []
    if missing:
        found.append(_sentence(f"Files that could not be read when this page was made: {', '.join(missing)}."))
    return found


def _sentence(text: str) -> Fragment:
    return Fragment(f"<p>{html.escape(text)}</p>", text)
