"""The classes of the procedural benchmark, and drawing of their images.

All arithmetic is of integers, so that every machine draws the same bits. A class is a shape with a texture, both tests
on the coordinates u and v of a sample: int32, in 1/256 of the radius of the shape, relative to its pose.

Random bits come from PCG64 directly, whose output NumPy guarantees not to change; it gives no such guarantee for the
distributions of `Generator`.
"""

from collections.abc import Callable

import numpy as np

FIELD = 2048  # from the centre of an image to its border
DISTRACTORS = 3  # small plain discs and boxes behind the object
TYPICAL_IN_TEN = 7  # of ten objects in the typical colour of their class; the others have a random one
BATCH_PIXELS = 1 << 16  # drawn at a time, so that the working arrays stay in the processor's cache

COSINES = np.rint(1024 * np.cos(np.arange(64) * (np.pi / 32))).astype(np.int32)
SINES = np.roll(COSINES, 16)


def _colours(text: str) -> np.ndarray:
    """Colours from hexadecimal RGB: int32 [n, 3]."""
    return np.frombuffer(bytes.fromhex(text), np.uint8).astype(np.int32).reshape(-1, 3)


VIVID = _colours("e63946 f4842a f6c830 8ac926 2a9d61 26bebe 3a86ff 434cc9 8338ec d640c4 ff7896 a06234")


# Background colours of a task, and red, green and blue of its light in 1/256. A network adapts to those of the last
# task, and so forgets the others.
WORLDS = (
    (_colours("c4beb2 dee2e6 f0ecdc"), (256, 256, 256)),  # paper
    (_colours("0e1430 182254 0a0c1a"), (180, 205, 310)),  # night
    (_colours("ce783c e8a05a b45428"), (330, 230, 130)),  # dusk
    (_colours("1e5432 407c3c 163c2c"), (190, 300, 180)),  # wood
    (_colours("5a1e60 8c3882 3c1850"), (300, 170, 310)),  # neon
    (_colours("146e82 28a0aa 0a4664"), (140, 280, 300)),  # sea
    (_colours("28282c 424248 18181a"), (200, 200, 200)),  # cave
    (_colours("fad2dc f0b4c8 ffecf0"), (300, 250, 270)),  # blossom
)

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


