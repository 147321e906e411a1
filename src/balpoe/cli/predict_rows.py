"""Labels and probabilities for any number of images, written row by row."""

import csv
import functools
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from balpoe.cli.decision_flags import DecisionFlags
from balpoe.cli.predict_decisions import Decisions, decision_cells
from balpoe.cli.predict_parts import Parts, in_blocks
from balpoe.cli.predict_priors import Adjustment, OnePrior, TablePrior, TrackedPrior
from balpoe.cli.track_prior import TrackFlags
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.decode import IMAGE_SUFFIXES
from balpoe.data.loading.image_files import decoded, default_workers
from balpoe.data.user.image_paths import given_paths, image_paths, keyed_image_paths
from balpoe.deployment.answer_rows import answer_rows
from balpoe.deployment.loaded_model import load
from balpoe.deployment.table_source import TableSource
from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.evaluation.forward import forward_in_blocks
from balpoe.evaluation.image_views import with_views
from balpoe.experiments.model_file import Model, model_path
from balpoe.experiments.run_paths import is_file_of_run
from balpoe.files import is_among, write_file
from balpoe.method.ensemble import product_of_experts
from balpoe.progress import CountProgress
from balpoe.training.distributed import chosen_device

__all__ = ["predict_files"]

IMAGES_AT_ONCE = 64  # decoded together, for one forward pass

LabelRow = dict[str, Any]
"""An image's file, with its label, probability, further labels, experts' labels and decisions, or with an error."""
Keys = tuple[str, ...]
Put = Callable[[str], object]
"""Where text goes."""
_Form = Callable[..., None]
"""What puts rows as text: called with where it goes, `rows`, and whether they have a `head`."""


def predict_files(
    run: str,
    inputs: Sequence[str],
    *,
    out: str | None = None,
    kind: str = "csv",
    top: int = 1,
    experts: bool = False,
    prior: str | None = None,
    table: TableSource | None = None,
    track: TrackFlags | None = None,
    decisions: DecisionFlags | None = None,
    views: str = "",
    weights: str = "",
    device: str = "auto",
    parts: Parts | None = None,
) -> tuple[int, int] | None:
    """Write a row for each image; return how many there were, and how many of them could not be read.

    Of processes that share the images, those that do not merge their parts return None.

    Args:
        run: A run's folder, or a model's file.
        inputs: Images, folders of them, patterns, or tables with a column of paths.
        out: The file to write; None: standard output.
        kind: "csv" or "jsonl".
        top: Number of labels, the likeliest first.
        experts: Whether each expert's label is wanted, too.
        prior: Deployment prior, as --prior takes it.
        table: Table of priors, of which each image gets its own; the inputs are tables then, with its keys.
        track: A prior that follows the images instead.
        decisions: What is to be decided of each image.
        views: Views of each image over which log-probabilities are averaged; one without.
        weights: File of the backbone's weights, for a model that holds adapters alone.
        device: Device to compute on.
        parts: The parts that this process writes instead of the whole file.
    """
    model = load(run, weights=weights)
    if len(model.preprocessing.size) != 3 or model.preprocessing.size[0] != 3:
        seen = "features" if len(model.preprocessing.size) != 3 else "arrays of other channels"
        raise UserError(f"{run} was trained on {seen}, not on images; use {_in_python(run, inputs)} in Python")
    if not 1 <= top <= len(model.class_names):
        raise UserError(f"--top must be 1 to {len(model.class_names)}, the number of classes, but is {top}")
    look = _look(model, views)
    adjust = _adjustment(run, model, prior, table, track)
    files = prior, weights, table and table.path, track and track.path, *(decisions.files if decisions else ())
    _check_out(out, itertools.chain([model_path(run)], filter(None, files), given_paths(inputs)))
    if track is not None and _lies_in(track.plot, inputs):
        raise UserError(
            f"{track.plot}, where --track-prior draws, would be one of the images; keep STATE.npz in another folder"
        )
    images = ((path, ()) for path in image_paths(inputs)) if table is None else keyed_image_paths(inputs, table.keys)
    if (first := next(images, None)) is None:
        raise UserError(f"there are no images in {', '.join(inputs)}; give files, or folders that hold some")
    priors = adjust.table if isinstance(adjust, TablePrior) else adjust.target if isinstance(adjust, OnePrior) else None
    if views and decisions is not None and decisions.read(model.class_names).needs_held_out:
        raise UserError("what is decided here is fitted on single views of held-out samples; leave out --views")
    decide = None if decisions is None else Decisions(run, model, decisions, priors)
    if decide is not None and table is None and (parts is None or not parts.share.rank):
        decide.print_notes()
    model.network.to(chosen_device(device))
    names = [f"expert {number + 1}" for number in range(model.network.num_experts if experts else 0)]
    form = functools.partial(_WRITERS[kind], top=top, experts=names, decide=decide)
    answers, named = _Answers(model, look, adjust, top, experts), itertools.chain([first], images)
    if parts is None:
        written: tuple[int, int] | None = _write_all(out, form, _Counted(_rows(answers, decide, named)))
    else:
        written = _write_parts(parts, form, answers, decide, named)
    if written is not None:
        adjust.finish()
    if decide is not None and table is not None:
        decide.print_notes()
    return written


