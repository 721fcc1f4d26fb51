"""What is refused by its headers alone, and that the memory and time of a decode are what the header says at most."""

import io
import struct
import time
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from forked import FORKED, forked
from image_structures import (
    bmp,
    box,
    chunk,
    encoded,
    gif,
    heic_grid,
    jpeg_segment,
    part_of,
    png,
    scans,
    tiff,
    webp,
    webp_chunk,
    with_segments,
)
from PIL import Image
from pillow_heif import from_bytes

from dualnet.data.decode import UnreadableError, decoding, read_bytes
from dualnet.data.image_header import MAX_METADATA, read_header
from dualnet.machine import peak_main_memory

SIZE = 16


def read(data: bytes) -> np.ndarray:
    into = np.empty((SIZE, SIZE, 3), np.uint8)
    with decoding():
        read_bytes(data, into, "a")
    return into


SQUARE = Image.new("RGB", (64, 64), (200, 100, 50))
JPEG = encoded(SQUARE, "JPEG")
HEIC = encoded(SQUARE, "HEIF")


def with_place(heic: bytes) -> bytes:
    """The last item has three times the bytes of the file."""
    places = part_of(heic, b"iloc")
    return heic.replace(places, places[:-4] + struct.pack(">I", 3 * len(heic)))


def one_scan(width: int, height: int) -> bytes:
    """The first scan of a progressive JPEG, and no other."""
    data = scans(64, 64, 1)
    at = data.index(b"\xff\xc2") + 5
    data = data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]
    return data[: data.index(b"\xff\xc4", data.index(b"\xff\xda"))] + data[-2:]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a tile larger than the image": (
        lambda: tiff(10, 10, tile=(20_000, 20_000)),
        "400000000 pixels in the tiles of an image of 10 x 10",
    ),
    "a strip larger than the image": (
        lambda: tiff(10, 10, {322: (4, 30_000), 323: (4, 30_000)}),
        "900000000 pixels in the tiles",
    ),
    "many tiles of a thin image": (
        lambda: tiff(65_535, 1, tile=(16, 65_520)),
        "pixels in the tiles of an image of 65535 x 1",
    ),
    "tags of the same bytes": (
        lambda: tiff(64, 64, extra=[(tag, 1, 50_000, 8) for tag in range(40_000, 40_900)]) + bytes(50_000),
        "tags have more bytes than its file",
    ),
    "samples without end": (lambda: tiff(5000, 5000, {277: (3, 65_535)}), "would take .* MB, more than 550"),
    "strips without end": (lambda: tiff(10, 10, strips=100_000), "100000 strips or tiles, more than 65535"),
    "a size of another type": (lambda: tiff(10, 10, {256: (12, 10)}), "invalid headers"),
    "a tag twice": (lambda: tiff(10, 10, extra=[(256, 4, 1, 9)]), "two tags 256"),
    "a rare compression": (lambda: tiff(10, 10, {259: (3, 34_712)}), "compression 34712"),
    "scans without end": (lambda: scans(64, 64, 101), "more than 100 scans"),
    "an arithmetic JPEG": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc9"), "neither baseline nor progressive"),
    "a JPEG of segments": (lambda: with_segments(JPEG, jpeg_segment(0xFE, b"") * 2000), "too many small parts"),
    "metadata without end": (
        lambda: with_segments(JPEG, jpeg_segment(0xE1, b"Exif\0\0" + bytes(65_000)) * (MAX_METADATA // 65_000 + 1)),
        "more than 10 MB of metadata",
    ),
    "a PNG of chunks": (lambda: png(64, 64, before=chunk(b"abCd", b"") * 2000), "too many small parts"),
    "bytes between segments": (lambda: JPEG[:2] + b"\xff" * 2000 + JPEG[2:], "too many small parts"),
    "small segments in a long file": (
        lambda: with_segments(JPEG, *[jpeg_segment(0xE1, b"Exif\0\0" + bytes(990))] * 2000),
        "too many small parts",
    ),
    "profiles that expand": (
        lambda: png(64, 64, before=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 21),
        "21 compressed texts and profiles",
    ),
    "pixels without end": (lambda: png(8000, 8000), "8000 x 8000 is more than 50 megapixels"),
    "a long side": (lambda: png(70_000, 1), "70000 x 1 has a side of more than 65535"),
    "a GIF of blocks": (lambda: gif(8, 8, before=b"!\xfe" + b"\1a" * 2000 + b"\0"), "too many small parts"),
    "a GIF of blocks in a long file": (
        lambda: gif(8, 8, before=b"!\xfe" + (b"\xff" + bytes(255)) * 2000 + b"\0") + bytes(9_000_000),
        "too many small parts",
    ),
    "a frame larger than the picture": (lambda: gif(8, 8, frame=(60_000, 60_000)), "60000 x 60000 is more than 50"),
    "a WebP of chunks": (lambda: webp(8, 8, webp_chunk(b"TEST", b"") * 2000), "too many small parts"),
    "a canvas": (lambda: webp(16_000, 16_000), "16000 x 16000 is more than 50 megapixels"),
    "a WebP that takes much": (lambda: webp(6000, 6000), "6000 x 6000 would take 720 MB, more than 550"),
    "a compressed BMP": (lambda: bmp(50_000, 900, 8, 1, bytes(1000)), "run-length encoded"),
    "a grid of one tile": (lambda: heic_grid(SQUARE, 99, 99, 64, 64), "40144896 pixels in the tiles of an image of 64"),
    "a grid that lies": (lambda: heic_grid(SQUARE, 1, 1, 60_000, 900), "60000 x 900 is more than 50 megapixels"),
    "a HEIC of boxes": (lambda: HEIC[: HEIC[3]] + box(b"free", b"") * 5000 + HEIC[HEIC[3] :], "more than 2000 parts"),
    "the same bytes in many parts": (lambda: with_place(heic_grid(SQUARE, 2, 2, 100, 100)), "more bytes than the file"),
    "nothing": (lambda: png(0, 5), "0 x 5 has no pixels"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_take_long_or_much_is_refused(kind: str) -> None:
    make, reason = REFUSED[kind]
    data, start = make(), time.thread_time()  # an encoder may have threads that still end
    with pytest.raises(UnreadableError, match=reason):
        read(data)
    assert time.thread_time() - start < 0.5


def test_scans_are_counted_before_a_jpeg_of_the_right_size_is_decoded() -> None:
    data, into, start = scans(512, 512, 8000), np.empty((512, 512, 3), np.uint8), time.thread_time()
    with pytest.raises(UnreadableError, match="more than 100 scans"), decoding():
        read_bytes(data, into, "a")
    assert time.thread_time() - start < 0.5


@pytest.mark.parametrize(
    "data",
    [
        tiff(64, 64),
        tiff(64, 64, tile=(256, 256)),
        tiff(900, 700, tile=(512, 512), strips=4),
        scans(64, 64, 90),
        png(64, 64),
        gif(64, 64),
        heic_grid(SQUARE, 2, 2, 100, 100),
    ],
)
def test_ordinary_structures_are_read(data: bytes) -> None:
    assert read(data).shape == (SIZE, SIZE, 3)


def kinds(side: int) -> dict[str, bytes]:
    """Each format in the kinds that take most memory or time."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))
    deep, wide = io.BytesIO(), {278: side}
    from_bytes("RGBA;16", (side, side), bytes(side * side * 8)).save(
        deep, format="HEIF", chroma=444, quality=30, enc_params={"preset": "ultrafast"}
    )
    return {
        "jpeg": encoded(noise, "JPEG", quality=95),
        "progressive": scans(side, side, 100),
        "one scan": one_scan(side, side),
        "cmyk": encoded(noise.convert("CMYK"), "JPEG", progressive=True),
        "png": encoded(noise, "PNG", compress_level=1),
        "png colour": encoded(noise, "PNG", compress_level=1, transparency=(1, 2, 3)),
        "png alpha": encoded(Image.new("RGBA", noise.size), "PNG"),
        "palette": encoded(Image.new("P", noise.size), "PNG", transparency=0),
        "webp": encoded(noise, "WEBP", method=0),
        "lossless": encoded(noise, "WEBP", lossless=True, method=0, quality=0),
        "webp alpha": encoded(Image.new("RGBA", noise.size), "WEBP", method=0),
        "gif": encoded(Image.new("P", noise.size), "GIF", transparency=0),
        "strips": encoded(noise, "TIFF", compression="tiff_lzw"),
        "many strips": tiff(10, 65_535, {259: (3, 1), 278: (4, 1)}, strips=65_535, pixels=bytes(10)),
        "turned": encoded(noise.convert("RGBA"), "TIFF", compression="tiff_lzw", tiffinfo={**wide, 274: 6}),
        "jpeg in tiff": encoded(noise, "TIFF", compression="jpeg"),
        "fax": encoded(noise.convert("1"), "TIFF", compression="group4"),
        "bmp": encoded(noise, "BMP"),
        "heic": encoded(noise.convert("L").convert("RGB"), "HEIF", enc_params={"preset": "ultrafast"}),
        "heic deep": deep.getvalue(),
        "heic grid": heic_grid(noise.resize((512, 512)), 4, 4, side, side),
    }


def measure(images: dict[str, bytes], link: Connection) -> None:
    """Sends how much more memory each takes than this process had before, and its processor time."""
    read(encoded(SQUARE, "PNG"))  # imports and buffers are not the decode's
    for name, data in images.items():
        Path("/proc/self/clear_refs").write_text("5")
        before, start = peak_main_memory(), time.process_time()
        read(data)
        link.send((name, peak_main_memory() - before, time.process_time() - start))
    link.close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_the_header_says_what_a_decode_takes() -> None:
    side = 1500
    images = kinds(side)
    link, theirs = FORKED.Pipe(duplex=False)
    process = forked(measure, images, theirs)
    theirs.close()
    with link:
        taken = [link.recv() for _ in images]
    process.join()
    for name, memory, seconds in taken:
        header = read_header(images[name], SIZE)
        assert header is not None and memory < header.memory + 2_000_000, name
        assert seconds < 5 * header.seconds + 0.05, name  # other machines, and others on this one
