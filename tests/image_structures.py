"""Images built part by part, so that each part can be anything: tiles, scans, chunks, frames, palettes, EXIF, ICC.

As a script against a running service without a token: `python tests/image_structures.py PORT PROCESS 500`.
"""

import http.client
import io
import multiprocessing
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pillow_heif import register_heif_opener
from serving import form

Tag = tuple[int, int]  # type and value
BYTE, SHORT, LONG = 1, 3, 4


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    register_heif_opener()
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# PNG


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, before: bytes = b"", after: bytes = b"", colour: int = 0, interlaced: bool = False
) -> bytes:
    """All zeros, with chunks before and after the pixels. colour: 0 grey, 2 RGB, 3 palette, 6 RGBA."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, interlaced)
    row = 1 + width * {0: 1, 2: 3, 3: 1, 6: 4}[colour]
    pixels = zlib.compress(bytes(row * height * (2 if interlaced else 1)), 1)
    palette = chunk(b"PLTE", bytes(range(255)) * 3) if colour == 3 else b""
    parts = (chunk(b"IHDR", header), palette, before, chunk(b"IDAT", pixels), after, chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# JPEG


def jpeg_segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def scans(width: int, height: int, count: int, **options: Any) -> bytes:
    """A progressive JPEG, of which the last scan is repeated."""
    data = encoded(Image.new("RGB", (width, height), (200, 100, 50)), "JPEG", progressive=True, **options)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * max(0, count - data.count(b"\xff\xda")) + data[-2:]


def exif(entries: Sequence[tuple[int, int, int, int]], more: bytes = b"") -> bytes:
    """A directory of tag, type, count and value, and what the values refer to."""
    return b"II*\0" + directory(8, entries) + more


def directory(offset: int, entries: Sequence[tuple[int, int, int, int]]) -> bytes:
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return struct.pack("<IH", offset, len(entries)) + packed + bytes(4)


# TIFF


def tiff(
    width: int,
    height: int,
    tags: Mapping[int, Tag] | None = None,
    extra: Sequence[tuple[int, int, int, int]] = (),
    tile: tuple[int, int] | None = None,
    strips: int = 1,
    pixels: bytes | None = None,
) -> bytes:
    """All zeros, grey, compressed; `tags` replace others, `extra` come beside them."""
    size = tile or (width, height)
    if pixels is None:
        pixels = zlib.compress(bytes(min(size[0] * size[1], 1 << 24)))
    values = {
        256: (LONG, width),
        257: (LONG, height),
        258: (SHORT, 8),
        259: (SHORT, 8),
        262: (SHORT, 1),
        277: (SHORT, 1),
    }
    values |= {322: (LONG, tile[0]), 323: (LONG, tile[1])} if tile else {278: (LONG, height)}
    values |= tags or {}
    entries = [(tag, kind, 1, value) for tag, (kind, value) in values.items()]
    places = [(324, 325) if tile else (273, 279)][0]
    end = 8 + 2 + 12 * (len(entries) + len(extra) + 2) + 4
    lists = [struct.pack(f"<{strips}I", *([value] * strips)) for value in (end + 8 * strips, len(pixels))]
    for number, (place, value) in enumerate(zip(places, (end, len(pixels)), strict=True)):
        entries.append((place, LONG, strips, end + number * 4 * strips if strips > 1 else value))
    lists = lists if strips > 1 else []
    return exif(sorted([*entries, *extra]), b"".join(lists) + pixels)


# GIF, WebP, BMP


def gif(width: int, height: int, before: bytes = b"", frame: tuple[int, int] | None = None) -> bytes:
    """`before` are extensions, `frame` is another size of the first frame."""
    data = encoded(Image.new("P", (width, height)), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    place = data.index(b",", start)
    descriptor = struct.pack("<HH", *frame) if frame else data[place + 5 : place + 9]
    return data[:start] + before + data[start : place + 5] + descriptor + data[place + 9 :]


def riff(body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def webp(width: int, height: int, *chunks: bytes, canvas: tuple[int, int] | None = None) -> bytes:
    """Lossless, of one colour: each code has one symbol, so that pixels take no bits. With chunks also a canvas."""
    codes = "000" + "1000" * 5  # neither transforms nor caches
    bits = codes[::-1] + f"{0b0001:04b}{height - 1:014b}{width - 1:014b}"
    data = b"\x2f" + int(bits, 2).to_bytes(8, "little")
    picture = webp_chunk(b"VP8L", data)
    if not chunks and canvas is None:
        return riff(picture)
    sides = b"".join((side - 1).to_bytes(3, "little") for side in canvas or (width, height))
    return riff(webp_chunk(b"VP8X", bytes(4) + sides) + picture + b"".join(chunks))


def bmp(width: int, height: int, bits: int, compression: int, data: bytes) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, 0, 0)
    palette = bytes(4 << bits) if bits <= 8 else b""
    offset = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + header + palette + data


# HEIC


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + kind + content


def full_box(kind: bytes, content: bytes, version: int = 0) -> bytes:
    return box(kind, struct.pack(">Bxxx", version) + content)


def heic_grid(tile: Image.Image, rows: int, columns: int, width: int, height: int) -> bytes:
    """A picture made of one tile, again and again."""
    encoded_tile = encoded(tile, "HEIF", quality=50, enc_params={"preset": "ultrafast"})
    configuration, pixels = (part_of(encoded_tile, kind) for kind in (b"hvcC", b"mdat"))
    grid = struct.pack(">BBBBII", 0, 1, rows - 1, columns - 1, width, height)
    kinds = [full_box(b"infe", struct.pack(">HH4sx", *each), 2) for each in ((1, 0, b"hvc1"), (2, 0, b"grid"))]
    tiles = box(b"dimg", struct.pack(f">HH{rows * columns}H", 2, rows * columns, *[1] * (rows * columns)))
    sizes = [full_box(b"ispe", struct.pack(">II", *size)) for size in (tile.size, (width, height))]
    of_items = struct.pack(">IHBBBHBB", 2, 1, 2, 0x81, 2, 2, 1, 3)
    properties = box(b"ipco", b"".join([configuration, *sizes])) + full_box(b"ipma", of_items)
    start = box(b"ftyp", b"heic\0\0\0\0mif1heic")
    places = [(1, 0, 1, 0, len(pixels) - 8), (2, 0, 1, len(pixels) - 8, len(grid))]

    def described(first: int) -> bytes:
        located = b"".join(struct.pack(">HHHII", *each[:3], first + each[3], each[4]) for each in places)
        parts = [
            full_box(b"hdlr", bytes(4) + b"pict" + bytes(13)),
            full_box(b"pitm", struct.pack(">H", 2)),
            full_box(b"iloc", struct.pack(">BBH", 0x44, 0, 2) + located),
            full_box(b"iinf", struct.pack(">H", 2) + b"".join(kinds)),
            full_box(b"iref", tiles),
            box(b"iprp", properties),
        ]
        return start + full_box(b"meta", b"".join(parts))

    return described(len(described(0)) + 8) + box(b"mdat", pixels[8:] + grid)


def part_of(data: bytes, kind: bytes) -> bytes:
    """A box with its head."""
    at = data.index(kind) - 4
    return data[at : at + struct.unpack_from(">I", data, at)[0]]


# At random


def log_uniform(draw: random.Random, low: float, high: float) -> int:
    return round(low * (high / low) ** draw.random())


def sides(draw: random.Random, most: float = 12_000) -> tuple[int, int]:
    return log_uniform(draw, 1, most), log_uniform(draw, 1, most)


def random_jpeg(draw: random.Random) -> bytes:
    """Scans without end, a header that lies about its size, segments without end, EXIF that refers to itself."""
    width, height = sides(draw, 4000)
    kind = draw.randrange(5)
    if kind == 0:
        return scans(width, height, log_uniform(draw, 1, 3000), subsampling=draw.choice((0, 2)))
    small = encoded(Image.effect_noise((48, 48), 90).convert("RGB"), "JPEG", progressive=draw.random() < 0.5)
    if kind == 1:
        at = small.index(b"\x00\x30\x00\x30")
        return small[:at] + struct.pack(">HH", *sides(draw, 65_535)) + small[at + 4 :]
    if kind == 2:
        return with_segments(
            small, jpeg_segment(draw.randrange(0xE0, 0xFF), draw.randbytes(draw.choice((0, 9)))) * 20_000
        )
    if kind == 3:
        entries = [(tag, BYTE, 60_000, 0) for tag in range(1, 4000)]
        return with_segments(
            small, *[jpeg_segment(0xE1, b"Exif\0\0" + exif(entries, bytes(10_000)))] * draw.choice((1, 99))
        )
    profile = b"ICC_PROFILE\0\1\1" + draw.randbytes(60_000)
    return with_segments(small, *[jpeg_segment(0xE2, profile)] * log_uniform(draw, 1, 200))


def random_png(draw: random.Random) -> bytes:
    """Chunks without end, compressed text and profiles that expand, frames, palettes, any size."""
    width, height = sides(draw, 9000) if draw.random() < 0.5 else sides(draw, 500)
    while width * height > 60_000_000:
        width //= 2
    bomb = zlib.compress(bytes(50_000_000), 1)
    frame = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 0, 0)
    parts = {
        "tiny": chunk(b"teSt", b"") * log_uniform(draw, 1, 100_000),
        "text": chunk(b"zTXt", b"a\0\0" + bomb) * log_uniform(draw, 1, 50),
        "profile": chunk(b"iCCP", b"a\0\0" + bomb),
        "colour": chunk(b"tRNS", bytes(6)),
        "exif": chunk(b"eXIf", exif([(tag, BYTE, 60_000, 0) for tag in range(1, 5000)], bytes(10_000))),
        "frames": chunk(b"acTL", struct.pack(">II", 1 << 31, 0)) + chunk(b"fcTL", frame),
        "empty": chunk(b"IDAT", b"") * log_uniform(draw, 1, 100_000),
        "none": b"",
    }
    before, after = (parts[draw.choice([*parts])] for _ in range(2))
    return png(width, height, before, after, draw.choice((0, 2, 3, 6)), interlaced=draw.random() < 0.2)


def random_tiff(draw: random.Random) -> bytes:
    """Tiles and strips of any size and number, samples, compressions, orientations, tags without end."""
    width, height = sides(draw, 8000)
    tags = {
        258: (SHORT, draw.choice((1, 8, 8, 16, 32))),
        259: (SHORT, draw.choice((1, 5, 7, 8, 8, 50_000, 34_712))),
        262: (SHORT, draw.choice((0, 1, 2, 3, 5, 6))),
        274: (SHORT, draw.randrange(10)),
        277: (SHORT, draw.choice((1, 1, 3, 4, 65_535))),
    }
    chosen = {tag: value for tag, value in tags.items() if draw.random() < 0.5}
    extra = [(tag, BYTE, 10_000, 0) for tag in range(40_000, 40_000 + draw.choice((0, 0, 900, 20_000)))]
    tile = None if draw.random() < 0.5 else sides(draw, 30_000)
    if draw.random() < 0.2:
        width, height, tile = 65_535, log_uniform(draw, 1, 500), (16, 65_520)
    return tiff(width, height, chosen, extra, tile, log_uniform(draw, 1, 500_000)) + bytes(draw.choice((0, 10_000)))


def random_gif(draw: random.Random) -> bytes:
    """Blocks and frames without end, a frame larger than the picture."""
    blocks = b"!\xfe" + b"\1a" * log_uniform(draw, 1, 500_000) + b"\0"
    data = gif(
        *sides(draw, 3000), blocks if draw.random() < 0.3 else b"", sides(draw, 65_535) if draw.random() < 0.5 else None
    )
    return data[:-1] + data[13:-1] * log_uniform(draw, 1, 50) + b";" if len(data) < 100_000 else data


def random_webp(draw: random.Random) -> bytes:
    """One colour, few bytes, many pixels; chunks and frames without end; a canvas of another size."""
    width, height = sides(draw, 16_384)
    if draw.random() < 0.4:
        return webp(width, height)
    tiny = webp_chunk(draw.choice((b"ANMF", b"TEST", b"ALPH")), bytes(draw.choice((0, 16)))) * log_uniform(
        draw, 1, 100_000
    )
    metadata = webp_chunk(b"EXIF", exif([(tag, BYTE, 60_000, 0) for tag in range(1, 60_000)], bytes(70_000)))
    return webp(width, height, draw.choice((tiny, metadata, b"")), canvas=draw.choice((None, sides(draw, 100_000))))


def random_bmp(draw: random.Random) -> bytes:
    """Any size, run lengths that jump, pixels that are missing."""
    width, height = sides(draw, 50_000)
    bits = draw.choice((1, 4, 8, 24, 32))
    return bmp(
        width, draw.choice((1, -1)) * height, bits, draw.choice((0, 0, 1, 2, 3)), b"\0\2\xff\xff" * draw.randrange(9000)
    )


def random_heic(draw: random.Random) -> bytes:
    """A header that lies about the size, a grid of more or larger tiles than it has place for."""
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    kind = draw.randrange(3)
    if kind == 0:
        tile = noise.resize([log_uniform(draw, 64, 4096)] * 2)
        return heic_grid(tile, draw.randrange(1, 40), draw.randrange(1, 40), *sides(draw, 16_000))
    data = encoded(noise, "HEIF", enc_params={"preset": "ultrafast"})
    start = data.index(b"ispe") + 8
    return data[:start] + struct.pack(">II", *sides(draw, 20_000)) + data[start + 8 :] if kind == 1 else data


def random_photo(draw: random.Random) -> bytes:
    """Nothing is wrong with it, but it is large or deep."""
    side = log_uniform(draw, 100, 2500)
    noise = Image.fromarray(np.random.default_rng(draw.randrange(99)).integers(0, 256, (side, side, 3), dtype=np.uint8))
    kind = draw.choice(("JPEG", "JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"))
    options = {
        "PNG": {"compress_level": 1},
        "WEBP": {"method": 0},
        "JPEG": {"progressive": draw.random() < 0.5, "quality": 85},
    }
    return encoded(noise.convert("P") if kind == "GIF" else noise, kind, **options.get(kind, {}))


def damaged(draw: random.Random) -> bytes:
    data = bytearray(draw.choice(KINDS[:-1])(draw))
    for _ in range(draw.randrange(1, 30)):
        data[draw.randrange(min(len(data), draw.choice((100, 1 << 30))))] = draw.randrange(256)
    return bytes(data)


Kind = Callable[[random.Random], bytes]
KINDS: list[Kind] = [
    random_jpeg, random_png, random_tiff, random_gif, random_webp, random_bmp, random_heic, random_photo, damaged
]  # fmt: skip
MOST_BYTES = 19_000_000  # the service takes 20 MB


def random_images(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Each kind in turn, with its name."""
    draw = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        yield kind.__name__, kind(draw)[:MOST_BYTES]


