"""Mistakes that somebody could make, made one by one: do the tests of the room see them?

    python benchmarks/mutants.py [WORD ...]

benchmarks/mutants.toml names the mutants. Each is made in a copy of the sources, where the tests of its own room then
have to fail; two at a time. Tests that fail without any mutant, a mutant whose text is not there exactly once and one
that cannot be imported are errors. The exit code is 1 if fewer than 95 % are killed. WORDs choose mutants whose file
or name has one of them.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "balpoe"
AT_ONCE = 2
SECONDS = 900  # a mutant that makes the tests endless is killed, too
BAR = 0.95
ALREADY_IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of what is imported before pytest
FORKS = multiprocessing.get_context("forkserver")  # which imports what takes seconds once, and nothing of ours
FORKS.set_forkserver_preload(["torchvision", "lightning_fabric", "timm", "sklearn.utils.estimator_checks", "pandas"])


class Tests(NamedTuple):
    """Tests that are to see the mutants of a file."""

    files: tuple[str, ...]
    """Below tests/."""
    select: str = ""
    """pytest's -k; without it, all that are not slow."""

    def arguments(self) -> list[str]:
        chosen = ["-k", self.select] if self.select else ["-m", "not slow"]
        return [*(str(ROOT / "tests" / name) for name in self.files), *chosen]


class Mutant(NamedTuple):
    """A mistake: some text of a file, and what takes its place."""

    file: str
    """Below src/balpoe/."""
    name: str
    old: str
    new: str
    tests: Tests

    def written(self) -> str:
        """Return the file with the mistake in it."""
        text = (SOURCE / self.file).read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            raise SystemExit(f"{self.file}: the text of the mutant {self.name!r} is there {found} times, not once")
        return text.replace(self.old, self.new)


def mutants() -> Iterator[Mutant]:
    table = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text(encoding="utf-8"))
    for file, entry in table.items():
        tests = Tests(tuple(entry["tests"]), entry.get("select", ""))
        for name, old, new in entry["mutants"]:
            yield Mutant(file, name, old.replace("\\n", "\n"), new.replace("\\n", "\n"), tests)


def run_tests(tests: Tests, mutant: Mutant | None = None) -> int:
    """Return pytest's exit code, with the sources as they are or with a mutant in them."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, Path(folder, "balpoe"), ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            Path(folder, "balpoe", mutant.file).write_text(mutant.written(), encoding="utf-8")
        process = FORKS.Process(target=_pytest, args=(folder, tests.arguments()))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            return 1
        return int(process.exitcode)


def _pytest(folder: str, arguments: list[str]) -> None:
    """Run tests with the sources of a folder, silently."""
    os.environ |= {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}  # for the processes that some tests start
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *ALREADY_IMPORTED, *arguments])))


def survives(mutant: Mutant) -> bool:
    """Say what became of a mutant."""
    code = run_tests(mutant.tests, mutant)
    if code not in (0, 1):
        raise SystemExit(f"{mutant.file}: {mutant.name}: pytest ended with {code}, so that no test has seen the mutant")
    print(f"{'killed' if code else 'LIVES '}  {mutant.file}: {mutant.name}", flush=True)
    return code == 0


def main(words: Sequence[str]) -> int:
    chosen = [each for each in mutants() if not words or any(word in f"{each.file} {each.name}" for word in words)]
    for mutant in chosen:
        mutant.written()
    every_test = list(dict.fromkeys(mutant.tests for mutant in chosen))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for tests, code in zip(every_test, pool.map(run_tests, every_test), strict=True):
            if code:
                raise SystemExit(f"{' '.join(tests.arguments())}: pytest ends with {code} without any mutant")
        living = [mutant for mutant, alive in zip(chosen, pool.map(survives, chosen), strict=True) if alive]
    killed = len(chosen) - len(living)
    print(f"{killed} of {len(chosen)} mutants killed")
    return int(killed < BAR * len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
