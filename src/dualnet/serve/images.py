"""Decodes uploaded images to the pixels that the model sees, and encodes these as PNG."""

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from dualnet.data.decode import UnreadableError, read_bytes
from dualnet.serve.errors import RequestError


def decode(data: bytes, size: int, most_pixels: int, name: str) -> Tensor:
    """uint8 [3, size, size]: rotated by its EXIF orientation, cropped to the central square. Call inside `decoding`.

    No other metadata is read or stored. Raises RequestError if the data is not an image, or has too many pixels.
    """
    into = np.empty((size, size, 3), np.uint8)
    try:
        read_bytes(data, into, name, most_pixels)
    except UnreadableError as error:
        raise RequestError(400, f"{error.summary(1)}; send another image") from None
    return torch.from_numpy(into).permute(2, 0, 1).contiguous()


def to_tensor(images: Sequence[bytes]) -> Tensor:
    """uint8 [B, 3, size, size] of images as the journal stores them."""
    side = math.isqrt(len(images[0]) // 3)
    return torch.from_numpy(np.frombuffer(b"".join(images), np.uint8).reshape(-1, 3, side, side).copy())


def to_png(pixels: bytes) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(to_tensor([pixels])[0].permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
