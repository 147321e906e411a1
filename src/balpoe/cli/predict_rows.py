"""Labels and probabilities for any number of images, written row by row."""

import csv
import functools
import io
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from balpoe.cli.decision_flags import DecisionFlags
from balpoe.cli.predict_decisions import Decisions, decision_cells
from balpoe.cli.prior_table import TableFlags
from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.decode import IMAGE_SUFFIXES
from balpoe.data.loading.image_files import decoded, default_workers
from balpoe.data.user.image_paths import image_paths, keyed_image_paths
from balpoe.deployment.prior_tables import PriorTable, unknown_keys_sentence
from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.experiments.model_file import Model, load
from balpoe.files import write_file
from balpoe.method.ensemble import product_of_experts, shift_prior
from balpoe.progress import CountProgress
from balpoe.training.distributed import chosen_device

__all__ = ["predict_files"]

IMAGES_AT_ONCE = 64  # decoded together, for one forward pass

LabelRow = dict[str, Any]
"""An image's file, with its label, probability, further labels, experts' labels and decisions, or with an error."""
_Value = TypeVar("_Value")
Keys = tuple[str, ...]
Adjust = Callable[[Tensor, Sequence[Keys]], Tensor]
"""From logits and the keys of their images to logits under another prior."""
Put = Callable[[str], object]
"""Where text goes."""


def predict_files(
    run: str,
    inputs: Sequence[str],
    *,
    out: str | None = None,
    kind: str = "csv",
    top: int = 1,
    experts: bool = False,
    prior: str | None = None,
    table: TableFlags | None = None,
    decisions: DecisionFlags | None = None,
    device: str = "auto",
) -> tuple[int, int]:
    """Write a row for each image; return how many there were, and how many of them could not be read.

    Args:
        run: A run's folder, or a model's file.
        inputs: Images, folders of them, patterns, or tables with a column of paths.
        out: The file to write; None: standard output.
        kind: "csv" or "jsonl".
        top: Number of labels, the likeliest first.
        experts: Whether each expert's label is wanted, too.
        prior: Deployment prior, as --prior takes it.
        table: Table of priors, of which each image gets its own; the inputs are tables then, with its keys.
        decisions: What is to be decided of each image.
        device: Device to compute on.
    """
    model = load(run)
    if len(model.preprocessing.size) != 3 or model.preprocessing.size[0] != 3:
        seen = "features" if len(model.preprocessing.size) != 3 else "arrays of other channels"
        raise UserError(f"{run} was trained on {seen}, not on images; use balpoe.load({run!r}).predict in Python")
    if not 1 <= top <= len(model.class_names):
        raise UserError(f"--top must be 1 to {len(model.class_names)}, the number of classes, but is {top}")
    tabled = None if table is None else _TablePrior(table.read(model.class_names, model.source_prior), model)
    target = None if prior is None else parse_prior(prior, model)
    adjust = tabled if target is None else _one_prior(target, model)
    _check_out(out, [*inputs, *([table.path] if table else []), *(decisions.files if decisions else [])])
    images = ((path, ()) for path in image_paths(inputs)) if table is None else keyed_image_paths(inputs, table.keys)
    if (first := next(images, None)) is None:
        raise UserError(f"there are no images in {', '.join(inputs)}; give files, or folders that hold some")
    priors = target if tabled is None else tabled.table
    decide = None if decisions is None else Decisions(run, model, decisions, priors)
    model.network.to(chosen_device(device))
    counted = _Counted(_rows(_Answers(model, adjust, top, experts, decide), itertools.chain([first], images)))
    names = [f"expert {number + 1}" for number in range(model.network.num_experts if experts else 0)]
    write = functools.partial(_WRITERS[kind], rows=counted, top=top, experts=names, decide=decide)
    if out is None:
        write(sys.stdout.write)
    else:
        write_file(Path(out), lambda stream: _as_text(stream, write))
    if tabled is not None:
        strengths = ", ".join(f"{each:.3g}" for each in tabled.table.strengths)
        read = f"counts, each mixed with {strengths} of the wider area" if strengths else "shares, as they are"
        print(f"balpoe: note: the table of priors was read as {read}", file=sys.stderr)
    if tabled is not None and tabled.unknown:
        print(f"balpoe: note: {unknown_keys_sentence(tabled.unknown, tabled.samples)}", file=sys.stderr)
    return counted.rows, counted.errors


def _one_prior(target: Tensor, model: Model) -> Adjust:
    return lambda logits, _: shift_prior(logits, target, model.source_prior)


