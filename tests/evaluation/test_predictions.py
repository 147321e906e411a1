import json
import pickle
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from balpoe import (
    Dataset,
    Predictions,
    UserError,
    evaluate,
    expert_network,
    load_predictions,
    predict,
    product_of_experts,
    tempered_prior,
)
from balpoe.evaluation.array_files import load_array
from balpoe.evaluation.prior_estimate import estimate_target
from balpoe.evaluation.shifted_tests import estimated_test_sets
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
    assert (back.parameters, back.multiply_adds) == (123, 456)
    assert torch.equal(back.train_prior, predictions.train_prior)
    assert torch.equal(back.source_prior, predictions.source_prior)
    assert isinstance(np.load(tmp_path / "expert_logits.npy", mmap_mode="r"), np.memmap)
    # Writing into the mapped tensor does not reach the file.
    back.expert_logits[0] = 99.0
    assert torch.equal(Predictions.load(tmp_path).expert_logits, predictions.expert_logits)


def test_large_tables_are_saved_in_half_precision(predictions, tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.evaluation.predictions.HALF_PRECISION_ABOVE", 100)
    predictions.save(tmp_path)
    back = Predictions.load(tmp_path)
    assert back.expert_logits.dtype == torch.float16
    torch.testing.assert_close(back.expert_logits.float(), predictions.expert_logits, rtol=1e-3, atol=1e-3)


def test_rows_in_blocks(predictions, monkeypatch):
    monkeypatch.setattr("balpoe.evaluation.predictions.BLOCK_VALUES", 30)
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


def test_a_header_that_says_more_than_there_is_takes_no_memory(tmp_path):
    path = tmp_path / "targets.npy"
    np.save(path, np.zeros((3, 2)))
    path.write_bytes(path.read_bytes().replace(b"(3, 2), }" + 12 * b" ", b"(3000000000000, 2), }"))
    for mapped in (False, True):
        with pytest.raises(UserError, match=r"targets\.npy is not a whole array of numbers; predict again"):
            load_array(path, mapped)


def test_too_little_memory_is_no_damage(predictions, tmp_path, monkeypatch):
    def without_room(*_, **__):
        raise MemoryError

    predictions.save(tmp_path)
    monkeypatch.setattr(np, "load", without_room)
    with pytest.raises(MemoryError):
        Predictions.load(tmp_path)


@pytest.mark.parametrize("garbled", [b"'shape': (3, 2", b"'shape': (9" + b"9" * 400 + b",), "])
def test_a_damaged_header_is_told_in_a_sentence(predictions, tmp_path, garbled):
    predictions.save(tmp_path)
    path = tmp_path / "expert_logits.npy"
    header = b"{'descr': '<f4', 'fortran_order': False, " + garbled
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UserError, match=r"expert_logits\.npy is not a whole array of numbers; predict again"):
        Predictions.load(tmp_path)


