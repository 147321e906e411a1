import pytest

from balpoe.estimator.parameters import default_batch_size, default_weight_decay


@pytest.mark.parametrize(
    ("samples", "batch"), [(20, 16), (400, 50), (1024, 128), (22_400, 128), (35_000, 200), (10**6, 512)]
)
def test_batches_grow_with_the_samples(samples, batch):
    assert default_batch_size(samples) == batch
    assert default_weight_decay(batch) == pytest.approx(5e-4 * max(1, batch / 128) ** 0.5)
