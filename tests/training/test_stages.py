"""A second stage trains what it names and nothing else, from where the first training ended."""

import json

import pytest
import torch
from torch import nn

from balpoe import Dataset, UserError, fit, load
from balpoe.baselines.method import Stage
from balpoe.data.augment.operations import Flip, SmallAtFirst
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import train_run
from balpoe.method.losses import BalPoELoss
from balpoe.networks import expert_network
from balpoe.training import loop
from balpoe.training.concurrent import complete
from balpoe.training.fit import fit_and_predict
from balpoe.training.settings import FitSettings
from balpoe.training.stages import fit_stages, stage_settings

TARGETS = torch.tensor([0] * 40 + [1] * 10 + [2] * 4)
IMAGES = torch.randint(256, (54, 3, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
DATA = Dataset(IMAGES, TARGETS)
SETTINGS = FitSettings(epochs=4, batch_size=18, lr=0.05, progress=False)
pytestmark = pytest.mark.usefixtures("eight_layers")


def network():
    torch.manual_seed(0)
    made = expert_network("resnet32", num_classes=3, num_experts=1, width=4)
    made.classifier.add_class_scale()
    return made


def fitted(*parts):
    yield
    return fit_and_predict(*parts)[1]


def trained(stages, settings=SETTINGS):
    made, loss = network(), BalPoELoss(DATA.class_counts, [1.0])
    logits = complete(fit_stages(fitted, stages, made, loss, DATA, DATA, settings))
    return made, logits


def stage(**changes):
    loss = BalPoELoss(torch.ones(3), [1.0])
    return Stage("stage-2", loss, **{"trains": ("classifier.",), "epochs": 0.5, **changes})


@pytest.mark.parametrize("keeps", [False, True])
def test_a_stage_changes_what_it_names(keeps):
    first, _ = trained(())
    both, logits = trained((stage(keeps_statistics=keeps),))
    before, after = first.state_dict(), both.state_dict()
    for name in before:
        changed = not torch.equal(before[name], after[name])
        statistics = "running" in name or "num_batches" in name
        assert changed == (name.startswith("classifier.") or (statistics and not keeps)), name
    assert torch.equal(logits, trained((stage(keeps_statistics=keeps),))[1])
    assert [p.requires_grad for p in both.parameters()] == [p.requires_grad for p in first.parameters()]


def test_rates_of_named_parameters():
    """One step of plain SGD: a factor of the rate is a factor of the change."""
    plain = {"epochs": 1, "batch_size": 54, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "mixup_alpha": 0.0}
    loss, begun = BalPoELoss(DATA.class_counts, [1.0]), network().classifier.weight
    changes = []
    for factors in ({}, {"classifier.weight": 0.25}):
        made = network()
        fit(made, loss, DATA, **plain, lr_factors=factors, progress=False)
        changes.append(made.classifier.weight - begun)
    torch.testing.assert_close(changes[1], 0.25 * changes[0])


def test_the_settings_of_a_stage():
    whole = FitSettings(epochs=200, mixup_alpha=1.0, weight_average_fraction=0.4)
    found = stage_settings(whole, stage(epochs=0.05, lr_factors={"classifier.weight": 0.2}))
    assert (found.epochs, found.mixup_alpha, found.class_balanced, found.averaged_epochs) == (10, 0.0, True, 0)
    assert found.schedule(0, 10) == pytest.approx(1.0)
    assert stage_settings(FitSettings(epochs=3), stage(epochs=0.05)).epochs == 1


def test_images_of_a_stage_are_of_full_size():
    whole = FitSettings(augmentation=(Flip(), SmallAtFirst(6, 3)), epochs=200)
    assert stage_settings(whole, stage()).augmentation == (Flip(),)


def test_muon_is_refused_before_the_first_training():
    """Not after it: a stage that trains a classifier alone leaves Muon nothing to change."""
    asked = FitSettings(optimizer="muon", epochs=1, batch_size=18, lr=0.05, progress=False)
    made, loss = network(), BalPoELoss(DATA.class_counts, [1.0])
    before = [weight.clone() for weight in made.parameters()]
    with pytest.raises(UserError, match="stage-2 of this method trains the classifier alone; choose sgd or adamw"):
        complete(fit_stages(fitted, (stage(),), made, loss, DATA, DATA, asked))
    assert all(map(torch.equal, made.parameters(), before))
    complete(fit_stages(fitted, (stage(trains=("branches.",)),), made, loss, DATA, DATA, asked))


def test_a_run_with_a_second_stage_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    recipe = updated(preset("digits-lt"), {"method": "mislas", "epochs": 20, "batch_size": 64})
    whole = train_run(recipe, tmp_path / "whole", progress=False)
    real = loop.Trainer._end_epoch
    for place, (number, epochs) in enumerate(((10, 20), (1, 1))):  # in the first stage, at the end of the second

        def stop(self, *arguments, number=number, epochs=epochs):
            real(self, *arguments)
            if self.settings.epochs == epochs and self.epoch == number:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(loop.Trainer, "_end_epoch", stop)
            with pytest.raises(KeyboardInterrupt):
                train_run(recipe, tmp_path / f"{place}", progress=False)
        again = train_run(recipe, tmp_path / f"{place}", progress=False)
        assert torch.equal(again.predictions().expert_logits, whole.predictions().expert_logits)
    alone = sum(json.loads(line)["seconds"] for line in (whole.folder / "timing.jsonl").read_text().splitlines())
    assert whole.seconds() > alone
    model = load(tmp_path / "whole")
    assert isinstance(model.network.classifier.class_scale, nn.Parameter)
    assert model.source_prior.tolist() == pytest.approx([0.1] * 10)
    assert float(model.network.classifier.class_scale.std()) > 0
