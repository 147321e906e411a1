"""A tree of labels: sums upwards, the deepest label that is sure enough, and costs by distance."""

import itertools
import pickle
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import Taxonomy, UserError, decide
from balpoe.deployment import taxonomy as subject
from balpoe.deployment.taxonomy import cifar100_taxonomy, tree_costs
from made_predictions import make

ROWS = [
    ("red oak", "oak", "beeches"),
    ("holm oak", "oak", "beeches"),
    ("beech", "", "beeches"),
    ("ash", "fraxinus", "olives"),
    ("ginkgo", "", ""),
]
LEVELS = ("class", "genus", "family")
TREE = Taxonomy.from_rows(ROWS, LEVELS)


def random_tree(seed, classes=12, height=3):
    """Rows with blanks; each label of a level in one of the next."""
    rng, above = random.Random(seed), {}
    rows = []
    for number in range(classes):
        row, label = [f"class {number}"], None
        for level in range(1, height + 1):
            if label in above:
                row += above[label][1:]
                break
            here = f"{level}.{rng.randrange(4)}" if rng.random() < 0.8 else ""
            if here in above:
                row += above[here]
                break
            row.append(here)
            label = here or label
        for level, cell in enumerate(row[1:], start=1):
            if cell:
                above.setdefault(cell, row[level:])
        rows.append(row)
    return Taxonomy.from_rows(rows, ("class", *(f"level {level}" for level in range(1, height + 1)))), rows


def random_probabilities(seed, classes, samples=20, sharpness=4.0):
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(samples, classes, generator=generator)).softmax(dim=1)


@given(st.integers(0, 10_000))
def test_sums_are_those_of_the_classes_below_and_never_less_than_a_childs(seed):
    tree, rows = random_tree(seed)
    probabilities = random_probabilities(seed, len(rows))
    sums = tree.summed(probabilities)
    for place, label in enumerate(tree.labels):
        below = [number for number, row in enumerate(rows) if label in row or label == "any"]
        torch.testing.assert_close(sums[:, place], probabilities[:, below].double().sum(dim=1))
    assert bool((sums[:, tree.parents] >= sums).all())  # exactly, with rounding and all


@given(st.integers(0, 10_000), st.floats(0.05, 1))
def test_the_deepest_label_against_a_search(seed, confidence):
    tree, rows = random_tree(seed)
    probabilities = random_probabilities(seed, len(rows))
    sums, found = tree.summed(probabilities), tree.deepest(probabilities, confidence)
    for row, (label, level, reached) in enumerate(zip(found.names, found.levels, found.probability, strict=True)):
        sure = [place for place in range(len(tree.labels)) if float(sums[row, place]) >= confidence]
        lowest = min((int(tree.level_of[place]) for place in sure), default=tree.height)
        assert level == (*tree.levels, "any")[lowest]
        there = [place for place in sure if int(tree.level_of[place]) == lowest] or [len(tree.labels) - 1]
        best = max(there, key=lambda place: float(sums[row, place]))
        assert tree.labels[best] == label
        assert float(reached) == float(sums[row, best])


def test_the_tree_itself():
    assert TREE.labels == (*(row[0] for row in ROWS), "oak", "fraxinus", "beeches", "olives", "any")
    assert [TREE.labels[place] for place in TREE.parents] == [
        *("oak", "oak", "beeches", "fraxinus", "any"),
        *("beeches", "olives", "any", "any", "any"),
    ]
    assert TREE.level_of.tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert TREE.ancestors[1, :5].tolist() == [5, 5, -1, 6, -1]


def test_scores_by_level():
    probabilities = torch.tensor([[0.2, 0.4, 0.1, 0.3, 0.0], [0.25, 0.1, 0.25, 0.4, 0.0], [0.0, 0.0, 0.9, 0.1, 0.0]])
    targets = torch.tensor([0, 0, 2])
    scores = TREE.scores(probabilities, targets)
    assert [(score.level, score.labels) for score in scores] == [("class", 5), ("genus", 2), ("family", 2)]
    assert [score.accuracy for score in scores] == pytest.approx([1 / 3, 0.5, 1.0])  # the beech has no genus
    assert [score.share for score in scores] == pytest.approx([1, 2 / 3, 1])
    weighted = TREE.scores(probabilities, targets, torch.tensor([1.0, 2.0, 5.0]))
    assert [score.accuracy for score in weighted] == pytest.approx([5 / 8, 1 / 3, 1.0])


