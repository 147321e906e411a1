"""docs/paper.md lists everything in the paper, and everything that it names is there."""

import ast
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from balpoe import UserError
from balpoe.cli.flags import changed_fields, join_negative_values
from balpoe.cli.main import COMMANDS as VERBS
from balpoe.cli.main import command_parser
from balpoe.cli.train import chosen_recipe, chosen_seeds, starting_recipe
from balpoe.data.registry import DATASETS
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_names import run_folder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
HEADERS = [["what the paper has", middle, "result"] for middle in ("here", "paper")]
SECTIONS = [
    "Problem and logit adjustment", "The ensemble", "Calibration", "Implementation", "Tables", "Figures", "Supplement",
    "Limitations", "Where the paper contradicts itself or its code",
]  # fmt: skip

# What is in the paper and its supplement, by its number, with words that its row must have.
TABLES = {
    1: ["CIFAR-100-LT", "ImageNet-LT", "iNaturalist", "other methods"],
    2: ["calibration on CIFAR-100-LT-100"],
    3: ["shifted test sets, CIFAR-100-LT-100", "shifted test sets, ImageNet-LT"],
    4: ["summary of the data sets"],
    5: ["CIFAR-100-LT-100 by shot group"],
    6: ["ImageNet-LT by shot group"],
    7: ["iNaturalist by shot group"],
    8: ["CIFAR-10-LT"],
    9: ["calibration on CIFAR-10-LT-100"],
    10: ["test distributions, CIFAR-100-LT-100"],
    11: ["test distributions, CIFAR-100-LT-50"],
    12: ["test distributions, CIFAR-100-LT-10"],
    13: ["test distributions, ImageNet-LT"],
    14: ["test distributions, iNaturalist"],
}
FIGURES = {
    1: ["comparison of methods", "balanced softmax", "SADE", "BalPoE"],
    2: ["margin", "label distributions"],
    3: ["divergence", "average predictions"],
    4: ["test error against the mean lambda", "ECE"],
    5: ["number of experts"],
    6: ["alpha"],
    7: ["reliability diagrams on CIFAR-100-LT-100"],
    8: ["reliability diagrams on CIFAR-10-LT-100"],
}
EQUATIONS = 35
STATEMENTS = {
    "Theorem 1": "Distribution of BalPoE",
    "Corollary 1.1": "Fisher consistency",
    "Equations 13 to 15": "proof of Corollary 1.1",
    "Equations 21 to 28": "proof of Theorem 1",
    "Equations 29 to 31": "proof of Theorem 1",
    "Equation 32": "calibrated model",
    "Equation 33": "argmax calibration",
    "Equation 34": "ECE",
    "Equation 35": "MCE",
    "Inline, mixup does not change the prior": "",
    "Protocol: many-shot": "few-shot",
    "Limitation: P(x given y)": "same",
    "Limitation: the training prior": "effective number",
    "Limitation: one label per sample": "",
    "Limitation (societal impact): data from elsewhere": "trust",
    "Limitation (societal impact): several experts": "electricity",
}


def tables(text):
    """The cells of all rows of each table, with the line that separates header and rows left out."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [cells[0], *cells[2:]]


def shown(text):
    """What shows that an item is right, and what to type, by the item's name: the lists below the tables."""
    folds = re.findall(r"<summary>[^<]*ests and commands</summary>(.*?)</details>", text, flags=re.DOTALL)
    lines = [line for fold in folds for line in fold.splitlines() if line]
    return [re.fullmatch(r"- (.+?): (`.*)", line).groups() for line in lines]