# Against a service

PHOTO = encoded(Image.effect_noise((320, 240), 60).convert("RGB"), "JPEG")


def post(port: int, image: bytes) -> tuple[int, float]:
    """Status and seconds of a prediction."""
    body, kind = form({}, image)
    link, start = http.client.HTTPConnection("127.0.0.1", port, timeout=60), time.monotonic()
    try:
        link.request("POST", "/v1/predict", body, {"Content-Type": kind})
        response = link.getresponse()
        response.read()
        return response.status, time.monotonic() - start
    finally:
        link.close()


def latencies(port: int, work: Future[Any]) -> list[float]:
    """Seconds of predictions of a small photo, one after the other, until something else is done."""
    seconds = []
    while not work.done():
        status, taken = post(port, PHOTO)
        assert status == 200, status
        seconds.append(taken)
    return seconds


def beside(port: int, images: Sequence[tuple[str, bytes]]) -> tuple[list[float], list[tuple[float, int, str]]]:
    """Seconds of the predictions while two clients send these images without pause, and what they got."""
    SENT[:] = images[::2], images[1::2]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:  # they inherit what they send
        sent = [pool.submit(send, port, part) for part in range(2)]
        seconds = [each for work in sent for each in latencies(port, work)]
        return seconds, [result for work in sent for result in work.result()]


