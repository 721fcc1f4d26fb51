"""Hypothesis strategies for images in all supported forms, with their colours, and for objects that are no images."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

SIDE = 28
COLOURS = [(255, 0, 0), (0, 0, 255), (200, 100, 50), (0, 0, 0), (255, 255, 255)]
GREY = (90, 90, 90)
Given = tuple[Any, tuple[int, int, int] | None]  # an image, and its colour where it can be read in one way only

sizes = st.integers(1, 40)
colours = st.sampled_from(COLOURS)


def in_file(colour: tuple[int, int, int], size: tuple[int, int], kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGB", size, colour)
    (image.quantize() if mode == "P" else image.convert(mode)).save(file, kind)
    return file.getvalue()


FILES = [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"), ("JPEG", "CMYK"), ("BMP", "RGB")]
FILES += [("GIF", "P"), ("TIFF", "RGB"), ("TIFF", "RGBA"), ("TIFF", "CMYK"), ("WEBP", "RGB")]
files = st.builds(
    lambda colour, width, height, kind: (in_file(colour, (width, height), *kind), colour),
    colours,
    sizes,
    sizes,
    st.sampled_from(FILES),
)
pillow = st.builds(
    lambda colour, width, height, mode: (Image.new("RGB", (width, height), colour).convert(mode), colour),
    colours,
    sizes,
    sizes,
    st.sampled_from(["RGB", "RGBA", "CMYK", "HSV", "YCbCr"]),
)
grey = st.builds(
    lambda width, height, mode: (Image.new(mode[0], (width, height), mode[1]), GREY),
    sizes,
    sizes,
    st.sampled_from([("L", 90), ("I;16", 90 << 8), ("I", 90 << 8)]),
)
DTYPES: dict[str, Callable[[np.ndarray], Any]] = {
    "uint8": lambda array: array,
    "read-only": lambda array: np.broadcast_to(array, array.shape),
    "float32": lambda array: (array / 255).astype(np.float32),
    "float64": lambda array: array / 255,
    "tensor uint8": torch.from_numpy,
    "tensor float": lambda array: torch.from_numpy(array) / 255,
    "tensor bfloat16": lambda array: (torch.from_numpy(array) / 255).bfloat16(),
}


def in_array(colour: tuple[int, int, int], height: int, width: int, layout: str, dtype: str) -> Given:
    array = np.broadcast_to(np.array(colour, np.uint8), (height, width, 3))
    if layout != "HWC":
        array = array.transpose(2, 0, 1) if layout == "CHW" else array[:, :, :1] if layout == "HW1" else array[:, :, 0]
    one_way = layout == "HW" or sum(array.shape[side] in (1, 3) for side in (0, 2)) == 1
    seen = colour if layout in ("HWC", "CHW") else (colour[0],) * 3
    return DTYPES[dtype](np.array(array, order="C")), seen if one_way else None


layouts, dtypes = st.sampled_from(["HWC", "CHW", "HW", "HW1"]), st.sampled_from(list(DTYPES))
arrays = st.builds(in_array, colours, sizes, sizes, layouts, dtypes)
unreadable = st.sampled_from(
    [b"", b"no image", "/nowhere/1.png", Path("/nowhere"), "", "a\0b.png", Image.new("F", (3, 3))]
)
shapes = st.lists(st.integers(0, 5), max_size=5)
nonsense = st.one_of(
    st.sampled_from([None, 7, 2.5, ["a"], {}, object, np.float32(1), "x" * 5000, "a\nb"]),
    st.builds(np.zeros, shapes, st.sampled_from([np.uint8, np.int64, bool, np.float16, complex, "U3", "O"])),
    st.builds(lambda shape, value: torch.full(shape, value), shapes, st.sampled_from([2.0, -1.0, np.nan, 3, True])),
)
images = st.one_of(files, pillow, grey, arrays)