def _in_python(run: str, inputs: Sequence[str]) -> str:
    """What predicts arrays, which no image file holds: all of it, as `predict` there takes no paths of arrays."""
    file = next((path for path in inputs if Path(path).suffix.lower() in (".npy", ".npz")), "FILE.npy")
    member = "['features']" if Path(file).suffix.lower() == ".npz" else ""
    return f"balpoe.load({run!r}).predict(numpy.load({file!r}){member})"


def _write_all(out: str | None, form: _Form, counted: "_Counted") -> tuple[int, int]:
    write = functools.partial(form, rows=counted)
    if out is None:
        write(sys.stdout.write)
    else:
        write_file(Path(out), lambda stream: _as_text(stream, write))
    return counted.rows, counted.errors


def _write_parts(
    parts: Parts, form: _Form, answers: "_Answers", decide: Decisions | None, named: Iterable[tuple[str, Keys]]
) -> tuple[int, int] | None:
    adjust = answers.adjust

    def write(put: Put, images: Sequence[tuple[str, Keys]], head: bool) -> dict[str, Any]:
        counted = _Counted(_rows(answers, decide, images, show=False))
        form(put, rows=counted, head=head)
        return {"rows": counted.rows, "errors": counted.errors, "adjustment": adjust.take_counts()}

    total = parts.predict(named, write, lambda counts: adjust.add_counts(counts["adjustment"]))
    return None if total is None else (total["rows"], total["errors"])


def _adjustment(
    run: str, model: Model, prior: str | None, table: TableSource | None, track: TrackFlags | None
) -> Adjustment:
    if track is not None:
        return TrackedPrior(run, model, track)
    if table is not None:
        return TablePrior(table.read(model.class_names, model.source_prior), model)
    if prior is not None:
        return OnePrior(parse_prior(prior, model), model)
    return Adjustment() if model.default_prior is None else OnePrior(model.default_prior, model)


def _check_out(out: str | None, read: Iterable[str | Path]) -> None:
    """Refuse to write where something is read."""
    if out is None:
        return
    if Path(out).suffix.lower() in IMAGE_SUFFIXES or is_among(out, read):
        raise UserError(f"--out {out} is an image or is read, and would be lost; give a .csv or .jsonl file")
    if is_file_of_run(out):
        raise UserError(f"--out {out} is a file that a run keeps; give another .csv or .jsonl file")


def _lies_in(path: str | Path, inputs: Sequence[str]) -> bool:
    """Whether a file is one of the inputs, or in a folder that is one."""
    whole = Path(os.path.realpath(path))
    folders = (os.path.realpath(each) for each in inputs if Path(each).is_dir())
    return any(whole.is_relative_to(folder) for folder in folders) or is_among(path, image_paths(inputs))


def _rows(
    answers: "_Answers", decide: Decisions | None, named: Iterable[tuple[str, Keys]], show: bool = True
) -> Iterator[LabelRow]:
    predicted = _predicted(answers, named, show)
    if decide is None:
        yield from (each.row for each in predicted)
        return
    for block in in_blocks(predicted, decide.rows_at_once):
        whole = [each for each in block if each.expert_logits is not None]
        if whole:
            logits = torch.stack([each.expert_logits for each in whole if each.expert_logits is not None])
            for each, decided in zip(whole, decide(logits, [each.keys for each in whole]), strict=True):
                each.row.update(decided)
        yield from (each.row for each in block)


