"""Who may import whom, and what importing costs."""

import ast
import functools
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import balpoe

SOURCE = Path(balpoe.__file__).parent

ROOMS = (  # lower ones first
    "errors",
    "old_names",
    "settings",
    "private_apis",
    "files",
    "progress",
    "method",
    "networks",
    "data",
    "baselines",
    "evaluation",
    "training",
    "experiments",
    "deployment",
    "report",
    "paper",
    "estimator",
    "cli",
)
LIGHT = (
    "method",
    "data",
    "baselines",
    "training",
    "experiments",
    "deployment",
    "report",
    "cli",
)  # a package whose __init__ imports nothing
ENTRANCES = {
    "lightning_fabric": {"training"},
    "torchvision": {"data"},
    "PIL": {"data"},
    "pyarrow": {"data"},
    "timm": {"networks"},
    "triton": {"networks"},
    "matplotlib": {"report", "cli", "paper"},
    "scipy": {"method", "baselines", "evaluation", "deployment", "paper"},
    "sklearn": {"data", "estimator"},
    "optuna": {"experiments"},
    "fastapi": {"deployment"},
    "starlette": {"deployment"},
    "uvicorn": {"deployment"},
    "prometheus_client": {"deployment"},
    "rich": {"progress", "report", "cli"},
    "safetensors": {"experiments", "networks"},
    "huggingface_hub": {"deployment", "networks"},
    "onnx": {"deployment"},
    "onnxruntime": {"deployment"},
}


def files():
    return sorted(SOURCE.rglob("*.py"))


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def imports(path, everywhere=True):
    """Absolute names of all imports of a file, also those inside functions."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), []
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_every_file_is_in_a_room():
    there = {room(path) for path in files()} - {"__init__", "__main__"}
    assert there <= set(ROOMS)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_from_its_own_room_or_lower_ones(path):
    if room(path) in ("__init__", "__main__"):
        return  # names only, and on first use; the command line
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "balpoe" and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room(path)), name


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_room_costs_nothing_to_enter(name):
    assert list(imports(SOURCE / name / "__init__.py")) == []


ABOUT_SEVERAL_FILES = {"test_imports", "baselines/test_trainings", "cli/test_stopping", "cli/test_train_own_data"}


def test_tests_are_where_the_code_is():
    """A test file stands where the file that it tests does, under its name; some files are tested through others."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        name = path.relative_to(tests).with_suffix("").as_posix()
        if not name.startswith("evidence/") and name not in ABOUT_SEVERAL_FILES:
            assert (SOURCE / path.relative_to(tests).with_name(path.name.removeprefix("test_"))).is_file(), name


def test_there_is_no_circle():
    graph = {
        path: {SOURCE.joinpath(*name.split(".")[1:]) for name in imports(path) if name.startswith("balpoe.")}
        for path in files()
        if path.name != "__init__.py"
    }
    modules = {path.with_suffix(""): path for path in graph}
    edges = {
        path: {modules[part] for name in names for part in (name, *name.parents) if part in modules}
        for path, names in graph.items()
    }
    done: set[Path] = set()

    def visit(path, above):
        assert path not in above, [p.name for p in above] + [path.name]
        if path not in done:
            for target in edges[path] - {path}:
                visit(target, [*above, path])
            done.add(path)

    for path in edges:
        visit(path, [])


@pytest.mark.parametrize("package", ENTRANCES)
def test_a_third_party_package_enters_through_its_room(package):
    users = {room(path) for path in files() for name in imports(path) if name.split(".")[0] == package}
    assert users == ENTRANCES[package]


def test_the_method_imports_torch_only():
    """And scipy on first use, inside functions."""
    for path in (SOURCE / "method").glob("*.py"):
        for everywhere, known in ((False, {"balpoe", "torch"}), (True, {"balpoe", "torch", "scipy"})):
            outside = {name.split(".")[0] for name in imports(path, everywhere)} - known
            assert outside <= set(sys.stdlib_module_names), path


def test_answers_without_torch_or_numpy():
    """--help, --version, recipes and mistakes in a recipe: none of them may pay for torch."""
    code = """
import contextlib, io, sys
from balpoe.cli.main import main
import balpoe
for arguments in (["recipes"], ["recipes", "cifar100-lt"], ["train", "digits-lt", "--epochs", "-1"],
                  ["train", "digits-lt", "--lambdas=1,nan"], ["train", "nothing"], ["--version"], ["train", "--help"]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(arguments)
heavy = [name for name in ("torch", "numpy", "matplotlib", "sklearn", "lightning_fabric") if name in sys.modules]
print(heavy)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.slow
def test_training_on_features_waits_for_no_library_of_pictures(tmp_path):
    """Nor for scikit-learn, of which a run records the version, nor for torch's compiler: each of them takes long.

    Calibrating takes scipy's optimisers, and is left out here; its special functions, for intervals, are quick.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "rows.npz", features=rng.normal(size=(60, 4)).astype("float32"), labels=labels)
    code = """
import sys
from balpoe.cli.main import main
for optimizer in ("sgd", "adamw", "muon"):
    main(["train", "rows.npz", "--epochs", "1", "--no-calibrate", "--optimizer", optimizer, "--name", optimizer])
heavy = ("torchvision", "timm", "sklearn", "scipy.stats", "scipy.optimize", "matplotlib")
heavy += ("lightning_fabric", "torch._dynamo", "torch.distributed.tensor")
print([name for name in heavy if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "[]"
    environment = json.loads((tmp_path / "runs" / "sgd" / "seed-0" / "environment.json").read_text())
    assert set(environment["packages"]) == {"torch", "torchvision", "lightning_fabric", "numpy", "sklearn", "triton"}
    assert environment["packages"]["sklearn"] == version("scikit-learn")


def test_public_names_resolve_and_are_listed():
    for name in balpoe.__all__:
        assert getattr(balpoe, name) is not None
    assert dir(balpoe) == sorted(balpoe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        balpoe.nothing  # noqa: B018
    contract = """class_prior tempered_prior logit_offsets equidistant_lambdas BalPoELoss LogitAdjustedLoss
        logit_adjusted_cross_entropy product_of_experts shift_prior mixup cutmix mixed_loss estimate_prior load_data
        expert_network fit predict evaluate Predictions"""
    assert set(contract.split()) <= set(balpoe.__all__)


def test_names_for_type_checkers_are_the_names_at_run_time():
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {(node.module.removeprefix("balpoe."), alias.name) for node in block.body for alias in node.names}
    assert typed == {(home, name) for name, home in balpoe._HOME_OF.items()}


def test_python_dash_m_from_a_source_tree():
    result = subprocess.run(
        [sys.executable, "-S", "-m", "balpoe", "--version"],
        cwd=SOURCE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"balpoe {balpoe.__version__}\n"
