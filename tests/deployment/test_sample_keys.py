import pytest

from balpoe import UserError
from balpoe.deployment.sample_keys import sample_keys


def test_by_path_where_both_have_paths_and_by_order_otherwise(tmp_path, monkeypatch):
    (tmp_path / "images.csv").write_text("file;Site;month\nx/1.png;a; 5\nx/../2.png;b;6\n")
    table = tmp_path / "images.csv"
    assert sample_keys(table, ["site", "month"], 2) == [("a", "5"), ("b", "6")]
    paths = [str(tmp_path / "2.png"), str(tmp_path / "x" / "1.png"), str(tmp_path / "2.png")]
    assert sample_keys(table, ["month"], 3, paths) == [("6",), ("5",), ("6",)]
    monkeypatch.chdir(tmp_path)
    assert sample_keys("images.csv", ["month"], 1, ["2.png"]) == [("6",)]
    (tmp_path / "plain.csv").write_text("site\na\nb\n")
    assert sample_keys("plain.csv", ["site"], 2, ["2.png", "3.png"]) == [("a",), ("b",)]


def test_what_is_missing_is_said(tmp_path):
    (tmp_path / "images.csv").write_text("path,site\n1.png,a\n")
    table = tmp_path / "images.csv"
    with pytest.raises(UserError, match=r"images\.csv has 1 rows, but there are 3 test samples; give a row for each"):
        sample_keys(table, ["site"], 3)
    with pytest.raises(UserError, match=r"has no row for the test image \S+2\.png; add it, with site"):
        sample_keys(table, ["site"], 1, [str(tmp_path / "2.png")])
    with pytest.raises(
        UserError, match=r"line 1: there is no column 'month', only 'path', 'site'; add it, or name another"
    ):
        sample_keys(table, ["month"], 1)