class _Predicted(NamedTuple):
    """What is known of an image before anything is decided of it."""

    row: LabelRow
    keys: Keys
    expert_logits: Tensor | None
    """As the network gives them; None for an image that could not be read."""


def _predicted(answers: "_Answers", named: Iterable[tuple[str, Keys]], show: bool) -> Iterator[_Predicted]:
    preprocessing = answers.look.preprocessing
    with CountProgress("predicting", 0, show) as count, ThreadPoolExecutor(default_workers()) as pool:
        for block in in_blocks(named, IMAGES_AT_ONCE):
            images = list(pool.map(lambda each: _image_or_error(each[0], preprocessing), block))
            whole = [(image, keys) for image, (_, keys) in zip(images, block, strict=True) if isinstance(image, Tensor)]
            found = iter(answers(whole) if whole else [])
            for (path, keys), image in zip(block, images, strict=True):
                row, logits = next(found) if isinstance(image, Tensor) else ({"error": image}, None)
                yield _Predicted({"file": path, **row}, keys, logits)
            count(len(block))


def _image_or_error(path: str, preprocessing: Preprocessing) -> Tensor | str:
    try:
        return decoded(path, preprocessing)
    except UserError as error:
        return str(error)


class _Look(NamedTuple):
    """What looks at images, at one view of each or at several, and how it wants them."""

    expert_logits: Callable[[Iterable[Tensor]], Tensor]
    preprocessing: Preprocessing


def _look(model: Model, views: str) -> _Look:
    if not views:
        return _Look(model.logits_of_blocks, model.preprocessing)
    viewed, larger = with_views(model.network, model.preprocessing, views)
    return _Look(functools.partial(forward_in_blocks, viewed, larger), larger)


class _Answers(NamedTuple):
    """What a row says of an image, and the expert logits that it is said by."""

    model: Model
    look: _Look
    adjust: Adjustment
    top: int
    experts: bool

    def __call__(self, images: Sequence[tuple[Tensor, Keys]]) -> list[tuple[LabelRow, Tensor]]:
        model, keys = self.model, [each for _, each in images]
        as_given = self.look.expert_logits([torch.stack([image for image, _ in images])])
        expert_logits = model.calibrated(as_given)
        logits = self.adjust(product_of_experts(expert_logits), keys)
        rows: list[LabelRow] = answer_rows(logits, model.class_names, self.top)
        if self.experts:
            for row, answer in zip(rows, expert_logits.argmax(dim=2).tolist(), strict=True):
                row["experts"] = [model.class_names[label] for label in answer]
        return list(zip(rows, as_given, strict=True))


class _Counted:
    """Rows on their way, counted."""

    def __init__(self, rows: Iterator[LabelRow]) -> None:
        self.source, self.rows, self.errors = rows, 0, 0

    def __iter__(self) -> Iterator[LabelRow]:
        for row in self.source:
            self.rows += 1
            self.errors += "error" in row
            yield row


def _write_csv(
    put: Put, rows: Iterable[LabelRow], top: int, experts: Sequence[str], decide: Decisions | None, head: bool = True
) -> None:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")

    def send(values: Sequence[Any]) -> None:
        writer.writerow(values)
        put(line.getvalue())
        line.seek(0)
        line.truncate()

    further = [f"{name} {number}" for number in range(2, top + 1) for name in ("label", "probability")]
    columns, separator = ([], "") if decide is None else (decide.columns, decide.separator)
    if head:
        send(["file", "label", "probability", *further, *experts, *columns, "error"])
    for row in rows:
        if "error" in row:
            send([row["file"], *[""] * (2 * top + len(experts) + len(columns)), row["error"]])
        else:
            labels = [value for name, share in row["top"] for value in (name, f"{share:.6g}")]
            send([row["file"], *labels, *row.get("experts", ()), *decision_cells(row, columns, separator), ""])


def _write_jsonl(
    put: Put, rows: Iterable[LabelRow], top: int, experts: Sequence[str], decide: Decisions | None, head: bool = True
) -> None:
    for row in rows:
        if top == 1:
            row.pop("top", None)
        elif "top" in row:
            row["top"] = [{"label": name, "probability": share} for name, share in row["top"]]
        put(json.dumps(row, ensure_ascii=False) + "\n")


_WRITERS = {"csv": _write_csv, "jsonl": _write_jsonl}


def _as_text(stream: IO[bytes], write: Callable[[Put], None]) -> None:
    write(lambda text: stream.write(text.encode(errors="replace")))
