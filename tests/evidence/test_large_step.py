"""The benchmark of `benchmarks/large_step.py`, in its small configuration."""

import json

import pytest

from scripts import script


@pytest.fixture(scope="module")
def benchmark():
    return script("benchmarks/large_step.py")


def test_both_ways_take_the_same_step(benchmark, tmp_path, monkeypatch, capsys):
    out = tmp_path / "results" / "large_step.json"
    monkeypatch.setattr("sys.argv", ["large_step.py", "--small", "--only", "64", "--out", str(out)])
    benchmark.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == ["reference", "captured", "compiled"]
    for row in rows:  # the same network, data and loss; in bfloat16 so small a network soon goes other ways
        assert row["losses"][0] == pytest.approx(rows[0]["losses"][0], rel=0.02)
        assert row["times_reference"] == pytest.approx(row["images_per_second"] / rows[0]["images_per_second"])
    assert capsys.readouterr().out.count("test_resnet") == 3


def test_a_measurement_that_fails_leaves_a_line(benchmark):
    way, setting = benchmark.WAYS[0]._replace(batch=2), benchmark.Setting("cpu", 32, 0.01)
    failed = benchmark.attempt("resnet_from_nowhere", way, setting, 10)
    assert failed["error"].startswith("UserError: unknown network")
    assert "UserError" in benchmark.line(failed)
    assert benchmark.attempt("test_resnet", way, setting, -1)["error"] == "no time left"
    recorded = benchmark.attempt("test_resnet", way._replace(kind="captured"), setting, 10)
    assert "needs one CUDA device" in recorded["error"]
