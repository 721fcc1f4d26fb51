"""The data for choosing `preset: few_images`, as image folders: `python -m starter.selection FONTS EMOJI OUT`.

Ten classes each, with 20 training images and up to 70 test images. FONTS: the packages of fonts.txt, unpacked. EMOJI:
unpacked npm packages, emoji-datasource as `base` and emoji-datasource-VENDOR as VENDOR.
"""

import json
import random
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LEARNED, TESTED = 20, 70  # images per class
LETTERS = "ABCDEFGHIJ"
VENDORS = ("apple", "google", "twitter", "facebook")
SUBJECTS = {
    "mammal": "animal-mammal", "bird": "animal-bird", "vehicle": "transport-ground", "sky": "sky & weather",
    "clothing": "clothing", "meal": "food-prepared", "building": "place-building", "sport": "sport",
    "household": "household", "fruit": "food-fruit",
}  # fmt: skip


def write(folder: Path, name: str, learned: Iterable[Image.Image], tested: Iterable[Image.Image]) -> None:
    for part, images in (("train", learned), ("test", tested)):
        (folder / part / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            image.save(folder / part / name / f"{number:03d}.png")


def letters(fonts: Path, out: Path) -> None:
    """A to J, white on black, 28 px: one font of each family, with other families for the test."""
    chosen = families(fonts)[: LEARNED + TESTED]
    for text in LETTERS:
        images = [draw(file, text, 28) for file in chosen]
        write(out, text, images[:LEARNED], images[LEARNED:])


def families(fonts: Path) -> list[Path]:
    """One font of each family with Latin letters, in a random order."""
    files: dict[str, Path] = {}
    for file in sorted([*fonts.rglob("*.ttf"), *fonts.rglob("*.otf")]):
        files.setdefault(re.split(r"[-_.]", file.stem)[0].lower(), file)
    latin = [file for _, file in sorted(files.items()) if is_latin(file)]
    random.Random(0).shuffle(latin)
    return latin


def is_latin(file: Path) -> bool:
    try:
        pixels = [np.asarray(draw(file, text, 28)) for text in LETTERS]
    except OSError:
        return False
    return len({each.tobytes() for each in pixels}) == len(pixels) and all(each.std() > 20 for each in pixels)


def draw(file: Path, text: str, side: int) -> Image.Image:
    """White text, centred on a black square."""
    font = ImageFont.truetype(str(file), 64)
    left, top, right, bottom = map(int, font.getbbox(text))
    image = Image.new("L", (right - left + 16, bottom - top + 16), 0)
    ImageDraw.Draw(image).text((8 - left, 8 - top), text, 255, font)
    longer = max(image.size)
    square = Image.new("L", (longer, longer), 0)
    square.paste(image, ((longer - image.width) // 2, (longer - image.height) // 2))
    return square.resize((side, side), Image.Resampling.LANCZOS)


def emoji(packages: Path, out: Path) -> None:
    """By subject, on white, 32 px, by four vendors each: a third of the pictures for training, the others to test."""
    every = json.loads((packages / "base/package/emoji.json").read_text())
    for name, subject in SUBJECTS.items():
        files = sorted(entry["image"] for entry in every if entry["subcategory"] == subject)
        random.Random(0).shuffle(files)
        third = max(7, len(files) // 3)
        learned, tested = (by_vendors(packages, some) for some in (files[:third], files[third:]))
        write(out, name, learned[:LEARNED], tested[:TESTED])


def by_vendors(packages: Path, files: Sequence[str]) -> list[Image.Image]:
    paths = [packages / vendor / f"package/img/{vendor}/64" / file for file in files for vendor in VENDORS]
    images = [on_white(path) for path in paths if path.exists()]
    random.Random(1).shuffle(images)
    return images


def on_white(file: Path) -> Image.Image:
    image = Image.open(file).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB").resize((32, 32), Image.Resampling.LANCZOS)


def digits(out: Path) -> None:
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    pixels, labels = load_digits(return_X_y=True)
    for digit in range(10):
        rows = (pixels[labels == digit].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        images = [Image.fromarray(row) for row in rows]
        write(out, f"d{digit}", images[:LEARNED], images[-TESTED:])


if __name__ == "__main__":
    fonts, packages, out = map(Path, sys.argv[1:])
    letters(fonts, out / "letters")
    emoji(packages, out / "emoji")
    digits(out / "digits")
