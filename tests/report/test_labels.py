"""Names that do not cover each other, beside what they name."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from balpoe.report.labels import label_ends, spread
from balpoe.report.look import method_looks


@given(st.lists(st.floats(0, 10), min_size=1, max_size=15))
def test_labels_keep_a_gap_their_order_and_the_limits(values):
    gap = 0.6
    places = spread(values, gap, 0.0, 10.0)
    ordered = [place for _, place in sorted(zip(values, places, strict=True))]
    assert all(second - first >= gap - 1e-9 for first, second in itertools.pairwise(ordered))
    assert min(places) >= -1e-9
    assert max(places) <= 10 + 1e-9


def test_labels_with_room_stay_where_they_are():
    assert spread([5.0, 1.0, 9.0], 1.0, 0.0, 10.0) == [5.0, 1.0, 9.0]


def test_names_of_curves_that_end_together_are_read_one_by_one():
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    ends = {f"method {number}": (9.0, 50 + number / 10) for number in range(6)}
    axes.set(xlim=(0, 10), ylim=(0, 100))
    label_ends(axes, ends, method_looks(ends))
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without their lines
    assert [text.get_text() for text in axes.texts] == list(ends)
    assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.x0 > axes.bbox.x1 for box in boxes)


def test_a_name_beside_its_point_needs_no_line():
    axes = Figure().subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(axes, {"near": (1.0, 0.2), "far": (0.1, 0.8)}, method_looks(["near", "far"]))
    assert [text.arrow_patch is None for text in axes.texts] == [True, False]
