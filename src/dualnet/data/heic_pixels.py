"""How many pixels a HEIC file stores for its picture, which may be made of others, each of them any number of times."""

import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

MAX_DESCRIPTION = 200_000  # bytes of the box that says what the file holds
MAX_BOXES = 2000  # in a box
MAX_REPEATED = 2  # times the bytes of the file, which items have together
MAX_DEPTH = 4  # of pictures made of pictures

Lists = dict[int, list[int]]


def stored_pixels(data: bytes, largest: int) -> int:
    """Of the primary picture and of those that belong to it, such as its transparency.

    `largest` is that of a picture of unknown size. Raises struct.error, LookupError or ValueError for a damaged file.
    """
    content = next(content for kind, content in boxes(data, 0) if kind == b"meta")
    if len(content) > MAX_DESCRIPTION:
        raise ValueError(f"more than {MAX_DESCRIPTION} bytes that describe its parts")
    meta = dict(boxes(content, 4))
    check_places(meta[b"iloc"], len(data))
    version, number = meta[b"pitm"][0], Numbers(meta[b"pitm"])
    primary = number.take("I" if version else "H")
    sizes = picture_sizes(meta[b"iprp"])
    made_of, belonging = references(meta.get(b"iref", bytes(4)))

    @cache
    def pixels(item: int, depth: int = 0) -> int:
        if depth > MAX_DEPTH:
            raise ValueError("pictures made of pictures without end")
        parts = made_of.get(item)
        return sum(pixels(part, depth + 1) for part in parts) if parts else sizes.get(item, largest)

    return pixels(primary) + sum(pixels(item) for item, others in belonging.items() if primary in others)


def boxes(data: bytes, start: int) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of those in a box."""
    for _ in range(MAX_BOXES):
        if start + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if length == 1:
            length, head = struct.unpack_from(">Q", data, start + 8)[0], 16
        length = length or len(data) - start
        if length < head:
            raise ValueError("a part that is smaller than its head")
        yield kind, data[start + head : start + length]
        start += length
    raise ValueError(f"more than {MAX_BOXES} parts")


class Numbers:
    """Takes one number after the other from the content of a box, after its version and flags."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 4

    def take(self, code: str) -> int:
        (number,) = struct.unpack_from(f">{code}", self.content, self.place)
        self.place += struct.calcsize(code)
        return number


def check_places(content: bytes, file_bytes: int) -> None:
    """Raises ValueError if items have more bytes than the file: the same ones many times, which decoders copy."""
    version, numbers, total = content[0], Numbers(content), 0
    widths = numbers.take("H")
    offset, length, base, index = (widths >> shift & 15 for shift in (12, 8, 4, 0))
    if not {offset, length, base, index} <= {0, 4, 8}:
        raise ValueError("places of another width")
    for _ in range(numbers.take("I" if version == 2 else "H")):
        numbers.place += (4 if version == 2 else 2) + (2 if version else 0) + 2 + base
        for _ in range(numbers.take("H")):
            numbers.place += offset + (index if version else 0)
            total += (numbers.take("Q" if length == 8 else "I") if length else 0) or file_bytes
            if total > MAX_REPEATED * file_bytes:
                raise ValueError("parts that have more bytes than the file")


def picture_sizes(content: bytes) -> dict[int, int]:
    """The pixels of pictures."""
    properties = list(boxes(next(inner for kind, inner in boxes(content, 0) if kind == b"ipco"), 0))
    sizes: dict[int, int] = {}
    for associations in [inner for kind, inner in boxes(content, 0) if kind == b"ipma"]:
        is_long, is_wide = associations[0] > 0, associations[3] & 1 > 0
        numbers = Numbers(associations)
        for _ in range(numbers.take("I")):
            item = numbers.take("I" if is_long else "H")
            for _ in range(numbers.take("B")):
                index = numbers.take("H") & 0x7FFF if is_wide else numbers.take("B") & 0x7F
                if 0 < index <= len(properties) and properties[index - 1][0] == b"ispe":
                    width, height = struct.unpack_from(">II", properties[index - 1][1], 4)
                    sizes[item] = width * height
    return sizes


def references(content: bytes) -> tuple[Lists, Lists]:
    """Of what pictures others are made, and to what pictures others belong."""
    code = "I" if content[0] else "H"
    found: dict[bytes, Lists] = {b"dimg": defaultdict(list), b"auxl": defaultdict(list)}
    for kind, inner in boxes(content, 4):
        if kind in found:
            (item, count), first = struct.unpack_from(f">{code}H", inner), struct.calcsize(f">{code}H")
            found[kind][item] += struct.unpack_from(f">{count}{code}", inner, first)
    return found[b"dimg"], found[b"auxl"]
