import warnings
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from balpoe import PriorTable, UserError, shift_prior
from tensor_sizes import TensorSizes

CLASSES = ("oak", "ash, white", "elm")
WIDE = 'region,site,oak,"ash, white",elm\nnorth,a,8,2,0\nnorth,b,3,3,never\nsouth,c,0,1,19\n'
KEYS = ["region", "site"]


@pytest.fixture
def write(tmp_path):
    def write(text, name="sites.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_counts_are_shrunk_to_the_region_and_to_all(write):
    table = PriorTable.read(write(WIDE), CLASSES, KEYS, strength=[3, 6, 12])
    root = torch.tensor([11 + 1, 6 + 1, 19 + 1], dtype=torch.float64) / 39
    north = (torch.tensor([11, 5, 0]) + 6 * root) / 22
    a = (torch.tensor([8, 2, 0]) + 12 * north) / 22
    without = torch.tensor([north[0], north[1], 0]) / (north[0] + north[1])
    b = (torch.tensor([3, 3, 0]) + 12 * without) / 18
    torch.testing.assert_close(table.lookup([("north", "a"), ("north", "b")]), torch.stack([a, b]))
    assert (table.kind, table.strengths) == ("counts", (3, 6, 12))
    assert float(table.lookup([("north", "b")])[0, 2]) == 0  # never
    assert float(table.lookup([("north", "a")])[0, 2]) > 0  # not seen
    assert table.seen[table.match([("north", "a")]).rows].tolist() == [[True, True, False]]


def test_every_way_to_write_a_table_gives_the_same_priors(write, tmp_path):
    expected = PriorTable.read(write(WIDE), CLASSES, KEYS)
    rows = [("north", "a", (8, 2, 0)), ("north", "b", (3, 3, "never")), ("south", "c", (0, 1, 19))]
    semicolons = "Site; REGION ;elm;oak;ash, white\na;north;0,0;8;2,0\nb;north;never;3;3\nc;south;19;0;1\n"
    long = "".join(
        f'{region},{site},"{name}",{value}\n'
        for region, site, values in rows
        for name, value in zip(CLASSES, values, strict=True)
        if value != 0
    )
    columns = {"region": [], "site": [], **{name: [] for name in CLASSES}}
    for region, site, values in rows:
        for name, value in zip(columns, (region, site, *values), strict=True):
            columns[name].append(str(value) if name == "elm" else value)
    pd.DataFrame(columns).to_parquet(tmp_path / "sites.parquet")
    frame = pl.DataFrame(columns)
    sources = {
        "semicolons": write(semicolons, "semicolons.csv"),
        "long": write("region,site,species,count\n" + long, "long.csv"),
        "parquet": tmp_path / "sites.parquet",
        "pandas": pd.DataFrame(columns),
        "polars": frame,
        "pyarrow": frame.to_arrow(),
        "mapping": {(region, site): dict(zip(CLASSES, values, strict=True)) for region, site, values in rows},
    }
    for name, source in sources.items():
        found = PriorTable.read(source, CLASSES, KEYS)
        assert found.strengths == expected.strengths, name
        assert torch.equal(found.priors, expected.priors), name
        assert found.row_of == expected.row_of, name


def test_unknown_keys_fall_back_to_what_is_known_and_say_so(write):
    table = PriorTable.read(write(WIDE), CLASSES, KEYS)
    samples = [("north", "a"), ("north", "z"), ("west", "a"), ("north", ""), ("north", "z")]
    matches = table.match(samples)
    rows = [table.row_of[keys] for keys in (("north", "a"), ("north",), (), ("north",), ("north",))]
    assert matches.rows.tolist() == rows
    assert matches.unknown == Counter({("north", "z"): 2, ("west", "a"): 1})
    with pytest.warns(UserWarning, match=r"3 of 5 samples have keys that the table lacks \(north/z, west/a\)"):
        found = table.lookup(samples)
    assert torch.equal(found, table.priors[rows])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.lookup([("south", "c")])


def test_a_sample_without_its_last_keys_is_one_of_the_wider_area(write):
    table = PriorTable.read(write(WIDE), CLASSES, KEYS)
    north = table.row_of["north",]
    found = table.match([("north", ""), ("north", None)])
    assert (found.rows.tolist(), found.unknown) == ([north, north], Counter())
    found = table.match([("west", ""), ("", ""), ("", "a")])
    assert found.rows.tolist() == [0, 0, 0]  # no key at all is most likely a mistake, and is named
    assert found.unknown == Counter({("west",): 1, ("", ""): 1, ("", "a"): 1})
    with pytest.warns(UserWarning, match=r"\(west, \(empty\)/\(empty\), \(empty\)/a\)"):
        table.lookup([("west", ""), ("", ""), ("", "a")])


def test_what_a_place_is_in_is_known_also_by_a_column(write):
    by_prefix = PriorTable.read(write(WIDE), CLASSES, KEYS)
    by_column = PriorTable.read(write(WIDE), CLASSES, ["site"], parent="region")
    a, north = by_prefix.row_of["north", "a"], by_prefix.row_of["north",]
    assert by_prefix.lineage(a) == by_column.lineage(by_column.row_of["a",]) == (north, 0)
    assert by_prefix.lineage(0) == ()


def test_counted_shares_are_estimates_and_given_ones_are_known():
    assert PriorTable.read({"a": {"x": 3, "y": 1}}, "xy", ["site"]).estimated
    assert not PriorTable.read({"a": {"x": 0.3, "y": 0.7}}, "xy", ["site"]).estimated


def test_keys_that_are_numbers_in_one_place_and_text_in_another():
    counts = pd.DataFrame({"month": [1.0, 2.0], "oak": [3, 1], "elm": [0, 5]})
    table = PriorTable.read(counts, ("oak", "elm"), ["month"])
    assert table.match(["1", 2, 2.0, np.int64(1)]).rows.tolist() == [1, 2, 2, 1]
    assert table.match(pd.DataFrame({"x": [0], "month": [2]})).rows.tolist() == [2]


def test_large_numbers_are_different_keys():
    numbers = [10**16, 10**16 + 1]
    expected = [[1, 0], [0, 1]]
    for source in (
        {number: {"x": 1 - place, "y": place} for place, number in enumerate(numbers)},
        pd.DataFrame({"id": np.array(numbers), "x": [1, 0], "y": [0, 1]}),
    ):
        table = PriorTable.read(source, ("x", "y"), ["id"], kind="shares")
        assert table.lookup([str(number) for number in numbers]).tolist() == expected
        assert table.lookup(np.array(numbers)).tolist() == expected


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan"), ""])
def test_a_missing_key_is_an_empty_one(missing):
    frame = pd.DataFrame({"site": pd.Series(["a", missing], dtype=object), "x": [3, 1], "y": [1, 1]})
    table = PriorTable.read(frame, ("x", "y"), ["site"], kind="shares")
    assert table.row_of == {(): 0, ("a",): 1}
    assert table.match([missing, "a"]).rows.tolist() == [0, 1]


def test_shares_are_taken_as_they_are(write):
    text = "site,month,oak,elm,fir\na,1,0.5,0.5,0\na,2,0.1,0.3,0.6\nb,1,0,never,1\n"
    table = PriorTable.read(write(text), ("oak", "elm", "fir"), ["site", "month"])
    assert (table.kind, table.strengths) == ("shares", ())
    expected = [[0.5, 0.5, 0], [0.1, 0.3, 0.6], [0, 0, 1], [0.3, 0.4, 0.3], [0.15, 0.2, 0.65]]
    keys = [("a", "1"), ("a", "2"), ("b", "1"), ("a",), ()]
    found = table.priors[[table.row_of[each] for each in keys]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    weights = PriorTable.read({"a": {"x": 3, "y": 1}}, "xy", ["site"], kind="shares")
    assert weights.lookup(["a"]).tolist() == [[0.75, 0.25]]
    assert PriorTable.read({"a": {"x": 1, "y": 0}, "b": {"x": 0, "y": 1}}, "xy", ["site"]).kind == "counts"
    rounded = PriorTable.read({"a": {"x": 0.5, "y": 0.49}, "b": {"x": 2, "y": 8}}, "xy", ["site"])  # weights of any sum
    torch.testing.assert_close(rounded.lookup(["a", "b"])[:, 0], torch.tensor([0.5 / 0.99, 0.2], dtype=torch.float64))


def test_a_row_without_its_last_keys_is_about_all_of_them(write):
    text = "site,month,oak,elm\na,,0.2,0.8\na,1,0.5,0.5\n,,0.9,0.1\n"
    table = PriorTable.read(write(text), ("oak", "elm"), ["site", "month"])
    with pytest.warns(UserWarning, match="2 of 3 samples"):
        found = table.lookup([("a", "1"), ("a", "7"), ("b", "1")])
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], dtype=torch.float64))
    counts = PriorTable.read(
        write("site,month,oak,elm\na,,9,0\na,1,1,0\n"), ("oak", "elm"), ["site", "month"], strength=1
    )
    assert float(counts.priors[0, 0]) == pytest.approx(10.5 / 11)


