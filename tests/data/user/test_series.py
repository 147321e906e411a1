import numpy as np
import pytest

from balpoe.data.user.groups import matched_groups
from balpoe.data.user.series import candidate_patterns, find_series, thumbnails
from images import picture

CLASSES, TRACKS, FRAMES = 6, 8, 5
TARGETS = np.repeat(np.arange(CLASSES), TRACKS * FRAMES)
TRACK = np.tile(np.repeat(np.arange(TRACKS), FRAMES), CLASSES)
FRAME = np.tile(np.arange(FRAMES), CLASSES * TRACKS)
NUMBER = np.tile(np.arange(TRACKS * FRAMES), CLASSES)

NAMES = {
    "tracks": [f"{c:05}/{t:05}_{f:05}.ppm" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "patients": [f"class {c}/patient{10 * c + t}_frame{f}.png" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "folders": [f"class {c}/plant-{t:02}/{f}.jpg" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "copies": [f"c{c}/IMG_{t:04} ({f}).jpg" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
}
PATTERNS = {"tracks": r"(.*)_\d+", "patients": r"(.*)_frame\d+", "folders": "(.*)/", "copies": r"(.*) \(\d+"}
INNOCENT = {
    "counters": [f"c{c}/image_{n:04}.jpg" for c, n in zip(TARGETS, NUMBER, strict=True)],
    "days": [f"c{c}/IMG_202401{t + 10}_{f}.jpg" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "messages": [f"c{c}/IMG-202401{t + 10}-WA{f:04}.jpg" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "moments": [f"c{c}/2024-01-{t + 10} 12.30.0{t}-{f}.jpg" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "synsets": [f"n0144{c}/n0144{c}_{7 * n}.JPEG" for c, n in zip(TARGETS, NUMBER, strict=True)],
    "parts": [f"train/my_class_{c}/{n:03}.png" for c, n in zip(TARGETS, NUMBER, strict=True)],
    "subclasses": [f"c{c}/{'abcdefgh'[t]}/{f}.png" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
    "subclass prefixes": [f"c{c}/{'abcdefgh'[t]}_{f}.png" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)],
}


def looks(kind, seed=0):
    """Thumbnails: of tracks a random image each, with some noise a frame; of independent images one each."""
    random = np.random.default_rng(seed)
    shade = 0.5 * random.normal(size=(CLASSES, 48))[TARGETS]
    base = random.normal(size=(CLASSES * TRACKS, 48))[TARGETS * TRACKS + TRACK]
    own = random.normal(size=(len(TARGETS), 48))
    values = shade + (base + 0.5 * own if kind == "tracks" else own)
    return lambda rows: values[rows]


@pytest.mark.parametrize("kind", NAMES)
def test_series_are_found_by_names_and_looks(kind):
    found = find_series(NAMES[kind], TARGETS, looks("tracks"))
    assert found.strong
    assert (found.pattern, found.groups) == (PATTERNS[kind], CLASSES * TRACKS)
    assert len(set(matched_groups(found.pattern, NAMES[kind]))) == found.groups
    assert found.share > 0.9
    assert found.expected == pytest.approx((FRAMES - 1) / (TRACKS * FRAMES - 1), abs=0.02)
    assert found.with_group > found.without_group + 0.1


@pytest.mark.parametrize("kind", [*NAMES, *INNOCENT])
@pytest.mark.parametrize("seed", range(3))
def test_names_alone_are_no_series(kind, seed):
    assert find_series((NAMES | INNOCENT)[kind], TARGETS, looks("independent", seed)) is None


@pytest.mark.parametrize("kind", INNOCENT)
def test_usual_names_never_stop_anybody_whatever_images_look_like(kind):
    found = find_series(INNOCENT[kind], TARGETS, looks("tracks"))
    assert found is None or not found.strong
    if kind in ("days", "subclasses"):  # worth a word
        assert found.share > 0.9


def test_a_pattern_that_cuts_a_folders_name_is_none():
    names = [f"set_{c}/{'ab'[n % 2]}{n}.png" for c, n in zip(TARGETS, NUMBER, strict=True)]
    assert find_series(names, TARGETS, looks("tracks")) is None


def test_the_coarser_of_two_patterns_where_images_outside_of_the_finer_speak_for_it():
    visit = TRACK // 2  # two tracks each
    names = [f"c{c}/p{v:02}_{t:02}_{f:02}.png" for c, v, t, f in zip(TARGETS, visit, TRACK, FRAME, strict=True)]
    assert find_series(names, TARGETS, looks("tracks")).pattern == r"(.*)_\d+"
    random = np.random.default_rng(1)
    values = looks("tracks")(np.arange(len(TARGETS))) + 2 * random.normal(size=(100, 48))[10 * TARGETS + visit]
    assert find_series(names, TARGETS, lambda rows: values[rows]).pattern == r"(.*)_\d+_\d+"


def test_patients_with_several_labels_are_joined_where_they_look_alike_in_all_classes():
    names = [f"c{c}/patient{t}_frame{f}.png" for c, t, f in zip(TARGETS, TRACK, FRAME, strict=True)]
    assert find_series(names, TARGETS, looks("tracks")).pattern == r"(.*)_frame\d+"  # numbers that begin anew
    random = np.random.default_rng(1)
    person = random.normal(size=(TRACKS, 48))[TRACK] + 0.3 * random.normal(size=(len(TARGETS), 48))
    found = find_series(names, TARGETS, lambda rows: person[rows])
    assert (found.pattern, found.groups) == (r"(patient\d+)", TRACKS)


def test_many_images_are_sampled_by_groups():
    size = 15_000
    targets, number = np.arange(size) % 100, np.arange(size) // 100
    names = [f"c{c}/{n // 5:04}_{n % 5}.png" for c, n in zip(targets, number, strict=True)]
    asked = []

    def values(rows):
        asked.append(len(rows))
        seeds = targets[rows] * 1000 + number[rows] // 5
        return np.stack([np.random.default_rng(seed).normal(size=12) for seed in seeds])

    assert find_series(names, targets, values).strong
    assert max(asked) <= 4100


def test_the_same_answer_each_time():
    first, second = (find_series(NAMES["tracks"], TARGETS, looks("tracks")) for _ in range(2))
    assert first == second


def test_the_sentence_can_be_pasted():
    found = find_series(NAMES["copies"], TARGETS, looks("tracks"))
    assert r"give --group '(.*) \(\d+' to keep" in found.sentence()
    assert "or --no-group if" in found.sentence()


def test_candidates_of_odd_names():
    assert candidate_patterns(["a/x.png", "b/y.png"]) == ["(.*)/"]
    assert candidate_patterns(["a/.png", "b/_.png", "noslash"]) == ["(.*)/"]
    assert r"(.*)\.v\d+" in candidate_patterns(["a/1.v2.png", "b/3.v4.png"])


def test_thumbnails_of_files(tmp_path):
    paths = []
    for number in range(4):
        paths.append(str(tmp_path / f"{number}.png"))
        picture(number // 2, 7).save(paths[-1])
    values = thumbnails(paths)
    assert values.shape == (4, 8 * 8 * 3)
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[1], values[2])
