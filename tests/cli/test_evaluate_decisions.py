import json

import pytest

import balpoe
from balpoe.cli.main import main
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.deployment.decision_scores import decision_scores
from balpoe.evaluation.deployment_prior import parse_prior


@pytest.fixture
def trees(forest):
    return forest / "runs" / "trees" / "seed-0"


def evaluated(capsys, *arguments):
    code = main(["evaluate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_tables_and_json_have_what_python_says(trees, forest, capsys, tmp_path):
    flags = ["--costs", forest / "costs.csv", "--sets", "0.2", "--taxonomy", forest / "tree.csv"]
    flags += ["--unknown", "--thresholds", "recall=0.8"]
    code, out, err = evaluated(capsys, trees, *flags, "--prior", "train", "--out", tmp_path / "found.json")
    assert (code, err) == (0, "")
    test = balpoe.load_predictions(trees)
    costs = balpoe.deployment.cost_files.read_costs(forest / "costs.csv", test.class_names).costs
    tree = balpoe.Taxonomy.read(forest / "tree.csv")
    wanted = Wanted(costs, alpha=0.2, taxonomy=tree, unknown="probability", thresholds={"recall": 0.8})
    decider = Decider.fit(wanted, test, HeldOut.of_run(trees), parse_prior("train", test))
    expected = json.loads(json.dumps(decision_scores(decider, test)))
    written = json.loads((tmp_path / "found.json").read_text())
    assert {name: written[name] for name in expected} == expected
    assert written["prior"] == "train"
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert f" {expected['cost']['decision']:.4g} " in rows["mean"]
    over = expected["sets"]["mean over classes"]
    assert f" {100 * over['coverage']:.1f} │ " in rows["mean over classes"]
    assert f" {over['size']:.2f} " in rows["mean over classes"]
    assert f" {100 * expected['levels'][1]['most_probable']:.1f} " in rows["group"]
    assert decider.sets.guarantee in out
    assert "yes or no to each class, recall 0.8" in out
    assert expected["thresholds"]["all"]["classes"] == 3
    assert "test samples, weighted to the prior train" in out


def test_abstaining_and_metrics(trees, capsys):
    code, out, _ = evaluated(capsys, trees, "--abstain-error", "0.4", "--prior", "train")
    assert code == 0
    assert "error at most 0.4 at confidence 0.95" in out
    assert "answered %" in out
    code, out, _ = evaluated(capsys, trees, "--metric", "macro_f1")
    assert code == 0
    assert "answers for macro_f1" in out
    assert "test samples, as they come" in out
    code, out, _ = evaluated(capsys, trees / "predictions", "--abstain-cost", "0.5")  # nothing is fitted
    assert code == 0
    assert "cost of a sample" in out


def test_mistakes_are_one_sentence(trees, forest, capsys, tmp_path):
    for arguments, sentence in (
        ([trees / "predictions", "--sets", "0.1"], "has no held-out predictions to fit on"),
        ([trees, "--sets", "0"], "--sets must lie between 0 and 1"),
        ([trees, "--sets", "0.1", "--out", tmp_path / "x.csv"], "is not a .json file"),
        ([trees, "--sets", "0.1", "--baseline", trees], "--baseline measures something else than decisions"),
        ([trees, "--unknown", "--prior", "estimate"], "--prior estimate is not for decisions"),
        ([trees, "--costs", forest / "tree.csv"], "'broad' is not a number"),
        ([trees, "--out", tmp_path / "x.json"], "--key-table and --out serve --prior-table alone, or decisions"),
    ):
        code, out, err = evaluated(capsys, *arguments)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
