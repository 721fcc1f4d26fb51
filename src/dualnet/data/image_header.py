"""What the decoding of an image takes, read from its file before any decoder is: damaged and hostile files are refused.

What a decode takes is measured on the kinds of files that take most (`tests/data/test_image_header.py`).
"""

import math
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from dualnet.data.heic_pixels import stored_pixels

MAX_SIDE, MAX_PIXELS = 65_535, 50_000_000
MAX_MEMORY = 550_000_000  # bytes that a decode may take, with the file
MAX_SCANS = 100  # of a JPEG: cameras and websites write up to 15
MAX_METADATA = 10_000_000  # bytes of a JPEG before its picture

MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # of a JPEG: within a scan 0xff is followed by 0 or a restart
FRAMES = (0xC0, 0xC1, PROGRESSIVE := 0xC2)  # markers of baseline, extended and progressive JPEGs
SCAN, END, ALONE = 0xDA, 0xD9, (0x01, 0xD8)
PNG_BYTES = {0: 4.2, 2: 4.2, 3: 5.2, 4: 8.2, 6: 8.2}  # of a pixel, by type: grey, RGB, palette, grey and RGB with alpha
TIFF_COMPRESSIONS = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)  # none, CCITT, LZW, JPEG, Deflate, PackBits
TIFF_TAGS = (
    256,
    257,
    258,
    259,
    274,
    277,
    278,
    322,
    323,
)  # sides to orientation, samples, rows, sides of tiles
TIFF_VALUES = {1: "B", 3: "H", 4: "I"}  # by their type
TIFF_BYTES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}  # others have 1
MAX_STRIPS, STRIP_BYTES, STRIP_NS = 65_535, 350, 5000  # of a TIFF
HEIC_SIZE = re.compile(rb"ispe\0{4}(.{8})", re.DOTALL)
HEIC_DEPTH = re.compile(rb"hvcC\x01.{16}(.)", re.DOTALL)  # bits of luminance - 8
MAX_TILING, MAX_TILED_PIXELS = 4, 75_000_000  # of tiles: times the image; all of them, also if the image has fewer
TILE_PIXELS = 1 << 20  # of a large tile: the tiles of a small image may have as much as four
MAX_COMPRESSED = 20  # texts and profiles of a PNG, each of which may expand to 1 MB
MAX_PARTS = 1000  # segments, chunks, blocks or tags, and one more for each kB


class Header(NamedTuple):
    """Format, size in pixels, and what a decode takes: bytes of memory and about how many seconds."""

    format: str  # as Pillow calls it
    width: int
    height: int
    bytes_per_pixel: float
    ns_per_pixel: float
    ns_per_byte: float  # of the file
    file_bytes: int

    @property
    def memory(self) -> int:
        return round(self.width * self.height * self.bytes_per_pixel) + self.file_bytes

    @property
    def seconds(self) -> float:
        return 1e-9 * (self.width * self.height * self.ns_per_pixel + self.file_bytes * self.ns_per_byte)

    def check(self) -> None:
        if problem := self.problem():
            raise ValueError(f"{self.width} x {self.height} {problem}")

    def problem(self) -> str:
        if not self.width * self.height:
            return "has no pixels"
        if self.width * self.height > MAX_PIXELS:
            return f"is more than {MAX_PIXELS / 1e6:g} megapixels"
        if max(self.width, self.height) > MAX_SIDE:
            return f"has a side of more than {MAX_SIDE} pixels"
        if self.memory > MAX_MEMORY:
            return f"would take {self.memory / 1e6:.0f} MB, more than {MAX_MEMORY / 1e6:g}"
        return ""


def read_header(data: bytes, size: int) -> Header | None:
    """The header of an image that is to be reduced to a square of that size; None for other formats.

    Raises ValueError if decoding would exceed a limit.
    """
    formats = [(name, read) for name, (start, read) in FORMATS.items() if start.match(data)]
    if not formats:
        return None
    name, read = formats[0]
    try:
        values = read(data, size)
    except (struct.error, LookupError, StopIteration):
        raise ValueError("truncated, or with invalid headers") from None
    header = Header(name, *values, len(data))
    header.check()
    return header


