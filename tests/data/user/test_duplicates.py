import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balpoe.data.user import duplicates
from balpoe.data.user.duplicates import near_pairs, same_digest

FLAT = {0, 2**64 - 1}


def slow_pairs(hashes_a, hashes_b, distance):
    pairs = []
    for row_b, b in enumerate(hashes_b):
        near = [
            ((a ^ b).bit_count(), row_a)
            for row_a, a in enumerate(hashes_a)
            if a not in FLAT and (a ^ b).bit_count() <= distance
        ]
        if near and b not in FLAT:
            pairs.append([min(near)[1], row_b])
    return pairs


def pairs(hashes_a, hashes_b, distance):
    found = near_pairs(np.array(hashes_a, dtype=np.uint64), np.array(hashes_b, dtype=np.uint64), distance)
    assert found.shape[1] == 2
    return found.tolist()


def clustered(rng, size, centres, most):
    """Hashes that are up to `most` bits away from a few centres."""
    return [
        int(rng.choice(centres)) ^ sum({1 << int(bit) for bit in rng.integers(0, 64, rng.integers(0, most + 1))})
        for _ in range(size)
    ]


def test_rows_of_equal_digest():
    assert same_digest([]) == []
    assert same_digest(["a", "b", "c"]) == []
    assert same_digest(["b", "", "a", "b", "a", "", "b"]) == [[0, 3, 6], [2, 4]]


@pytest.mark.parametrize("distance", [0, 1, 3, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_near_pairs_are_those_of_all_comparisons(distance, seed):
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 2**64, 12, dtype=np.uint64)
    a, b = (clustered(rng, size, centres, 7) for size in (80, 120))
    assert pairs(a, b, distance) == slow_pairs(a, b, distance)
    spread = [rng.integers(0, 2**64, 80, dtype=np.uint64).tolist() for _ in range(2)]
    assert pairs(*spread, distance) == slow_pairs(*spread, distance) == []


def test_hashes_that_differ_in_a_few_places_only():
    rng = np.random.default_rng(0)
    a, b = ((rng.integers(1, 2**14, 150) * 2**7).tolist() for _ in range(2))
    for distance in (1, 2, 4):
        assert pairs(a, b, distance) == slow_pairs(a, b, distance) != []


hashes = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, 3, 7, 2**63, 2**64 - 1, 2**64 - 2, 2**32, 2**32 + 1])


@given(st.lists(hashes, max_size=12), st.lists(hashes, max_size=12), st.integers(0, 5))
def test_near_pairs_of_any_hashes(a, b, distance):
    assert pairs(a, b, distance) == slow_pairs(a, b, distance)


def test_a_piece_at_a_time_gives_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 2**64, 3, dtype=np.uint64)
    a, b = (clustered(rng, 60, centres, 4) for _ in range(2))
    whole = pairs(a, b, 4)
    monkeypatch.setattr(duplicates, "MOST_COMPARISONS", 7)
    assert pairs(a, b, 4) == whole == slow_pairs(a, b, 4)


def test_thousands_of_equal_images_are_one_pair_each():
    found = near_pairs(np.full(30_000, 12345, dtype=np.uint64), np.full(20_000, 12345, dtype=np.uint64))
    assert found.tolist() == [[0, row] for row in range(20_000)]


def test_flat_images_are_left_out():
    flat = np.array([0, 2**64 - 1] * 1000, dtype=np.uint64)
    assert near_pairs(flat, flat).shape == (0, 2)
    assert pairs([0, 1], [1, 0], 4) == [[1, 0]]


def test_spread_out_hashes_are_not_compared_one_by_one(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    b = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    b[::100] = a[rng.permutation(100_000)[:200]] ^ np.uint64(0b1011)
    count, compared = np.bitwise_count, []
    with monkeypatch.context() as patch:
        patch.setattr(np, "bitwise_count", lambda bits: compared.append(len(bits)) or count(bits))
        tracemalloc.start()
        found = near_pairs(a, b)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found[:, 1].tolist() == list(range(0, 20_000, 100))
    assert bool((np.bitwise_count(a[found[:, 0]] ^ b[found[:, 1]]) == 3).all())
    assert 200 <= sum(compared) < 5e6  # of two thousand million pairs
    assert peak < 200e6
