import csv
import io
import json
from pathlib import Path

import pytest
import torch

import balpoe
from balpoe.cli.main import main
from balpoe.deployment.deciders import unlabelled
from balpoe.deployment.validation_split import run_validation


@pytest.fixture
def trees(forest):
    """The run's folder, and some of its images."""
    return forest / "runs" / "trees" / "seed-0", sorted(map(str, (forest / "trees").rglob("*.png")))[::4]


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def predicted(capsys, *arguments):
    code = main(["predict", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return table(out), err


def samples(run, files):
    model = balpoe.load(run)
    return unlabelled(model, model.expert_logits(files))


def named(answers, names=("ash", "birch", "cedar", "abstain")):
    return [names[answer] for answer in answers.tolist()]


def column(rows, name):
    return [row[name] for row in rows]


def test_columns_are_there_only_when_asked_for(trees, capsys):
    run, files = trees
    rows, err = predicted(capsys, run, files[0])
    assert list(rows[0]) == ["file", "label", "probability", "error"]
    assert err == ""
    rows, _ = predicted(capsys, run, files[0], "--metric", "accuracy", "--sets", "0.2", "--unknown")
    assert list(rows[0]) == ["file", "label", "probability", "decision", "set", "unknown", "error"]


@pytest.mark.parametrize("prior", ["train", None])
def test_all_columns_say_what_python_says(trees, forest, capsys, prior):
    run, files = trees
    flags = ["--costs", forest / "costs.csv", "--sets", "0.2", "--set-method", "per-class", "--unknown", "disagreement"]
    tree = ["--taxonomy", forest / "tree.csv", "--confidence", "0.6"]
    rows, err = predicted(capsys, run, *files, *flags, *tree, *(["--prior", prior] if prior else []))
    ours = samples(run, files)
    assert column(rows, "decision") == named(balpoe.decide(ours, costs=[1, 1, 9], target_prior=prior))
    sets = balpoe.ConformalSets.of_run(run, alpha=0.2, method="per-class", target_prior=prior)
    expected = [
        "|".join(name for name, inside in zip(sets.class_names, row, strict=True) if inside)
        for row in sets.predict(ours).tolist()
    ]
    assert column(rows, "set") == expected
    assert f"balpoe: note: {sets.guarantee}\n" in err
    found = balpoe.Taxonomy.read(forest / "tree.csv").decide(ours, 0.6, target_prior=prior)
    assert column(rows, "level") == found.levels
    assert column(rows, "level_label") == found.names
    detector = balpoe.UnknownDetector.fit(run_validation(run)[0], "disagreement", target_prior=prior)
    assert column(rows, "unknown") == [str(each).lower() for each in detector.predict(ours).tolist()]


def test_answers_for_a_metric_and_at_a_wanted_error(trees, capsys):
    run, files = trees
    held_out, ours = balpoe.load_predictions(run / "predictions" / "held-out"), samples(run, files)
    rows, err = predicted(capsys, run, *files, "--metric", "recall of cedar at least 0.9", "--prior", "train")
    rule = balpoe.fit_rule(held_out, "recall of cedar at least 0.9", target_prior="train")
    assert column(rows, "decision") == named(rule(ours))
    assert rule.notes[0] in err
    rows, err = predicted(capsys, run, *files, "--abstain-error", "0.4", "--prior", "train")
    validation, _ = run_validation(run)
    abstention = balpoe.Abstention.fit(validation, 0.4, target_prior="train")
    assert column(rows, "decision") == named(abstention(ours))
    assert abstention.notes[0] in err
    flags = ["--abstain-error", "0.4", "--abstain-confidence", "0.6", "--abstain-balance", "error"]
    rows, err = predicted(capsys, run, *files, *flags)
    abstention = balpoe.Abstention.fit(validation, 0.4, confidence=0.6, balance="error")
    assert column(rows, "decision") == named(abstention(ours))
    assert "at confidence 0.6" in err


@pytest.mark.parametrize(
    ("aim", "settings"),
    [
        ([], {}),
        (["precision=0.8"], {"precision": 0.8}),
        (["recall=0.9"], {"recall": 0.9}),
        (["costs=1,5"], {"costs": (1, 5)}),
    ],
)
def test_a_yes_or_no_to_each_class(trees, capsys, aim, settings):
    run, files = trees
    rows, err = predicted(capsys, run, *files, "--prior", "train", "--thresholds", *aim)
    held_out = balpoe.load_predictions(run / "predictions" / "held-out")
    thresholds = balpoe.Thresholds.fit(held_out, target_prior="train", **settings)
    yes = thresholds(samples(run, files)).tolist()
    expected = ["|".join(name for name, one in zip(("ash", "birch", "cedar"), row, strict=True) if one) for row in yes]
    assert column(rows, "yes") == expected
    assert all(note in err for note in thresholds.notes)


def test_how_many_known_samples_are_kept_and_by_several_scores(trees, capsys):
    run, files = trees
    flags = ["--unknown", "probability,disagreement", "--unknown-keep", "0.2"]
    rows, _ = predicted(capsys, run, *files, *flags)
    detector = balpoe.UnknownDetector.of_run(run, ("probability", "disagreement"), keep=0.2)
    assert column(rows, "unknown") == [str(each).lower() for each in detector.predict(samples(run, files)).tolist()]
    assert "true" in column(rows, "unknown")


def test_abstaining_by_cost_beside_a_matrix_with_further_answers(trees, forest, capsys, tmp_path):
    run, files = trees
    (tmp_path / "costs.csv").write_text("class;wait;cedar;birch;ash\nash;.6;3;1;0\nbirch;.6;3;0;1\ncedar;.6;0;9;9\n")
    rows, _ = predicted(capsys, run, *files, "--costs", tmp_path / "costs.csv", "--abstain-cost", "0.7")
    matrix = [[0, 1, 3, 0.6, 0.7], [1, 0, 3, 0.6, 0.7], [9, 9, 0, 0.6, 0.7]]
    answers = balpoe.decide(samples(run, files), costs=matrix)
    assert column(rows, "decision") == named(answers, ("ash", "birch", "cedar", "wait", "abstain"))
    assert "wait" in column(rows, "decision")
    model = run / "model.safetensors"  # costs and a tree are fitted on nothing, so that the file is enough
    rows, _ = predicted(capsys, model, *files, "--abstain-cost", "0.55", "--taxonomy", forest / "tree.csv")
    assert column(rows, "decision") == named(balpoe.decide(samples(run, files), abstain_cost=0.55))
    assert column(rows, "level") == balpoe.Taxonomy.read(forest / "tree.csv").decide(samples(run, files), 0.9).levels


def test_each_place_has_decisions_fitted_for_its_own_prior(trees, forest, capsys, tmp_path):
    run, files = trees
    shares = {"a": [0.6, 0.3, 0.1], "b": [0.2, 0.3, 0.5]}
    lines = [",".join([site, *map(str, prior)]) for site, prior in shares.items()]
    (tmp_path / "table.csv").write_text("\n".join(["site,ash,birch,cedar", *lines]) + "\n")
    sites = ["ab"[number % 2] for number in range(len(files))]
    images = [f"{file},{site}" for file, site in zip(files, sites, strict=True)]
    (tmp_path / "images.csv").write_text("\n".join(["path,site", *images]) + "\n")
    flags = ["--metric", "macro_f1", "--sets", "0.3", "--taxonomy", forest / "tree.csv", "--unknown"]
    prior_table = ["--prior-table", tmp_path / "table.csv", "--keys", "site"]
    rows, err = predicted(capsys, run, tmp_path / "images.csv", *flags, *prior_table)
    assert err.count("of samples have their class in their set") == 1  # once, not for each site
    assert err.count("expected macro F1 of") == 1
    for site, prior in shares.items():
        (tmp_path / "one.json").write_text(json.dumps(dict(zip(("ash", "birch", "cedar"), prior, strict=True))))
        alone, _ = predicted(capsys, run, *files, *flags, "--prior", tmp_path / "one.json")
        chosen = [place for place, each in enumerate(sites) if each == site]
        assert [rows[place] for place in chosen] == [alone[place] for place in chosen]


def test_counts_of_places_promise_approximately_and_a_thin_place_stops_nothing(trees, capsys, tmp_path):
    run, files = trees
    sites = ["abc"[number % 3] for number in range(len(files))]
    images = [f"{file},{site}" for file, site in zip(files, sites, strict=True)]
    (tmp_path / "images.csv").write_text("\n".join(["path,site", *images]) + "\n")
    (tmp_path / "table.csv").write_text("site,ash,birch,cedar\na,60,30,10\nb,40,30,20\nc,never,never,9\n")
    table = ["--prior-table", tmp_path / "table.csv", "--keys", "site", "--prior-strength", "5"]
    rows, err = predicted(capsys, run, tmp_path / "images.csv", "--sets", "0.05", "--metric", "accuracy", *table)
    assert err.count("note: Approximate: about 95 % of samples have their class in their set") == 1
    assert err.count("sets at c are those of a wider area") == 1
    priors = balpoe.PriorTable.read(tmp_path / "table.csv", ("ash", "birch", "cedar"), ["site"], strength=5)
    around = balpoe.ConformalSets.of_run(run, alpha=0.05, target_prior=priors.priors[0])
    expected = around.predict(samples(run, files))
    for row, inside, site in zip(rows, expected.tolist(), sites, strict=True):
        if site == "c":
            assert row["decision"] == row["label"] == "cedar"
            names = [name for name, each in zip(around.class_names, inside, strict=True) if each]
            assert row["set"].split("|") == names


def test_json_lines_have_lists_and_truth_values_and_unreadable_files_their_error(trees, capsys, tmp_path):
    run, files = trees
    (tmp_path / "bad.png").write_text("no picture")
    flags = ["--sets", "0.2", "--unknown", "--metric", "accuracy", "--top", "2", "--experts"]
    assert main(["predict", str(run), str(tmp_path / "bad.png"), files[0], *flags]) == 1
    bad, good = table(capsys.readouterr().out)
    assert [bad[name] for name in ("decision", "set", "unknown")] == ["", "", ""]
    assert "bad.png" in bad["error"]
    assert good["decision"] == good["label"]
    assert main(["predict", str(run), files[0], *flags, "--format", "jsonl"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["unknown"] is (good["unknown"] == "true")
    assert "|".join(row["set"]) == good["set"]


MISTAKES = [
    (["--sets", "1.5"], "--sets must lie between 0 and 1"),
    (["--sets", "nan"], "--sets must lie between 0 and 1"),
    (["--sets", "5e-324"], "--sets must lie between 0 and 1, from 1e-06"),
    (["--sets", "0.001"], "validation has 64 samples, but sets of alpha=0.001 need at least 999"),
    (["--set-method", "pooled"], "give --sets ALPHA, too"),
    (["--confidence", "0.5"], "give --taxonomy FILE, too"),
    (["--taxonomy", "loop.csv"], "is above itself (broad > tree > broad); a tree has no loop"),
    (["--taxonomy", "leafless.csv"], "class 'cedar' has no row"),
    (["--taxonomy", "tree.csv", "--confidence", "0"], "--confidence must lie above 0 and up to 1"),
    (["--costs", "short.csv"], "there are no costs of 'cedar'; add a line for each class"),
    (["--costs", "ragged.csv"], "line 3: class 'birch' has 2 costs, but there are 3 headings"),
    (["--costs", "nan.csv"], "nan.csv: line 3 ('birch') is nan; give a finite number"),
    (["--costs", "gain.csv"], "gain.csv: line 2 ('ash'): the right answer costs 2, more than 1"),
    (["--costs", "negative.csv"], "negative.csv: line 4 ('cedar'): missing it costs -1"),
    (["--costs", "text.csv"], "text.csv, line 2, class 'ash': 'much' is not a number"),
    (["--costs", "strange.csv"], "line 2: unknown class 'elm'"),
    (["--costs", "nowhere.csv"], "nowhere.csv"),
    (["--metric", "beauty"], "unknown metric 'beauty'"),
    (["--metric", "recall of elm at least 0.9"], "unknown class 'elm'"),
    (["--metric", "accuracy", "--costs", "costs.csv"], "--costs and --metric are two answers to one question"),
    (["--abstain-error", "2"], "the wanted error must lie in (0, 1)"),
    (["--abstain-error", "0.1", "--abstain-cost", "1"], "leave out --abstain-cost"),
    (["--abstain-cost", "1", "--metric", "accuracy"], "give --costs instead of it"),
    (["--abstain-cost", "inf"], "abstain_cost must be a finite number"),
    (["--abstain-balance", "share"], "give --abstain-error X, too"),
    (["--abstain-error", "0.1", "--abstain-confidence", "1"], "--abstain-confidence must lie between 0 and 1"),
    (["--unknown", "mahalanobis"], "--unknown mahalanobis is a distance in feature space"),
    (["--unknown", "energy,enery"], "unknown score for --unknown 'enery'; did you mean 'energy'"),
    (["--unknown-keep", "0.9"], "give --unknown, too"),
    (["--unknown", "energy", "--unknown-keep", "nan"], "--unknown-keep must lie between 0 and 1"),
    (["--thresholds", "beauty"], "--thresholds must be one of f1, precision=X, recall=X, costs=FALSE_ALARM,MISS"),
    (["--thresholds", "recall=much"], "--thresholds must be one of"),
    (["--thresholds", "recall=2"], "the wanted recall must lie above 0 and up to 1"),
    (["--thresholds", "costs=0,0"], "costs must be those of a false alarm and of a miss"),
]
FILES = {
    "loop.csv": "label,parent\nash,broad\nbroad,tree\ntree,broad\nbirch,broad\ncedar,broad\n",
    "leafless.csv": "class,group\nash,broad\nbirch,broad\n",
    "tree.csv": "class,group\nash,broad\nbirch,broad\ncedar,needle\n",
    "costs.csv": "class,cost\nash,1\nbirch,1\ncedar,2\n",
    "short.csv": "class,cost\nash,1\nbirch,1\n",
    "ragged.csv": "class,ash,birch,cedar\nash,0,1,1\nbirch,1,0\ncedar,1,1,0\n",
    "nan.csv": "class,cost\nash,1\nbirch,nan\ncedar,1\n",
    "gain.csv": "class,ash,birch,cedar\nash,2,1,1\nbirch,1,0,1\ncedar,1,1,0\n",
    "negative.csv": "class,cost\nash,1\nbirch,1\ncedar,-1\n",
    "text.csv": "class,cost\nash,much\nbirch,1\ncedar,1\n",
    "strange.csv": "class,cost\nelm,1\n",
}


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_every_mistake_is_one_sentence(trees, capsys, tmp_path, monkeypatch, flags, sentence):
    run, files = trees
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    assert main(["predict", str(run), files[0], *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_what_is_fitted_wants_held_out_predictions(trees, capsys, tmp_path):
    run, files = trees
    fitted = (["--sets", "0.1"], ["--metric", "macro_f1"], ["--abstain-error", "0.1"], ["--unknown"], ["--thresholds"])
    for flags in fitted:
        assert main(["predict", str(run / "model.safetensors"), files[0], *flags]) == 2
        assert "is a model's file, without the held-out predictions" in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    (tmp_path / "recipe.toml").write_bytes((run / "recipe.toml").read_bytes())
    assert main(["predict", str(tmp_path), files[0], "--sets", "0.1"]) == 2
    assert "has no held-out predictions to fit on; train it with --calibrate" in capsys.readouterr().err


def test_files_that_are_read_are_not_overwritten(trees, forest, capsys):
    run, files = trees
    costs = str(forest / "costs.csv")
    assert main(["predict", str(run), files[0], "--costs", costs, "--out", costs]) == 2
    assert "is read, and would be lost" in capsys.readouterr().err


def test_a_hundred_blocks_need_one_fit(trees, capsys, monkeypatch):
    run, files = trees
    fits = []
    fit = balpoe.ConformalSets.fit
    monkeypatch.setattr(balpoe.ConformalSets, "fit", staticmethod(lambda *a, **k: fits.append(1) or fit(*a, **k)))
    rows, _ = predicted(capsys, run, *files * 4, "--sets", "0.2")
    assert len(rows) == 4 * len(files) > 2 * 64
    assert len(fits) == 1
    assert torch.tensor([row["set"] == rows[place % len(files)]["set"] for place, row in enumerate(rows)]).all()
