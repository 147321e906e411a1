"""The deployment prior: by a word, by the weight of each class, or from a file."""

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name
from balpoe.files import csv_delimiter, read_text

__all__ = ["Labelled", "parse_prior", "prior_of_word", "prior_template", "read_prior", "target_prior"]

WORDS = ("uniform", "train", "forward-R", "backward-R", "estimate")

_Entry = tuple[str, Any, Any]
"""Where it stands, the name of the class, its weight."""


class Labelled(Protocol):
    """What has classes and was trained: predictions, or a model."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""

    @property
    def class_counts(self) -> Tensor:
        """Number of training samples of each class."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    @property
    def train_prior(self) -> Tensor:
        """The training prior."""


def target_prior(spec: Any, predictions: Labelled) -> Tensor:
    """Return a label prior that sums to 1, in float64, (classes,).

    Args:
        spec: Prior in one of several forms: "uniform"; "train", what the model was trained with; "forward-R" or
            "backward-R", where the class of rank k of K by training count has weight R^(-k/(K-1)), counted from the
            most frequent or the least frequent; a .csv or .json file of weights, as `read_prior` takes it; a mapping
            from class names to weights or counts; or a row of weights. A weight may be 0.
        predictions: Predictions that the prior is for, or a model.

    >>> from balpoe import Predictions
    >>> predictions = Predictions(torch.zeros(2, 1, 3), torch.tensor([0, 1]), [10, 70, 20], [1], ("a", "b", "c"))
    >>> target_prior("backward-4", predictions)
    tensor([0.5714, 0.1429, 0.2857], dtype=torch.float64)
    >>> target_prior({"a": 3, "b": 1, "c": 0}, predictions)
    tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    names = predictions.class_names
    if isinstance(spec, str | Path):
        return parse_prior(spec, predictions)
    if isinstance(spec, Mapping):
        return _normalised((("target_prior", name, weight) for name, weight in spec.items()), names, "target_prior")
    weights = spec.tolist() if hasattr(spec, "tolist") else list(spec)
    if not isinstance(weights, list) or len(weights) != len(names):
        count = len(weights) if isinstance(weights, list) else 1
        raise UserError(f"target_prior has {count} entries, but there are {len(names)} classes; give one for each")
    numbered = [str(label) for label in range(len(names))]  # names may repeat
    return _normalised(
        (("target_prior", *entry) for entry in zip(numbered, weights, strict=True)), numbered, "target_prior"
    )


def parse_prior(text: str | Path, predictions: Labelled) -> Tensor:
    """Return the prior that a text names: a word of `target_prior`, or a .csv or .json file."""
    path = Path(text)
    if path.suffix.lower() in (".csv", ".json"):
        return read_prior(path, predictions.class_names)
    if path.is_file():
        raise UserError(f"the prior {text} is neither a .csv nor a .json file; write one of them")
    return prior_of_word(str(text), predictions)


def prior_template(predictions: Labelled, kind: str = "csv") -> str:
    """Return the text of a file for `read_prior`, with the training prior, to edit.

    Args:
        predictions: Predictions that the prior is for, or a model.
        kind: "csv" or "json".

    >>> from balpoe import Predictions
    >>> predictions = Predictions(torch.zeros(2, 1, 2), torch.tensor([0, 1]), [90, 10], [1], ("oak", "ash, white"))
    >>> print(prior_template(predictions), end="")
    class,weight
    oak,0.9
    "ash, white",0.1
    """
    shares = [float(f"{share:.6g}") for share in target_prior("train", predictions).tolist()]
    pairs = list(zip(predictions.class_names, shares, strict=True))
    if kind == "json":
        return json.dumps(dict(pairs), indent=2, ensure_ascii=False) + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("class", "weight"), *pairs])
    return text.getvalue()


def read_prior(path: str | Path, class_names: Sequence[str]) -> Tensor:
    """Return the prior in a file, in float64, (classes,), in the order of `class_names`.

    Args:
        path: A .csv with the columns class and weight, separated by commas or semicolons, with or without a line of
            headings, or a .json object from class to weight. Weights are shares or counts; all classes have one, 0 if
            they do not occur.
        class_names: Class names of the model.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "deployment.json").write_text('{"cat": 30, "dog": 10}')
    ...     read_prior(f"{folder}/deployment.json", ("dog", "cat"))
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"there is no file {path}; balpoe evaluate RUN --prior-template {shlex.quote(str(path))} writes one to edit"
        )
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty; write the name and the weight of each class")
    entries = _json_entries(path, text) if path.suffix.lower() == ".json" else _csv_entries(path, text, class_names)
    return _normalised(entries, class_names, str(path))