def test_a_region_may_be_a_column_that_samples_do_not_have(write):
    by_prefix = PriorTable.read(write(WIDE), CLASSES, KEYS, strength=7)
    by_column = PriorTable.read(write(WIDE), CLASSES, ["site"], parent="region", strength=7)
    assert torch.equal(by_column.priors, by_prefix.priors)
    expected = by_prefix.match([("north", "a"), ("north", "b"), ("south", "c")]).rows
    assert torch.equal(by_column.match(["a", "b", "c"]).rows, expected)
    assert by_column.match(["z"]).rows.tolist() == [0]


def test_never_holds_for_all_that_a_place_has():
    table = PriorTable.read(
        {("a", ""): {"x": 0, "y": "never", "z": 3}, ("a", "1"): {"x": 4, "z": 0}, ("b", "1"): {"y": 9}},
        "xyz", ["site", "month"],
    )  # fmt: skip
    shares = table.lookup([("a", "1"), ("b", "1")])
    assert shares[0, 1] == 0
    assert (shares > 0).sum() == 5


def test_each_row_of_logits_moves_to_its_own_prior(write):
    table = PriorTable.read(write(WIDE), CLASSES, KEYS)
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    samples, source = [("south", "c"), ("north", "b"), ("south", "c")], [0.2, 0.3, 0.5]
    moved = table.adjust(logits, table.match(samples).rows, source)
    for row, keys in enumerate(samples):
        torch.testing.assert_close(moved[row], shift_prior(logits[row], table.lookup([keys])[0], source))
    assert moved.dtype == torch.float32


