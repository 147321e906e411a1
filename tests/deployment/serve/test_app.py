import base64
import json

import pytest
import torch

from balpoe import PriorTable, Taxonomy
from balpoe.deployment.deciders import Decider, Wanted, unlabelled
from balpoe.deployment.serve.settings import Limits
from served import (
    CLASSES,
    FEATURES,
    Gaussian,
    client_of,
    feature_model,
    held_out,
    image_bytes,
    image_model,
    labelled_rows,
    sentence_of,
    service_of,
)


@pytest.fixture(scope="module")
def images():
    with client_of(service_of(image_model())) as client:
        yield client


COUNTS = {("north", "5"): {"oak": 30, "ash": 10, "elm": 1}, ("south", "5"): {"oak": 1, "ash": 10, "elm": 60}}
TABLE = PriorTable.read(COUNTS, CLASSES, ["site", "month"], strength=1.0)


@pytest.fixture(scope="module")
def features():
    tree = Taxonomy.from_rows([("oak", "Fagales"), ("ash", "Lamiales"), ("elm", "Rosales")], levels=("class", "order"))
    with client_of(service_of(Gaussian(), table=TABLE, held_out=held_out(), taxonomy=tree)) as client:
        yield client


def test_an_image_has_the_same_answer_in_base64_and_as_a_file(images):
    image = image_bytes()
    expected = image_model().predict(_decoded(image))[0]
    as_text = images.post("/predict", json={"images": [base64.b64encode(image).decode()], "top_k": 3})
    as_file = images.post("/predict", files={"images": ("a.png", image)}, data={"top_k": "3"})
    assert as_text.status_code == as_file.status_code == 200
    assert as_text.json() == as_file.json()
    (answer,) = as_text.json()["answers"]
    found = {each["label"]: each["probability"] for each in answer["top"]}
    assert [found[name] for name in CLASSES] == pytest.approx(expected.tolist(), abs=1e-6)
    assert answer["label"] == CLASSES[expected.argmax()]


def _decoded(image):
    from balpoe.data.loading.image_files import decoded

    return decoded(image, image_model().preprocessing)[None]


def test_many_images_are_answered_in_their_order(images):
    files = [image_bytes(seed=seed) for seed in range(40)]
    together = images.post("/predict", files=[("images", ("x", each)) for each in files]).json()["answers"]
    assert len(together) == 40
    for file, answer in zip(files[::13], together[::13], strict=True):
        (alone,) = images.post("/predict", files={"image": ("x", file)}).json()["answers"]
        assert alone["label"] == answer["label"]
        assert alone["probability"] == pytest.approx(answer["probability"], abs=1e-5)


def test_rows_of_features_with_each_experts_answer(features):
    rows, _ = labelled_rows(5)
    response = features.post("/predict", json={"features": rows.tolist(), "prior": "uniform", "experts": True})
    expected = Gaussian().predict(rows, "uniform")
    for answer, row in zip(response.json()["answers"], expected, strict=True):
        assert answer["label"] == CLASSES[row.argmax()]
        assert answer["probability"] == pytest.approx(float(row.max()), abs=1e-6)
        assert [each["label"] for each in answer["experts"]] == [answer["label"]] * 3


@pytest.mark.parametrize(
    ("asked", "name", "meant"),
    [
        ("train", "train", [0.80, 0.15, 0.05]),
        ({"oak": 1, "ash": 0, "elm": 3}, "weights", [0.25, 0, 0.75]),
        ([1, 0, 3], "weights", [0.25, 0, 0.75]),
        (["north", "5"], "north/5", "north/5"),
        ("south/5", "south/5", "south/5"),
        ("south", "south", "south"),
        (["south", "12"], "south", "south"),
        (None, "all places", "all places"),
    ],
)
def test_the_prior_of_a_request(features, asked, name, meant):
    rows, _ = labelled_rows(4, seed=3)
    fields = {"features": rows.tolist(), "top_k": 3} | ({} if asked is None else {"prior": asked})
    response = features.post("/predict", json=fields).json()
    assert response["prior"] == name
    if isinstance(meant, str):
        meant = TABLE.priors[TABLE.row_of[tuple(meant.split("/")) if meant != "all places" else ()]]
    expected = Gaussian().predict(rows, meant)
    for answer, row in zip(response["answers"], expected, strict=True):
        found = {each["label"]: each["probability"] for each in answer["top"]}
        assert [found[each] for each in CLASSES] == pytest.approx(row.tolist(), abs=1e-6)
    assert bool(response["notes"]) == (asked == ["south", "12"])


