"""Deployment priors: the words against their formulas, the files against every way to get them wrong."""

import json
import math

import numpy as np
import pytest
import torch

from balpoe import Predictions, UserError, evaluate, shift_prior
from balpoe.evaluation.deployment_prior import parse_prior, prior_template, read_prior, target_prior

NAMES = ("cat", "dog, small", 'the "fox"', "🦊")


@pytest.fixture
def predictions():
    return Predictions(torch.zeros(4, 1, 4), torch.arange(4), torch.tensor([20, 50, 50, 5]), torch.tensor([1.0]), NAMES)


def test_words(predictions):
    assert target_prior("uniform", predictions).tolist() == [0.25] * 4
    torch.testing.assert_close(
        target_prior("train", predictions), torch.tensor([20, 50, 50, 5]).double() / 125, rtol=1e-6, atol=0
    )
    # By training count: classes 1 and 2 (a tie, by label), 0, 3.
    weights = [8 ** (-rank / 3) for rank in (2, 0, 1, 3)]
    forward = target_prior("forward-8", predictions)
    assert forward.tolist() == pytest.approx([weight / sum(weights) for weight in weights])
    backward = target_prior("backward-8", predictions)
    assert backward.tolist() == pytest.approx([8 ** (-rank / 3) / sum(weights) for rank in (1, 3, 2, 0)])
    assert forward.dtype == torch.float64
    assert float(forward.max() / forward.min()) == pytest.approx(8)
    assert torch.equal(target_prior("forward-1", predictions), target_prior("uniform", predictions))


def test_train_is_the_prior_that_the_loss_was_given():
    given = torch.tensor([0.7, 0.3])
    predictions = Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [5, 5], [1.0], train_prior=given)
    torch.testing.assert_close(target_prior("train", predictions), given.double())


def test_a_single_class_takes_any_ratio():
    alone = Predictions(torch.zeros(1, 1, 1), torch.tensor([0]), [5], [1.0])
    assert target_prior("backward-50", alone).tolist() == [1.0]


def test_weights_by_name_and_by_row(predictions):
    expected = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    row = [2, 1, 1, 0]
    for spec in (
        dict(zip(NAMES, row, strict=True)),
        dict(reversed(list(zip(NAMES, row, strict=True)))),
        row,
        np.array([0, 1, 1, 2])[::-1],
        torch.tensor(row),
        dict(zip(NAMES, np.array([1e308, 5e307, 5e307, 0]), strict=True)),
    ):
        torch.testing.assert_close(target_prior(spec, predictions), expected)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("forwad-50", "unknown prior 'forwad-50'; did you mean 'forward-R'"),
        ("forward-0.5", "wants a finite ratio from 1, such as forward-50, but has '0.5'"),
        ("forward-", "but has ''"),
        ("backward-nan", "but has 'nan'"),
        ("backward-inf", "but has 'inf'"),
        ("estimate", r"see balpoe\.estimate_target"),
        ([1, 2], "has 2 entries, but there are 4 classes"),
        (torch.tensor(1.0), "has 1 entries"),
        ([[1], [2], [3], [4]], r"the weight of class '0' must be a number from 0, but is \[1\]"),
        ([1, 2, -1, 0], "class '2' must be a number from 0, but is -1"),
        ([0, 0, 0, 0], "all weights are zero"),
        ({"cat": 1}, "class 'dog, small' has no weight .nor have 2 more.; give it 0"),
        ({0: 1}, "unknown class '0'"),
    ],
)
def test_specs_that_are_none(predictions, spec, sentence):
    with pytest.raises(UserError, match=sentence):
        target_prior(spec, predictions)


CSV = 'cat,3\n"dog, small",1\n"the ""fox""",0\n🦊,4\n'


@pytest.mark.parametrize("text", [CSV, "class,weight\n" + CSV, "\ufeff" + CSV, CSV.replace("\n", "\r\n\r\n")])
def test_csv(tmp_path, text, predictions):
    path = tmp_path / "prior.csv"
    path.write_bytes(text.encode())
    expected = [3 / 8, 1 / 8, 0, 1 / 2]
    assert read_prior(path, NAMES).tolist() == pytest.approx(expected)
    assert parse_prior(str(path), predictions).tolist() == pytest.approx(expected)