def spans(text):
    """What is in backticks."""
    return sorted({" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)})


ITEMS = [table for table in tables(TEXT) if table[0] in HEADERS]
ROWS = [row for table in ITEMS for row in table[1:]]
SHOWN = dict(shown(TEXT))
NAMES = [span for span in spans(TEXT) if span.startswith("balpoe.")]
TESTS = [span for span in spans(TEXT) if "::" in span]
COMMANDS = [span for span in spans(TEXT) if span.startswith("balpoe ")]
FILES = [span for span in spans(TEXT) if re.fullmatch(r"[\w/]+\.(md|py)", span)]


def resolve(name):
    """A module, or something in one: the longest part that can be imported, then attributes or declared fields."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            declared = any(part in vars(kind).get("__annotations__", {}) for kind in getattr(thing, "__mro__", ()))
            assert hasattr(thing, part) or declared, f"{name}: {thing} has no {part}"
            thing = getattr(thing, part, None)
        return


@cache
def functions(path):
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def find_test(reference):
    path, _, name = reference.partition("::")
    assert name.startswith("test_"), reference
    assert (ROOT / path).is_file(), reference
    assert name in functions(ROOT / path), reference


def parse(line):
    """The command's arguments, checked as the command line checks them, with nothing run."""
    arguments = shlex.split(line)[1:]
    assert arguments[0] in VERBS, line
    known, unknown = command_parser().parse_known_args(join_negative_values(arguments))
    assert not unknown, line
    if arguments[0] == "train":
        chosen_seeds(known, recipe(known))
    elif arguments[0] == "recipes":
        preset(known.name)
    elif arguments[0] == "data":
        assert known.name in DATASETS, line
        updated(preset(known.name), changed_fields(known))
    return known


def recipe(known):
    return chosen_recipe(known, starting_recipe(known.recipe, known.as_released)[0])


def run_name(known):
    start, base = starting_recipe(known.recipe, known.as_released)
    return known.name or run_folder(Path("no runs"), base, recipe(known), start=start).parent.name


def numbers(kind):
    """The numbers of what the first cells speak of: "Equations 13 to 15" are three of them."""
    found = []
    for first, *_ in ROWS:
        match = re.match(rf"{kind}s? (\d+)(?: (?:to|and) (\d+))?\b", first)
        if match:
            found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_imported(name):
    resolve(name)


@pytest.mark.parametrize("reference", TESTS)
def test_every_test_exists(reference):
    find_test(reference)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_of_ours(line):
    parse(line)


@pytest.mark.parametrize("path", FILES)
def test_every_file_exists(path):
    assert (ROOT / path).is_file()


def test_runs_that_are_evaluated_are_runs_that_are_trained():
    trained = {f"runs/{run_name(parse(line))}" for line in COMMANDS if line.startswith("balpoe train ")}
    evaluated = {parse(line).run for line in COMMANDS if line.startswith("balpoe evaluate ")}
    assert evaluated
    assert evaluated <= trained


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_row_has_three_cells_with_something_in_each(row):
    assert len(row) == len(HEADERS[0])
    assert all(row)
    assert row[-1] != "-"


def test_what_shows_an_item_is_a_name_a_test_or_a_command_and_the_item_is_in_a_table():
    names = [name for name, _ in shown(TEXT)]
    assert len(names) == len(set(names))
    assert set(names) <= {row[0] for row in ROWS}
    for name, lists in SHOWN.items():
        for span in re.findall(r"`([^`]+)`", lists):
            assert "::" in span or span.startswith(("balpoe.", "balpoe ")), (name, span)


def test_what_nothing_shows_is_a_limitation():
    """Which stands as the paper states it."""
    for row in ROWS:
        assert row[0] in SHOWN or row[0].startswith("Limitation"), row[0]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row[-1].startswith("not measured")], ids=lambda row: row[0][:60]
)
def test_what_is_not_measured_says_why_and_how_it_would_be(row):
    assert "`balpoe " in SHOWN[row[0]]
    assert "not measured: needs" in row[-1]


def test_no_row_is_there_twice():
    first = [row[0] for row in ROWS]
    assert len(first) == len(set(first))


def test_sections_and_their_tables():
    assert re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE) == SECTIONS
    assert len(ITEMS) == len(SECTIONS) - 1


def test_every_equation_is_there_once():
    assert sorted(numbers("Equation")) == list(range(1, EQUATIONS + 1))


@pytest.mark.parametrize(("kind", "contents"), [("Table", TABLES), ("Figure", FIGURES)], ids=["tables", "figures"])
def test_every_table_and_figure_is_there(kind, contents):
    assert set(numbers(kind)) == set(contents)
    for number, words in contents.items():
        rows = " ".join(row[0] for row in ROWS if re.match(rf"{kind} {number}\b", row[0]))
        for word in words:
            assert word in rows, (kind, number, word)


@pytest.mark.parametrize("start", STATEMENTS)
def test_theorems_definitions_and_limitations_are_there(start):
    assert [row for row in ROWS if row[0].startswith(start) and STATEMENTS[start] in row[0]]


def test_items_below_are_numbered_as_rows_refer_to_them():
    items = [int(number) for number in re.findall(r"^(\d+)\. \*", TEXT, flags=re.MULTILINE)]
    assert items == list(range(1, len(items) + 1))
    referred = {int(number) for row in ROWS for number in re.findall(r"item (\d+) below", row[-1])}
    assert referred
    assert referred <= set(items)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (resolve, "balpoe.nothing"),
        (resolve, "balpoe.method.losses.BalPoELos"),
        (resolve, "balpoe.evaluation.evaluate.PriorCheck.marginal_kll"),
        (resolve, "balpoe.experiments.recipe.Recipe.alpha"),
        (find_test, "tests/method/test_losses.py::test_of_something_else"),
        (find_test, "tests/test_loses.py::test_reductions"),
        (find_test, "tests/method/test_losses.py::slow_loss"),
        (parse, "balpoe bake model"),
        (parse, "balpoe train cifar1000-lt"),
        (parse, "balpoe train cifar100-lt --mixup 0"),
        (parse, "balpoe train cifar100-lt --lambdas 1;0"),
        (parse, "balpoe train cifar100-lt --seeds one"),
        (parse, "balpoe train cifar100-lt --epochs 0"),
        (parse, "balpoe recipes imagenet-lt"),
        (parse, "balpoe data imagenet-lt"),
        (parse, "balpoe evaluate"),
    ],
)
def test_a_wrong_entry_is_caught(check, wrong):
    with pytest.raises((AssertionError, UserError)):
        check(wrong)