def test_decisions_are_those_of_the_library(features):
    rows, _ = labelled_rows(50, seed=4)
    costs = {"oak": 1, "ash": 5, "elm": 20}
    asked = {"features": rows.tolist(), "prior": "uniform", "costs": costs, "abstain_cost": 0.6}
    found = [each["decision"] for each in features.post("/predict", json=asked).json()["answers"]]
    names = (*CLASSES, "abstain")
    expected = Gaussian().decide(rows, costs=list(costs.values()), abstain_cost=0.6, target_prior="uniform")
    assert found == [names[each] for each in expected.tolist()]
    assert len(set(found)) == 4


def test_sets_unknown_levels_and_thresholds(features):
    rows, targets = labelled_rows(400, seed=5)
    asked = {"sets": 0.1, "unknown": "energy", "level": 0.95, "thresholds": {}, "prior": "uniform"}
    answers = []
    for part in rows.split(50):
        response = features.post("/predict", json={"features": part.tolist(), **asked})
        assert response.status_code == 200, response.text
        answers += response.json()["answers"]
    covered = [CLASSES[target] in each["set"] for each, target in zip(answers, targets.tolist(), strict=True)]
    assert 0.84 < sum(covered) / len(covered) <= 1
    assert 0.85 < sum(not each["unknown"] for each in answers) / len(answers) <= 1
    assert {each["level"] for each in answers} >= {"class"}
    assert all(set(each["yes"]) <= set(CLASSES) for each in answers)
    assert response.json()["notes"]


def test_thresholds_by_costs_are_those_of_the_library(features):
    rows, _ = labelled_rows(50, seed=6)
    asked = {"features": rows.tolist(), "thresholds": {"costs": [1, 5]}, "prior": "train"}
    response = features.post("/predict", json=asked)
    assert response.status_code == 200, response.text
    like, prior = unlabelled(Gaussian(), Gaussian().expert_logits(rows)), feature_model().train_prior
    decider = Decider.fit(Wanted(thresholds={"costs": (1, 5)}), like, held_out(), prior)
    assert [each["yes"] for each in response.json()["answers"]] == [each["yes"] for each in decider(like).rows()]


