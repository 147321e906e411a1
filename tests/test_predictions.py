import numpy as np
import pytest
import torch

from balpoe import Dataset, Predictions, UserError, expert_network, predict, product_of_experts, tempered_prior
from gaussians import long_tail


@pytest.fixture
def predictions():
    torch.manual_seed(0)
    return Predictions(
        torch.randn(7, 3, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2]), torch.tensor([40, 30, 20, 10]),
        torch.tensor([1.0, 0.0, -1.0]), ("a", "b", "ü", "<d>"), None, 123, 456,
    )  # fmt: skip


def test_priors_that_predictions_carry(predictions):
    prior = torch.tensor([0.4, 0.3, 0.2, 0.1])
    torch.testing.assert_close(predictions.source_prior, torch.full((4,), 0.25))
    torch.testing.assert_close(predictions.expert_priors, tempered_prior(prior, (1, 0, -1)))
    torch.testing.assert_close(predictions.logits, product_of_experts(predictions.expert_logits))
    cross_entropy = Predictions(torch.zeros(1, 1, 4), torch.tensor([0]), predictions.class_counts, torch.tensor([1.0]))
    torch.testing.assert_close(cross_entropy.source_prior, prior)
    given = Predictions(
        torch.zeros(1, 1, 4), torch.tensor([0]), predictions.class_counts, torch.tensor([1.0]), train_prior=long_tail(4)
    )
    torch.testing.assert_close(given.source_prior, long_tail(4))


def test_saved_and_loaded(predictions, tmp_path):
    predictions.save(tmp_path)
    back = Predictions.load(tmp_path)
    assert torch.equal(back.expert_logits, predictions.expert_logits)
    assert torch.equal(back.targets, predictions.targets)
    assert torch.equal(back.class_counts, predictions.class_counts)
    assert torch.equal(back.lambdas, predictions.lambdas)
    assert back.class_names == predictions.class_names
    assert (back.parameters, back.multiply_adds, back.train_prior) == (123, 456, None)
    assert isinstance(np.load(tmp_path / "expert_logits.npy", mmap_mode="r"), np.memmap)
    # Writing into the mapped tensor does not reach the file.
    back.expert_logits[0] = 99.0
    assert torch.equal(Predictions.load(tmp_path).expert_logits, predictions.expert_logits)


def test_large_tables_are_saved_in_half_precision(predictions, tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.predictions.HALF_PRECISION_ABOVE", 100)
    predictions.save(tmp_path)
    back = Predictions.load(tmp_path)
    assert back.expert_logits.dtype == torch.float16
    torch.testing.assert_close(back.expert_logits.float(), predictions.expert_logits, rtol=1e-3, atol=1e-3)


def test_rows_in_blocks(predictions, monkeypatch):
    monkeypatch.setattr("balpoe.predictions.BLOCK_VALUES", 30)
    rows = [list(range(7))[block] for block in predictions.blocks()]
    assert rows == [[0, 1], [2, 3], [4, 5], [6]]


def test_predict_runs_once_in_evaluation_mode_and_leaves_the_network_as_it_was():
    torch.manual_seed(0)
    data = Dataset(torch.randint(0, 256, (11, 3, 8, 8), dtype=torch.uint8), torch.arange(11) % 3, ["x", "y", "z"])
    network = expert_network("resnet32", num_classes=3, num_experts=2, width=2).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = predict(network, data, class_counts=data.class_counts, lambdas=(1, -1), batch_size=4)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    network.eval()
    with torch.no_grad():
        expected = network(data.preprocessing.normalise(data.images))
    torch.testing.assert_close(found.expert_logits, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.targets, data.targets)
    assert found.class_names == ("x", "y", "z")
    assert found.parameters == sum(p.numel() for p in network.parameters())
    assert found.multiply_adds > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"expert_logits": torch.zeros(7, 4)}, r"\(samples, experts, classes\)"),
        ({"targets": torch.zeros(5, dtype=torch.long)}, "for 5 targets"),
        ({"lambdas": torch.tensor([1.0, 0.0])}, "lambdas describes 2 experts but the predictions have 3"),
        ({"class_counts": torch.tensor([1, 2])}, "4 classes, but class_counts 2"),
    ],
)
def test_parts_that_do_not_fit(predictions, change, sentence):
    parts = {name: getattr(predictions, name) for name in ("expert_logits", "targets", "class_counts", "lambdas")}
    with pytest.raises(UserError, match=sentence):
        Predictions(**{**parts, **change})


def test_files_that_are_broken_foreign_or_malicious(predictions, tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*predictions\.json"):
        Predictions.load(tmp_path)
    predictions.save(tmp_path)
    path = tmp_path / "expert_logits.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(UserError, match="not a whole array"):
        Predictions.load(tmp_path)
    np.save(path, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="not a whole array"):
        Predictions.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="no such file"):
        Predictions.load(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "predictions.json").write_text("{}")
    with pytest.raises(UserError, match="lacks or garbles"):
        Predictions.load(tmp_path)
