"""The classes of the procedural benchmark: a shape cut out of a texture, both as integer tests on coordinates.

The coordinates u and v of a sample are int32 and count 1/256 of the shape's radius, after its pose is undone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Test = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (u, v) -> bool of the same shape


def disc(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return u * u + v * v < 235**2


def square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(abs(u), abs(v)) < 205


def triangle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (v < 135) & (887 * abs(u) - 512 * v < 132 * 1024)


def ring(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    distance = u * u + v * v
    return (distance < 250**2) & (distance > 125**2)


def cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    a, b = abs(u), abs(v)
    return (np.minimum(a, b) < 80) & (np.maximum(a, b) < 250)


def star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Five points: inside at least four of the five half-planes of a pentagram."""
    inside = np.zeros(u.shape, np.int8)
    for across, down in ((0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316)):
        inside += across * u + down * v < 100 * 1024
    return inside >= 4


def crescent(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (u * u + v * v < 250**2) & ((u - 120) ** 2 + v * v > 190**2)


def bar(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (abs(u) < 265) & (abs(v) < 100)


def hourglass(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (abs(u) < 230) & (abs(v) < abs(u) + 20)


def corner(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (np.maximum(abs(u), abs(v)) < 220) & ((u < -60) | (v > 60))


def plain(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.zeros(u.shape, bool)


def striped(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (u + 36) // 72 % 2 == 0


def checked(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (u // 105 + v // 105) % 2 == 0


def dotted(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    a, b = (u + 75) % 150 - 75, (v + 75) % 150 - 75
    return a * a + b * b < 48**2


def cored(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return u * u + v * v < 175**2


SHAPES: tuple[Test, ...] = (disc, square, triangle, ring, cross, star, crescent, bar, hourglass, corner)
TEXTURES: tuple[Test, ...] = (plain, striped, checked, dotted, cored)
MAX_CLASSES = len(SHAPES) * len(TEXTURES)


def shape_and_texture(number: int) -> tuple[Test, Test]:
    """Shape and texture of a class. Neighbours differ in both, and both come back later with other partners.

    >>> [" ".join(test.__name__ for test in reversed(shape_and_texture(number))) for number in (0, 1, 10, 11)]
    ['plain disc', 'striped square', 'striped disc', 'checked square']
    """
    turn, position = divmod(number, len(SHAPES))
    return SHAPES[position], TEXTURES[(position + turn) % len(TEXTURES)]
