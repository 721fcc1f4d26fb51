"""Drawn characters as additional classes: `python -m starter.glyphs FONTS OUT.npz`.

FONTS: the packages of fonts.txt, unpacked. The font families and characters that `starter.selection` uses are excluded,
and so are digits, so that a test on digits is not a test on trained classes.
"""

import sys
from pathlib import Path

import numpy as np

from starter.selection import LEARNED, TESTED, draw, families

CHARACTERS = "KLMNPQRSTUVWXYkmnprtuy&@#%?$!*+=<>{}[]()/~ßæøΓΔΘΛΞΠΣΦΨΩαβγδεζηθλμξπρσφψωДЖИЛЦЧШЩЪЫЭЮЯ"
SIDE = 32


def glyphs(fonts: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [N, side, side], white on black, and the index of each character."""
    images, labels = [], []
    for file in families(fonts)[LEARNED + TESTED :]:
        missing = np.asarray(draw(file, "\uffff", SIDE)).tobytes()
        for label, text in enumerate(CHARACTERS):
            pixels = np.asarray(draw(file, text, SIDE))
            if pixels.std() > 20 and pixels.tobytes() != missing:
                images.append(pixels)
                labels.append(label)
    return np.stack(images), np.array(labels)


if __name__ == "__main__":
    images, labels = glyphs(Path(sys.argv[1]))
    np.savez_compressed(sys.argv[2], images=images, labels=labels)
    print(f"{len(images)} images of {len(CHARACTERS)} characters")
