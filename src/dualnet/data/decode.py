"""One image file into one square of RGB: orientation applied, short side fitted, centre kept."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 64_000_000  # declared by a file's header: more is taken for a bomb and never decoded
RESIZE_RULE = "short side, centre, bilinear; transparency on white"
FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
ORIENTATION = 0x0112  # the number of that EXIF tag
SUFFIXES = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp"))
APP1 = b"\xff\xe1"  # the JPEG marker of EXIF and XMP, where an orientation would be


def read_image(path: str, into: np.ndarray) -> None:
    """Decode a file into uint8 [size, size, 3]. ValueError says in one line what is wrong with the file.

    Call it inside `decoding`.
    """
    try:
        with open(path, "rb") as file:  # a Path for every file costs more than the read
            data = file.read()
        if not data:
            raise ValueError("empty file")
        if not _read_plain_jpeg(data, into):
            into[...] = _read_any(data, size=into.shape[0])
    except Exception as error:  # damaged files make Pillow raise all sorts, from SyntaxError to struct.error
        raise ValueError(f"{path}: unreadable image ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image, or none of " + ", ".join(FORMATS)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {MAX_PIXELS / 1e6:.0f} megapixels"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Pillow's remarks about odd files are not for the user; its remark about bombs is an error."""
    from PIL import Image

    Image.preinit()  # once, before threads do it all together
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _read_plain_jpeg(data: bytes, into: np.ndarray) -> bool:
    """The fast way, for a JPEG that needs nothing but decoding; whatever is odd about a file is left to Pillow."""
    try:
        import simplejpeg
    except ImportError:
        return False
    if not data.startswith(b"\xff\xd8") or APP1 in data:
        return False
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if (height, width) != into.shape[:2] or colours not in ("YCbCr", "Gray"):
            return False
        simplejpeg.decode_jpeg(data, "RGB", buffer=into)
    except ValueError:
        return False
    return True


def _read_any(data: bytes, size: int) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width} x {height} is more than {MAX_PIXELS / 1e6:.0f} megapixels")
        return np.asarray(_square(_rgb(_upright(image)), size))


def _upright(image: Image) -> Image:
    """As the camera says that it was held. No other tag is read, and one that is broken does no harm."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # whatever Pillow raises for tags that are not even a list of tags
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image) -> Image:
    from PIL import Image as Pillow

    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip rather than scale
        return Pillow.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _square(image: Image, size: int) -> Image:
    """The largest square in the middle, at that size; an image that has the size stays as it is."""
    from PIL.Image import Resampling

    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))
