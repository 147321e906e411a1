import random

import pytest
import torch

from balpoe import ConformalSets, Predictions, PriorTable, Taxonomy, UnknownDetector, UserError, decide, shift_prior
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.deployment.place_deciders import PlaceDeciders

NAMES = ("oak", "ash", "elm")
TREE = Taxonomy.from_rows([("oak", "x"), ("ash", "x"), ("elm", "y")], levels=("class", "group"))
SHARES = {
    ("n", "5"): {"oak": 0.5, "ash": 0.3, "elm": 0.2},
    ("n", "6"): {"oak": 0.1, "ash": 0.8, "elm": 0.1},
    ("s", "5"): {"oak": 0.3, "ash": 0.3, "elm": 0.4},
}


def made(samples, seed, shares=(1, 1, 1)):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(torch.tensor(shares, dtype=torch.float64), samples, True, generator=generator)
    logits = torch.randn(samples, 2, 3, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 3)[:, None]
    return Predictions(logits, targets, [500, 50, 5], [1, -1], NAMES)


HELD_OUT, TEST = HeldOut(made(300, 0), made(300, 1)), made(40, 2)
WANTED = Wanted(costs=torch.tensor([1.0, 2, 9]), alpha=0.2, taxonomy=TREE, confidence=0.6, unknown="energy")


def table_of(weights, keys=("site", "month"), **options):
    return PriorTable.read(weights, NAMES, keys, **options)


@pytest.mark.parametrize(
    "wanted",
    [WANTED, Wanted(metric="macro_f1"), Wanted(abstain_error=0.2), Wanted(thresholds={"recall": 0.8})],
)
def test_samples_have_what_is_fitted_for_their_place_alone(wanted):
    table = table_of(SHARES)
    keys = random.Random(0).choices([*SHARES, ("n", "9"), ("?", "5")], k=len(TEST))
    places = table.match(keys).rows
    found = PlaceDeciders(wanted, TEST, HELD_OUT, table)(TEST, places).rows()
    for sample, place in enumerate(places.tolist()):
        alone = Decider.fit(wanted, TEST, HELD_OUT, table.priors[place])
        assert [found[sample]] == alone(TEST.subset(torch.tensor([sample]))).rows()


def test_each_place_is_fitted_once_however_many_alternate(monkeypatch):
    sites = {f"site {number}": {"oak": 1 + number % 7, "ash": 3, "elm": 2} for number in range(200)}
    table, fits = table_of(sites, ["site"]), []
    fit = Decider.fit

    def counted(*arguments, **options):
        fits.append(1)
        return fit(*arguments, **options)

    monkeypatch.setattr(Decider, "fit", counted)
    deciders = PlaceDeciders(Wanted(metric="accuracy"), TEST, None, table)
    for seed in range(8):
        deciders(TEST, table.match(random.Random(seed).choices(list(sites), k=len(TEST))).rows)
    assert len(fits) <= 1 + len(sites)


def test_a_thin_place_takes_its_sets_from_the_area_around_it_and_says_so():
    few_elms = made(300, 3, (1, 1, 0.01))
    assert 0 < int((few_elms.targets == 2).sum()) < 6
    held_out = HeldOut(few_elms, few_elms)
    weights = {
        ("n", "5"): {"oak": 0, "ash": 0, "elm": 1},
        ("n", ""): {"oak": 0.6, "ash": 0.39, "elm": 0.01},
        ("s", "5"): {"oak": 0.3, "ash": 0.69, "elm": 0.01},
    }
    table = table_of(weights)
    places = table.match([("n", "5")] * 20 + [("s", "5")] * 20).rows
    wanted = Wanted(costs=torch.tensor([1.0, 2, 9]), alpha=0.1, unknown="energy")
    deciders = PlaceDeciders(wanted, TEST, held_out, table)
    found = deciders(TEST, places)
    thin, area, other = (table.priors[table.row_of[keys]] for keys in (("n", "5"), ("n",), ("s", "5")))
    with pytest.raises(UserError, match="so few validation samples"):
        ConformalSets.fit(few_elms, target_prior=thin)
    first, second = TEST.subset(torch.arange(20)), TEST.subset(torch.arange(20, 40))
    own = [
        ConformalSets.fit(few_elms, target_prior=prior).predict(part)
        for prior, part in ((area, first), (other, second))
    ]
    assert torch.equal(found.sets, torch.cat(own))
    assert torch.equal(found.answers[:20], decide(first, costs=[1, 2, 9], target_prior=thin))  # needs no samples
    assert torch.equal(found.unknown[:20], UnknownDetector.fit(few_elms, target_prior=area).predict(first))
    thin_notes = [note for note in deciders.notes if "are those of a wider area" in note]
    assert [note.split(" are ")[0] for note in thin_notes] == ["sets at n/5", "thresholds of unknown at n/5"]
    assert "target_prior rests on so few validation samples" in thin_notes[0]


