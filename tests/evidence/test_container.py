"""The container file's steps, in a fresh virtual environment: no container runtime is needed to see that they work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from balpoe.experiments.model_file import save_model
from served import feature_model

ROOT = Path(__file__).parents[2]
STEPS = [
    (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
    for line in (ROOT / "docker" / "Containerfile").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def only(name):
    (value,) = (value for key, value in STEPS if key == name)
    return value


def test_it_runs_as_a_user_without_rights_and_from_the_pinned_packages():
    keys = [key for key, _ in STEPS]
    install = next(value for key, value in STEPS if key == "RUN" and "pip install" in value)
    assert "--constraint constraints.txt" in install
    assert keys.index("USER") > max(place for place, key in enumerate(keys) if key in ("RUN", "COPY"))
    uid = re.search(r"--uid (\d+)", " ".join(value for key, value in STEPS if key == "RUN"))[1]
    assert only("USER") == uid != "0"
    assert only("STOPSIGNAL") == "SIGTERM"  # at which the server finishes what it accepted
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    extra = re.search(r"^serve = (\[.*\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for package in json.loads(extra[1]):
        name = re.match(r"[\w-]+", package)[0].replace("-", "[-_]")
        assert re.search(rf"^{name}==", pinned, flags=re.MULTILINE), package


def test_its_steps_install_a_command_that_serves(tmp_path):
    """What it copies is copied, what it installs is installed (without what that needs, which is here already)."""
    app, venv = tmp_path / "app", tmp_path / "venv"
    app.mkdir()
    for key, value in STEPS:
        if key == "COPY":
            *sources, target = value.split()
            for source in sources:
                found = ROOT / source
                if found.is_dir():
                    shutil.copytree(found, app / target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(found, app / target)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = next(value for key, value in STEPS if key == "RUN" and "pip install" in value)
    install = re.sub(r'\$\{INDEX:.*?"\$INDEX"\}', "", install).replace("python -m pip", "", 1)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), *shlex.split(install)]
    environment = {**os.environ, "PYTHONPATH": str(Path(pytest.__file__).parents[1]), "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--quiet"], cwd=app, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (package,) = venv.glob("lib/python*/site-packages/balpoe")
    assert {"page.html", "page.js", "page.css"} <= {path.name for path in (package / "deployment" / "serve").iterdir()}
    command, *words = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shown = subprocess.run(
        [str(venv / "bin" / command), *words, "--help"], env=bare, capture_output=True, text=True, check=True
    )
    assert "--prior-table" in shown.stdout
    alone = subprocess.run([str(venv / "bin" / command), *words], env=bare, capture_output=True, text=True)
    assert alone.returncode == 2
    assert "pip install 'balpoe[serve]'" in alone.stderr  # which the whole step does
    _check_serving(tmp_path, venv, command, package.parent)


def _check_serving(folder, venv, command, packages):
    """Beside what the step would install, too, the command serves, the health check sees it, and the stop ends it."""
    (packages / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    model, out = folder / "model.safetensors", folder / "out"
    save_model(model, feature_model())
    model.chmod(0o444)
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BALPOE_TOKEN")}
    with out.open("wb") as log:
        started = [str(venv / "bin" / command), "serve", str(model), "--port", "0"]
        server = subprocess.Popen(started, env=bare, stdout=log, stderr=log, cwd=folder)
    try:
        while "serving" not in out.read_text():
            assert server.poll() is None, out.read_text()
            time.sleep(0.05)
        port = out.read_text().rpartition(":")[2].strip()
        program, *words = json.loads(only("HEALTHCHECK").partition("CMD ")[2].replace("8000", port))
        subprocess.run([str(venv / "bin" / program), *words], env=bare, check=True)
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