def prior_of_word(word: str, predictions: Labelled) -> Tensor:
    """Return the prior that a word names, and never that of a file: what strangers may say.

    Args:
        word: "uniform", "train", "forward-R" or "backward-R", as `target_prior` takes it.
        predictions: Predictions that the prior is for, or a model.
    """
    classes = predictions.num_classes
    if word == "uniform":
        return torch.full((classes,), 1 / classes, dtype=torch.float64)
    if word == "train":
        prior = predictions.train_prior.double()
        return prior / prior.sum()
    if word == "estimate":
        raise UserError(
            "the prior 'estimate' is found with labelled validation predictions; see balpoe.estimate_target"
        )
    shape = re.fullmatch(r"(forward|backward)-(.*)", word)
    if shape is None:
        raise unknown_name("prior", word, WORDS)
    ranked = predictions.class_counts.argsort(descending=True, stable=True)
    profile = _ratio(word, shape[2]) ** (-torch.arange(classes, dtype=torch.float64) / max(classes - 1, 1))
    prior = torch.empty_like(profile)
    prior[ranked if shape[1] == "forward" else ranked.flip(0)] = profile / profile.sum()
    return prior


def _ratio(word: str, text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio < math.inf:
        raise UserError(f"the prior {word!r} wants a finite ratio from 1, such as forward-50, but has {text!r}")
    return ratio


def _csv_entries(path: Path, text: str, class_names: Sequence[str]) -> Iterator[_Entry]:
    delimiter = csv_delimiter(text)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        for number, row in enumerate(row for row in reader if row):
            where = f"{path}, line {reader.line_num}"
            if len(row) != 2:
                raise UserError(
                    f"{where}: there are {len(row)} columns; write class{delimiter}weight (a name with {delimiter} in "
                    "quotes)"
                )
            weight = _number(row[1] if delimiter == "," else row[1].replace(",", "."))
            if number == 0 and weight is None and row[0] not in class_names:
                continue  # the headings
            yield where, row[0], row[1] if weight is None else weight
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; write class,weight") from error


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json_entries(path: Path, text: str) -> Iterator[_Entry]:
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)  # a dictionary would hide a name that is there twice
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); write an object from class to weight") from error
    if not isinstance(pairs, tuple):
        raise UserError(f'{path} is not an object from class to weight; write one, such as {{"cat": 3, "dog": 1}}')
    return ((str(path), name, weight) for name, weight in pairs)


def _normalised(entries: Iterable[_Entry], class_names: Sequence[str], source: str) -> Tensor:
    """Weights in the order of the classes, each once, as shares."""
    labels = {name: label for label, name in enumerate(class_names)}
    if len(labels) < len(class_names):
        twice = next(name for label, name in enumerate(class_names) if labels[name] != label)
        raise UserError(f"{source}: two classes are called {twice!r}; give the weights as a row, by label")
    weights: dict[str, float] = {}
    for where, name, weight in entries:
        if name not in labels:
            raise UserError(f"{where}: {unknown_name('class', str(name), class_names)}")
        if name in weights:
            raise UserError(f"{where}: class {name!r} has a weight already; keep one of them")
        weights[name] = _checked_weight(where, name, weight)
    missing = [name for name in class_names if name not in weights]
    if missing:
        others = f" (nor have {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"{source}: class {missing[0]!r} has no weight{others}; give it 0 if it does not occur")
    row = torch.tensor([weights[name] for name in class_names], dtype=torch.float64)
    if not bool(row.any()):
        raise UserError(f"{source}: all weights are zero; give the share or the count of each class")
    row = row / row.max()  # the sum of the largest floats would be infinite
    return row / row.sum()


def _checked_weight(where: str, name: str, weight: Any) -> float:
    try:
        value = float(weight) if not isinstance(weight, bool) and isinstance(weight, Real) else math.nan
    except OverflowError:
        value = math.inf
    if not 0 <= value < math.inf:
        raise UserError(f"{where}: the weight of class {name!r} must be a number from 0, but is {weight!r}; fix it")
    return value
