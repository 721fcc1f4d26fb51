"""Images as the journal stores them: as a tensor, and as PNG."""

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor


def to_tensor(images: Sequence[bytes]) -> Tensor:
    """uint8 [B, 3, size, size] of images as the journal stores them."""
    side = math.isqrt(len(images[0]) // 3)
    return torch.from_numpy(np.frombuffer(b"".join(images), np.uint8).reshape(-1, 3, side, side).copy())


def to_png(pixels: bytes) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(to_tensor([pixels])[0].permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
