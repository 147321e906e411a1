"""Levels of a tree of labels, against counting sample by sample."""

import pytest
import torch

from balpoe.deployment.taxonomy import Taxonomy, cifar100_taxonomy
from balpoe.report.decide.answers import uniform_over_tested
from balpoe.report.decide.tree import packed_tree, tree_levels
from made_predictions import make


def uneven_tree(classes):
    """Two levels above the classes; every fifth class has no label at the first."""
    rows = [
        (str(label), "" if label % 5 == 4 else f"pair {label // 2}", f"side {label % 3}") for label in range(classes)
    ]
    rows = [(name, pair and f"{pair} of {side}", side) for name, pair, side in rows]
    return Taxonomy.from_rows(rows, levels=("class", "pair", "side"))


def test_levels_are_counted_right(monkeypatch):
    monkeypatch.setattr("balpoe.deployment.posteriors.BLOCK_VALUES", 2000)  # several blocks
    predictions, taxonomy = make(700, 10), uneven_tree(10)
    prior = predictions.train_prior.double()
    levels = tree_levels(taxonomy, predictions, prior, (0.6, 0.95))
    names = [level.name for level in levels]
    assert names == ["class", "pair", "side", "any"]
    counts = torch.bincount(predictions.targets)
    mass = dict.fromkeys(names, 0.0)
    right, counted = dict(mass), dict(mass)
    answered, fine = dict(mass), dict(mass)
    for logits, target in zip(predictions.logits.double(), predictions.targets.tolist(), strict=True):
        p = (logits + prior.log() - predictions.source_prior.log()).softmax(0)
        weight = float(prior[target] / counts[target])
        place = "any", True
        for level in (2, 1, 0):
            above = taxonomy.ancestors[level, :10].tolist()
            sums = {label: sum(float(p[c]) for c in range(10) if above[c] == label) for label in above if label >= 0}
            best = max(sums, key=sums.get)
            if above[target] >= 0:
                counted[names[level]] += weight
                right[names[level]] += weight * (best == above[target])
            if sums[best] >= 0.95:
                place = names[level], best == above[target]
        answered[place[0]] += weight
        fine[place[0]] += weight * place[1]
    for level in levels[:-1]:
        assert level.accuracy == pytest.approx(right[level.name] / counted[level.name])
    for level in levels:
        share, accuracy = level.answered[0.95]
        assert share == pytest.approx(answered[level.name] / sum(answered.values()))
        assert accuracy == (pytest.approx(fine[level.name] / answered[level.name]) if answered[level.name] else None)
    assert levels[-1].accuracy is None


def test_a_level_whose_classes_have_no_test_sample_has_no_accuracy():
    predictions = make(60, 3)
    taxonomy = Taxonomy.from_rows([("0", ""), ("1", ""), ("2", "rest")], levels=("class", "group"))
    predictions = predictions.subset(predictions.targets < 2)
    levels = tree_levels(taxonomy, predictions, uniform_over_tested(predictions), (0.9,))
    assert levels[1].accuracy is None


def test_the_page_knows_every_ancestor():
    taxonomy = cifar100_taxonomy()
    packed = packed_tree(taxonomy)
    assert packed["levels"] == [*taxonomy.levels, "any"]
    assert packed["above"][0] == list(range(100))
    assert taxonomy.labels[packed["above"][1][0]] == "fruit_and_vegetables"
