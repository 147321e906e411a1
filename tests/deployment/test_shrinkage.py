import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balpoe.deployment.shrinkage import CountTree, fit_strengths, shrunk_shares


def tree(paths, counts, never=()):
    """A tree from the paths of its leaves, whose counts are added up by hand; never are pairs of a path and a class."""
    nodes = sorted({path[:size] for path in paths for size in range(len(path) + 1)}, key=lambda path: (len(path), path))
    classes = len(counts[0])
    totals = torch.zeros(len(nodes), classes, dtype=torch.float64)
    for path, row in zip(paths, counts, strict=True):
        for size in range(len(path) + 1):
            totals[nodes.index(path[:size])] += torch.tensor(row, dtype=torch.float64)
    excluded = torch.zeros(len(nodes), classes, dtype=torch.bool)
    for path, label in never:
        for number, node in enumerate(nodes):
            excluded[number, label] |= node[: len(path)] == path
    parent = torch.tensor([nodes.index(node[:-1]) if node else -1 for node in nodes])
    return CountTree(totals, parent, torch.tensor([len(node) for node in nodes]), excluded)


def slow_mean(tree, node, strengths, without=None):
    """Posterior mean of a node, class by class, from the root down; without the counts of another node."""
    classes = tree.counts.shape[1]
    level, parent = int(tree.level[node]), int(tree.parent[node])
    around = [1 / classes] * classes if level == 0 else slow_mean(tree, parent, strengths, without)
    around = [0.0 if tree.never[node, label] else around[label] for label in range(classes)]
    around = [share / sum(around) for share in around]
    own = [float(tree.counts[node, label]) - (0 if without is None else float(tree.counts[without, label]))
           for label in range(classes)]  # fmt: skip
    return [(own[c] + strengths[level] * around[c]) / (sum(own) + strengths[level]) for c in range(classes)]


def slow_log_evidence(tree, node, strengths, strength):
    """Chance of a node's counts drawn one by one from Polya's urn around its ancestors without them."""
    classes = tree.counts.shape[1]
    level, parent = int(tree.level[node]), int(tree.parent[node])
    around = [1 / classes] * classes if level == 0 else slow_mean(tree, parent, strengths, without=node)
    around = [0.0 if tree.never[node, label] else around[label] for label in range(classes)]
    urn = [strength * share / sum(around) for share in around]
    result = 0.0
    for label in range(classes):
        for _ in range(int(tree.counts[node, label])):
            result += math.log(urn[label] / sum(urn))
            urn[label] += 1
    return result


PATHS = [("n", "1"), ("n", "2"), ("s", "1"), ("s", "2"), ("s", "3")]
COUNTS = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=5, max_size=5)
SOME_NEVER = [(("n",), 2), (("s", "2"), 0)]


def clean(counts, never):
    """No counts of a class where it never is."""
    return [
        [0 if any(path[: len(n)] == n and label == c for n, c in never) else value for label, value in enumerate(row)]
        for path, row in zip(PATHS, counts, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(COUNTS, st.tuples(*[st.floats(0.5, 50)] * 3), st.booleans())
def test_shares_are_posterior_means_from_the_root_down(counts, strengths, excluding):
    never = SOME_NEVER if excluding else []
    made = tree(PATHS, clean(counts, never), never)
    shares = shrunk_shares(made, strengths)
    expected = [slow_mean(made, node, strengths) for node in range(len(shares))]
    torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(shares == 0, made.never)


@settings(max_examples=8, deadline=None)
@given(COUNTS, st.booleans())
def test_no_strength_makes_held_out_counts_more_likely_than_the_fitted_one(counts, excluding):
    never = SOME_NEVER if excluding else []
    made = tree(PATHS, clean(counts, never), never)
    fitted = fit_strengths(made)
    for level in range(3):
        nodes = (made.level == level).nonzero().flatten().tolist()
        best = sum(slow_log_evidence(made, node, fitted, fitted[level]) for node in nodes)
        for other in (0.5, 2, 5, 20, 100, 1e4):
            assert sum(slow_log_evidence(made, node, fitted, other) for node in nodes) <= best + 1e-3


@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_the_strength_of_drawn_sites_is_found(concentration):
    """Sites from Dirichlet(a, ..., a) of 50 classes: the strength is 50 a."""
    torch.manual_seed(0)
    shares = torch.distributions.Dirichlet(torch.full((50,), concentration, dtype=torch.float64)).sample((40,))
    counts = torch.stack([torch.multinomial(each, 200, replacement=True).bincount(minlength=50) for each in shares])
    made = tree([(str(site),) for site in range(40)], counts.tolist())
    assert fit_strengths(made)[1] == pytest.approx(50 * concentration, rel=0.25)
