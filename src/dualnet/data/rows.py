"""Rows of features as grey images, one pixel per feature, for callers without images."""

import math
from typing import Any

import numpy as np

from dualnet.options import shown


def range_of(rows: np.ndarray) -> tuple[float, float]:
    """The values of black and white: 0 and 255 for uint8, otherwise the minimum and maximum of the rows."""
    return (0.0, 255.0) if rows.dtype == np.uint8 else (float(rows.min()), float(rows.max()))


def checked_range(value_range: Any) -> tuple[float, float]:
    """The range as two floats. Raises ValueError if it is not one."""
    try:
        low, high = map(float, value_range)
        if 0 <= high - low < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"value_range: {shown(value_range)} is not a pair of values for black and white, such as (0, 16)")


def grey_images(rows: np.ndarray, value_range: tuple[float, float], shape: Any = None) -> np.ndarray:
    """Rows [n, features] as images uint8 [n, *shape]; None: the smallest square that fits, padded with black.

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
        raise ValueError(f"image_shape: {shown(shape)} does not fit the {features} features of a row") from None
