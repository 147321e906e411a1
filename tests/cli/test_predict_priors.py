import csv
import io

import pytest
import torch

import balpoe
from balpoe.cli.main import main
from balpoe.deployment.deciders import HeldOut


@pytest.fixture
def trees(forest):
    """The run's folder, and its images in an order in which rare classes come to prevail."""
    files = {name: sorted(map(str, (forest / "trees" / name).iterdir())) for name in ("ash", "birch", "cedar")}
    return forest / "runs" / "trees" / "seed-0", files["ash"][:40] + files["cedar"] * 3


def predicted(capsys, *arguments):
    code = main(["predict", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return list(csv.DictReader(io.StringIO(out))), err


def test_each_image_has_the_prior_of_those_before_it(trees, capsys, tmp_path, monkeypatch):
    run, files = trees
    monkeypatch.chdir(tmp_path)
    model = balpoe.load(run)
    tracker = balpoe.track_prior(model.source_prior, half_life=40)
    tracker.save("state.npz")
    rows, err = predicted(capsys, run, *files, "--track-prior", "state.npz")
    logits = balpoe.product_of_experts(model.calibrated(model.expert_logits(files)))
    expected = []
    for block in logits.split(64):  # the images of one forward pass
        expected.append(tracker.adjust(block).softmax(dim=1).amax(dim=1))
        tracker.update(block)
    found = torch.tensor([float(row["probability"]) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(found, torch.cat(expected).double(), atol=1e-4, rtol=0)
    assert tracker.prior[2] > 0.5 > tracker.start[2]  # the cedars have come to prevail
    assert f"note: after {len(files)} images the prior in use is cedar {100 * tracker.prior[2]:.0f}"[:-1] in err
    assert (tmp_path / "state.png").read_bytes().startswith(b"\x89PNG")
    torch.testing.assert_close(balpoe.PriorTracker.load("state.npz").prior, tracker.prior, atol=1e-4, rtol=0)


def test_held_out_samples_of_the_same_network_check_the_prior(trees, capsys, tmp_path, monkeypatch):
    run, files = trees
    monkeypatch.chdir(tmp_path)
    known = HeldOut.of_run(run)
    assert known.cross_fitted  # other networks than the run's own predicted them
    for model in (run, run / "model.safetensors"):
        name = f"{model.name}.npz"
        _, err = predicted(capsys, model, *files[:4], "--track-prior", name, "--half-life", "20")
        assert "nothing checks the prior that is tracked" in err
        assert balpoe.PriorTracker.load(name).evidence.validation is None
    monkeypatch.setattr(HeldOut, "of_run", staticmethod(lambda _: known._replace(cross_fitted=False)))
    _, err = predicted(capsys, run, *files[:4], "--track-prior", "state.npz", "--half-life", "20")
    assert "nothing checks" not in err
    assert torch.equal(balpoe.PriorTracker.load("state.npz").evidence.validation.targets, known.predictions.targets)


def test_the_next_images_go_on_from_the_state(trees, capsys, tmp_path, monkeypatch):
    run, files = trees
    monkeypatch.chdir(tmp_path)
    whole, _ = predicted(capsys, run, *files, "--track-prior", "whole.npz", "--half-life", "40")
    first, _ = predicted(capsys, run, *files[:64], "--track-prior", "parts.npz", "--half-life", "40")
    second, _ = predicted(capsys, run, *files[64:], "--track-prior", "parts.npz")
    assert first + second == whole
    one, other = (balpoe.PriorTracker.load(f"{name}.npz") for name in ("whole", "parts"))
    assert torch.equal(one.prior, other.prior)
    assert one.seen == other.seen == len(files)


def test_too_few_images_for_a_look(trees, capsys, tmp_path):
    run, files = trees
    _, err = predicted(capsys, run, *files[:2], "--track-prior", tmp_path / "state.npz", "--half-life", "100")
    assert "2 images are too few for a first look at their class mix" in err
    assert not (tmp_path / "state.png").exists()


@pytest.mark.parametrize("given", ["state.png", ".", "*.png", "list.csv"])
def test_an_image_is_not_drawn_over(trees, capsys, tmp_path, tmp_path_factory, monkeypatch, given):
    run, files = trees
    other = str(tmp_path_factory.mktemp("states") / "other.npz")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.png").symlink_to(files[0])
    (tmp_path / "list.csv").write_text("path\nstate.png\n")
    assert main(["predict", str(run), given, "--track-prior", "state.npz", "--half-life", "20"]) == 2
    assert "state.png, where --track-prior draws, would be one of the images; keep" in capsys.readouterr().err
    assert (tmp_path / "state.png").is_symlink()
    if given == ".":  # where the next look would find what this one draws
        assert main(["predict", str(run), given, "--track-prior", "other.npz", "--half-life", "20"]) == 2
        assert "other.png, where --track-prior draws, would be one of the images" in capsys.readouterr().err
    predicted(capsys, run, given, "--track-prior", other, "--half-life", "20")
    assert main(["predict", str(run), given, "--track-prior", other, "--out", other]) == 2
    assert "is read, and would be lost" in capsys.readouterr().err


def test_mistakes_are_one_sentence(trees, capsys, tmp_path, monkeypatch):
    run, files = trees
    monkeypatch.chdir(tmp_path)
    predicted(capsys, run, files[0], "--track-prior", "state.npz", "--half-life", "50")
    balpoe.track_prior([0.5, 0.5], half_life=9).save("other.npz")
    for flags, sentence in (
        (["--half-life", "5"], "give --track-prior STATE.npz, too"),
        (["--track-prior", "new.npz"], "there is no state new.npz yet; give --half-life N"),
        (["--track-prior", "state.json", "--half-life", "5"], "is not a .npz file"),
        (["--track-prior", "new.npz", "--half-life", "0"], "--half-life must be a number of images above 0"),
        (["--track-prior", "state.npz", "--half-life", "5"], "state.npz has a half-life of 50"),
        (["--track-prior", "other.npz"], "is not the state of images of this model's 3 classes"),
        (["--track-prior", "state.npz", "--prior", "train"], "leave out --prior and --prior-table"),
        (["--track-prior", "state.npz", "--sets", "0.1"], "leave out the flags of decisions"),
    ):
        assert main(["predict", str(run), files[0], *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert sentence in err
        assert err.count("\n") == 1