def archive(path, **arrays):
    """What anybody may save: logits, labels and counts of two classes; None takes one away."""
    usual = {"logits": np.array([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), "targets": [0, 1, 1], "class_counts": [90, 10]}
    np.savez(path, **{name: value for name, value in {**usual, **arrays}.items() if value is not None})
    return path


def test_anybodys_predictions(tmp_path):
    plain = load_predictions(archive(tmp_path / "a.npz"))
    assert plain.expert_logits.tolist() == [[[2.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.0]]]
    assert plain.lambdas.tolist() == [1.0]
    torch.testing.assert_close(plain.source_prior, torch.tensor([0.9, 0.1]))
    assert plain.class_names == ("0", "1")
    several = load_predictions(
        archive(
            tmp_path / "b.npz",
            logits=np.asfortranarray(np.arange(18.0, dtype=">f4").reshape(3, 3, 2)),
            class_names=np.array(["ü, x", "🦊"]),
            lambdas=[1, 0, -1],
        )
    )
    assert several.expert_logits.flatten().tolist() == list(range(18))
    assert several.class_names == ("ü, x", "🦊")
    torch.testing.assert_close(several.source_prior, torch.tensor([0.5, 0.5]))
    logs = plain.expert_logits[:, 0].log_softmax(dim=1).numpy().astype(np.float16)
    ours = load_predictions(archive(tmp_path / "c.npz", logits=None, log_probabilities=logs))
    torch.testing.assert_close(
        evaluate(ours, num_resamples=0).nll, evaluate(plain, num_resamples=0).nll, rtol=1e-3, atol=0
    )


def test_predictions_from_every_place(predictions, tmp_path):
    predictions.save(tmp_path / "run" / "predictions")
    for path in (tmp_path / "run", tmp_path / "run" / "predictions", str(tmp_path / "run")):
        assert torch.equal(load_predictions(path).expert_logits, predictions.expert_logits)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"logits": None}, "there are 0 arrays named logits or log_probabilities"),
        ({"log_probabilities": np.zeros((3, 2))}, "there are 2 arrays named logits or log_probabilities"),
        ({"logits": None, "probabilities": np.ones((3, 2)) / 2}, "save their logarithm as log_probabilities"),
        ({"logits": None, "probs": np.ones((3, 2)) / 2}, "save their logarithm as log_probabilities"),
        ({"logits": None, "log_probabilities": np.ones((3, 2))}, "if log_probabilities are logits, call them so"),
        ({"logits": np.zeros(3)}, r"must have shape \(samples, classes\)"),
        ({"logits": np.zeros((0, 2)), "targets": []}, r"but has \(0, 2\)"),
        ({"logits": np.array([[0, 1], [np.nan, 0], [0, 0]])}, "logits of sample 1 are not all numbers"),
        ({"logits": np.array([[0, 1], [0, 0], [0, np.inf]])}, "logits of sample 2 are not all numbers"),
        ({"logits": np.zeros((4, 2))}, "for 3 targets"),
        ({"logits": np.array([["a", "b"]] * 3)}, "logits must be numbers, but is text"),
        ({"logits": np.zeros((3, 2), dtype=bool)}, "logits.npy is not an array of numbers or text"),
        ({"logits": np.zeros((3, 2), dtype=complex)}, "logits.npy is not an array of numbers or text"),
        ({"targets": None}, "there is no array targets"),
        ({"targets": [0.0, 1.0, 1.0]}, "targets must be one row of whole numbers"),
        ({"targets": [0, 1, 2]}, "target 2 of sample 2 is outside the 2 classes"),
        ({"targets": np.array([0, 1, 2**64 - 1], dtype=np.uint64)}, "target -1 of sample 2"),
        ({"class_counts": None}, "there is no array class_counts"),
        ({"class_counts": [0.9, 0.1]}, "class_counts must be one row of whole numbers"),
        ({"class_counts": [90, 0]}, "class 1 has no training sample"),
        ({"class_counts": [90, 5, 5]}, "2 classes, but class_counts 3"),
        ({"class_names": [1, 2]}, "class_names must be one row of text"),
        ({"class_names": np.array(["a", "b", "c"])}, "class_names 3"),
        ({"lambdas": [1, 0]}, "lambdas describes 2 experts but the predictions have 1"),
        ({"lambdas": [np.nan]}, "lambdas must be finite"),
        ({"label": [0, 1, 1]}, "unknown array 'label'"),
        ({"target": [0, 1, 1]}, "unknown array 'target'; did you mean 'targets'"),
    ],
)
def test_arrays_that_say_something_else(tmp_path, arrays, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        load_predictions(archive(tmp_path / "theirs.npz", **arrays))
    assert str(caught.value).startswith(str(tmp_path / "theirs.npz"))
    assert "\n" not in str(caught.value)


class Evil:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_archives_that_are_broken_or_malicious(tmp_path):
    path = tmp_path / "theirs.npz"
    with pytest.raises(UserError, match="cannot read"):
        load_predictions(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"is not a whole \.npz"):
        load_predictions(path)
    np.savez(path, logits=np.array([Evil(tmp_path / "bitten")], dtype=object), targets=[0], class_counts=[1])
    with pytest.raises(UserError, match="not an array of numbers or text"):
        load_predictions(path)
    assert not (tmp_path / "bitten").exists()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("logits.npy", pickle.dumps(Evil(tmp_path / "bitten")))
    with pytest.raises(UserError, match="not an array of numbers or text"):
        load_predictions(path)
    assert not (tmp_path / "bitten").exists()
    header = b"\x93NUMPY\x01\x00v\x00" + repr({"descr": "<f8", "fortran_order": False, "shape": (10**12, 10)}).encode()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("logits.npy", header.ljust(127) + b"\n")  # asks for 80 TB
    with pytest.raises(UserError, match="not an array of numbers or text"):
        load_predictions(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("logits.npy", "w") as stream:
        for _ in range(100):
            stream.write(bytes(2**20))
    assert path.stat().st_size < 2**18
    with pytest.raises(UserError, match=r"would unpack to 0\.1 GB"):
        load_predictions(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("logits.npy", b"0" * 100)
    with pytest.raises(UserError, match="not an array of numbers or text"):
        load_predictions(path)
    archive(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"is not a whole \.npz"):
        load_predictions(path)
    whole = archive(path).read_bytes()
    path.write_bytes(whole.replace(np.array([2.0, 0.0]).tobytes(), np.array([3.0, 0.0]).tobytes()))
    with pytest.raises(UserError, match=r"is not a whole \.npz"):  # the checksum
        load_predictions(path)


def test_places_without_predictions(tmp_path):
    (tmp_path / "some.npy").touch()
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "some.npy"):
        with pytest.raises(UserError, match="there are no predictions in"):
            load_predictions(path)


def without_posterior(predictions):
    """The same logits, said to be no posterior."""
    return Predictions(predictions.expert_logits, predictions.targets, predictions.class_counts)


def test_logits_that_are_no_posterior_are_weighted_and_never_adjusted(predictions):
    free = without_posterior(predictions)
    assert (free.lambdas, free.source_prior, free.expert_priors) == (None, None, None)
    torch.testing.assert_close(free.train_prior, torch.tensor([0.4, 0.3, 0.2, 0.1]))
    found = evaluate(free, "forward-10", num_resamples=0)
    as_trained = evaluate(predictions, "forward-10", adjust=False, num_resamples=0)
    assert found.metrics == as_trained.metrics
    assert [expert.metrics for expert in found.experts] == [expert.metrics for expert in as_trained.experts]
    assert found.effective_samples == as_trained.effective_samples < 7
    assert (found.check, found.expert_checks) == (None, ())
    assert torch.equal(*free.answers([[0.97, 0.01, 0.01, 0.01]]))
    assert "shown as trained and not adjusted" in free.caveats[0]
    assert predictions.caveats == []


def test_a_source_prior_without_lambdas(predictions):
    source = torch.tensor([0.7, 0.1, 0.1, 0.1])
    given = Predictions(predictions.expert_logits, predictions.targets, predictions.class_counts, source_prior=source)
    found = evaluate(given, [0.1, 0.2, 0.3, 0.4], num_resamples=0)
    moved = predictions.logits.double() + (torch.tensor([0.1, 0.2, 0.3, 0.4]).double() / source).log()
    right = (moved.argmax(dim=1) == predictions.targets).double()
    weights = (
        torch.tensor([0.1, 0.2, 0.3, 0.4]).double()[predictions.targets]
        / torch.bincount(predictions.targets)[predictions.targets]
    )
    assert found.accuracy == pytest.approx(float((weights * right).sum() / weights.sum()))
    assert (found.check, found.expert_checks) == (None, ())


def test_the_source_prior_follows_lambdas_and_train_prior(predictions):
    """Also in a copy, which carries the source prior of the original along."""
    uniform, train = torch.full((4,), 0.25), torch.tensor([0.7, 0.1, 0.1, 0.1])
    torch.testing.assert_close(predictions.source_prior, uniform)
    biased = replace(predictions, lambdas=torch.ones(predictions.num_experts))
    torch.testing.assert_close(biased.source_prior, predictions.train_prior)
    torch.testing.assert_close(replace(biased, train_prior=train).source_prior, train)
    torch.testing.assert_close(replace(predictions, source_prior=train).source_prior, uniform)


def test_the_old_name_of_the_training_prior(predictions):
    assert predictions.prior is predictions.train_prior


@pytest.mark.parametrize("source", [None, (0.7, 0.1, 0.1, 0.1)])
def test_predictions_without_lambdas_are_saved_and_loaded(predictions, source, tmp_path):
    parts = predictions.expert_logits, predictions.targets, predictions.class_counts
    Predictions(*parts, source_prior=source).save(tmp_path)
    back = Predictions.load(tmp_path)
    assert back.lambdas is None
    assert back.source_prior is None if source is None else back.source_prior.tolist() == pytest.approx(source)


def test_folders_of_earlier_versions_load(predictions, tmp_path):
    """They have no source_prior, and None for a training prior that is the counts' own."""
    predictions.save(tmp_path)
    about = json.loads((tmp_path / "predictions.json").read_text())
    del about["source_prior"]
    about["train_prior"] = None
    (tmp_path / "predictions.json").write_text(json.dumps(about))
    back = Predictions.load(tmp_path)
    assert torch.equal(back.source_prior, predictions.source_prior)
    assert torch.equal(back.train_prior, predictions.train_prior)


def test_an_archive_says_what_prior_its_logits_are_made_for(tmp_path):
    path = tmp_path / "theirs.npz"
    archive(path, source_prior=np.array([0.3, 0.7]))
    assert load_predictions(path).source_prior.tolist() == [0.3, 0.7]
    assert load_predictions(path).lambdas is None
    archive(path, source_prior=np.array([]))
    assert load_predictions(path).source_prior is None
    archive(path, source_prior=np.array([]), lambdas=[1.0])
    with pytest.raises(UserError, match=r"theirs\.npz: lambdas and source_prior both say"):
        load_predictions(path)
    archive(path, source_prior=np.array([0.3, 0.3]))
    with pytest.raises(UserError, match=r"source_prior sums to 0\.6, not to 1"):
        load_predictions(path)


def test_predict_without_lambdas():
    data = Dataset(torch.randn(6, 8), [0, 0, 0, 0, 1, 1])
    network = expert_network("mlp", num_classes=2, num_experts=1, num_features=8)
    assert predict(network, data, class_counts=data.class_counts).source_prior is None
    found = predict(network, data, class_counts=data.class_counts, source_prior=[0.5, 0.5])
    assert found.source_prior.tolist() == [0.5, 0.5]


def test_no_prior_is_estimated_from_logits_that_are_no_posterior(predictions):
    free = without_posterior(predictions)
    others = Predictions(free.expert_logits + 1, free.targets, free.class_counts)
    for estimate in (estimate_target, estimated_test_sets):
        with pytest.raises(UserError, match="no prior can be estimated from logits that are no posterior"):
            estimate(free, others)


def test_answers_row_by_row(predictions, monkeypatch):
    monkeypatch.setattr("balpoe.evaluation.predictions.BLOCK_VALUES", 30)
    priors = [[0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]]
    found = predictions.answers(priors)
    assert found.shape == (3, 7)
    for row in range(7):
        probabilities = predictions.logits[row].double().softmax(dim=0)
        for answers, prior in zip(found, [[0.25] * 4, *priors], strict=True):
            assert int(answers[row]) == int((probabilities * torch.tensor(prior)).argmax())


def test_groups_are_kept_and_follow_their_samples(predictions, tmp_path):
    grouped = replace(predictions, groups=torch.tensor([3, 3, 8, 8, 3, 9, 9]))
    assert predictions.evidence.tolist() == [2, 2, 2, 1]
    assert grouped.evidence.tolist() == [1, 2, 2, 1]
    assert grouped.subset(torch.tensor([1, 5])).groups.tolist() == [3, 9]
    assert "7 test samples come in 3 groups" in grouped.about_groups[0]
    grouped.save(tmp_path)
    assert Predictions.load(tmp_path).groups.tolist() == grouped.groups.tolist()
    predictions.save(tmp_path)  # over them
    assert Predictions.load(tmp_path).groups is None
    assert predictions.about_groups == []


def test_groups_that_do_not_fit(predictions):
    for groups in (torch.zeros(6).long(), torch.zeros(7)):
        with pytest.raises(UserError, match="groups must be a whole number for each of the 7 samples"):
            replace(predictions, groups=groups)


def test_groups_of_another_program(tmp_path):
    arrays = {"logits": np.eye(3), "targets": [0, 1, 2], "class_counts": [5, 5, 5]}
    np.savez(tmp_path / "theirs.npz", **arrays, groups=["b", "a", "b"])
    assert load_predictions(tmp_path / "theirs.npz").groups.tolist() == [1, 0, 1]


def test_predict_takes_the_groups_of_the_test_set():
    data = Dataset(torch.randn(4, 8), [0, 0, 1, 1], groups=[5, 5, 6, 7])
    network = expert_network("mlp", num_classes=2, num_experts=2, num_features=8)
    assert predict(network, data, class_counts=[9, 1], lambdas=(1, -1)).groups.tolist() == [5, 5, 6, 7]
    assert data.subset(torch.tensor([3, 0])).groups.tolist() == [7, 5]


def test_weights_of_the_experts(predictions, tmp_path):
    """The weighted mean of logits is a posterior of the prior that the weighted mean of lambdas makes."""
    weights, views = torch.tensor([0.5, 0.3, 0.2]), torch.randn(7, 2, 3, 4)
    weighted = replace(predictions, expert_weights=weights, view_logits=views)
    expected = sum(weight * expert for weight, expert in zip(weights, predictions.expert_logits.unbind(1), strict=True))
    torch.testing.assert_close(weighted.logits, expected)
    torch.testing.assert_close(weighted.source_prior, tempered_prior(predictions.train_prior, (0.3,))[0])
    assert torch.equal(weighted.answers()[0], expected.argmax(dim=1))
    assert evaluate(weighted, num_resamples=0).accuracy == pytest.approx(
        float((expected.argmax(dim=1) == predictions.targets).double().mean())
    )
    assert "Transductive: the weights of the experts (0.50, 0.30, 0.20)" in weighted.caveats[0]
    assert predictions.caveats == []
    weighted.save(tmp_path)
    back = Predictions.load(tmp_path)
    assert torch.equal(back.expert_weights, weights)
    rows = torch.tensor([4, 1])
    assert torch.equal(back.subset(rows).view_logits, views[rows])
    predictions.save(tmp_path)  # over them
    assert Predictions.load(tmp_path).view_logits is None


def test_weights_and_views_that_do_not_fit(predictions):
    with pytest.raises(UserError, match="expert_weights must be a number for each of the 3 experts"):
        replace(predictions, expert_weights=torch.ones(2))
    with pytest.raises(UserError, match=r"view_logits must have shape \(7, 2, 3, 4\)"):
        replace(predictions, view_logits=torch.zeros(7, 3, 4))
    with pytest.raises(UserError, match="these predictions have no views"):
        predictions.calibrated_views()
