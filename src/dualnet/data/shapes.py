"""The classes of the procedural benchmark: shapes and textures, both as integer tests on coordinates.

The coordinates u and v of a sample are int32, in 1/256 of the radius of the shape, relative to its pose.
"""

from collections.abc import Callable

import numpy as np

Test = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (u, v) -> bool of the same shape


def star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Five points: inside at least four of the five half-planes of a pentagram."""
    inside = np.zeros(u.shape, np.int8)
    for across, down in ((0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316)):
        inside += across * u + down * v < 100 * 1024
    return inside >= 4


SHAPES: dict[str, Test] = {
    "disc": lambda u, v: u * u + v * v < 235**2,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 205,
    "triangle": lambda u, v: (v < 135) & (887 * abs(u) - 512 * v < 132 * 1024),
    "ring": lambda u, v: (u * u + v * v < 250**2) & (u * u + v * v > 125**2),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 80) & (np.maximum(abs(u), abs(v)) < 250),
    "star": star,
    "crescent": lambda u, v: (u * u + v * v < 250**2) & ((u - 120) ** 2 + v * v > 190**2),
    "bar": lambda u, v: (abs(u) < 265) & (abs(v) < 100),
    "hourglass": lambda u, v: (abs(u) < 230) & (abs(v) < abs(u) + 20),
    "corner": lambda u, v: (np.maximum(abs(u), abs(v)) < 220) & ((u < -60) | (v > 60)),
}
TEXTURES: dict[str, Test] = {
    "plain": lambda u, v: np.zeros(u.shape, bool),
    "striped": lambda u, v: (u + 36) // 72 % 2 == 0,
    "checked": lambda u, v: (u // 105 + v // 105) % 2 == 0,
    "dotted": lambda u, v: ((u + 75) % 150 - 75) ** 2 + ((v + 75) % 150 - 75) ** 2 < 48**2,
    "cored": lambda u, v: u * u + v * v < 175**2,
}
MAX_CLASSES = len(SHAPES) * len(TEXTURES)


def shape_and_texture(number: int) -> tuple[str, str]:
    """The names of the shape and the texture of a class. Consecutive classes differ in both.

    >>> [shape_and_texture(number) for number in (0, 1, 10, 11)]
    [('disc', 'plain'), ('square', 'striped'), ('disc', 'striped'), ('square', 'checked')]
    """
    cycle, shape = divmod(number, len(SHAPES))
    return list(SHAPES)[shape], list(TEXTURES)[(shape + cycle) % len(TEXTURES)]