Values = tuple[int, int, float, float, float]  # width, height, bytes and ns per pixel, ns per byte


def jpeg(data: bytes, size: int) -> Values:
    """Up to its end: there may be more images after it."""
    width = height = scans = 0
    is_progressive, position, number = False, 2, 0
    while (match := MARKER.search(data, position)) and (marker := match[0][1]) != END:
        number += 1 if scans else 1 + match.start() - position  # bytes between segments are read one by one
        position = match.end()
        if marker in FRAMES:
            height, width = struct.unpack_from(">HH", data, position + 3)
            is_progressive = marker == PROGRESSIVE
        elif marker == SCAN:
            scans += 1
        elif scans == 0 and position > MAX_METADATA:
            raise ValueError(f"more than {MAX_METADATA / 1e6:g} MB of metadata")
        if scans > MAX_SCANS:
            raise ValueError(f"a JPEG of more than {MAX_SCANS} scans")
        check_parts(number, position if scans else 0)
        if marker not in ALONE:
            position += int.from_bytes(data[position : position + 2])
    if not width:
        raise ValueError("a JPEG that is truncated, or neither baseline nor progressive")
    scale = max(step for step in (1, 2, 4, 8) if step == 1 or min(width, height) >= step * 2 * size)
    if scans > 1 or is_progressive:  # all coefficients are kept in memory
        return width, height, 8.2 + 8 / scale**2, 1 + 0.6 * scans, 32
    return width, height, 0.3 + 8 / scale**2, 1, 5.5


def png(data: bytes, _: int) -> Values:
    width, height = struct.unpack_from(">II", data, 16)
    position, number, compressed, has_transparency = 8, 0, 0, False  # as one of its colours
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        has_transparency |= kind == b"tRNS"
        compressed += kind in (b"zTXt", b"iTXt", b"iCCP")
        check_parts(number := number + 1, position)
        position += 12 + length
    if compressed > MAX_COMPRESSED:
        raise ValueError(f"a PNG of {compressed} compressed texts and profiles, more than {MAX_COMPRESSED}")
    return width, height, PNG_BYTES[data[25]] + 8 * has_transparency, 15, 0


def gif(data: bytes, _: int) -> Values:
    width, height = struct.unpack_from("<HH", data, 6)
    position, number = 13 + color_table(data[10]), 0
    while data[position] == 0x21:  # an extension: blocks, each after its length
        position += 2
        while length := data[position]:
            check_parts(number := number + 1, position)
            position += 1 + length
        position += 1
    if data[position] != 0x2C:
        raise ValueError("a GIF without a picture")
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, position + 1)
    return max(width, left + frame_width), max(height, top + frame_height), 9.2, 10, 0


