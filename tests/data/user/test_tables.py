import builtins
import csv

import pytest

from balpoe import UserError
from balpoe.data.user.tables import table_rows


@pytest.fixture
def table(tmp_path):
    """Write a table beside the images a.png, b.png, c d.png and 木.png."""
    for name in ("a.png", "b.png", "c d.png", "木.png"):
        (tmp_path / name).touch()

    def write(text, name="labels.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def values(found):
    return [(row.name, row.label, row.group, row.part) for row in found.rows]


def test_paths_and_labels(table):
    path = table("path,label\na.png,ash\nb.png,oak\n")
    found = table_rows(path)
    assert values(found) == [("a.png", "ash", "", ""), ("b.png", "oak", "", "")]
    assert [row.place for row in found.rows] == [f"{path}, line 2", f"{path}, line 3"]
    assert (found.root, found.has_groups) == (str(path.parent), False)


@pytest.mark.parametrize("header", ["File_Name,CLASS", " image ,species", "filepath,category", "file,target"])
def test_columns_by_other_names(table, header):
    assert values(table_rows(table(f"{header}\na.png,ash\n"))) == [("a.png", "ash", "", "")]


def test_groups_parts_quotes_other_columns_and_other_scripts(table):
    found = table_rows(
        table('id,split,label,group,path\r\n1,train,"oak, red",p1,a.png\r\n\r\n2,Validation,"a ""b""",,木.png\r\n')
    )
    assert values(found) == [("a.png", "oak, red", "p1", "train"), ("木.png", 'a "b"', "", "val")]
    assert found.has_groups


def test_a_mark_in_front_tabs_and_absolute_paths(table, tmp_path):
    found = table_rows(table(b"\xef\xbb\xbfpath\tlabel\n" + f"{tmp_path}/c d.png\toak, red\n".encode(), "t.TSV"))
    assert values(found) == [(f"{tmp_path}/c d.png", "oak, red", "", "")]


def test_lines_are_counted_as_an_editor_does(table):
    found = table_rows(table('path,label\n\n\na.png,"two\nlines"\nb.png,x\n'))
    assert [row.place.rpartition(" ")[2] for row in found.rows] == ["5", "6"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "name,label\na.png,x\n",
            r"labels\.csv, line 1: there is no column of paths, only 'name', 'label'; name it path, ",
        ),
        ("path|label\na.png|x\n", r"line 1: there is no column of paths, only 'path\|label'"),
        (
            "path,colour\na.png,x\n",
            r"line 1: there is no column of labels, only 'path', 'colour'; name it label, class",
        ),
        ("path,label\na.png,x\nb.png\n", r"labels\.csv, line 3: 1 fields where the first line has 2"),
        ("path,label\na.png,oak, red\n", r"line 2: 3 fields where the first line has 2; .* in double quotes"),
        ("path,label\na.png,x\nb.png, \n", r"line 3: the label is empty; fill it in, or remove the row"),
        ("path,label\n,x\n", r"line 2: the path is empty"),
        ("path,label\na.png,x\n./a.png,x\n", r"line 3 repeats \S+labels\.csv, line 2 \('\./a\.png'\); remove one"),
        ("path,label\na.png,x\nb.png,x\na.png,y\n", r"line 4: 'a\.png' has the label 'y', but 'x' in \S+, line 2; rem"),
        ("path,label\na.png,x\nq.png,x\n", r"line 3: there is no file '\S+/q\.png'; correct the path"),
        ("path,label\nq.png,x\nr.png,x\ns.png,y\n", r"line 2: there is no file '\S+' \(and 2 more are missing\)"),
        ("path,label\n.,x\n", r"line 2: there is no file"),
        ("path,label\na\x00.png,x\n", r"line 2: there is no file '\S+a\\x00\.png'"),
        ("path,label,split\na.png,x,later\n", r"line 2: the split is 'later'; known are train, "),
        ("path,label,split\na.png,x,\n", r"line 2: the split is ''"),
        (b"path,label\na.png,x\nb.png,\xe9\n", r"labels\.csv, line 3: this is not UTF-8 text; save the table as UTF-8"),
        ("path,label\n".encode("utf-16"), r"labels\.csv, line 1: this is not UTF-8 text"),
        ('path,label\na.png,"x\nb.png,y\n', r"line 3: unexpected end of data; check the double quotes"),
        ('path,label\na.png,"x"y\n', r"line 2: .*; check the double quotes"),
        ("path,label\na.png," + "x" * 200_000, r"line 2: field larger than field limit"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(table, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        table_rows(table(text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_table_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot read \S+none\.csv: no such file or directory; check the path"):
        table_rows(tmp_path / "none.csv")


def test_a_file_written_by_python_comes_back(table, tmp_path):
    names = ["oak, red", 'the "tall" one', "two\nlines", "木", "tab\there", "semi;colon"]
    with open(tmp_path / "out.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label"])
        for number, name in enumerate(names):
            (tmp_path / f"{number}, x.png").touch()
            writer.writerow([f"{number}, x.png", name])
    assert [row.label for row in table_rows(tmp_path / "out.csv").rows] == names


@pytest.fixture
def parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
        return tmp_path / "labels.parquet"

    return write


def test_parquet(parquet):
    pyarrow = pytest.importorskip("pyarrow")
    coded = pyarrow.array(["p1", None]).dictionary_encode()
    path = parquet(width=[[1], [2]], Path=["a.png", "b.png"], label=[3, 12], group=coded, split=["train", "test"])
    found = table_rows(path)
    assert values(found) == [("a.png", "3", "p1", "train"), ("b.png", "12", "", "test")]
    assert found.rows[1].place == f"{path}, row 2"
    assert found.has_groups


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"path": ["a.png"]}, r"labels\.parquet: there is no column of labels, only 'path'"),
        ({"path": ["a.png", "b.png"], "label": ["x", None]}, r"row 2: the label is empty"),
        ({"path": ["a.png", "b.png"], "label": [1.0, float("nan")]}, r"row 2: the label is empty"),
        ({"image": [{"bytes": b"", "path": "a"}], "label": ["x"]}, r"row 1: the path is dict, not text"),
        ({"path": [7], "label": ["x"]}, r"row 1: the path is int, not text"),
        ({"path": ["a.png", "c.png"], "label": ["x", "y"]}, r"row 2: there is no file"),
    ],
)
def test_wrong_parquet(parquet, columns, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        table_rows(parquet(**columns))
    assert "\n" not in str(caught.value)


def test_parquet_that_is_none(table):
    pytest.importorskip("pyarrow")
    for text in ("", "path,label\n", b"PAR1" + bytes(100) + b"PAR1"):
        with pytest.raises(UserError, match=r"labels\.parquet is not a whole parquet file") as caught:
            table_rows(table(text, "labels.parquet"))
        assert "\n" not in str(caught.value)


def test_without_pyarrow_a_sentence_says_how_to_get_it(table, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=r"labels\.parquet, install pyarrow \(pip install pyarrow\), or save .* as \.csv"
    ):
        table_rows(table("", "labels.parquet"))


def test_the_semicolons_of_spreadsheets(table):
    found = table_rows(table('\ufeffpath;label;group\n"a.png";"ash, white";1,5\nb.png;oak;\n'))
    assert values(found) == [("a.png", "ash, white", "1,5", ""), ("b.png", "oak", "", "")]
    with pytest.raises(UserError, match=r"labels\.csv, line 3: 3 fields where the first line has 2"):
        table_rows(table("path;label\na.png;x\nb.png;y;z\n"))
