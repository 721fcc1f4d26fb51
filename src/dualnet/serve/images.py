"""Images of requests: bytes to the pixels that the model sees, and back to a small picture."""

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from dualnet.data.decode import FORMATS, UnreadableError, read_bytes


def decoded(data: bytes, size: int, most_pixels: int, name: str) -> np.ndarray:
    """uint8 [3, size, size]: turned as its EXIF tag says, the square in its middle. Call it inside `decoding`.

    No other tag is read, and none is kept. Raises ValueError for what is no image, or has too many pixels.
    """
    try:
        with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:  # reads the header alone
            width, height = image.size
    except Exception as error:  # whatever Pillow raises for damaged files
        raise ValueError(f"{name}: not an image that can be read; send {', '.join(FORMATS)}") from error
    if width * height > most_pixels:
        raise ValueError(f"{name}: {width} x {height} pixels, and at most {most_pixels} are read (--most-pixels)")
    into = np.empty((size, size, 3), np.uint8)
    try:
        read_bytes(data, into, name)
    except UnreadableError as error:
        raise ValueError(f"{error.summary(1)}; send another one") from None
    return np.ascontiguousarray(into.transpose(2, 0, 1))


def stacked(images: Sequence[bytes]) -> Tensor:
    """uint8 [B, 3, size, size] of squares as the journal keeps them."""
    side = math.isqrt(len(images[0]) // 3)
    return torch.from_numpy(np.frombuffer(b"".join(images), np.uint8).reshape(-1, 3, side, side).copy())


def as_png(pixels: bytes) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(stacked([pixels])[0].permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