def test_json(tmp_path, predictions):
    path = tmp_path / "prior.JSON"
    path.write_text(json.dumps({"🦊": 4.0, "cat": 3, "dog, small": 1, 'the "fox"': 0}), encoding="utf-8-sig")
    assert parse_prior(str(path), predictions).tolist() == pytest.approx([3 / 8, 1 / 8, 0, 1 / 2])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("p.csv", "a,1\nbb,2\nb,2", r"p\.csv, line 2: unknown class 'bb'; did you mean 'b'\?"),
        ("p.csv", "a,1", r"p\.csv: class 'b' has no weight; give it 0 if it does not occur"),
        ("p.csv", "a,1\nb,2\na,1", r"line 3: class 'a' has a weight already"),
        ("p.csv", "a,1\nb,-2", r"line 2: the weight of class 'b' must be a number from 0, but is -2\.0"),
        ("p.csv", "a,1\nb,nan", "but is nan"),
        ("p.csv", "a,1\nb,inf", "but is inf"),
        ("p.csv", "a,many\nb,1", "line 1: the weight of class 'a' must be a number from 0, but is 'many'"),
        ("p.csv", "a,1\nb,True", "but is 'True'"),
        ("p.csv", "a,0\nb,0", "all weights are zero"),
        ("p.csv", " \n", "is empty; write the name and the weight of each class"),
        ("p.csv", "a|1\nb|1", "line 1: there are 1 columns"),
        ("p.csv", "a,1,2\nb,1", "there are 3 columns"),
        ("p.csv", 'a,1\n"b,1', "line 2: unexpected end of data"),
        ("p.csv", b"\xff\xfe", "it is not UTF-8 text"),
        ("p.json", '{"a": 1, "b": 1, "a": 2}', r"p\.json: class 'a' has a weight already"),
        ("p.json", '{"a": 1, "b": true}', "but is True"),
        ("p.json", '{"a": 1, "b": "1"}', "but is '1'"),
        ("p.json", '{"a": 1, "b": {"c": 1}}', "must be a number from 0"),
        ("p.json", '{"a": 1, "b": NaN}', "but is nan"),
        ("p.json", '{"a": 1, "b": 1' + "0" * 400 + "}", "must be a number from 0"),
        ("p.json", "[1, 2]", "is not an object from class to weight"),
        ("p.json", "{}", "class 'a' has no weight .nor have 1 more."),
        ("p.json", '{"a": ', "is not valid JSON"),
        ("p.json", "[" * 100_000, "is not valid JSON"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=sentence) as caught:
        read_prior(path, ("a", "b"))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_the_command_line_cannot_mean(tmp_path, predictions):
    with pytest.raises(
        UserError, match=r"there is no file .*nothing\.csv; balpoe evaluate RUN --prior-template .* to edit"
    ):
        parse_prior(str(tmp_path / "nothing.csv"), predictions)
    (tmp_path / "prior.txt").write_text("a,1")
    with pytest.raises(UserError, match=r"neither a \.csv nor a \.json"):
        parse_prior(str(tmp_path / "prior.txt"), predictions)
    with pytest.raises(UserError, match="did you mean 'uniform'"):
        parse_prior("uniforms", predictions)


def test_class_names_that_are_there_twice_cannot_be_told_apart(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("crane,1\n")
    with pytest.raises(UserError, match="two classes are called 'crane'"):
        read_prior(path, ("crane", "crane"))
    twice = Predictions(torch.zeros(2, 1, 2), torch.arange(2), [1, 1], [0.0], ("crane", "crane"))
    assert target_prior([3, 1], twice).tolist() == [0.75, 0.25]


def test_a_cross_entropy_model_is_moved_from_the_training_prior():
    """log P(y | x) of the training prior, moved to a target: Bayes' rule by hand."""
    p, train, target = 0.9, (0.8, 0.2), (0.3, 0.7)
    row = torch.tensor([[[math.log(p), math.log(1 - p)]]]).double()
    predictions = Predictions(row.repeat(2, 1, 1), torch.tensor([0, 1]), [80, 20], [1.0])
    first, second = p / train[0] * target[0], (1 - p) / train[1] * target[1]
    expected = first / (first + second)
    found = evaluate(predictions, {"0": 30, "1": 70}, num_resamples=0)
    assert found.nll == pytest.approx(-0.3 * math.log(expected) - 0.7 * math.log(1 - expected), abs=1e-6)


def test_the_number_in_the_documents():
    """ImageNet-LT's lambdas: adding log P_test alone is off by a factor of 4 between the largest and the smallest."""
    predictions = Predictions(
        torch.zeros(1, 3, 2), torch.tensor([0]), torch.tensor([1280, 5]), torch.tensor([1.0, -0.25, -1.5])
    )
    target = torch.tensor([0.5, 0.5])
    ours = shift_prior(predictions.logits, target, predictions.source_prior)
    theirs = predictions.logits + target.log()
    difference = (ours - theirs)[0]
    assert float(difference[0] - difference[1]) == pytest.approx(0.25 * math.log(256), abs=1e-5)
    # Logits for which 1 to 1 is right: the shortcut gives the frequent class 1 in 5.
    even = predictions.source_prior.log() + torch.zeros(1, 2)
    assert shift_prior(even, target, predictions.source_prior).softmax(dim=1)[0, 0].item() == pytest.approx(0.5)
    assert (even + target.log()).softmax(dim=1)[0, 0].item() == pytest.approx(0.2, abs=1e-5)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_template_is_the_training_prior_until_it_is_edited(tmp_path, predictions, kind):
    path = tmp_path / f"prior.{kind}"
    path.write_text(prior_template(predictions, kind), encoding="utf-8")
    trained = target_prior("train", predictions)
    torch.testing.assert_close(read_prior(path, NAMES), trained, rtol=1e-5, atol=1e-6)
    for spec in (path, str(path)):  # a file's name in Python, too
        torch.testing.assert_close(target_prior(spec, predictions), trained, rtol=1e-5, atol=1e-6)
        assert evaluate(predictions, spec, num_resamples=0).nll == pytest.approx(
            evaluate(predictions, "train", num_resamples=0).nll, abs=1e-5
        )


def test_a_spreadsheet_s_semicolons_and_decimal_commas(tmp_path):
    path = tmp_path / "prior.csv"
    for text in ('Klasse;Anteil\ncat;0,75\n"dog; small";0,25\n', 'cat;0,75\n"dog; small";0.25\n'):
        path.write_text(text)
        assert read_prior(path, ("cat", "dog; small")).tolist() == [0.75, 0.25]
    path.write_text("cat;1;2\n")
    with pytest.raises(UserError, match="there are 3 columns; write class;weight"):
        read_prior(path, ("cat",))
