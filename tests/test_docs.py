"""What the documents say is there, and what they show runs."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

import balpoe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_of_the_readme_run(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README example {number}", "exec"), {})


def test_the_readme_has_both_kinds_of_example():
    assert any("balpoe.fit(" in block for block in BLOCKS)
    assert any("balpoe.mixed_loss(" in block for block in BLOCKS)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_the_scripts_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_architecture_names_every_file():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (ROOT / "src" / "balpoe").rglob("*.py"):
        if not path.stem.startswith("__"):
            assert f"`{path.stem}`" in text or f"`{path.stem}." in text, path.stem


def test_commands_of_the_readme_are_known():
    from balpoe.cli import COMMANDS

    used = set(re.findall(r"^balpoe (\w+)", README, flags=re.MULTILINE))
    assert used == set(COMMANDS)


def test_the_version_is_in_the_changelog():
    assert f"## {balpoe.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_ci_runs_is_make_test():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.rstrip().endswith("make test")
    makefile = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pytest" in makefile
    assert "ruff check" in makefile
    assert "mypy" in makefile


@pytest.mark.parametrize("name", [name for name in balpoe.__all__ if not name.startswith("__")])
def test_every_public_name_has_an_example(name):
    assert ">>>" in getattr(balpoe, name).__doc__
