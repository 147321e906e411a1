"""The package as somebody gets it: built from its source archive, installed where nothing else is, and typed."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import balpoe

ROOT = Path(__file__).parents[2]
EXPLAINING = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "constraints.txt")
SOURCES = ("pyproject.toml", "MANIFEST.in", "src", "examples", *EXPLAINING)
LARGEST = 100_000  # bytes of a file in the wheel
PROGRAM = """
from pathlib import Path

import balpoe
from balpoe.deployment.serve.settings import Limits, ServeSettings
from balpoe.deployment.serve.start import serve

train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
network = balpoe.expert_network("mlp", num_classes=10, num_experts=3, num_features=64)
history = balpoe.fit(network, balpoe.BalPoELoss(train.class_counts), train, epochs=2)
predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=(1, 0, -1))
evaluation = balpoe.evaluate(predictions, "uniform")
classifier = balpoe.BalPoEClassifier(epochs=2).fit([[0.0], [1.0]], [0, 1])
reveal_type(evaluation.accuracy)  # is "float"
reveal_type(evaluation.many)  # is "float | None"
reveal_type(history)  # is "list[dict[str, float]]"
reveal_type(predictions)  # is "balpoe.evaluation.predictions.Predictions"
reveal_type(balpoe.compare(predictions, predictions))  # is "dict[str, tuple[float, float, float]]"
reveal_type(classifier)  # is "balpoe.estimator.classifier.BalPoEClassifier"
reveal_type(classifier.estimate_target_prior([[0.5]]).significant)  # is "bool"
reveal_type(balpoe.export(balpoe.load("run"), Path("model.onnx")).path)  # is "pathlib.Path"
reveal_type(balpoe.fit_rule(predictions, "macro_f1"))  # is "balpoe.deployment.decision_rule.DecisionRule"
reveal_type(balpoe.ConformalSets.fit(predictions, alpha=0.1))  # is "balpoe.deployment.conformal.ConformalSets"
reveal_type(serve(ServeSettings("run", limits=Limits())))  # is "int"
balpoe.fit(network, balpoe.BalPoELoss(train.class_counts), train, epochs="many")  # incompatible type "str"
balpoe.evaluate(predictions, bins=15)  # Unexpected keyword argument "bins"
balpoe.decide(predictions.logits, abstain_cost="much")  # incompatible type "str"
ServeSettings("run", port="8000")  # incompatible type "str"
balpoe.load("run").predictt  # "Model" has no attribute "predictt"
"""
SETTINGS = """
[mypy]
strict = true
[mypy-torch.*,sklearn.*,scipy.*,timm.*,torchvision.*,lightning_fabric.*,matplotlib.*,PIL.*,numpy.*,rich.*,huggingface_hub.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-balpoe.*]
follow_imports = silent
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A source archive, and a wheel made from it; a test is beside the sources."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("package")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    shutil.rmtree(folder / "src" / "balpoe.egg-info", ignore_errors=True)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_nothing.py").touch()
    done = command(sys.executable, "-m", "build", "--no-isolation", cwd=folder)
    assert "Successfully built" in done.stdout
    return sorted((folder / "dist").iterdir())


def command(*words, cwd, code=0):
    """Run a command as a stranger would: without our settings."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory):
    """An environment that has the wheel; what it depends on is found where the tests have it."""
    folder = tmp_path_factory.mktemp("empty")
    command(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    wheel = next(path for path in archives if path.suffix == ".whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    command(*pip, "--disable-pip-version-check", wheel, cwd=folder)
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_archives_pass_twine(archives):
    pytest.importorskip("twine")
    done = command(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=archives[0].parent)
    assert done.stdout.count("PASSED") == 2


def test_all_that_is_needed_is_in_both_archives(archives):
    source, wheel = (next(path for path in archives if path.name.endswith(end)) for end in (".tar.gz", ".whl"))
    with tarfile.open(source) as opened:
        archived = {name.partition("/")[2] for name in opened.getnames()}
        in_source = {name.removeprefix("src/") for name in archived}
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = set(opened.namelist())
        largest = max(opened.infolist(), key=lambda each: each.file_size)
        about = opened.read(next(name for name in in_wheel if name.endswith("/METADATA"))).decode()
    ours = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "balpoe").rglob("*") if path.is_file()
    }
    ours = {name for name in ours if "__pycache__" not in name}
    assert ours <= in_wheel
    assert ours <= in_source
    assert "balpoe/py.typed" in ours
    assert f"\nVersion: {balpoe.__version__}\n" in about
    assert {name.partition("/")[0].partition("-")[0] for name in in_wheel} == {"balpoe"}
    assert largest.file_size < LARGEST, largest
    assert {*EXPLAINING, "examples/library.py", "examples/gallery/plot_02_calibration.py"} <= archived
    assert not {name for name in archived if name.startswith("tests") or "__pycache__" in name}


def test_it_works_where_nothing_else_is(installed, tmp_path):
    where = command(installed, "-c", "import balpoe; print(balpoe.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(installed.parents[1]))
    program = installed.parent / "balpoe"
    assert command(program, "--version", cwd=tmp_path).stdout == f"balpoe {balpoe.__version__}\n"
    assert "cifar100-lt" in command(program, "recipes", cwd=tmp_path).stdout
    assert "unknown" in command(program, "trian", cwd=tmp_path, code=2).stderr
    assert f"balpoe {balpoe.__version__}, all " in command(program, "doctor", cwd=tmp_path).stdout


def test_types_are_seen_from_outside(installed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "settings.ini").write_text(SETTINGS)
    words = ("--config-file=settings.ini", "--cache-dir=cache", "--no-error-summary", "program.py")
    done = command(sys.executable, "-m", "mypy", "--python-executable", installed, *words, cwd=tmp_path, code=1)
    answer = r"^program.py:(\d+): (?:error:|note: Revealed type) (.*)"
    said = dict(re.findall(answer, done.stdout.replace("builtins.", ""), flags=re.MULTILINE))
    lines = {str(number): line.partition("  # ")[2] for number, line in enumerate(PROGRAM.splitlines(), start=1)}
    wanted = {number: words for number, words in lines.items() if words}
    assert said.keys() == wanted.keys(), done.stdout
    for number, words in wanted.items():
        assert words in said[number], done.stdout


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {balpoe.__version__}\n" in text
    assert "Balanced Product of Calibrated Experts for Long-Tailed Recognition" in text