@pytest.mark.parametrize("source", [None, [0.2, 0.3, 0.5]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [0, 1, 4, 50])
def test_blocks_of_rows_have_the_same_bits_as_all_at_once(write, monkeypatch, source, dtype, samples):
    table, generator = PriorTable.read(write(WIDE), CLASSES, KEYS), torch.Generator().manual_seed(0)
    logits = torch.randn(samples, 3, generator=generator).to(dtype)
    rows = torch.randint(len(table.priors), (samples,), generator=generator)
    shift = table.priors[rows].log()
    if source is not None:
        shift = shift - torch.tensor(source, dtype=torch.float64).log()
    whole = logits.to(torch.promote_types(dtype, torch.float32))
    expected = whole + shift.to(whole)
    for values in (2, 3 * 4, 2**19):  # one row, four rows, all of them
        monkeypatch.setattr("balpoe.deployment.prior_tables.BLOCK_VALUES", values)
        found = table.adjust(logits, rows, source)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_blocks_of_rows_are_all_that_is_held(write, monkeypatch):
    table, logits = PriorTable.read(write(WIDE), CLASSES, KEYS), torch.zeros(3000, 3)
    monkeypatch.setattr("balpoe.deployment.prior_tables.BLOCK_VALUES", 3 * 10)
    rows = torch.zeros(3000, dtype=torch.int64)
    with TensorSizes() as made:
        found = table.adjust(logits, rows, [0.2, 0.3, 0.5])
    assert [size for size in made.sizes if size > 30] == [3000 * 3]
    assert len(found) == 3000


@pytest.mark.parametrize(
    ("logits", "rows", "sentence"),
    [
        (
            (2, 3),
            torch.tensor([0]),
            r"the 2 samples, but are torch.int64 of shape \(1,\); give those that match",
        ),
        ((2, 3), torch.tensor([0, 1, 1]), r"of the 2 samples, but are torch.int64 of shape \(3,\)"),
        ((1, 3), torch.tensor([[0]]), r"rows must be .* but are tensor\(\[\[0\]\]\)"),
        ((2, 3), torch.tensor([0, 99]), "rows must be a number from 0 to [0-9]+ for each"),
        ((2, 3), [0, -1], "rows must be a number from 0 to [0-9]+ for each"),
        ((2, 3), [0.0, 1.0], "rows must be .* but are torch.float32"),
        ((2, 3), [True, False], "rows must be .* but are torch.bool"),
        ((2, 3), "ab", "rows must be .* but are 'ab'"),
        ((2, 3), None, "rows must be .* but are None"),
        ((2, 2), [0, 1], r"logits must be a tensor of shape \(samples, 3\), .* but are \(2, 2\)"),
        ((3,), [0], r"logits must be a tensor .* but are \(3,\)"),
        ((1, 2, 3), [0, 0], r"logits must be a tensor .* but are \(1, 2, 3\)"),
        (None, [0], "logits must be a tensor .* but are list"),
    ],
)
def test_rows_and_logits_that_do_not_fit(write, logits, rows, sentence):
    table = PriorTable.read(write(WIDE), CLASSES, KEYS)
    with pytest.raises(UserError, match=sentence):
        table.adjust([[0.0, 0.0, 0.0]] if logits is None else torch.zeros(logits), rows)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("site,oak,elm,yew\na,1,2,3\n", r"csv, line 1, beside the keys: unknown class 'yew'; known are oak, elm"),
        ("site,oak,oak,elm\na,1,2,3\n", r"line 1: class 'oak' has two columns"),
        ("site,oak,elm\na,1,2\nb,-1,2\n", r"line 3: the weight of class 'oak' must be a number .* is '-1'"),
        ("site,oak,elm\na,1,nan\n", r"line 2: the weight of class 'elm' must be a number .* is 'nan'; fix it"),
        ("site,oak,elm\na,1,\n", r"line 2: the weight of class 'elm' must be a number .* is ''; fix it"),
        ("site,oak,elm\na,1,inf\n", r"line 2: the weight of class 'elm' .* is 'inf'"),
        ("site,oak,elm\na,1,2\nb,1e308,1\n", r"line 3: the weight of class 'oak' .* from 0 to 1e\+15 .* is '1e308'"),
        ("site,oak,elm\na,1,2\nb,0,0\n", r"line 3: all weights are zero; give .*, or remove the row"),
        ("site,oak,elm\na,1,2\na,2,2\n", r"line 3 has the same keys as \S+sites\.csv, line 2; keep one of them"),
        ("place,oak,elm\na,1,2\n", r"line 1: there is no column 'site', only 'place', 'oak', 'elm'; add it,"),
        ("site,oak,elm\na,1,2\nb,never,Never\n", r"line 3: all classes are never there; give a weight to those"),
        ("site,oak,elm\n,never,2\na,1,2\n", r"line 3: class 'oak' has a weight, but is never there by \S+, line 2,"),
        ("site,oak,elm\n,never,2\na,0,never\n", r"line 3: all classes are never there, with what this is in"),
        ("site,class,count\na,oak,1\na,fir,1\n", r"line 3: unknown class 'fir'; known are oak, elm"),
        ("site,class,count\na,oak,1\na,oak,2\n", r"line 3: class 'oak' has a count at a already; keep one"),
        ("site,class,count\na,oak,1\nb,oak,0\n", r"line 3: all weights are zero"),
        ("site,oak,elm\na,1\n", r"line 2: 2 fields where the first line has 3"),
        ("site,oak,elm\n", r"line 1: there is no row below the headings"),
        ("", r"sites\.csv, line 1: the table is empty; write site and the classes in its first line"),
        ("site,oak\na,0.5\nb,1.5\n", r"no row has a share of class 'elm', which would exclude it everywhere"),
        ("site,oak\na,5\nb,15\n", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_row(write, text, sentence):
    if sentence is None:
        assert PriorTable.read(write(text), ("oak", "elm"), ["site"]).kind == "counts"
        return
    with pytest.raises(UserError, match=sentence):
        PriorTable.read(write(text), ("oak", "elm"), ["site"])


def test_further_mistakes(write, tmp_path):
    counts = {"a": {"x": 1, "y": 2}}
    for source, options, sentence in (
        (counts, {"kind": "weights"}, "unknown kind 'weights'"),
        (counts, {"strength": 0}, r"strength must be a number above 0, or one for each of the 2 levels .*, but is 0"),
        (counts, {"strength": [1, 2, 3]}, r"strength must be"),
        (counts, {"strength": "much"}, r"strength must be numbers .* is 'much'"),
        (counts, {"strength": [1, None]}, r"strength must be numbers .* is 1,None"),
        (counts, {"keys": ["site", "site"]}, r"keys must be different columns, but are site, site"),
        (counts, {"keys": "site"}, r"keys must be a list of column names, but are 'site'"),
        ({("a", "b"): {"x": 1}}, {}, r"the table has the key \('a', 'b'\), but the keys are site"),
        ({"a": [1, 2]}, {}, r"no mapping from classes to weights for the key 'a'"),
        ({0: [1, 2]}, {}, r"no mapping from classes to weights for the key 0"),
        ({(): {"x": 1}}, {}, r"the table has the key \(\), but the keys are site"),
        ({"a": {"x": 10**400}}, {}, r"the table, row 1: the weight of class 'x' must be a number from 0"),
        (pd.DataFrame([["a", "b", 1, 2]], columns=["site", "site", "x", "y"]), {}, r"two columns are called 'site'"),
        (pd.DataFrame([["a", 1, 2, 3]], columns=["site", "x", 5, "5"]), {}, r"two columns are called '5'; rename one"),
        (3, {}, r"a table of priors is a file, a frame or a mapping .* but is int"),
        (tmp_path / "none.csv", {}, r"cannot read \S+none\.csv: no such file"),
        ({"a": {"x": 0.5}, "b": {"x": 0.5}}, {"kind": "shares"}, r"no row has a share of class 'y'"),
        ({"a": {"x": 0, "y": "never"}, "b": {"x": 1}}, {"kind": "shares"}, r"the table, row 1: all shares are zero"),
        (
            pd.DataFrame({"site": ["a"], "x": [float("nan")], "y": [1]}),
            {},
            r"the table, row 1: the weight",
        ),
        (
            write("site,month,x,y\n,1,1,2\n", "1.csv"),
            {"keys": ["site", "month"]},
            r"line 2: site is empty, but a",
        ),
        (
            write("site,r,x,y\na,n,1,2\na,s,1,2\n", "2.csv"),
            {"parent": "r"},
            r"line 3: r of 'a' is 's', but 'n' in \S+, ",
        ),
        (write("site,r,x,y\na,,1,2\n", "3.csv"), {"parent": "r"}, r"line 2: r of 'a' is ''; fill it in"),
    ):
        with pytest.raises(UserError, match=sentence):
            PriorTable.read(source, ("x", "y"), **{"keys": ["site"], **options})
    with pytest.raises(UserError, match="two classes are called 'x'"):
        PriorTable.read(counts, ("x", "x"), ["site"])
    table = PriorTable.read(counts, ("x", "y"), ["site"])
    with pytest.raises(UserError, match="sample 1 has 2 keys, but there are 1: site"):
        table.match(["a", ("a", "b")])
    with pytest.raises(UserError, match=r"the samples have no column 'site', only 'place'; add it"):
        table.match(pd.DataFrame({"place": ["a"]}))
    table = PriorTable.read(counts, ("x", "y"), [""])
    with pytest.raises(UserError, match=r"the samples have no column '', only 'place'; add it"):
        table.match(pd.DataFrame({"place": ["a"]}))
