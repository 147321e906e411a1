"""Two views of each test image, and what is learnt from them."""

import pytest
import torch

from balpoe import Dataset, expert_network
from balpoe.baselines.sade_test_time import agreeing_weights
from balpoe.cli.main import main
from balpoe.data.augment.operations import Flip
from balpoe.evaluation.forward import forward_in_blocks
from balpoe.evaluation.learnt_weights import two_views
from balpoe.experiments.model_file import load
from balpoe.experiments.run_folder import Run
from commands import QUICK

pytestmark = pytest.mark.filterwarnings("ignore:lambdas average to")  # SADE's do not average to zero


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (11, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Dataset(images, torch.arange(11) % 3)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return expert_network("resnet32", num_classes=3, num_experts=2, width=2).train()


def test_each_view_is_an_image_or_its_mirror_image(data, network, monkeypatch):
    monkeypatch.setattr("balpoe.evaluation.learnt_weights.VIEWED_AT_ONCE", 4)
    found = two_views(network, data, (Flip(),), seed=5)
    assert found.shape == (11, 2, 2, 3)
    assert network.training
    network.eval()
    either = [forward_in_blocks(network, data.preprocessing, [images]) for images in (data.images, data.images.flip(3))]
    matches = [(found - each[:, None]).abs().amax(dim=(2, 3)) < 1e-4 for each in either]
    assert bool((matches[0] ^ matches[1]).all())
    assert bool((matches[0][:, 0] != matches[0][:, 1]).any())  # the two views differ
    assert torch.equal(found, two_views(network, data, (Flip(),), seed=5))
    assert not torch.equal(found, two_views(network, data, (Flip(),), seed=6))


@pytest.mark.usefixtures("no_figure_files")
def test_a_run_keeps_the_weights_and_what_they_were_learnt_from(tmp_path, monkeypatch, capsys, no_drawings):
    monkeypatch.chdir(tmp_path)
    for method in ("sade", "sade-test-time"):
        assert main([*QUICK, "--method", method, "--name", method]) == 0
    assert "Transductive: the weights of the experts" in capsys.readouterr().out
    plain, learnt = (Run(tmp_path / "runs" / method / "seed-0") for method in ("sade", "sade-test-time"))
    ours = learnt.predictions()
    assert torch.equal(ours.expert_logits, plain.predictions().expert_logits)  # the training is SADE's
    expected = agreeing_weights(ours.view_logits[:, 0], ours.view_logits[:, 1])
    torch.testing.assert_close(ours.expert_weights, expected)
    equal = learnt.evaluation()["test_time"]["with_equal_weights"]
    assert equal["accuracy"] == plain.evaluation()["accuracy"]
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    alone = [load(run.folder).predict(images) for run in (learnt, plain)]
    assert torch.equal(*alone)  # weights belong to a test set, and not to the model
    assert main(["report", str(learnt.folder), "--out", "page.html"]) == 0
    assert "Transductive" in (tmp_path / "page.html").read_text()
    assert main(["evaluate", str(learnt.folder)]) == 0
    assert "Transductive" in " ".join(capsys.readouterr().out.split())
