import os

import pytest

from balpoe import UserError
from balpoe.experiments.run_paths import run_path


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two finished runs, the first of them finished last, and one that is not."""
    monkeypatch.chdir(tmp_path)
    for root in ("runs", "elsewhere"):
        for number, name in enumerate(("photos/seed-0", "photos/seed-1", "photos-2/seed-0", "later/seed-0")):
            folder = tmp_path / root / name
            folder.mkdir(parents=True)
            (folder / "recipe.toml").write_text("")
            if name != "later/seed-0":
                (folder / "evaluation.json").write_text("")
                os.utime(folder / "evaluation.json", (number, number))
    os.utime(tmp_path / "runs" / "photos" / "seed-1" / "evaluation.json", (9, 9))
    (tmp_path / "runs" / "later" / "seed-0.before-1").mkdir()
    (tmp_path / "runs" / "later" / "seed-0.before-1" / "evaluation.json").write_text("")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("latest", "runs/photos"),
        ("elsewhere/latest", "elsewhere/photos-2"),
        ("photos-2", "runs/photos-2"),
        ("photos/seed-1", "runs/photos/seed-1"),
        ("runs/photos", "runs/photos"),
        ("elsewhere/photos", "elsewhere/photos"),
        ("nothing", "nothing"),
        ("model.safetensors", "model.safetensors"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_names(name, path):
    assert run_path(name).as_posix() == path


@pytest.mark.usefixtures("runs")
def test_what_is_there_comes_first(tmp_path):
    (tmp_path / "photos").mkdir()  # the images: no run
    assert run_path("photos").as_posix() == "runs/photos"
    (tmp_path / "latest").mkdir()
    assert run_path("latest").as_posix() == "latest"


def test_no_run_is_the_latest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no finished run in runs; train one"):
        run_path("latest")
