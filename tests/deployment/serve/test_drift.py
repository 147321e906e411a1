from dataclasses import replace

import torch

from balpoe.deployment.serve.drift import Drift
from served import CLASSES, Gaussian, client_of, held_out, labelled_rows, service_of


def filled(prior, samples=600, noise=1.0, assumed=None, window=600, known=None):
    model = Gaussian()
    drift = Drift(model, assumed, known, window)
    rows, _ = labelled_rows(samples, prior, seed=7, noise=noise)
    for part in rows.split(37):
        drift.add(model.expert_logits(part).mean(dim=1))
    return drift


def test_the_class_mix_of_the_latest_samples_is_found_with_its_interval():
    report = filled((6, 3, 1), known=held_out().predictions).look()
    truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    assert report.samples == 600
    assert report.differs
    assert report.explained
    assert bool(((report.interval[0] <= truth) & (truth <= report.interval[1])).all())
    assert abs(float((report.estimate - truth).abs().sum())) < 0.15
    assert "another class mix" in report.sentence


def test_a_right_assumption_is_left_in_peace():
    assumed = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    report = filled((6, 3, 1), assumed=assumed, known=held_out().predictions).look()
    assert not report.differs
    assert report.distance < 0.1
    assert "agree" in report.sentence


def test_other_images_are_not_taken_for_another_class_mix():
    report = filled((1, 1, 1), noise=3.0, known=held_out().predictions).look()
    assert report.explained is False
    assert "samples themselves" in report.sentence


def test_without_labelled_samples_nothing_is_checked():
    assert filled((6, 3, 1)).look().explained is None


def test_a_network_that_knows_nothing_of_its_labelled_samples_estimates_nothing():
    known = held_out().predictions
    drift = filled((6, 3, 1), known=replace(known, targets=known.targets.flip(0)))
    assert drift.look() is None
    assert "knows too little" in drift.silence


def test_only_the_latest_samples_count():
    model = Gaussian()
    drift = Drift(model, None, None, 100)
    drift.add(torch.tensor([[9.0, 0.0, 0.0]]).repeat(250, 1))
    drift.add(torch.tensor([[0.0, 9.0, 0.0]]).repeat(60, 1))
    assert drift.look().estimate.round(decimals=2).tolist() == [0.4, 0.6, 0.0]
    drift.add(torch.tensor([[0.0, 0.0, 9.0]]).repeat(1000, 1))
    assert drift.look().estimate.round(decimals=2).tolist() == [0, 0, 1]
    assert drift.seen == 1310


def test_too_few_samples_say_nothing():
    assert filled((1, 1, 1), samples=20).look() is None


def test_metrics_and_page_show_it_and_nothing_sent_is_kept():
    service = service_of(Gaussian(), reference=held_out().predictions, window=300)
    rows, _ = labelled_rows(300, (8, 1, 1), seed=9)
    with client_of(service) as client:
        assert client.get("/drift").json()["classes"] == []
        service._looked = -1e9
        for part in rows.split(60):
            assert client.post("/predict", json={"features": part.tolist()}).status_code == 200
        found = client.get("/drift").json()
        assert found["samples"] == 300
        assert found["differs"] is True
        assert found["explained"] is True
        first = found["classes"][0]
        assert first["label"] == "oak"
        assert first["low"] < 0.8 < first["high"]
        text = client.get("/metrics").text
        assert f'balpoe_prior_estimated{{class="oak"}} {first["estimated"]}' in text
        assert "balpoe_drift_explained 1.0" in text
        assert all(f'balpoe_prior_{name}{{class="{each}"}}' in text for name in ("assumed", "low") for each in CLASSES)
    kept = [value for value in vars(service.drift).values() if isinstance(value, torch.Tensor)]
    assert {tuple(each.shape) for each in kept} == {(3,), (300, 3)}  # priors, and logits