def test_scores_of_the_deepest_labels():
    probabilities = torch.tensor([[0.2, 0.7, 0.1, 0, 0], [0.3, 0.1, 0.2, 0.4, 0], [0.0, 0.0, 0.9, 0.1, 0]])
    found = TREE.deepest(probabilities, 0.65)
    assert found.names == ["holm oak", "any", "beech"]
    assert found.right(torch.tensor([0, 3, 2])).tolist() == [False, True, True]
    scores = found.scores(torch.tensor([0, 3, 2]))
    assert [(score.level, score.accuracy) for score in scores] == [
        ("class", 0.5),
        ("genus", None),
        ("family", None),
        ("any", 1),
    ]
    assert sum(score.share for score in scores) == pytest.approx(1)


def test_more_confidence_is_never_deeper_and_right_more_often():
    tree, predictions = random_tree(3, classes=20)[0], make(samples=3000, separation=1.0)
    levels, right = [], []
    for confidence in (0.5, 0.7, 0.9, 0.99):
        found = tree.decide(predictions, confidence, target_prior="uniform")
        levels.append(tree.level_of[found.labels])
        right.append(float(found.right(predictions.targets).double().mean()))
    assert all(bool((after >= before).all()) for before, after in itertools.pairwise(levels))
    assert right == sorted(right)
    assert right[2] > 0.85


def test_logits_are_read_in_blocks(monkeypatch):
    tree, logits = random_tree(3)[0], torch.randn(500, 12)
    whole = tree.deepest(logits.double().softmax(dim=1), 0.5)
    monkeypatch.setattr(subject, "BLOCK_VALUES", 200)
    assert torch.equal(tree.decide(logits, 0.5).labels, whole.labels)
    assert len(tree.decide(logits[:0], 0.5).labels) == 0


def slow_cost(tree, rows, truth, answer):
    """The height of the lowest label that holds both, over that of the root."""

    def holding(label):
        row = next((row for row in rows if row[0] == label), None) or next(row for row in rows if label in row)
        return {cell for cell in row[row.index(label) :] if cell}

    both = holding(truth) & (holding(answer) if answer != "any" else set())
    return min((int(tree.level_of[tree.labels.index(label)]) for label in both), default=tree.height) / tree.height


@pytest.mark.parametrize("seed", range(5))
def test_costs_against_a_search(seed):
    tree, rows = random_tree(seed)
    costs, vague = tree_costs(tree), tree_costs(tree, vagueness=0.4)
    for number, truth in enumerate(tree.class_names):
        for place, answer in enumerate(tree.labels):
            cost = slow_cost(tree, rows, truth, answer)
            if place < 12:
                assert costs[number, place] == pytest.approx(cost)
            holds = answer in (*rows[number], "any")
            assert vague[number, place] == pytest.approx(0.4 * cost if holds else cost)


def test_decisions_with_costs_of_the_tree():
    probabilities = torch.tensor([[0.30, 0.25, 0.05, 0.40, 0.0], [0.96, 0.02, 0.02, 0, 0], [0.5, 0.45, 0.03, 0.02, 0]])
    assert decide(probabilities.log()).tolist() == [3, 0, 0]
    assert decide(probabilities.log(), costs=tree_costs(TREE)).tolist() == [0, 0, 0]  # among its like
    vague = decide(probabilities.log(), costs=tree_costs(TREE, vagueness=0.3), answers=TREE.labels)
    assert [TREE.labels[answer] for answer in vague] == ["any", "red oak", "oak"]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_files(tmp_path, delimiter):
    path = tmp_path / "taxonomy.csv"
    path.write_text("\n".join(delimiter.join(row) for row in [LEVELS, *ROWS]) + "\n", encoding="utf-8")
    assert Taxonomy.read(path).labels == TREE.labels
    some = Taxonomy.read(path, ("ash", "red oak"))  # in the model's order; the file may have more
    assert some.labels == ("ash", "red oak", "fraxinus", "oak", "olives", "beeches", "any")


