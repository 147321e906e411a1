from commands import QUICK, sentence


def test_runs_with_what_differs(run, tmp_path):
    code, _, err = run("runs")
    assert code == 2
    assert "there are no runs in runs; train one" in sentence(err)
    run(*QUICK, "--name", "mine")
    run(*QUICK, "--name", "mine-plain", "--lambdas", "1", "--mixup-alpha", "0", "--seeds", "1,2")
    run(*QUICK)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "mine-plain" / "seed-2" / "evaluation.json").unlink()
    code, out, _ = run("runs")
    assert code == 0
    heading, first, second, third = (line.split() for line in out.splitlines())
    assert heading == ["run", "changed", "method", "seeds", "balanced", "%", "differs", "in"]
    assert first[0] == "digits-lt-width-8-epochs-2"
    assert " ".join(first[-4:]) == "width 8, epochs 2"
    assert second[0] == "mine-plain"
    assert "cross-entropy 1, 2 (unfinished)" in " ".join(second)
    assert " ".join(second).endswith("lambdas 1, mixup alpha 0")
    assert third[0] == "mine"
    assert third[3:5] == ["BalPoE", "0"]
    assert len(third) == 6  # nothing differs
    code, out, _ = run("evaluate", "latest")
    assert code == 0
    assert out.startswith("runs/digits-lt-width-8-epochs-2: 500 test samples")