class _TablePrior:
    """Moves each image's logits to the prior of its keys, and counts the keys that the table lacks."""

    def __init__(self, table: PriorTable, model: Model) -> None:
        self.table, self.source, self.samples = table, model.source_prior, 0
        self.unknown = Counter[Keys]()

    def __call__(self, logits: Tensor, keys: Sequence[Keys]) -> Tensor:
        matches = self.table.match(keys)
        self.unknown += matches.unknown
        self.samples += len(keys)
        return self.table.adjust(logits, matches.rows, self.source)


def _check_out(out: str | None, read: Sequence[str]) -> None:
    """Refuse to write where something is read."""
    if out is None:
        return
    if Path(out).suffix.lower() in IMAGE_SUFFIXES or Path(out).resolve() in {Path(path).resolve() for path in read}:
        raise UserError(f"--out {out} is an image or is read, and would be lost; give a .csv or .jsonl file")


def _rows(answers: "_Answers", named: Iterable[tuple[str, Keys]]) -> Iterator[LabelRow]:
    preprocessing = answers.model.preprocessing
    with CountProgress("predicting", 0) as count, ThreadPoolExecutor(default_workers()) as pool:
        for block in _blocks(named, IMAGES_AT_ONCE):
            images = list(pool.map(lambda each: _image_or_error(each[0], preprocessing), block))
            whole = [(image, keys) for image, (_, keys) in zip(images, block, strict=True) if isinstance(image, Tensor)]
            found = iter(answers(whole) if whole else [])
            for (path, _), image in zip(block, images, strict=True):
                yield {"file": path, **(next(found) if isinstance(image, Tensor) else {"error": image})}
            count(len(block))


def _image_or_error(path: str, preprocessing: Preprocessing) -> Tensor | str:
    try:
        return decoded(path, preprocessing)
    except UserError as error:
        return str(error)


class _Answers(NamedTuple):
    """What a row says of an image."""

    model: Model
    adjust: Adjust | None
    top: int
    experts: bool
    decide: Decisions | None

    def __call__(self, images: Sequence[tuple[Tensor, Keys]]) -> list[LabelRow]:
        model, keys = self.model, [each for _, each in images]
        as_given = model.expert_logits(torch.stack([image for image, _ in images]))
        expert_logits = model.calibrated(as_given)
        logits = product_of_experts(expert_logits)
        if self.adjust is not None:
            logits = self.adjust(logits, keys)
        probabilities, labels = logits.softmax(dim=1).topk(self.top, dim=1)
        rows: list[LabelRow] = [
            {"label": names[0], "probability": values[0], "top": list(zip(names, values, strict=True))}
            for values, names in zip(
                probabilities.tolist(),
                ([model.class_names[label] for label in row] for row in labels.tolist()),
                strict=True,
            )
        ]
        if self.experts:
            for row, answer in zip(rows, expert_logits.argmax(dim=2).tolist(), strict=True):
                row["experts"] = [model.class_names[label] for label in answer]
        if self.decide is not None:
            for row, decided in zip(rows, self.decide(as_given, keys), strict=True):
                row.update(decided)
        return rows


class _Counted:
    """Rows on their way, counted."""

    def __init__(self, rows: Iterator[LabelRow]) -> None:
        self.source, self.rows, self.errors = rows, 0, 0

    def __iter__(self) -> Iterator[LabelRow]:
        for row in self.source:
            self.rows += 1
            self.errors += "error" in row
            yield row


def _write_csv(put: Put, rows: Iterable[LabelRow], top: int, experts: Sequence[str], decide: Decisions | None) -> None:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")

    def send(values: Sequence[Any]) -> None:
        writer.writerow(values)
        put(line.getvalue())
        line.seek(0)
        line.truncate()

    further = [f"{name} {number}" for number in range(2, top + 1) for name in ("label", "probability")]
    columns, separator = ([], "") if decide is None else (decide.columns, decide.separator)
    send(["file", "label", "probability", *further, *experts, *columns, "error"])
    for row in rows:
        if "error" in row:
            send([row["file"], *[""] * (2 * top + len(experts) + len(columns)), row["error"]])
        else:
            labels = [value for name, share in row["top"] for value in (name, f"{share:.6g}")]
            send([row["file"], *labels, *row.get("experts", ()), *decision_cells(row, columns, separator), ""])


def _write_jsonl(
    put: Put, rows: Iterable[LabelRow], top: int, experts: Sequence[str], decide: Decisions | None
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


def _blocks(values: Iterable[_Value], size: int) -> Iterator[tuple[_Value, ...]]:
    values = iter(values)
    while block := tuple(itertools.islice(values, size)):
        yield block
