"""Drawn characters as further classes to train on: `python -m starter.glyphs FONTS OUT.npz`.

FONTS: the packages of fonts.txt, unpacked. The families and the characters that `starter.selection` takes of them are
left out. So are digits, so that a test on digits is not one on classes that were learned.
"""

import sys
from pathlib import Path

import numpy as np

from starter.selection import LEARNED, TESTED, draw, families

CHARACTERS = "KLMNPQRSTUVWXYkmnprtuy&@#%?$!*+=<>{}[]()/~ßæøΓΔΘΛΞΠΣΦΨΩαβγδεζηθλμξπρσφψωДЖИЛЦЧШЩЪЫЭЮЯ"
SIDE = 32


def glyphs(fonts: Path) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [N, side, side], white on black, and the number of the character of each."""
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