def test_costs_of_each_answer(features):
    costs = {name: {**dict.fromkeys(CLASSES, 1.0), name: 0.0, "ask": 0.3} for name in CLASSES}
    rows = [[0.0] * FEATURES, [9.0, 0, 0, 0]]
    answers = features.post("/predict", json={"features": rows, "prior": "uniform", "costs": costs}).json()["answers"]
    assert [each["decision"] for each in answers] == ["ask", "oak"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "takes features"),
        ({"features": []}, "takes features"),
        ({"features": [[]]}, "empty"),
        ({"features": [[1, 2]]}, "takes 4"),
        ({"features": [[1, 2, 3, "4"]]}, "finite numbers"),
        ({"features": [[1, 2, 3, 1e300]]}, "too large"),
        ({"features": [[3e38, 2, 3, 4]]}, "gives no number"),
        ({"features": [[1, 2, 3, True]]}, "finite numbers"),
        ({"features": "1,2,3,4"}, "finite numbers"),
        ({"images": ["QUJD"]}, "takes features"),
        ({"top_k": 4}, "number of classes"),
        ({"top_k": 0}, "greater than"),
        ({"top_k": 10**400}, "top_k"),
        ({"top_k": "3"}, "top_k"),
        ({"experts": "yes"}, "experts"),
        ({"prior": "unifrom"}, "did you mean 'uniform'"),
        ({"prior": "forward-0"}, "finite ratio"),
        ({"prior": "forward-1e999"}, "finite ratio"),
        ({"prior": "estimate"}, "unknown prior"),
        ({"prior": "NaN"}, "known are uniform, train, forward-R, backward-R"),
        ({"prior": "/etc/passwd"}, "unknown prior"),
        ({"prior": "secret.csv"}, "unknown prior"),
        ({"prior": {"oak": 1}}, "'ash' has no weight"),
        ({"prior": {"oak": 1, "ash": -1, "elm": 1}}, "weight from 0"),
        ({"prior": {"oak": 0, "ash": 0, "elm": 0}}, "all weights are zero"),
        ({"prior": {"oak": 1, "ash": 1, "elm": 1, "yew": 1}}, "unknown class"),
        ({"prior": [1, 2]}, "3 classes"),
        ({"prior": []}, "3 classes"),
        ({"prior": ["north", "5", "6"]}, "2 keys"),
        ({"prior": 3}, "prior must be"),
        ({"costs": {"oak": 1}}, "costs: class 'ash' has no cost; give each class one"),
        ({"costs": {"oka": 1, "ash": 1, "elm": 1}}, "costs: unknown class 'oka'; did you mean 'oak'?"),
        ({"costs": {"oak": 1, "ash": 1, "elm": 1, "rare cross": 9}}, "costs: unknown class 'rare cross'; known are"),
        ({"costs": {"oak": {"oak": 0}, "ash": {"ash": 0}, "elm": {"elm": 0}}}, "same answers"),
        ({"costs": {"oak": 0, "ash": 0, "elm": 0}}, "zero"),
        ({"costs": {"oak": 1, "ash": 1, "elm": 1}, "metric": "accuracy"}, "one question"),
        ({"metric": "beauty"}, "unknown metric"),
        ({"metric": "recall of yew at least 0.9"}, "yew"),
        ({"abstain_error": 1.5}, "abstain_error"),
        ({"sets": 0}, "sets"),
        ({"sets": 5e-324}, "sets: input should be greater than or equal to 0.000001"),
        ({"sets": 0.1, "set_method": "magic"}, "set_method"),
        ({"set_method": "pooled"}, "give sets"),
        ({"unknown": "mahalanobis"}, "unknown must be"),
        ({"unknown": []}, "unknown must be one or several of"),
        ({"level": 2}, "level"),
        ({"thresholds": {"precision": 0.5, "recall": 0.5}}, "one aim"),
        ({"thresholds": {"costs": [1]}}, "thresholds: list should have at least 2 items"),
        ({"thresholds": {"costs": [1, "5"]}}, "thresholds: input should be a valid number"),
        ({"colour": "red"}, "no field 'colour'"),
    ],
)  # fmt: skip
def test_mistakes_in_fields_get_one_sentence(features, fields, words):
    whole = {"features": [[0.0] * FEATURES]} if fields.keys().isdisjoint(("features", "images")) and fields else {}
    response = features.post("/predict", json={**whole, **fields})
    assert response.status_code == 422
    assert words in sentence_of(response)


def test_what_needs_held_out_samples_or_a_tree_is_refused_without_them():
    with client_of(service_of(feature_model())) as client:
        row = {"features": [[0.0] * FEATURES]}
        for fields, words in (
            ({"sets": 0.1}, "held-out"), ({"unknown": "probability"}, "held-out"), ({"level": 0.9}, "no tree"),
            ({"prior": ["north"]}, "no table"),
        ):  # fmt: skip
            assert words in sentence_of(client.post("/predict", json={**row, **fields}))
        assert client.get("/model").json()["decisions"] == ["costs", "metric", "abstain_cost"]


def test_scores_of_no_prior_are_answered_but_not_adjusted():
    from dataclasses import replace

    model = replace(feature_model(), lambdas=None, source_prior=None)
    with client_of(service_of(model)) as client:
        row = {"features": [[0.0] * FEATURES]}
        assert client.post("/predict", json=row).status_code == 200
        assert "no known prior" in sentence_of(client.post("/predict", json={**row, "prior": "uniform"}))
        assert "no known prior" in sentence_of(client.post("/predict", json={**row, "metric": "accuracy"}))
        assert "no known prior" in client.get("/drift").json()["sentence"]