def test_files_edge_by_edge(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("label,parent\nred oak,oak\noak,beeches\nholm oak,oak\nbeech,beeches\nginkgo,\n", encoding="utf-8")
    tree = Taxonomy.read(path)
    assert tree.class_names == ("red oak", "holm oak", "beech", "ginkgo")
    assert tree.levels == ("class", "level 2", "level 1")
    assert [tree.labels[place] for place in tree.parents[:4]] == ["oak", "oak", "beeches", "any"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,genus\n", "has no classes; write the headings"),
        ("class,genus\noak,a\nash\n", r"line 3: there are 1 columns, but 2 headings"),
        ("class,genus\noak,a\n,b\n", r"line 3: there is no class"),
        ("class,genus\noak,a\noak,b\n", r"line 3: class 'oak' has a row already \(.*line 2\)"),
        ("class,genus\noak,a\na,b\n", r"line 3: label 'a' is a class here, but a genus in .*line 2"),
        ("class,genus,family\noak,a,x\nash,a,y\n", r"line 3: genus 'a' belongs to 'y' here, but to 'x' in .*line 2"),
        ("class,genus,family\noak,a,b\nash,b,a\n", "label 'b' is a genus here, but a family in"),
        ("class,genus\noak,any\n", "line 2: 'any' is what the root is called"),
        ('class,genus\n"oak,a\n', "unexpected end of data"),
        ("class,genus,genus\noak,a,b\n", "line 1: the heading 'genus' is empty or there twice"),
        ("class;genus;\noak;a;\n", "line 1: the heading '' is empty or there twice"),
        ("label,parent\noak,a\na,b\nb,a\n", r"line 3: 'a' is above itself \(a > b > a\); a tree has no loop"),
        ("label,parent\na,b\nb,a\n", r"line 2: 'a' is above itself \(a > b > a\)"),
        ("label,parent\noak,a\nash,ash\n", r"line 3: 'ash' is above itself \(ash > ash\)"),
        ("label,parent\noak,a\noak,b\n", "line 3: label 'oak' has 'a' above it already"),
        ("label,parent\n,a\n", "line 2: there is no label"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "taxonomy.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Taxonomy.read(tmp_path / "taxonomy.csv")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: Taxonomy.from_rows(ROWS, LEVELS, ("oak tree", "elm")),
            r"class 'oak tree' has no row \(nor have 1 more\)",
        ),
        (
            lambda: Taxonomy.from_rows(ROWS, ("class", "genus")),
            "row 0 of the tree has 3 labels, but there are 2 levels",
        ),
        (lambda: Taxonomy.from_rows([], LEVELS), "has no classes"),
        (lambda: Taxonomy.from_rows(ROWS, LEVELS, ("ash", "ash")), "two classes are called 'ash'"),
        (lambda: TREE.decide(torch.zeros(1, 3), 0.5), "the logits have 3 classes, but 5 are wanted"),
        (
            lambda: Taxonomy.from_parents({"oak": "tree"}, ("tree",)),
            "label 'oak': class 'tree' has another label",
        ),
        (lambda: Taxonomy.from_parents({"oak": "tree"}, ("ash",)), "class 'ash' is missing from the tree"),
        (lambda: Taxonomy.from_parents({}), "has no classes"),
        (lambda: TREE.deepest(torch.ones(1, 5) / 5, 0), "confidence must lie above 0"),
        (lambda: TREE.summed(torch.ones(1, 4)), r"must have shape \(samples, 5\)"),
        (lambda: TREE.scores(torch.ones(1, 5), torch.tensor([7])), "label 7 of sample 0 is outside the 5 classes"),
        (lambda: TREE.deepest(torch.ones(1, 5) / 5, "sure"), "confidence must be a number, but is 'sure'"),
        (lambda: tree_costs(TREE, vagueness="some"), "vagueness must be a number, but is 'some'"),
        (lambda: tree_costs(TREE, vagueness=2), "vagueness must lie from 0 to 1"),
    ],
)
def test_bad_input(act, message):
    with pytest.raises(UserError, match=message):
        act()


def test_a_class_that_is_no_leaf_names_the_line_below_it(tmp_path):
    (tmp_path / "taxonomy.csv").write_text("label,parent\ntree,\noak,tree\nash,tree\n")
    with pytest.raises(UserError, match="line 3: class 'tree' has another label below it, but classes are leaves"):
        Taxonomy.read(tmp_path / "taxonomy.csv", ("tree", "ash"))


def test_none_is_an_empty_cell():
    tree = Taxonomy.from_rows([("oak", None), ("ash", "b")], levels=("class", "genus"))
    assert tree.labels == ("oak", "ash", "b", "any")


@pytest.mark.data
def test_cifar_100s_superclasses_are_those_of_its_files(cifar_root):
    folder = cifar_root / "cifar-100-python"
    meta = pickle.loads((folder / "meta").read_bytes())
    train = pickle.loads((folder / "train").read_bytes(), encoding="latin1")
    tree = cifar100_taxonomy()
    assert tree.class_names == tuple(meta["fine_label_names"])
    pairs = set(zip(train["fine_labels"], train["coarse_labels"], strict=True))
    assert len(pairs) == 100
    for fine, coarse in pairs:
        assert tree.labels[tree.parents[fine]] == meta["coarse_label_names"][coarse]


def test_cifar_100_has_twenty_superclasses_of_five():
    tree = cifar100_taxonomy()
    assert torch.bincount(tree.parents[:100])[100:].tolist() == [5] * 20
