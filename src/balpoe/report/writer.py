"""balpoe report: one or several runs, or anybody's saved predictions, as a page that explains itself."""

from collections.abc import Sequence
from pathlib import Path

from balpoe.explorer import explorer_assets
from balpoe.files import write_file, write_text
from balpoe.plots import figure_bytes
from balpoe.report.confusions import confusions_part
from balpoe.report.details import classes_part, experts_part, reliability_part, shifted_part
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
from balpoe.report.page import Figure, Part, html_page, markdown_page
from balpoe.report.subjects import Subject, read_subjects

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
    subject, *others = read_subjects([*paths, *([baseline] if baseline else [])], thresholds)
    against = others.pop() if baseline else None
    place = [] if prior is None else [place_part(subject, prior, validation)]
    parts = report_parts(subject, others, against, data_root=data_root, place=place)
    title = f"Report on {subject.name}"
    if markdown:
        write_text(out, markdown_page(title, parts))
        return [out]
    styles, scripts = explorer_assets()
    page = html_page(title, parts, styles, scripts)
    folder = out.with_name(f"{out.stem}_figures")
    files = [out]
    write_text(out, page)
    for figure in (block for part in parts for block in part.blocks if isinstance(block, Figure)):
        for kind in ("png", "svg"):
            data = figure_bytes(figure.draw, figure.size, kind)
            files.append(folder / f"{figure.name}.{kind}")
            write_file(files[-1], lambda stream, data=data: stream.write(data))  # type: ignore[misc]
    return files


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
        experts_part(subject),
        confusions_part(subject, data_root),
        shifted_part(subject),
        explorer_part(subject),
    ]
    if len(subject.evaluations) > 1:
        parts.append(seeds_part(subject))
    parts.append(recipe_part(subject))
    return parts
