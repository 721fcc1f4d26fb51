"""Decoding of one file: the resampling, what is refused before it is read, and the memory that it takes."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualnet.data import decode
from dualnet.data.decode import decoding, read_image


def read(path: Path | str, size: int = 8) -> np.ndarray:
    into = np.empty((size, size, 3), np.uint8)
    with decoding():
        read_image(str(path), into)
    return into


def triangle_weights(length: int, size: int) -> np.ndarray:
    """float [size, length]: a triangle as wide as two output pixels, or two input pixels if these are larger."""
    scale = length / size
    centres = (np.arange(size) + 0.5) * scale
    distance = abs(np.arange(length) + 0.5 - centres[:, None]) / max(scale, 1.0)
    weights = np.clip(1 - distance, 0, None)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("length", "size"), [(64, 8), (50, 16), (8, 20)])
def test_resampling_is_bilinear_and_antialiased(length: int, size: int, tmp_path: Path) -> None:
    """Noise tells filters apart: the nearest neighbour is wrong by up to 255."""
    pixels = np.random.default_rng(length).integers(0, 256, (length, length, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    weights = triangle_weights(length, size)
    expected = np.einsum("yh,hwc,xw->yxc", weights, pixels.astype(float), weights)
    assert abs(read(tmp_path / "a.png", size) - expected).max() < 1.01, "two passes are rounded"


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.bmp", "a.tif", "a.jpg"])
def test_any_format_is_reduced_to_the_same_picture(name: str, mode: str, orientation: int, tmp_path: Path) -> None:
    """A gradient, which any filter keeps. A JPEG is decoded at a reduced size."""
    if mode == "RGBA" and name == "a.jpg":
        pytest.skip("JPEG has no transparency")
    x, y = np.meshgrid(np.linspace(0, 255, 320), np.linspace(0, 255, 200))
    image = Image.fromarray(np.stack([x, y, 255 - y], axis=2).astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / name, exif=exif.tobytes())
    small = image.convert("RGB").crop((60, 0, 260, 200)).resize((8, 8), Image.Resampling.BOX)
    if orientation == 6 and name != "a.bmp":  # which has no EXIF
        small = small.transpose(Image.Transpose.ROTATE_270)
    assert abs(read(tmp_path / name).astype(int) - np.asarray(small, dtype=int)).max() <= 8


def test_an_image_of_the_caller_stays_as_it_is(tmp_path: Path) -> None:
    Image.new("RGB", (320, 200)).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        decode.read_pillow(image, np.empty((8, 8, 3), np.uint8), "a")
        assert image.size == (320, 200)


def test_memory_is_handed_out_in_order() -> None:
    """A small amount that is asked for after a large one waits, though it would be there."""
    budget, order = decode.Budget(10), []

    def use(amount: int) -> None:
        with budget.take(amount):
            order.append(amount)

    large, small = (threading.Thread(target=use, args=(amount,)) for amount in (9, 1))
    with budget.take(5):
        for thread in (large, small):
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
    for thread in (large, small):
        thread.join(10)
    assert order == [9, 1] and budget.rest == 10


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_float(path: Path) -> Path:
    Image.new("F", (8, 8), 0.5).save(path.with_suffix(".tif"))
    return path.with_suffix(".tif")


def make_large(path: Path) -> Path:
    path.touch()
    os.truncate(path, 3 << 30)
    return path


REFUSED = {
    "pipe": (make_pipe, "not a regular file"),
    "folder": (lambda path: path.parent, "Is a directory"),
    "device": (lambda path: Path("/dev/zero"), "not a regular file"),
    "large file": (make_large, "more than the limit of 200000000"),
    "missing": (lambda path: path, "No such file"),
    "float": (make_float, "8 or 16 bits"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_told_in_a_line(kind: str, tmp_path: Path) -> None:
    make, reason = REFUSED[kind]
    path = make(tmp_path / "a.png")
    with pytest.raises(ValueError, match=reason) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