def test_what_a_client_must_know(features):
    about = features.get("/model").json()
    assert about["classes"] == list(CLASSES)
    assert about["takes"] == "features"
    assert about["size"] == [FEATURES]
    assert about["experts"] == 3
    assert sum(about["prior"]["shares"]) == pytest.approx(1)
    assert ["north", "5"] in about["table"]["places"]
    assert "level" in about["decisions"]


def test_states_and_wrong_paths(images):
    assert images.get("/healthz").json() == {"status": "alive"}
    assert images.get("/readyz").json() == {"status": "ready"}
    assert sentence_of(images.get("/nothing")).startswith("there is nothing")
    assert images.get("/predict").status_code == images.delete("/predict").status_code == 405
    assert sentence_of(images.get("/predict")).startswith("this path does not take")
    assert images.get("/../../etc/passwd").status_code == 404


def test_a_token_is_asked_for_where_there_is_something_to_learn():
    token = "correct-horse-battery"
    with client_of(service_of(feature_model()), token) as client:
        for path in ("/model", "/drift", "/metrics"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 200
        for wrong in (f"Bearer {token}x", "Bearer ", f"Basic {token}", token, "Bearer \xff"):
            response = client.post("/predict", content=b"{}", headers={"Authorization": wrong.encode("latin-1")})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            sentence_of(response)
        for path in ("/", "/healthz", "/readyz", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert client.get("/openapi.json").json()["paths"]["/predict"]["post"]["security"] == [{"bearer": []}]


def test_a_failure_says_nothing_of_the_machine(capsys):
    class Broken(type(feature_model())):
        broken = False

        def expert_logits(self, images, views=""):
            if Broken.broken:
                raise RuntimeError("secret /path/of/machine.py")
            return super().expert_logits(images, views)

    with client_of(service_of(Broken(**vars(feature_model())))) as client:
        Broken.broken = True
        response = client.post("/predict", json={"features": [[0.0] * FEATURES]})
        assert response.status_code == 500
        assert list(response.json()) == ["error"]
        assert "secret" not in response.text
        assert "server" not in response.headers
        Broken.broken = False
        assert client.post("/predict", json={"features": [[0.0] * FEATURES]}).status_code == 200


def test_limits_of_size_number_and_pixels():
    limits = Limits(images=2, megabytes=0.01, megapixels=0.01)
    with client_of(service_of(image_model(), limits)) as client:
        small = image_bytes()
        many = client.post("/predict", files=[("images", ("x", small))] * 3)
        assert many.status_code == 413
        assert "2 samples" in sentence_of(many)
        large = client.post("/predict", content=b"x" * 20_000, headers={"Content-Type": "application/json"})
        assert large.status_code == 413
        assert "0.01 MB" in sentence_of(large)
        chunks = client.post("/predict", content=iter([b"x" * 8000] * 3), headers={"Content-Type": "application/json"})
        assert chunks.status_code == 413
        wide = client.post("/predict", files={"images": ("x", _plain_png(1, 20_000))})
        assert wide.status_code == 413
        assert "1 x 20000 pixels" in sentence_of(wide) or "20000 x 1 pixels" in sentence_of(wide)


def _plain_png(height, width):
    from balpoe.data.png import png

    return png(torch.zeros(3, height, width, dtype=torch.uint8))


def test_the_description_has_examples_and_each_example_is_understood(images, features):
    description = images.get("/openapi.json").json()
    content = description["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data"}
    examples = content["application/json"]["examples"]
    for name, example in examples.items():
        response = (features if name == "features" else images).post("/predict", json=example["value"])
        text = response.text
        assert response.status_code == 200 or "takes 4" in text or "held-out" in text or "number of classes" in text
    assert "paths" in json.dumps(description)
    assert not {"/docs", "/redoc"} & set(description["paths"])


def test_numbers_for_prometheus(features):
    features.post("/predict", json={"features": [[0.0] * FEATURES] * 3})
    text = features.get("/metrics").text
    assert 'balpoe_requests_total{path="/predict",status="200"}' in text
    assert "balpoe_batch_samples_bucket" in text
    assert "balpoe_waiting_samples 0.0" in text
    features.get("/made-up-by-a-stranger")
    assert "made-up" not in features.get("/metrics").text
