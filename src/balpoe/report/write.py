"""balpoe report: one or several runs, or anybody's saved predictions, as a page that explains itself."""

from collections.abc import Sequence
from pathlib import Path

from balpoe.errors import UserError
from balpoe.files import write_file, write_text
from balpoe.report.calibration import experts_part, reliability_part
from balpoe.report.classes import classes_part, shifted_part
from balpoe.report.confusions import confusions_part
from balpoe.report.explorer.pack import explorer_assets
from balpoe.report.inputs import Subject, read_subjects
from balpoe.report.overview import (
    counts_part,
    explorer_part,
    groups_part,
    place_part,
    recipe_part,
    result_part,
    seeds_part,
    what_part,
)
from balpoe.report.plots import figure_bytes
from balpoe.report.render import Figure, Part, html_page, markdown_page

__all__ = ["report_parts", "write_report"]


def write_report(
    paths: Sequence[str],
    out: Path,
    *,
    baseline: str | None = None,
    thresholds: tuple[int, int] | None = None,
    markdown: bool = False,
    data_root: str = "",
    prior: str | None = None,
    validation: str | None = None,
) -> list[Path]:
    """Write the report, and beside a page its figures as PNG and SVG; return the files.

    Args:
        paths: Runs, folders with the runs of several seeds, or saved predictions; the first one is looked at closely.
        out: The file to write.
        baseline: What the first one is compared with, sample by sample.
        thresholds: Of the shot groups, if not those of the run.
        markdown: Tables and words instead of a page.
        data_root: Where the pictures are, for examples.
        prior: Of the place of use, as for `balpoe evaluate --prior`.
        validation: Labelled predictions of the same model, for the prior "estimate".
    """
    inputs = [*paths, *(path for path in (baseline, prior, validation) if path is not None)]
    folder = _checked_places(out, inputs)
    subject, *others = read_subjects([*paths, *([] if baseline is None else [baseline])], thresholds)
    against = None if baseline is None else others.pop()
    place = [] if prior is None else [place_part(subject, prior, validation)]
    parts = report_parts(subject, others, against, data_root=data_root, place=place)
    title = f"Report on {subject.name}"
    if markdown:
        write_text(out, markdown_page(title, parts))
        return [out]
    page = html_page(title, parts, *explorer_assets())
    figures = [block for part in parts for block in part.blocks if isinstance(block, Figure)]
    drawn = {
        folder / f"{figure.name}.{kind}": figure_bytes(figure.draw, figure.size, kind)
        for figure in figures
        for kind in ("png", "svg")
    }
    for path, data in drawn.items():
        write_file(path, lambda stream, data=data: stream.write(data))  # type: ignore[misc]
    write_text(out, page)  # last: where the page is, all of it is
    return [out, *drawn]


def _checked_places(out: Path, inputs: Sequence[str]) -> Path:
    """Return the folder for the figures, or say, before any work, why nothing can be written there."""
    if not out.name or out.is_dir():
        raise UserError(f"--out {out} is a folder; give the name of a file, such as {out / 'report.html'}")
    if out.exists() and not out.is_file():
        raise UserError(f"--out {out} is not an ordinary file; give another name")
    if any(Path(path).exists() and out.resolve() == Path(path).resolve() for path in inputs):
        raise UserError(f"--out {out} is also read, and would be lost; give another name")
    folder = out.with_name(f"{out.stem}_figures")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"the figures go into the folder {folder}, but that is a file; give --out another name")
    return folder


def report_parts(
    subject: Subject,
    others: Sequence[Subject] = (),
    baseline: Subject | None = None,
    *,
    data_root: str = "",
    place: Sequence[Part] = (),
) -> list[Part]:
    """Return the report, part by part; the first seed is looked at closely, all of them are averaged."""
    beside = [*others, *([baseline] if baseline else [])]
    parts = [
        what_part(subject),
        result_part(subject, beside, baseline),
        *place,
        counts_part(subject),
        groups_part(subject, beside),
        classes_part(subject, baseline),
        reliability_part(subject),
        *([] if subject.evaluations[0]["check"] is None else [experts_part(subject)]),
        confusions_part(subject, data_root),
        shifted_part(subject),
        explorer_part(subject),
    ]
    if len(subject.evaluations) > 1:
        parts.append(seeds_part(subject))
    parts.append(recipe_part(subject))
    return parts
