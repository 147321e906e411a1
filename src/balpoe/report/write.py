"""balpoe report: one or several runs, or anybody's saved predictions, as a page that explains itself."""

from collections.abc import Sequence
from pathlib import Path

from balpoe.deployment.taxonomy import Taxonomy
from balpoe.errors import UserError
from balpoe.files import write_file, write_text
from balpoe.report.calibration import experts_section, reliability_section
from balpoe.report.classes import classes_section, shifted_section
from balpoe.report.confusions import confident_errors_section, confusions_section
from balpoe.report.decide.page import decide_assets
from balpoe.report.decide.section import decide_section
from balpoe.report.drawing import figure_bytes
from balpoe.report.explorer.pack import explorer_assets
from balpoe.report.images import load_images
from balpoe.report.inputs import Subject, read_subjects
from balpoe.report.overview import (
    counts_section,
    deployment_section,
    explorer_section,
    recipe_section,
    seeds_section,
    what_section,
)
from balpoe.report.render import Figure, Section, html_page, markdown_page
from balpoe.report.result import adjusted_subject, result_section

__all__ = ["check_output", "report_sections", "write_page", "write_report"]


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
    taxonomy: str | None = None,
) -> list[Path]:
    """Write the report, and beside a page its figures as PNG and SVG; return the files.

    Args:
        paths: Runs, folders with the runs of several seeds, or saved predictions; the first one is looked at closely.
        out: File to write.
        baseline: Run or predictions that the first one is compared with, sample by sample.
        thresholds: Thresholds of the shot groups, if not those of the run.
        markdown: Whether to write Markdown instead of a page.
        data_root: Folder of the images, for examples.
        prior: Deployment prior, as `balpoe evaluate --prior` takes it.
        validation: Labelled predictions of the same model, for the prior "estimate".
        taxonomy: File with a tree of the classes, as `Taxonomy.read` takes it.
    """
    inputs = [*paths, *(path for path in (baseline, prior, validation, taxonomy) if path is not None)]
    check_output(out, inputs)
    subject, *others = read_subjects([*paths, *([] if baseline is None else [baseline])], thresholds)
    against = None if baseline is None else others.pop()
    deployment = [] if prior is None else [deployment_section(subject, prior, validation)]
    tree = None if taxonomy is None else Taxonomy.read(taxonomy, subject.predictions[0].class_names)
    sections = report_sections(subject, others, against, data_root=data_root, deployment=deployment, taxonomy=tree)
    title = f"Report on {subject.name}" + ("" if subject.place in subject.name else f" ({subject.place})")
    if markdown:
        write_text(out, markdown_page(title, sections))
        return [out]
    styles, scripts = zip(explorer_assets(), decide_assets(), strict=True)
    return write_page(title, sections, out, "".join(styles), "".join(scripts))


def write_page(title: str, sections: Sequence[Section], out: Path, styles: str = "", scripts: str = "") -> list[Path]:
    """Write a page that is complete, and beside it its figures as PNG and SVG; return the files.

    Args:
        title: Title of the page.
        sections: What is on it.
        out: File to write.
        styles: Further CSS.
        scripts: Further JavaScript.
    """
    folder = out.with_name(f"{out.stem}_figures")
    page = html_page(title, sections, styles, scripts)
    figures = [exhibit for section in sections for exhibit in section.exhibits if isinstance(exhibit, Figure)]
    drawn = {
        folder / f"{figure.name}.{kind}": figure_bytes(figure.draw, figure.size, kind)
        for figure in figures
        for kind in ("png", "svg")
    }
    for path, data in drawn.items():
        write_file(path, lambda stream, data=data: stream.write(data))  # type: ignore[misc]
    write_text(out, page)  # last: where the page is, all of it is
    return [out, *drawn]


def check_output(out: Path, inputs: Sequence[str]) -> None:
    """Say, before any work, why nothing can be written there."""
    if not out.name or out.is_dir():
        raise UserError(f"--out {out} is a folder; give the name of a file, such as {out / 'report.html'}")
    if out.exists() and not out.is_file():
        raise UserError(f"--out {out} is not an ordinary file; give another name")
    if any(Path(path).exists() and out.resolve() == Path(path).resolve() for path in inputs):
        raise UserError(f"--out {out} is also read, and would be lost; give another name")
    folder = out.with_name(f"{out.stem}_figures")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"the figures go into the folder {folder}, but that is a file; give --out another name")


def report_sections(
    subject: Subject,
    others: Sequence[Subject] = (),
    baseline: Subject | None = None,
    *,
    data_root: str = "",
    deployment: Sequence[Section] = (),
    taxonomy: Taxonomy | None = None,
) -> list[Section]:
    """Return the report, section by section; the first seed is looked at closely, all of them are averaged."""
    beside = [*others, *([baseline] if baseline else [])]
    images = load_images(subject, data_root)
    moved = {each.name: adjusted_subject(each) for each in (subject, *beside)}
    against = [] if baseline is None else [each for each in (baseline, moved[baseline.name]) if each is not None]
    return [
        result_section(subject, beside, baseline, moved),
        *deployment,
        classes_section(moved[subject.name] or subject if against else subject, against),
        reliability_section(subject),
        *([] if subject.evaluations[0]["check"] is None else [experts_section(subject)]),
        confusions_section(subject, images),
        confident_errors_section(subject, images),
        shifted_section(subject),
        explorer_section(subject),
        decide_section(subject, taxonomy),
        counts_section(subject),
        what_section(subject, beside),
        *([seeds_section(subject)] if len(subject.evaluations) > 1 else []),
        recipe_section(subject),
    ]