SENT: list[Sequence[tuple[str, bytes]]] = []  # the images of each client


def send(port: int, part: int) -> list[tuple[float, int, str]]:
    """Seconds, status and kind of each image of a part."""
    results = [(kind, *post(port, image)) for kind, image in SENT[part]]
    return [(seconds, status, kind) for kind, status, seconds in results]


def memory(process: int, key: str) -> int:
    """Megabytes: VmRSS, or VmHWM for the largest so far."""
    return int(Path(f"/proc/{process}/status").read_text().partition(f"{key}:")[2].split()[0]) // 1024


def family(process: int) -> list[int]:
    """The process and those that it has started."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [process, *(each for file in files for child in file.read_text().split() for each in family(int(child)))]


def main(port: int, process: int, count: int) -> None:
    """The latency of predictions alone, beside ordinary photos and beside hostile images, and what these took."""
    images = list(random_images(count))
    with ThreadPoolExecutor() as pool:
        alone = latencies(port, pool.submit(time.sleep, 20))
    ordinary, _ = beside(port, [("photo", PHOTO)] * count)
    idle = {each: memory(each, "VmRSS") for each in family(process)}
    for each in idle:
        Path(f"/proc/{each}/clear_refs").write_text("5")
    hostile, results = beside(port, images)
    for name, seconds in {"alone": alone, "beside ordinary photos": ordinary, "beside hostile images": hostile}.items():
        p50, p99, longest = 1000 * np.percentile(seconds, [50, 99, 100])
        print(f"{name}: {len(seconds)} predictions, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms")
    print("hostile:", Counter(status for _, status, _ in results), "longest", max(results))
    for each in family(process):
        print(f"process {each}: {idle.get(each, 0)} MB idle, at most {memory(each, 'VmHWM')} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
