"""Who would be called unknown, of known samples: as the detector says, one by one."""

from dataclasses import replace

import pytest
import torch

from balpoe import UnknownDetector
from balpoe.method.expert_calibration import ExpertCalibration
from balpoe.report.decide.unknown import BINS, unknown_part
from made_predictions import make

BOTH = replace(make(3000, 10), calibration=ExpertCalibration((1.3, 1.3, 1.3)))
KNOWN, TEST = BOTH.subset(torch.arange(3000) < 800), BOTH.subset(torch.arange(3000) >= 800)


def test_shares_are_those_of_the_detector():
    part = unknown_part(KNOWN, TEST.uncalibrated(), (20, 100))
    assert [each.keep for each in part.scores] == [0.8, 0.9, 0.95, 0.98, 0.99]
    right = TEST.logits.argmax(dim=1) == TEST.targets
    counts = torch.bincount(KNOWN.targets).double() / torch.bincount(TEST.targets)
    for each in part.scores:
        detector = UnknownDetector.fit(KNOWN, "probability", keep=each.keep)
        assert each.threshold == pytest.approx(detector.threshold)
        called = detector.predict(TEST)
        few = TEST.class_counts[TEST.targets] < 20
        assert each.groups["few"].all == pytest.approx(float(called[few].double().mean()))
        assert each.groups["few"].wrong == pytest.approx(float(called[few & ~right].double().mean()))
        weights = counts[TEST.targets]
        for share, rows in zip(each.groups["held-out mix"], (right | True, right, ~right), strict=True):
            assert share == pytest.approx(float(weights[rows & called].sum() / weights[rows].sum()))
    assert part.notes == ()


def test_distributions_are_shares_of_right_and_of_wrong_answers():
    part = unknown_part(KNOWN, TEST, (20, 100))
    detector, right = UnknownDetector.fit(KNOWN, "probability"), TEST.logits.argmax(dim=1) == TEST.targets
    weights = (1 / torch.bincount(TEST.targets))[TEST.targets].numpy()
    for rows, shares in ((right, part.right), (~right, part.wrong)):
        scores = detector.score(TEST)[rows].numpy()
        expected, _ = torch.histogram(
            torch.tensor(scores), BINS, range=(0.0, 1.0), weight=torch.tensor(weights)[rows].double()
        )
        assert shares == pytest.approx((expected / expected.sum()).tolist())


def test_what_is_not_covered_and_what_is_too_little():
    lacking = KNOWN.subset((KNOWN.targets != 9).nonzero().squeeze(1))
    part = unknown_part(lacking, TEST, (20, 100), cross_fitted=True)
    assert "No held-out sample of '9' set the threshold" in part.notes[0]
    assert "networks other than the model" in part.notes[1]
    some = unknown_part(KNOWN.subset(torch.arange(12)), TEST, (20, 100))
    assert [each.keep for each in some.scores] == [0.8, 0.9]
    assert unknown_part(KNOWN.subset(torch.arange(3)), TEST, (20, 100)) is None


def test_answers_that_are_all_right_leave_nothing_of_the_wrong_ones():
    sure = replace(TEST, expert_logits=20 * torch.eye(10)[TEST.targets][:, None].expand(-1, 3, -1).contiguous())
    part = unknown_part(KNOWN, sure, (20, 100))
    assert part.scores[0].groups["held-out mix"].wrong is None
    assert part.wrong == [0.0] * BINS
