import json

import pytest

import balpoe
from balpoe.cli.main import main
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.deployment.decision_scores import decision_scores
from balpoe.deployment.place_deciders import PlaceDeciders
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.evaluation.prior_estimate import estimate_target


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
    low, high = (100 * end for end in over["interval"])
    assert f" {100 * over['coverage']:.1f} ({low:.1f} to {high:.1f}) " in rows["mean over classes"]
    low, high = over["size_interval"]
    assert f" {over['size']:.2f} ({low:.2f} to {high:.2f}) " in rows["mean over classes"]
    low, high = (100 * end for end in expected["levels"][1]["most_probable_interval"])
    assert f" {100 * expected['levels'][1]['most_probable']:.1f} ({low:.1f} to {high:.1f}) " in rows["group"]
    share, (low, high) = (100 * each if isinstance(each, float) else [100 * end for end in each]
                          for each in expected["unknown"]["all"].values())  # fmt: skip
    assert f" {share:.1f} ({low:.1f} to {high:.1f}) " in rows["all"]
    assert decider.sets.guarantee in out
    assert "yes or no to each class, recall 0.8" in out
    assert expected["thresholds"]["all"]["classes"] == 3
    assert "test samples, weighted to the prior train" in out


def test_each_sample_with_the_prior_of_its_place(trees, forest, capsys, tmp_path):
    test = balpoe.load_predictions(trees)
    sites = ["ab?"[number % 3] for number in range(len(test))]
    (tmp_path / "keys.csv").write_text("\n".join(["site", *sites]) + "\n")
    (tmp_path / "table.csv").write_text("site,ash,birch,cedar\na,60,30,10\nb,10,30,20\n")
    flags = ["--metric", "macro_f1", "--sets", "0.2", "--taxonomy", forest / "tree.csv", "--unknown", "energy"]
    table = ["--prior-table", tmp_path / "table.csv", "--keys", "site", "--key-table", tmp_path / "keys.csv"]
    code, out, err = evaluated(capsys, trees, *flags, *table, "--out", tmp_path / "found.json")
    assert (code, err) == (0, "")
    priors = balpoe.PriorTable.read(tmp_path / "table.csv", test.class_names, ["site"])
    tree = balpoe.Taxonomy.read(forest / "tree.csv")
    wanted = Wanted(metric="macro_f1", alpha=0.2, taxonomy=tree, unknown="energy")
    deciders = PlaceDeciders(wanted, test, HeldOut.of_run(trees), priors)
    expected = json.loads(json.dumps(decision_scores(deciders.at(priors.match(sites).rows), test)))
    written = json.loads((tmp_path / "found.json").read_text())
    assert {name: written[name] for name in expected} == expected
    assert written["prior"] == {"table": str(tmp_path / "table.csv"), "keys": ["site"]}
    assert "test samples, as they come, each with the prior of its site" in out
    assert "samples have keys that the table lacks (?)" in out
    assert out.count("Approximate: about 80 % of samples") == 1
    f1 = expected["metric"]["decision"]
    low, high = f1["intervals"]["macro_f1"]
    assert f" {100 * f1['macro_f1']:.1f} ({100 * low:.1f} to {100 * high:.1f}) " in out


def test_an_estimated_prior_is_called_so(trees, capsys, tmp_path):
    """The test samples are as they come: it is their own prior that is estimated."""
    flags = ["--sets", "0.2", "--prior", "estimate", "--validation", trees / "predictions" / "held-out"]
    code, out, err = evaluated(capsys, trees, *flags, "--out", tmp_path / "found.json")
    assert (code, err) == (0, "")
    assert "test samples, as they come; the prior is estimated from them" in out
    assert "Note: Estimated prior: P_train^lambda with lambda" in out
    assert "Approximate: about 80 % of samples have their class in their set, as far as the estimated prior" in out
    test, held_out = balpoe.load_predictions(trees), balpoe.load_predictions(trees / "predictions" / "held-out")
    estimate = estimate_target(test, held_out)
    sets = balpoe.ConformalSets.of_run(trees, alpha=0.2, target_prior=estimate)
    inside = sets.predict(test)[range(len(test)), test.targets]
    found = json.loads((tmp_path / "found.json").read_text())["sets"]["all"]["coverage"]
    assert found == pytest.approx(float(inside.double().mean()))


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


def test_what_is_read_is_not_overwritten(trees, capsys, tmp_path):
    prior, table = tmp_path / "prior.json", tmp_path / "table.json"
    prior.write_text('{"ash": 1, "birch": 1, "cedar": 1}')
    table.write_text("site\tash\tbirch\tcedar\na\t60\t30\t10\n")  # whatever it is called
    places = ["--prior-table", table, "--keys", "site"]
    for flags, out in (
        (["--metric", "accuracy", "--prior", prior], prior),
        (["--metric", "accuracy", *places], table),
        (places, table),
    ):
        before = out.read_text()
        code, _, err = evaluated(capsys, trees, *flags, "--out", out)
        assert (code, err) == (2, f"balpoe: --out {out} is read, and would be lost; give another name\n")
        assert out.read_text() == before


def test_mistakes_are_one_sentence(trees, forest, capsys, tmp_path):
    for arguments, sentence in (
        ([trees / "predictions", "--sets", "0.1"], "has no held-out predictions to fit on"),
        ([trees, "--sets", "0"], "--sets must lie between 0 and 1"),
        ([trees, "--sets", "0.1", "--out", tmp_path / "x.csv"], "is not a .json file"),
        ([trees, "--sets", "0.1", "--baseline", trees], "--baseline measures something else than decisions"),
        ([trees, "--sets", "0.1", "--key-table", "x.csv"], "--key-table is of --prior-table; give that, too"),
        ([trees, "--costs", forest / "tree.csv"], "'broad' is not a number"),
        ([trees, "--out", tmp_path / "x.json"], "--out is for the gains of --prior-table, or for decisions"),
    ):
        code, out, err = evaluated(capsys, *arguments)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
