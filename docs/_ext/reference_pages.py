"""The reference, written from the code before Sphinx reads it: public names, command line, fields of a recipe."""

import argparse
import inspect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import balpoe
from balpoe.cli.main import command_parser
from balpoe.experiments.recipe import FIELDS, recipe_toml
from balpoe.experiments.recipe import Recipe as Defaults
from balpoe.settings import as_text

ROOMS = {
    "method": ("The method", "Priors, lambdas, the loss, mixing, the product of experts, calibration, label shift."),
    "networks": ("Networks", "A shared trunk, a branch for each expert, a cosine classifier."),
    "data": ("Data", "Data sets by name, in memory or as files of images."),
    "training": ("Training", "The one loop."),
    "evaluation": ("Predictions and evaluation", "Predict once; measure as often as you like, under any prior."),
    "deployment": ("Deployment", "A model in use: priors by place, decisions, prediction sets, unknown."),
    "estimator": ("scikit-learn", "The method as a scikit-learn classifier."),
    "errors": ("Errors", "The one kind of error that a user can cause."),
}
LIMITS = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
FILLED_IN_BY_SKLEARN = "set_fit_request, set_score_request"


def api_pages() -> Iterator[tuple[str, str]]:
    """Return name and text of a page for each room that has public names."""
    names = sorted(name for name in balpoe.__all__ if not name.startswith("_"))
    homes = {name: inspect.getmodule(getattr(balpoe, name)).__name__.split(".")[1] for name in names}  # type: ignore[union-attr]
    for room, (title, about) in ROOMS.items():
        entries = "\n\n".join(_entry(name) for name in names if homes[name] == room)
        yield f"api-{room}.rst", f"{title}\n{'=' * len(title)}\n\n{about}\n\n{entries}\n"


def _entry(name: str) -> str:
    """The directive of one name, under a heading by which the page's own contents list it."""
    lines = [name, "-" * len(name), "", f".. autofunction:: balpoe.{name}"]
    if inspect.isclass(getattr(balpoe, name)):
        lines[3:] = [f".. autoclass:: balpoe.{name}", "   :members:", f"   :exclude-members: {FILLED_IN_BY_SKLEARN}"]
    return "\n".join(lines)


def command_page() -> str:
    """Return the page on the command line, a section a verb."""
    actions = command_parser()._actions
    verbs = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help for action in verbs._choices_actions}
    lines = ["# Command line", "", "Made from the program itself: `balpoe VERB --help` says the same.", ""]
    for name, parser in verbs.choices.items():
        lines += [f"## balpoe {name}", "", f"{_sentence(helps[name] or '')}", "", *_flags(parser)]
    return "\n".join(lines)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A table for each group of a verb's arguments; what has no group of its own is the first."""
    tables: dict[str, list[tuple[str, str]]] = {"": []}
    for group in parser._action_groups:
        title = "" if group.title in ("positional arguments", "options") else group.title or ""
        for each in group._group_actions:
            if each.help != argparse.SUPPRESS and "--help" not in each.option_strings:
                tables.setdefault(title, []).append((_code(_invocation(each)), _help(parser, each)))
    for title, rows in tables.items():
        if rows:
            heading = (f"**{_sentence(title).rstrip('.')}**", "") if title else ()
            yield from (*heading, *_table(("argument", "what it does"), rows), "")


def _invocation(action: argparse.Action) -> str:
    """A flag with its value, or a positional argument, as --help shows it.

    >>> _invocation(argparse.ArgumentParser().add_argument("--runs", metavar="FOLDER"))
    '--runs FOLDER'
    """
    if not action.option_strings:
        name = action.metavar or (" | ".join(map(str, action.choices)) if action.choices else action.dest)
        return f"[{name}]" if action.nargs == "?" else f"{name}..." if action.nargs in ("*", "+") else str(name)
    flags = " ".join(action.option_strings) if len(action.option_strings) > 1 else action.option_strings[0]
    if action.nargs == 0:
        return flags.replace(" --no-", " / --no-")
    return f"{flags} {action.metavar or (action.choices and '|'.join(action.choices)) or action.dest.upper()}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def recipe_page() -> str:
    """Return the page on the fields of a recipe, a table a group."""
    lines = [
        "# Fields of a recipe",
        "",
        "Made from the code. A field `imbalance_ratio` is the flag `--imbalance-ratio`, and a line of a recipe file.",
        "What is given later wins: defaults, preset, file, command line.",
        "",
    ]
    for group, fields in itertools.groupby(FIELDS.values(), key=lambda item: item.metadata["group"]):
        rows = [(_code(item.name), _default(item.name), _meaning(item.metadata)) for item in fields]
        lines += [f"## {_sentence(group).rstrip('.')}", "", *_table(("field", "default", "what it is"), rows), ""]
    return "\n".join([*lines, "## As a file", "", "```toml", recipe_toml(Defaults()).rstrip(), "```", ""])


def _default(name: str) -> str:
    value = getattr(Defaults(), name)
    text = value if isinstance(value, str) else as_text(value).lower() if isinstance(value, bool) else as_text(value)
    return _code(text) if text and text != "{}" else "none"


def _meaning(metadata: Any) -> str:
    """A field's doc line, with what it may be."""
    text = _sentence(metadata["doc"])
    if "choices" in metadata:
        text += " One of " + ", ".join(map(_code, metadata["choices"])) + "."
    limits = [f"{words} {_number(metadata[key])}" for key, words in LIMITS.items() if key in metadata]
    return text + (f" {_sentence(', '.join(limits))}" if limits else "")


def _number(value: float) -> str:
    """A limit as one reads it.

    >>> _number(10**9), _number(2**63), _number(0.5)
    ('1,000,000,000', '2^63', '0.5')
    """
    return "2^63" if value == 2**63 else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _code(text: str) -> str:
    return f"`{text}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of a Markdown table; a bar inside a cell is no border."""
    cells = [tuple(header), *(tuple(each.replace("|", "\\|") for each in row) for row in rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "| " + " | ".join("---" for _ in cells[0]) + " |", *lines[1:]]


def write_pages(app: Sphinx) -> None:
    """Write all generated pages where the table of contents expects them; one that has not changed is left alone."""
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (*api_pages(), ("command-line.md", command_page()), ("recipe-fields.md", recipe_page())):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def keep_sentences(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let no sentence about an attribute lose what stands before its colon: napoleon would take that for a type."""
    if what in ("attribute", "property") and lines and ":" in lines[0]:
        lines[0] = f": {lines[0]}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Let the pages be written first of all, and docstrings be looked at before napoleon does."""
    app.connect("builder-inited", write_pages, priority=1)
    app.connect("autodoc-process-docstring", keep_sentences, priority=1)
    return {"parallel_read_safe": True}
