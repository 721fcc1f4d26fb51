"""Rows of features as grey images, for callers that hold no others: a pixel for each feature."""

import math
from typing import Any

import numpy as np

from dualnet.options import shown


def range_of(rows: np.ndarray) -> tuple[float, float]:
    """The values that are black and white: those of a byte, else the smallest and the largest of these rows."""
    return (0.0, 255.0) if rows.dtype == np.uint8 else (float(rows.min()), float(rows.max()))


def checked_range(value_range: Any) -> tuple[float, float]:
    try:
        low, high = map(float, value_range)
        if 0 <= high - low < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"value_range: {shown(value_range)} is not the value of black and that of white, such as (0, 16)")


def grey_images(rows: np.ndarray, value_range: tuple[float, float], shape: Any = None) -> np.ndarray:
    """uint8 [n, *shape] of rows [n, features]; None: the smallest square that holds the features, the rest black.

    >>> grey_images(np.array([[0, 1, 4]]), (0, 4)).tolist()
    [[[0, 64], [255, 0]]]
    """
    count, features = rows.shape
    side = math.isqrt(features - 1) + 1
    low, high = value_range
    pixels = np.zeros((count, side * side if shape is None else features))
    pixels[:, :features] = ((rows.astype(np.float64) - low) / (high - low or 1)).clip(0, 1)
    try:
        return (255 * pixels).round().astype(np.uint8).reshape(count, *(side, side) if shape is None else shape)
    except (TypeError, ValueError):
        raise ValueError(f"image_shape: {shown(shape)} does not hold the {features} features of a row") from None