def test_what_no_prior_explains_falls_back_to_the_held_out_class_mix():
    few_elms = made(300, 3, (1, 1, 0.01))
    table = table_of({"a": {"oak": "never", "ash": "never", "elm": 1}}, ["site"], kind="shares")
    deciders = PlaceDeciders(Wanted(alpha=0.1), TEST, HeldOut(few_elms, few_elms), table)
    expected = ConformalSets.fit(few_elms).predict(TEST)
    assert torch.equal(deciders(TEST, torch.ones(len(TEST), dtype=torch.int64)).sets, expected)


def test_what_cannot_be_fitted_anywhere_is_refused_before_any_sample():
    with pytest.raises(UserError, match="need at least 9999"):
        PlaceDeciders(Wanted(alpha=0.0001), TEST, HELD_OUT, table_of(SHARES))
    with pytest.raises(UserError, match="unknown class 'yew'"):
        PlaceDeciders(Wanted(metric="recall of yew at least 0.9"), TEST, HELD_OUT, table_of(SHARES))


def test_notes_are_there_once_and_counts_make_promises_approximate():
    counts = {(f"site {number}", "5"): {"oak": 9 * number, "ash": 30, "elm": 10} for number in range(12)}
    table = table_of(counts, strength=1)
    places = table.match(random.Random(1).choices(list(counts), k=len(TEST))).rows
    deciders = PlaceDeciders(Wanted(metric="macro_f1", alpha=0.2), TEST, HELD_OUT, table)
    deciders(TEST, places)
    rule, sets = deciders.notes
    used = len(places.unique())
    assert rule.startswith("site ")
    assert f" (and {used - 1} more, with other numbers): expected macro F1 of 300 samples: 0." in rule
    promise = (
        "Approximate: about 80 % of samples have their class in their set, as far as the estimated prior is right."
    )
    assert sets == promise
    known = PlaceDeciders(Wanted(alpha=0.2), TEST, HELD_OUT, table_of(SHARES))
    known(TEST.subset(torch.arange(1)), torch.tensor([table_of(SHARES).row_of["n", "5"]]))
    assert known.notes[0].startswith(
        "At least 80 % of samples have their class in their set, if they come with the given"
    )


def test_probabilities_are_those_of_each_samples_own_place():
    table = table_of(SHARES)
    places = table.match(random.Random(2).choices(list(SHARES), k=len(TEST))).rows
    at = PlaceDeciders(Wanted(taxonomy=TREE), TEST, None, table).at(places)
    found = torch.cat([block for _, block in at.probabilities(TEST)])
    for row, place in enumerate(places.tolist()):
        expected = shift_prior(TEST.logits[row].double(), table.priors[place], TEST.source_prior).softmax(dim=0)
        torch.testing.assert_close(found[row], expected)


def test_no_sample_has_no_answers():
    deciders = PlaceDeciders(WANTED, TEST, HELD_OUT, table_of(SHARES))
    assert deciders(TEST.subset(torch.arange(0)), torch.zeros(0, dtype=torch.int64)).rows() == []
