"""Images as torchvision gives them, whatever the file; every bad file is one sentence that names it."""

import contextlib
import io
import os
import resource
import struct
import threading
import warnings
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from scipy.stats import ks_2samp
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, PILToTensor, RandomResizedCrop, Resize
from torchvision.transforms.functional import resized_crop

from balpoe.data.loading import decode as decoding
from balpoe.data.loading.decode import (
    IMAGE_SUFFIXES,
    MOST_PIXELS,
    ResizedCrop,
    read_crop,
    read_header,
    read_image,
    read_thumbnail,
)
from balpoe.errors import UserError

PHOTOGRAPHS = [Path(sklearn.datasets.__file__).parent / "images" / name for name in ("china.jpg", "flower.jpg")]


def noise(width: int = 60, height: int = 40, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Every pixel its own: a shift by one would show."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,), "LA": (2,)}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    return Image.fromarray(values, mode) if mode == "CMYK" else Image.fromarray(values)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def whole(source: object) -> torch.Tensor:
    """A square image without any resizing."""
    size = 24
    return read_image(source, size, size)


class Chosen(ResizedCrop):
    """A box that is not drawn."""

    def __init__(self, *box: int) -> None:
        object.__setattr__(self, "chosen", box)

    def box(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        return self.chosen


FORMATS = {
    "JPEG": {},
    "JPEG progressive": {"progressive": True, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "WEBP lossy": {},
    "BMP": {},
    "GIF": {},
    "TIFF": {},
    "TIFF compressed": {"compression": "tiff_lzw"},
    "PPM": {},
}


def saved(image: Image.Image, name: str) -> bytes:
    return encoded(image, name.split()[0], **FORMATS[name])


@pytest.mark.parametrize("name", FORMATS)
def test_the_middle_is_torchvisions(name):
    for (width, height), size, resize in [
        ((60, 40), 24, 27),
        ((41, 73), 32, 32),
        ((9, 7), 24, 30),
        ((64, 64), 31, 64),
        ((50, 13), 8, 9),
    ]:
        file = saved(noise(width, height), name)
        reference = Compose([Resize(resize), CenterCrop(size), PILToTensor()])
        found = read_image(file, size, resize)
        assert torch.equal(found, reference(Image.open(io.BytesIO(file)).convert("RGB"))), (width, height)
        assert found.is_contiguous()


@pytest.mark.parametrize("name", FORMATS)
def test_a_crop_is_torchvisions(name):
    file = saved(noise(), name)
    image = Image.open(io.BytesIO(file)).convert("RGB")
    for left, top, width, height in [(0, 0, 60, 40), (7, 3, 31, 29), (59, 39, 1, 1), (10, 0, 50, 40), (5, 6, 21, 21)]:
        expected = PILToTensor()(resized_crop(image, top, left, height, width, [21, 21]))  # too large to reduce
        found = read_crop(file, 21, Chosen(left, top, width, height), np.random.default_rng(0))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("interpolation", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_every_interpolation_is_pillows(interpolation):
    image, mode = noise(61, 43), InterpolationMode(interpolation)
    file = encoded(image, "PNG")
    reference = Compose([Resize(30, mode), CenterCrop(24), PILToTensor()])
    assert torch.equal(read_image(file, 24, 30, interpolation), reference(image))
    expected = PILToTensor()(resized_crop(image, 3, 7, 29, 31, [21, 21], mode))
    assert torch.equal(read_crop(file, 21, Chosen(7, 3, 31, 29), np.random.default_rng(0), interpolation), expected)


def test_an_unknown_interpolation_is_no_fault_of_the_image():
    for read in (
        lambda: read_image(b"", 8, 8, "bicubical"),
        lambda: read_crop(b"", 8, Chosen(0, 0, 1, 1), np.random.default_rng(0), "bicubical"),
    ):
        with pytest.raises(UserError, match="unknown interpolation 'bicubical'; did you mean 'bicubic'"):
            read()


@pytest.mark.parametrize("path", PHOTOGRAPHS, ids=lambda path: path.stem)
def test_a_reduced_photograph_is_nearly_the_full_one_by_another_interpolation(path):
    expected = Image.open(path).resize((74, 50), Image.BICUBIC).crop((12, 0, 62, 50))
    found = read_image(path, 50, 50, "bicubic").permute(1, 2, 0).numpy().astype(int)
    wrong = read_image(path, 50, 50, "bilinear").permute(1, 2, 0).numpy().astype(int)
    differences = [np.abs(each - np.asarray(expected)).mean() for each in (found, wrong)]
    assert 0 < differences[0] < 2.5
    assert differences[0] < 0.8 * differences[1]


@pytest.mark.parametrize("path", PHOTOGRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_reduced_photograph_is_nearly_the_full_one(path, turn):
    """The same part of the image, about as sharp: a shift by half a pixel would cost twice as much."""
    exif = Image.Exif()
    exif[0x0112] = turn
    file = encoded(Image.open(path).crop((0, 0, 633, 421)), "JPEG", quality=90, exif=exif)  # neither divides by 2
    seen = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    width, height = seen.size
    for left, top, wide, tall in [(0, 0, width, height), (101, 57, 301, 303), (width - 297, height - 295, 297, 295)]:
        expected = np.asarray(seen.crop((left, top, left + wide, top + tall)).resize((48, 48), Image.BILINEAR))
        found = read_crop(file, 48, Chosen(left, top, wide, tall), np.random.default_rng(0)).permute(1, 2, 0).numpy()
        shifted = np.abs(expected[1:].astype(int) - expected[:-1]).mean()
        difference = np.abs(found.astype(int) - expected).mean()
        assert 0 < difference < min(3.5, shifted / 3)
        sharpness = [np.abs(np.diff(image.astype(int), axis=1)).mean() for image in (found, expected)]
        assert sharpness[0] > 0.87 * sharpness[1]


def test_what_a_reduction_keeps(monkeypatch):
    """At least a pixel for each one wanted, and half of one more for prediction; below that, nothing is reduced."""
    decoded = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", lambda self: (decoded.append((self.width, self.height)), load(self))[1]
    )
    for size, factor in [(8, 8), (12, 8), (13, 4), (25, 4), (26, 2), (50, 2), (51, 1)]:
        decoded.clear()
        read_crop(encoded(noise(130, 101), "JPEG"), size, Chosen(3, 1, 121, 100), np.random.default_rng(0))
        assert decoded[-1] == (-(-130 // factor), -(-101 // factor)), size
        assert 100 / factor >= size or factor == 1
    decoded.clear()
    for resize, factor in ((33, 2), (34, 1)):
        decoded.clear()
        read_image(encoded(noise(130, 101), "JPEG"), 30, resize)
        assert decoded[-1] == (-(-130 // factor), -(-101 // factor)), resize


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32))
def test_a_box_lies_in_the_image(width, height, seed):
    left, top, wide, tall = ResizedCrop().box(width, height, np.random.default_rng(seed))
    assert wide >= 1
    assert tall >= 1
    assert 0 <= left <= width - wide
    assert 0 <= top <= height - tall


@pytest.mark.parametrize("size", [(60, 40), (500, 375), (300, 90), (31, 200)])
def test_boxes_are_drawn_as_torchvision_draws_them(size):
    rng, image, count = np.random.default_rng(1), Image.new("L", size), 2000
    ours = np.array([ResizedCrop().box(*size, rng) for _ in range(count)])
    torch.manual_seed(2)
    crops = [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    theirs = np.array([(left, top, width, height) for top, left, height, width in crops])
    for mine, other in zip(ours.T, theirs.T, strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3


@pytest.mark.parametrize("size", [(1000, 7), (7, 1000), (3, 1), (1, 1), (999, 100)])
def test_where_no_draw_fits(size):
    """Of an image that is too long, all is wanted: ten failures, then the part in the middle."""
    top, left, height, width = RandomResizedCrop.get_params(Image.new("L", size), [1.0, 1.0], [3 / 4, 4 / 3])
    assert ResizedCrop(scale=(1.0, 1.0)).box(*size, np.random.default_rng(0)) == (left, top, width, height)


def test_boxes_follow_their_chance():
    assert ResizedCrop().box(60, 40, np.random.default_rng(5)) == ResizedCrop().box(60, 40, np.random.default_rng(5))
    assert len({ResizedCrop().box(600, 400, np.random.default_rng(seed)) for seed in range(50)}) > 45


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "TIFF compressed"])
@pytest.mark.parametrize("turn", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_images_are_turned_as_their_exif_says(kind, turn):
    exif = Image.Exif()
    exif[0x0112] = turn if kind != "TIFF compressed" else min(turn, 8)  # which nobody can write otherwise
    file = encoded(noise(), kind.split()[0], exif=exif, **FORMATS[kind])
    plain = Image.open(io.BytesIO(encoded(noise(), kind.split()[0], **FORMATS[kind])))
    method = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}.get(exif[0x0112])
    seen = plain if method is None else plain.transpose(Image.Transpose(method))
    assert torch.equal(read_image(file, 24, 40), Compose([CenterCrop(24), PILToTensor()])(seen))
    box = (2, 5, 30, 20)
    expected = PILToTensor()(resized_crop(seen, box[1], box[0], box[3], box[2], [20, 20]))
    assert torch.equal(read_crop(file, 20, Chosen(*box), np.random.default_rng(0)), expected)
    assert read_thumbnail(file, (9, 8))[0] == seen.size


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\xff"]
)
def test_a_garbled_exif_is_no_reason_to_refuse_an_image(exif):
    assert torch.equal(whole(encoded(noise(24, 24), "JPEG", exif=exif)), whole(encoded(noise(24, 24), "JPEG")))


def test_grey_images():
    grey = noise(24, 24, "L")
    for file in (encoded(grey, "PNG"), encoded(grey, "JPEG", quality=100), encoded(grey, "PPM"), grey):
        found = whole(file)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        assert (found[0].numpy().astype(int) - np.asarray(grey)).max() <= 3
    black_and_white = whole(encoded(grey.convert("1", dither=0), "PNG"))
    assert np.array_equal(black_and_white[0].numpy(), np.where(np.asarray(grey) > 127, 255, 0))


def test_transparent_parts_are_white():
    image = noise(24, 24, "RGBA")
    values = np.asarray(image).astype(float)
    expected = values[..., :3] * values[..., 3:] / 255 + 255 - values[..., 3:]
    for file in (encoded(image, "PNG"), encoded(image, "WEBP", lossless=True, exact=True), image):
        assert np.abs(whole(file).permute(1, 2, 0).numpy() - expected).max() <= 1
    grey = noise(24, 24, "LA")
    values = np.asarray(grey).astype(float)
    expected = values[..., 0] * values[..., 1] / 255 + 255 - values[..., 1]
    assert np.abs(whole(encoded(grey, "PNG"))[1].numpy() - expected).max() <= 1


@pytest.mark.parametrize(("kind", "transparency"), [("PNG", 3), ("PNG", b"\xff\xff\xff\0"), ("GIF", 3)])
def test_palettes(kind, transparency):
    image = Image.new("P", (24, 24))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 1, 2, 3])
    image.putdata([number % 4 for number in range(24 * 24)])
    colours = torch.tensor([[10, 20, 30], [40, 50, 60], [70, 80, 90], [255, 255, 255]], dtype=torch.uint8)
    found = whole(encoded(image, kind, transparency=transparency))
    assert torch.equal(found.flatten(1).T, colours.repeat(24 * 6, 1))


def test_a_transparent_colour_of_an_image_without_palette():
    image = Image.new("RGB", (24, 24), (1, 2, 3))
    image.paste((9, 8, 7), (0, 0, 12, 24))
    found = whole(encoded(image, "PNG", transparency=(1, 2, 3)))
    assert found[:, 0, 0].tolist() == [9, 8, 7]
    assert found[:, 0, 23].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_printers_colours(kind):
    image = Image.new("CMYK", (24, 24), (255, 0, 102, 51))  # no red at all; a fifth of black on the rest
    found = whole(encoded(image, kind)).flatten(1).float().mean(dim=1)
    assert found.tolist() == pytest.approx([0, 204, 122], abs=2)


def test_printers_colours_stored_as_brightness_and_colour_differences():
    """A YCCK file, made of a CMYK one: the three that are stored are taken as Y, Cb and Cr."""
    file = bytearray(encoded(Image.new("CMYK", (24, 24), (155, 115, 135, 55)), "JPEG", quality=100))
    marker = file.index(b"Adobe")
    assert file[marker + 11] == 0
    file[marker + 11] = 2
    y, cb, cr, k = 100, 140, 120, 200  # Adobe stores inverted inks
    rgb = (y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128))
    inks = [
        255 - channel for channel in rgb
    ]  # libjpeg turns YCC into CMY by way of RGB, and the inks are inverted back
    expected = [(255 - (255 - ink)) * k / 255 for ink in inks]
    assert whole(bytes(file)).flatten(1).float().mean(dim=1).tolist() == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_of_grey(kind):
    values = np.array([0, 255, 256, 32767, 32768, 65279, 65280, 65535] * 72, dtype=np.uint16).reshape(24, 24)
    found = whole(encoded(Image.fromarray(values), kind))
    assert np.array_equal(found[0].numpy(), values // 256)
    assert torch.equal(found[0], found[2])
    assert found.max() == 255


def test_wide_pixels_within_and_beyond_sixteen_bits():
    values = np.full((24, 24), 65535, dtype=np.int32)
    assert (whole(Image.fromarray(values)) == 255).all()
    for odd in (-1, 65536):
        values[3, 4] = odd
        with pytest.raises(UserError, match=r"^the image has grey values from .* but 0 to 65535 are read; replace"):
            whole(encoded(Image.fromarray(values), "TIFF"))


def test_floating_point_pixels_are_refused():
    with pytest.raises(UserError, match="floating-point pixels"):
        whole(encoded(Image.fromarray(np.zeros((24, 24), dtype=np.float32)), "TIFF"))


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_the_first_frame_counts(kind):
    first, second = Image.new("RGB", (24, 24), (200, 10, 10)), Image.new("RGB", (24, 24), (10, 10, 200))
    file = encoded(first, kind, save_all=True, append_images=[second])
    assert whole(file).flatten(1).float().mean(dim=1).tolist() == pytest.approx([200, 10, 10], abs=4)


def test_paths_bytes_streams_and_images_are_the_same(tmp_path):
    image = Image.open(PHOTOGRAPHS[0])
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    data = (tmp_path / "a.jpg").read_bytes()
    expected = read_image(tmp_path / "a.jpg", 200, 220)
    with open(tmp_path / "a.jpg", "rb") as stream:
        stream.read(10)
        sources = [str(tmp_path / "a.jpg"), data, io.BytesIO(data), stream, Image.open(tmp_path / "a.jpg")]
        for source in sources:
            assert torch.equal(read_image(source, 200, 220), expected)
        assert not stream.closed


def test_a_given_image_stays_as_it_is():
    image = Image.open(PHOTOGRAPHS[0])
    read_image(image, 20, 20)
    assert image.size == (640, 427)
    assert image.mode == "RGB"
    turned = Image.open(PHOTOGRAPHS[0])
    read_thumbnail(turned, (9, 8))
    assert np.array_equal(np.asarray(turned), np.asarray(Image.open(PHOTOGRAPHS[0])))


@pytest.mark.parametrize("size", [(1, 30_000), (30_000, 1), (8000, 3)])
def test_a_line_of_pixels_stays_small(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_image(encoded(Image.new("RGB", size, (5, 6, 7)), "PNG"), 224, 256)[:, 0, 0].tolist() == [5, 6, 7]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_a_square_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="square of 32 pixels must fit into the short side of 24"):
        read_image(encoded(noise(), "PNG"), 32, 24)


def huge_png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + encoded(noise(), "PNG")[33:]
    )


def huge_jpeg(width: int, height: int) -> bytes:
    file = encoded(noise(), "JPEG")
    place = file.index(b"\xff\xc0") + 5
    return file[:place] + struct.pack(">HH", height, width) + file[place + 4 :]


def huge_bmp(width: int, height: int) -> bytes:
    file = encoded(noise(), "BMP")
    return file[:18] + struct.pack("<II", width, height) + file[26:]


def huge_gif(width: int, height: int) -> bytes:
    file = encoded(noise(), "GIF")
    return file[:6] + struct.pack("<HH", width, height) + file[10:]


def huge_tiff(width: int, height: int) -> bytes:
    file = encoded(noise(), "TIFF")
    for tag, old, new in ((256, 60, width), (257, 40, height)):
        entry = struct.pack("<HHII", tag, 4, 1, old)
        assert entry in file
        file = file.replace(entry, struct.pack("<HHII", tag, 4, 1, new))
    return file


def huge_webp(width: int, height: int) -> bytes:
    inner = encoded(noise(), "WEBP")[12:]
    canvas = (
        b"VP8X" + struct.pack("<II", 10, 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    )
    return b"RIFF" + struct.pack("<I", 4 + len(canvas) + len(inner)) + b"WEBP" + canvas + inner


def huge_ppm(width: int, height: int) -> bytes:
    return b"P6 %d %d 255\n" % (width, height) + bytes(100)


HUGE = (huge_png, huge_jpeg, huge_bmp, huge_gif, huge_tiff, huge_webp, huge_ppm)


@pytest.mark.parametrize("make", HUGE, ids=lambda make: make.__name__)
def test_an_image_of_sixty_thousand_pixels_a_side(make, tmp_path, monkeypatch):
    """Refused by its header: nothing is decoded, and no memory is taken."""

    def load(self: ImageFile.ImageFile) -> None:
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    path = tmp_path / "huge.jpg"
    path.write_bytes(make(60_000, 60_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (lambda: read_image(path, 24, 24), lambda: read_thumbnail(path, (9, 8))):
        with pytest.raises(UserError) as error:
            read()
        assert str(error.value) == (
            f"{path} has 3,600,000,000 pixels, but at most 250,000,000 are read; replace it or leave it out"
        )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_the_limit_is_ours_and_pillows_own_comes_back(monkeypatch):
    assert MOST_PIXELS == 250_000_000
    monkeypatch.setattr(decoding, "MOST_PIXELS", 1600)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow would warn beyond 100 and refuse beyond 200
    for kind in ("PNG", "TIFF", "JPEG"):
        assert read_image(encoded(noise(40, 40), kind), 24, 40).shape == (3, 24, 24)
        assert read_crop(encoded(noise(40, 40), kind), 24, Chosen(1, 1, 39, 39), np.random.default_rng(0)).any()
        with pytest.raises(UserError, match="has 1,640 pixels, but at most 1,600 are read"):
            read_image(encoded(noise(41, 40), kind), 24, 40)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_that_is_cut_short(name, share, tmp_path):
    file = saved(noise(), name)
    path = tmp_path / "cut.png"
    path.write_bytes(file[: int(share * len(file))])
    for read in (lambda: read_image(path, 24, 24), lambda: read_thumbnail(path, (9, 8))):
        with pytest.raises(
            UserError, match=r"cut\.png is (damaged \(.+\)|not a whole .+); replace it or leave it out$"
        ):
            read()


def test_a_photograph_that_is_cut_short_is_found_at_every_scale(tmp_path):
    file = PHOTOGRAPHS[0].read_bytes()
    path = tmp_path / "cut.jpg"
    path.write_bytes(file[:-2000])
    for read in (
        lambda: read_image(path, 200, 427),
        lambda: read_image(path, 24, 24),
        lambda: read_crop(path, 24, Chosen(0, 0, 60, 60), np.random.default_rng(0)),  # of a part that is there
        lambda: read_thumbnail(path, (9, 8)),
    ):
        with pytest.raises(UserError, match=r"cut\.jpg is damaged \(image file is truncated .*\); replace"):
            read()


def test_what_is_no_image(tmp_path):
    whole_list = f"not a whole image ({', '.join(decoding._formats())} are read)"
    assert "(JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM" in whole_list
    for data, reason in [
        (b"", "is empty"),
        (b"some text", f"is {whole_list}"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nquit\n", f"is {whole_list}"),  # would start Ghostscript
    ]:
        path = tmp_path / "odd.jpg"
        path.write_bytes(data)
        for source, name in ((path, str(path)), (data, "the image")):
            with pytest.raises(UserError) as error:
                whole(source)
            assert str(error.value) == f"{name} {reason}; replace it or leave it out"


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(UserError) as error:
        whole(tmp_path / "absent.jpg")
    assert str(error.value) == f"cannot read {tmp_path / 'absent.jpg'}: no such file or directory; check the path"
    with pytest.raises(UserError, match=r"^cannot read .*: is a directory; check the path$"):
        whole(str(tmp_path))
    closed = tmp_path / "closed.png"
    closed.write_bytes(encoded(noise(), "PNG"))
    closed.chmod(0)
    if not os.access(closed, os.R_OK):  # an administrator may read it all the same
        with pytest.raises(UserError, match=r"closed\.png: permission denied; check the path$"):
            whole(closed)


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path):
    with pytest.raises(UserError) as error:
        whole(tmp_path / "a\nb.jpg")
    assert "a\\nb.jpg" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("TIFF")])
@given(st.data())
def test_garbled_files_are_read_or_refused(name, data):
    """No other exception, no warning, whatever the bytes are."""
    file = bytearray(saved(noise(), name))
    for place in data.draw(st.lists(st.integers(0, len(file) - 1), min_size=1, max_size=4)):
        file[place] = data.draw(st.integers(0, 255))
    for read in (lambda: whole(bytes(file)), lambda: read_thumbnail(bytes(file), (9, 8))):
        with contextlib.suppress(UserError):
            read()


@given(st.data())
def test_garbled_headers_of_a_tiff_are_read_or_refused(data):
    file = bytearray(saved(noise(), "TIFF"))
    for place in data.draw(st.lists(st.integers(4, 200), min_size=1, max_size=4)):
        file[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        whole(bytes(file))


def test_pillows_warnings_stay_inside_and_the_callers_come_back():
    """Threads that come and go: the last one out puts the process's filters and limit back."""
    plain, animation = encoded(noise(24, 24), "PNG"), b"acTL" + bytes(8)  # of no frame at all
    odd = plain[:33] + struct.pack(">I", 8) + animation + struct.pack(">I", zlib.crc32(animation)) + plain[33:]
    with pytest.warns(UserWarning, match="Invalid APNG"):
        Image.open(io.BytesIO(odd))
    files = [plain, odd, encoded(noise(24, 24), "JPEG"), odd[:-300]] * 40
    before, limit = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    start = threading.Barrier(4)

    def read_all(part: int) -> Counter[str]:
        start.wait()
        results: Counter[str] = Counter()
        for file in files[part::4]:
            try:
                results["read"] += len(whole(file)) == 3
            except UserError:
                results["refused"] += 1
        return results

    with ThreadPoolExecutor(4) as pool:
        results = sum(pool.map(read_all, range(4)), Counter())
    assert results == {"read": 120, "refused": 40}
    assert warnings.filters == before
    assert limit == Image.MAX_IMAGE_PIXELS


def test_suffixes():
    assert {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jfif", ".pgm"} <= IMAGE_SUFFIXES
    Image.init()
    of_a_plugin = {".heic", ".heif", ".hif"}
    assert {Image.EXTENSION[suffix] for suffix in IMAGE_SUFFIXES - of_a_plugin} | {"HEIF"} == set(decoding.FORMATS)


@pytest.mark.parametrize("suffix", [".heic", ".HEIF", ".hif"])
def test_the_format_of_phones_is_named_where_it_cannot_be_read(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))
    if "HEIF" in decoding._formats():
        with pytest.raises(UserError, match="is not a whole image"):
            read_image(path, 8, 8)
    without = tuple(each for each in decoding._formats() if each != "HEIF")
    monkeypatch.setattr(decoding, "_formats", lambda: without)
    named = "is a HEIC image, which Pillow cannot read here; pip install 'pillow-heif', or convert it"
    with pytest.raises(UserError, match=named):
        read_image(path, 8, 8)


def heic(image: Image.Image, **options: object) -> bytes:
    pytest.importorskip("pillow_heif")  # the extra images
    assert "HEIF" in decoding._formats()
    return encoded(image, "HEIF", quality=90, **options)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().mean())


def test_heic_is_read_as_the_photograph_it_was_made_of():
    photograph = Image.open(PHOTOGRAPHS[0]).resize((160, 120))
    file = heic(photograph)
    assert difference(read_image(file, 64, 72), read_image(photograph, 64, 72)) < 4
    assert read_thumbnail(file, (9, 8))[0] == (160, 120)
    with pytest.raises(UserError, match=r"damaged|not a whole image"):
        read_image(file[:-500], 64, 72)


@pytest.mark.parametrize("turn", range(1, 9))
def test_heic_is_turned_once(turn):
    photograph, exif = Image.open(PHOTOGRAPHS[0]).resize((160, 120)), Image.Exif()
    exif[0x0112] = turn
    stored = Image.open(io.BytesIO(encoded(photograph, "PNG", exif=exif)))
    file = heic(photograph, exif=exif.tobytes())
    assert difference(read_image(file, 64, 72), read_image(ImageOps.exif_transpose(stored), 64, 72)) < 4
    assert read_thumbnail(file, (9, 8))[0] == ((120, 160) if turn > 4 else (160, 120))


def test_transparent_and_deep_heic():
    clear = Image.new("RGBA", (64, 64), (200, 10, 10, 0))
    assert int(read_image(heic(clear), 8, 8).min()) >= 250  # on white
    grey = Image.fromarray(np.full((64, 64), 40_000, dtype=np.uint16))  # stored with 10 or 12 bits
    assert difference(read_image(heic(grey), 8, 8), torch.full((3, 8, 8), 40_000 >> 8)) < 2


def test_avif_is_read_where_pillow_does(tmp_path):
    from PIL import features

    if not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    Image.new("RGB", (20, 30), (200, 10, 10)).save(tmp_path / "a.avif")
    red, green, _ = read_image(tmp_path / "a.avif", 8, 8).float().mean(dim=(1, 2)).tolist()
    assert red > 150
    assert green < 60


def test_a_header_is_read_without_the_rest():
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    for kind, settings in (("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {})):
        stream = io.BytesIO()
        pixels.save(stream, kind, **settings)
        found = read_header(stream.getvalue()[: 2 * len(stream.getvalue()) // 3 if kind != "WEBP" else None])
        assert found == (kind, 90, 60, bool(settings))
    for content in (b"", b"no image", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(UserError, match="the image"):
            read_header(content)
