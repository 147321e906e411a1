"""The table of mutants fits the sources as they are; `make mutants` says whether tests see them."""

import ast
import functools
import re
import tomllib

import pytest

from scripts import ROOT, script


@pytest.fixture(scope="module")
def module():
    return script("benchmarks/mutants.py")


def test_every_mutant_is_another_program_and_its_tests_are_there(module):
    mutants = list(module.mutants())
    assert len(mutants) >= 60
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    right = functools.cache(lambda file: ast.dump(ast.parse((module.SOURCE / file).read_text(encoding="utf-8"))))
    for mutant in mutants:
        wrong = ast.dump(ast.parse(mutant.written()))  # its text is there once, and what takes its place is Python
        assert wrong != right(mutant.file), mutant.name
        for name in mutant.tests.files:
            assert name.partition("/")[0] == mutant.file.partition("/")[0], "tests of its own room"
            text = (ROOT / "tests" / name).read_text(encoding="utf-8")
        for word in re.findall(r"\w+", mutant.tests.select):
            assert word in ("and", "or", "not") or word in text, (name, word)


def test_the_rooms_that_matter_have_mutants():
    files = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text(encoding="utf-8"))
    rooms = {file.partition("/")[0] for file in files}
    assert rooms >= {"method", "evaluation", "training", "data", "estimator", "networks"}


def test_a_text_that_is_not_there_once_is_told(module):
    tests = module.Tests(("method/test_priors.py",))
    for old in ("nothing of the kind", "return"):
        with pytest.raises(
            SystemExit, match=r"method/priors.py: the text of the mutant 'a' is there \d+ times, not once"
        ):
            module.Mutant("method/priors.py", "a", old, "", tests).written()


def test_killed_living_and_the_bar(module, monkeypatch, capsys):
    codes = iter([0, 1, 0])  # the tests as they are, then two mutants
    monkeypatch.setattr(module, "AT_ONCE", 1)
    monkeypatch.setattr(module, "run_tests", lambda *_: next(codes))
    assert module.main(["method/lambdas.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["killed", "LIVES", "1"]
    assert lines[-1] == "1 of 2 mutants killed"
    codes = iter([0, 1, 1])
    assert module.main(["method/lambdas.py"]) == 0
    codes = iter([1])
    with pytest.raises(SystemExit, match="pytest ends with 1 without any mutant"):
        module.main(["method/lambdas.py"])
    codes = iter([0, 2, 2])
    with pytest.raises(SystemExit, match="no test has seen the mutant"):
        module.main(["method/lambdas.py"])
