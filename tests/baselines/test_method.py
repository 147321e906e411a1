"""Methods with a mixing of their own, each against its formula, written as a loop."""

import numpy as np
import pytest
import torch

from balpoe.baselines.cmo import CMO
from balpoe.baselines.remix import Remix, remix_weights
from balpoe.baselines.unimix import UniMix
from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.epoch_plan import plan_epoch
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.loading.in_memory import ResidentData
from balpoe.data.loading.streaming import batch_source
from balpoe.data.png import png
from balpoe.method.losses import BalPoELoss
from balpoe.networks import expert_network
from balpoe.training import loop
from balpoe.training.fit import fit

COUNTS = [60, 20, 6, 2]
TARGETS = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
IMAGES = torch.randint(256, (len(TARGETS), 3, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
CPU = torch.device("cpu")
MIXINGS = [Remix(), UniMix(), CMO()]


def planned(mixing, epoch=5, epochs=20, batch_size=16, **options):
    return plan_epoch(3, epoch, len(TARGETS), batch_size, mixing=mixing, targets=TARGETS, epochs=epochs, **options)


@pytest.mark.parametrize("weight", [0.1, 0.49, 0.5, 0.51, 0.9])
def test_remix_gives_the_label_to_the_rarer_class(weight):
    for own in (1, 2, 3, 5, 6, 100):
        for partner in (1, 2, 3, 5, 6, 100):
            if own / partner >= 3 and weight < 0.5:
                expected = 0.0
            elif own / partner <= 1 / 3 and 1 - weight < 0.5:
                expected = 1.0
            else:
                expected = weight
            found = remix_weights(weight, torch.tensor([own]), torch.tensor([partner]), 3.0, 0.5)
            assert float(found) == pytest.approx(expected), (own, partner)


@pytest.mark.parametrize("mixing", MIXINGS, ids=str)
@pytest.mark.parametrize("epoch", [1, 7])
def test_batches_are_mixed_as_planned(mixing, epoch):
    plan = planned(mixing, epoch)
    resident = ResidentData(Dataset(IMAGES, TARGETS, preprocessing=Preprocessing((3, 6, 6))), CPU, (), 3)
    for each, batch in zip(plan.batches, resident.batches(plan, epoch), strict=True):
        for row in range(each.stop - each.start):
            sample = int(plan.order[each.start + row])
            partner = int(plan.order[each.start + int(each.mates()[row])])
            image, label = each.weight, each.weight
            if each.weights is not None:
                image = label = float(each.weights[row])
            if each.label_weights is not None:
                label = float(each.label_weights[row])
            if each.from_all is not None:
                partner = int(each.from_all[row])
            share = torch.full((1, 6, 6), float(image))
            if each.centre is not None:
                share, label = each.share((3, 6, 6)), float(each.share((3, 6, 6)).mean())
            expected = share * IMAGES[sample] / 255 + (1 - share) * IMAGES[partner] / 255
            assert torch.allclose(batch.images[row], expected, atol=1e-5)
            assert (int(batch.targets[row]), int(batch.partner_targets[row])) == (TARGETS[sample], TARGETS[partner])
            weight = batch.weight if batch.weight.ndim == 0 else batch.weight[row]
            assert float(weight) == pytest.approx(label, abs=1e-6)


def test_unimix_weights_are_moved_by_the_frequencies():
    plan = planned(UniMix(alpha=1e6), batch_size=len(TARGETS))  # Beta is then a half
    (batch,) = plan.batches
    for row in range(len(TARGETS)):
        own = COUNTS[TARGETS[plan.order[row]]]
        partner = COUNTS[TARGETS[plan.order[batch.partners[row]]]]
        away = abs(float(batch.weights[row]) - (0.5 + partner / (own + partner)) % 1)
        assert min(away, 1 - away) < 0.01  # 0 and 1 are one place


def test_unimix_draws_partners_by_a_power_of_their_class_count():
    shares = np.zeros(4)
    for epoch in range(300):
        plan = planned(UniMix(partner_power=-1.0), epoch, batch_size=len(TARGETS))
        shares += np.bincount(TARGETS[plan.order[plan.batches[0].partners]], minlength=4)
    assert shares / shares.sum() == pytest.approx(0.25, abs=0.02)  # n samples of weight 1 / n


def test_cmo_draws_patches_from_all_classes_alike_and_pastes_in_half_of_the_batches():
    shares, pasted, batches = np.zeros(4), 0, 0
    for epoch in range(4, 300):
        for batch in planned(CMO(), epoch, 1000).batches:
            batches += 1
            if batch.from_all is not None:
                pasted += 1
                shares += np.bincount(TARGETS[batch.from_all], minlength=4)
    assert shares / shares.sum() == pytest.approx(0.25, abs=0.02)
    assert pasted / batches == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("epoch", "pastes"), [(0, False), (3, False), (4, True), (16, True), (17, False)])
def test_cmo_leaves_the_first_and_last_epochs_alone(epoch, pastes):
    assert any(batch.from_all is not None for batch in planned(CMO(1.0), epoch, 20).batches) == pastes


def test_class_balanced_order_draws_each_class_alike():
    orders = [
        plan_epoch(0, epoch, len(TARGETS), 16, class_balanced=True, targets=TARGETS).order for epoch in range(200)
    ]
    drawn = torch.cat(orders)
    assert (torch.bincount(TARGETS[drawn]) / len(drawn)).tolist() == pytest.approx([0.25] * 4, abs=0.01)
    within = torch.bincount(drawn, minlength=len(TARGETS))[:60] / len(drawn)  # of the first class, each alike
    assert within.tolist() == pytest.approx([0.25 / 60] * 60, abs=0.002)


@pytest.mark.parametrize("mixing", MIXINGS, ids=str)
def test_training_with_it_is_resumed_to_the_same_bits(mixing, tmp_path):
    data = Dataset(IMAGES, TARGETS)
    loss = BalPoELoss(data.class_counts, [0.0])

    def trained(epochs, run=None):
        torch.manual_seed(0)
        network = expert_network("mlp", num_classes=4, num_experts=1, num_features=108)
        options = {"epochs": epochs, "mixup_alpha": 0.0, "mixing": mixing, "batch_size": 16, "progress": False}
        history = fit(network, loss, data, **options, run=run, lr=0.01)
        return history, network.state_dict()

    history, whole = trained(8)
    real = loop.Trainer._end_epoch

    def stop(self, *arguments):
        real(self, *arguments)
        if self.epoch == 6:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "_end_epoch", stop)
        patch.setattr(loop.time, "monotonic", iter(range(0, 10**6, 100)).__next__)  # a checkpoint after each epoch
        with pytest.raises(KeyboardInterrupt):
            trained(8, tmp_path)
    again, resumed = trained(8, tmp_path)
    assert [row["loss"] for row in again] == [row["loss"] for row in history]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("mixing", MIXINGS, ids=str)
def test_images_from_files_are_mixed_alike(mixing, tmp_path):
    """Also in two processes: with the partners that the plan names, whose labels the weights belong to."""
    for number, image in enumerate(IMAGES):
        (tmp_path / f"{number:02}.png").write_bytes(png(image))
    held = Dataset(IMAGES, TARGETS)
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    streamed = batch_source(PictureFiles(paths, TARGETS, held.class_names, held.preprocessing), CPU, (), 3, workers=0)
    plan, resident = planned(mixing), ResidentData(held, CPU, (), 3)
    for places in ({"rank": 0, "world": 1}, {"rank": 0, "world": 2}, {"rank": 1, "world": 2}):
        for ours, theirs in zip(streamed.batches(plan, 5, **places), resident.batches(plan, 5, **places), strict=True):
            if mixing.by_row or places["world"] == 1 or bool((theirs.weight < 1).all()):
                assert torch.equal(ours.images, theirs.images)
                assert torch.equal(ours.partner_targets, theirs.partner_targets)
            torch.testing.assert_close(ours.weight, theirs.weight)