def draw(number: int, task: int, count: int, size: int, seed: tuple[int, ...]) -> np.ndarray:
    """Images of a class, uint8 [count, 3, size, size]. The first images do not depend on the count."""
    choices, noise = np.random.PCG64((*seed, 0)), np.random.PCG64((*seed, 1))
    at_a_time = max(1, BATCH_PIXELS // size**2)
    sizes = [min(at_a_time, count - start) for start in range(0, count, at_a_time)]
    return np.concatenate([_draw(number, task, Choices(choices, n), noise, size) for n in sizes])


class Choices:
    """Random integers for n images. The integers of an image do not depend on n."""

    PER_IMAGE = 48

    def __init__(self, bits: np.random.PCG64, num_images: int) -> None:
        raw = bits.random_raw(num_images * self.PER_IMAGE).reshape(num_images, self.PER_IMAGE)
        self._columns = iter((raw >> np.uint64(33)).astype(np.int64).T)

    def between(self, low: int, high: int) -> np.ndarray:
        """Integers from low to high, both included: int32 [n, 1, 1]."""
        return (next(self._columns) % (high - low + 1) + low).astype(np.int32)[:, None, None]

    def colour(self, palette: np.ndarray) -> np.ndarray:
        """Random colours of the palette: int32 [n, 3, 1, 1]."""
        return palette[self.between(0, len(palette) - 1).ravel()][:, :, None, None]


def _draw(number: int, task: int, choices: Choices, noise: np.random.PCG64, size: int) -> np.ndarray:
    pixels, samples = _positions(size), _positions(2 * size)
    ground, light = WORLDS[task % len(WORLDS)]
    picture = _ground(choices, ground, pixels)
    for _ in range(DISTRACTORS):
        picture = _blend(picture, choices.colour(VIVID), _distractor(choices, samples))
    picture = _object(picture, number, choices, samples)
    picture = picture * _light(choices, pixels)[:, None] >> 8
    picture = picture * np.array(light, np.int32)[:, None, None] >> 8
    return np.clip(picture + _grain(noise, picture.shape), 0, 255).astype(np.uint8)


def _positions(side: int) -> np.ndarray:
    """Centres of the pixels along a side, from -FIELD to FIELD: int32 [side]."""
    return ((2 * np.arange(side, dtype=np.int32) + 1 - side) * FIELD) // side


def _ground(choices: Choices, colours: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A gradient between two muted colours."""
    ramp = np.clip(128 + (_slope(choices, at) >> 4), 0, 256)[:, None]
    return (choices.colour(colours) * ramp + choices.colour(colours) * (256 - ramp)) >> 8


def _light(choices: Choices, at: np.ndarray) -> np.ndarray:
    """Brightness in 1/256, stronger from one side: int32 [n, H, W]."""
    return choices.between(205, 270) + (_slope(choices, at) * choices.between(0, 72) >> 11)


def _slope(choices: Choices, at: np.ndarray) -> np.ndarray:
    """Position along a random direction: int32 [n, H, W], about -FIELD to FIELD."""
    angle = choices.between(0, 63)
    return (COSINES[angle] * at + SINES[angle] * at[:, None]) >> 10


def _grain(noise: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    raw = noise.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count]
    return raw.reshape(shape).astype(np.int32) % 21 - 10


def _distractor(choices: Choices, at: np.ndarray) -> np.ndarray:
    """Coverage of a disc or a box anywhere in the image."""
    radius = choices.between(150, 420)
    u, v = abs(at - choices.between(-FIELD, FIELD)), abs(at[:, None] - choices.between(-FIELD, FIELD))
    disc, box = u * u + v * v < radius * radius, np.maximum(u, v) < radius * 7 >> 3
    return _coverage(np.where(choices.between(0, 1) == 0, disc, box))


def _object(picture: np.ndarray, number: int, choices: Choices, at: np.ndarray) -> np.ndarray:
    """The object on the picture, in a vivid colour and a darker or brighter one."""
    shape, texture = shape_and_texture(number)
    typical = VIVID[number * 5 % len(VIVID)]  # 5 is coprime to the 12 colours, so consecutive classes differ clearly
    u, v = _posed(choices, at)
    inside = SHAPES[shape](u, v)
    marked = inside & TEXTURES[texture](u + choices.between(-18, 18), v + choices.between(-18, 18))
    first = np.where(choices.between(0, 9)[:, None] < TYPICAL_IN_TEN, typical[:, None, None], choices.colour(VIVID))
    second = np.where(choices.between(0, 1)[:, None] == 0, first >> 1, 255 - ((255 - first) >> 2))
    return _blend(_blend(picture, first, _coverage(inside)), second, _coverage(marked))


def _posed(choices: Choices, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates relative to a random position, rotation and scale, in units of the shape."""
    x, y = at - choices.between(-450, 450), at[:, None] - choices.between(-450, 450)
    angle, radius = choices.between(-6, 6), choices.between(1200, 1650)
    cosine, sine = COSINES[angle], SINES[angle]
    return (x * cosine + y * sine >> 2) // radius, (y * cosine - x * sine >> 2) // radius


def _coverage(inside: np.ndarray) -> np.ndarray:
    """How many of the four samples of each pixel are inside: int32 [n, 1, H, W]."""
    rows = inside[:, ::2].astype(np.int32) + inside[:, 1::2]
    return (rows[:, :, ::2] + rows[:, :, 1::2])[:, None]


def _blend(picture: np.ndarray, colour: np.ndarray, coverage: np.ndarray) -> np.ndarray:
    return (picture * (4 - coverage) + colour * coverage) >> 2
