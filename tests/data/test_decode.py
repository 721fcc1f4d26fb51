"""Decoding of one file: the resampling, what is refused before it is read, and the memory that it takes."""

import os
import struct
import threading
import zlib
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from forked import FORKED, forked
from PIL import Image
from pillow_heif import from_bytes

from dualnet.data import decode
from dualnet.data.decode import decoding, read_image
from dualnet.machine import peak_main_memory


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


def test_a_large_image_is_averaged_in_blocks_and_then_resampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "LARGE", 300)
    pixels = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    blocks = pixels.reshape(16, 6, 16, 6, 3).mean(axis=(1, 3))  # twice the size
    weights = triangle_weights(16, 8)
    expected = np.einsum("yh,hwc,xw->yxc", weights, blocks, weights)
    assert abs(read(tmp_path / "a.png", 8) - expected).max() < 1.6, "three steps are rounded"


def save_smooth(path: Path, width: int, height: int, mode: str = "RGB", **options: object) -> np.ndarray:
    """A gradient, which any filter keeps; returns what its central square looks like at 8 x 8."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    image = Image.fromarray(np.stack([x, y, 255 - y], axis=2).astype(np.uint8))
    image.convert(mode).save(path, **options)
    small = image.crop(((width - height) // 2, 0, (width + height) // 2, height)).resize((8, 8), Image.Resampling.BOX)
    return np.asarray(small, dtype=float)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp", "a.tif"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_a_large_image_looks_as_a_small_one(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode != "RGB" and name != "a.png":
        pytest.skip("PNG has all modes")
    expected = save_smooth(tmp_path / name, 320, 200, mode)
    small = read(tmp_path / name).astype(int)
    for limit in ("LARGE", "READ_AT_ONCE", "BAND_PIXELS"):
        monkeypatch.setattr(decode, limit, 300)
    large = read(tmp_path / name).astype(int)
    assert abs(large - small).max() <= 8 and abs(large - expected).max() <= (40 if mode == "P" else 8)


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_a_large_image_is_turned_as_its_tag_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    save_smooth(tmp_path / name, 317, 203, exif=exif.tobytes())
    upright = read(tmp_path / name).astype(int)
    monkeypatch.setattr(decode, "LARGE", 300)
    assert abs(read(tmp_path / name).astype(int) - upright).max() <= 8


def test_large_images_are_decoded_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_smooth(tmp_path / "a.png", 30, 20)
    monkeypatch.setattr(decode, "LARGE", 300)
    thread = threading.Thread(target=read, args=(tmp_path / "a.png",))
    with decode._large_image:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()


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
    "folder": (lambda path: path.parent, "not a regular file"),
    "device": (lambda path: Path("/dev/zero"), "not a regular file"),
    "large file": (make_large, "200 MB"),
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


def measure(files: list[Path], link: Connection) -> None:
    """Sends how much more memory the decode of each file takes than this process had before."""
    read(files[0], 84)  # a small one: imports and buffers are not the decode's
    for path in files[1:]:
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_main_memory()
        read(path, 84)
        link.send(peak_main_memory() - before)


def save_png(path: Path, side: int) -> None:
    """A black square in RGBA, compressed piece by piece: this process need not hold it either."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packed, row = zlib.compressobj(1), bytes(1 + side * 4)
    body = b"".join([*(packed.compress(row) for _ in range(side)), packed.flush()])
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b""))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_a_decode_stays_below_300_megabytes(tmp_path: Path) -> None:
    """The largest images that are accepted, each in the kind that takes most."""
    files = [tmp_path / name for name in ("small.png", "rgba.png", "jpeg.jpg", "a.webp", "a.tif", "a.heic", "hdr.heic")]
    save_png(files[0], 100)
    save_png(files[1], 8000)
    Image.new("CMYK", (5600, 5600)).save(files[2], progressive=True)
    Image.new("RGBA", (3500, 3500)).save(files[3], method=0)
    one_strip_turned = {278: 4000, 274: 6}
    Image.new("RGBA", (4000, 4000)).save(files[4], compression="tiff_lzw", tiffinfo=one_strip_turned)
    for file, side, mode, pixel_bytes in ((files[5], 5000, "RGB", 3), (files[6], 3740, "RGBA;16", 8)):
        image = from_bytes(mode, (side, side), bytes(side * side * pixel_bytes))
        image.save(file, chroma=444, quality=30, enc_params={"preset": "ultrafast"})
    link, theirs = FORKED.Pipe(duplex=False)
    process = forked(measure, files, theirs)
    theirs.close()
    with link:
        peaks = {path: link.recv() for path in files[1:]}
    process.join()
    assert process.exitcode == 0
    assert 200e6 < max(peaks.values()) < 300e6, peaks