def color_table(flags: int) -> int:
    """Its bytes."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def webp(data: bytes, _: int) -> Values:
    position, number = 12, 0
    while position + 8 <= len(data):
        check_parts(number := number + 1, position)
        (length,) = struct.unpack_from("<I", data, position + 4)
        position += 8 + length + length % 2
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    return width, height, 20, 10, 45


def bmp(data: bytes, _: int) -> Values:
    if struct.unpack_from("<I", data, 14)[0] == 12:  # of OS/2
        return *struct.unpack_from("<HH", data, 18), 5.2, 6, 0
    width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if compression in (1, 2):
        raise ValueError("a run-length encoded BMP; save it as PNG")
    return width, abs(height), 8.2 if bits == 32 else 5.2, 6, 0


def tiff(data: bytes, _: int) -> Values:
    """Of the first image. Strips and tiles are decoded as a whole."""
    tags = tiff_tags(data)
    width, height, samples = tags[256], tags[257], tags.get(277, 1)
    if tags.get(259, 1) not in TIFF_COMPRESSIONS:
        raise ValueError(f"a TIFF of compression {tags[259]}; save it without compression, or as PNG")
    part_width, part_height = tags.get(322, width), min(tags.get(323, tags.get(278, height)), MAX_SIDE)
    if 322 not in tags:
        part_height = min(part_height, height)
    stored = round_up(width, part_width) * round_up(height, part_height)
    check_stored(stored, width, height)
    pixels = max(1, width * height)
    part_bytes = part_width * part_height * samples * tags.get(258, 1) / 8
    turned = 4 * (tags.get(274, 1) != 1)
    converted = 4 * (samples != 3)  # of grey, palettes and alpha
    strips = max(tags[273], tags[324])
    bytes_per_pixel = 4.2 + turned + max(converted, part_bytes / pixels) + STRIP_BYTES * strips / pixels
    ns_per_byte = STRIP_NS * strips / len(data)
    return width, height, bytes_per_pixel, (80 if tags.get(259) == 7 else 18) * stored / pixels, ns_per_byte


def round_up(side: int, part: int) -> int:
    return math.ceil(side / max(1, part)) * part


def tiff_tags(data: bytes) -> dict[int, int]:
    """First value of the tags of the first image that are numbers; of its strips and tiles the number.

    Raises ValueError if there are too many values.

    Decoders copy the values of all tags, which may be the same bytes of the file many times.
    """
    order = "<" if data[:2] == b"II" else ">"
    start = struct.unpack_from(order + "I", data, 4)[0]
    (number,) = struct.unpack_from(order + "H", data, start)
    check_parts(number, len(data))
    tags, value_bytes = {273: 0, 324: 0}, 0
    for at in range(start + 2, start + 2 + 12 * number, 12):
        tag, kind, count, value = struct.unpack_from(order + "HHII", data, at)
        if tag in (273, 324):
            tags[tag] = max(tags[tag], count)
            if count > MAX_STRIPS:
                raise ValueError(f"a TIFF of {count} strips or tiles, more than {MAX_STRIPS}")
        value_bytes += count * TIFF_BYTES.get(kind, 1)
        if value_bytes > len(data):
            raise ValueError("a TIFF whose tags have more bytes than its file")
        if tag in TIFF_TAGS:
            if tag in tags:
                raise ValueError(f"a TIFF with two tags {tag}")
            code = TIFF_VALUES[kind]
            is_inside = count * struct.calcsize(code) <= 4
            tags[tag] = struct.unpack_from(order + code, data, at + 8 if is_inside else value)[0]
    return tags


def heic(data: bytes, _: int) -> Values:
    """The largest of its images, which may be parts of a grid."""
    sizes = [struct.unpack(">II", size) for size in HEIC_SIZE.findall(data)]
    width, height = max(sizes, key=math.prod, default=(0, 0))
    depths = [ord(bits) & 7 for bits in HEIC_DEPTH.findall(data)]
    stored = stored_pixels(data, width * height)
    check_stored(stored, width, height)
    more = max(1, stored / max(1, width * height))
    return width, height, more * (21 if any(depths) or not depths else 9.4), more * 11, 45


def check_stored(stored: int, width: int, height: int) -> None:
    """Tiles are decoded as a whole, and each as often as it is used."""
    if stored > min(MAX_TILING * max(width * height, TILE_PIXELS), max(MAX_TILED_PIXELS, width * height)):
        raise ValueError(f"{stored} pixels in the tiles of an image of {width} x {height}")


def check_parts(number: int, length: int) -> None:
    """Decoders handle segments, chunks, blocks and tags, of so many bytes together, one by one in Python."""
    if number > MAX_PARTS + length // 1000:
        raise ValueError("an image of too many small parts")


Read = Callable[[bytes, int], Values]
FORMATS: dict[str, tuple[re.Pattern[bytes], Read]] = {  # with a pattern of the first bytes
    "JPEG": (re.compile(rb"\xff\xd8\xff"), jpeg),
    "PNG": (re.compile(rb"\x89PNG\r\n\x1a\n"), png),
    "BMP": (re.compile(rb"BM"), bmp),
    "WEBP": (re.compile(rb"RIFF.{4}WEBPVP8", re.DOTALL), webp),
    "GIF": (re.compile(rb"GIF8[79]a"), gif),
    "TIFF": (re.compile(rb"II\*\0|MM\0\*"), tiff),
    "HEIF": (re.compile(rb".{4}ftyp", re.DOTALL), heic),
}
