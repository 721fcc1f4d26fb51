"""Decoding of an image to an RGB square: EXIF orientation applied, short side resized, centre cropped."""

import contextlib
import importlib.metadata
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import IO, Literal

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError
from PIL.Image import Image, Resampling, Transpose

from dualnet.text import escape, join_first, join_lines

MAX_SIZE = 1024  # side in pixels of a decoded square
MAX_BYTES = 200_000_000  # of a file
READ_AT_ONCE = 8_000_000  # bytes; Pillow reads larger files in pieces
# So that decoding takes less than 300 MB: 4 bytes a pixel, 8 for a progressive JPEG, 16 for WebP (Pillow 13), 10 for
# HEIC, 21 with transparency and more than 8 bits (pillow-heif 1.8).
MAX_PIXELS = {"JPEG": 64_000_000, "progressive JPEG": 32_000_000, "WEBP": 12_500_000, "TIFF": 16_000_000}
MAX_PIXELS |= {"HEIF": 25_000_000, "HDR or transparent HEIF": 14_000_000}
DEFAULT_MAX_PIXELS = max(MAX_PIXELS.values())  # of the other formats
LARGE = 8_000_000  # pixels: up to here, converting the whole image takes less than 300 MB too
BAND_PIXELS = 1_000_000  # pixels of a large image that are converted at a time
RESIZE_RULE = "short side, centre, bilinear; transparency on white; large ones reduced first"
try:  # earlier versions may not refuse images that are larger than their header says
    HAS_HEIC = tuple(map(int, importlib.metadata.version("pillow-heif").split(".")[:2])) >= (1, 8)
except (importlib.metadata.PackageNotFoundError, ValueError):
    HAS_HEIC = False
HEIC_HINT = "" if HAS_HEIC else ", and HEIC after pip install 'dualnet[heic]'"  # for messages, after formats
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", *(["HEIF"] if HAS_HEIC else []))  # of several images the first
ORIENTATION = 0x0112  # an EXIF tag
TRANSPOSES = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # values of Pillow's Transpose, by orientation
SUFFIXES = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"))
SUFFIXES |= {".heic", ".heif", ".hif"} if HAS_HEIC else set()
APP1 = b"\xff\xe1"  # the JPEG marker of EXIF and XMP, which can hold an orientation
MAX_NAME_LENGTH = 300  # in a message, counted from its end
OnError = Literal["stop", "skip"]  # for unreadable images: raise an error that names them, or leave them out

_large_image = threading.Lock()  # large images are decoded one at a time


class UnreadableError(ValueError):
    """Images that cannot be read: `reasons` by name, mostly a path. The message, one line, names some."""

    def __init__(self, reasons: Mapping[str, str], total: int = 1) -> None:
        self.reasons = dict(reasons)
        them = "them" if len(reasons) > 1 else "it"
        skip = "--on-error skip; on_error: skip in a benchmark and Model.predict"
        super().__init__(f"{self.summary(total)}; replace {them} or leave {them} out ({skip})")

    def summary(self, total: int) -> str:
        """How many images are unreadable, and which."""
        shown = {escape(name)[-MAX_NAME_LENGTH:]: reason for name, reason in self.reasons.items()}
        if len(shown) == 1:
            return "{}: unreadable image ({})".format(*next(iter(shown.items())))
        words = [f"{name} ({reason})" for name, reason in shown.items()]
        return f"{len(words)} of {total} images unreadable: {join_first(words)}"


def read_image(path: str, into: np.ndarray) -> None:
    """Decode a file into uint8 [size, size, 3], within the context of `decoding`. Raises UnreadableError."""
    with _naming(path):
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            os.scandir(path).close()  # if it cannot be read, the reason
        if not stat.S_ISREG(found.st_mode):  # a pipe would block, and a device might never end
            raise ValueError("not a regular file")
        _check_bytes(found.st_size)
        with open(path, "rb") as file:  # creating a Path takes longer than reading the file
            if found.st_size > READ_AT_ONCE or not _read_plain_jpeg(file.read(READ_AT_ONCE), into):
                file.seek(0)
                into[...] = _read_any(file, size=into.shape[0])


def read_bytes(data: bytes, into: np.ndarray, name: str) -> None:
    """The same for the content of a file; `name` identifies the image in messages."""
    with _naming(name):
        _check_bytes(len(data))
        if not _read_plain_jpeg(data, into):
            into[...] = _read_any(io.BytesIO(data), size=into.shape[0])


def read_pillow(image: Image, into: np.ndarray, name: str) -> None:
    """The same for a Pillow image."""
    with _naming(name):
        into[...] = np.asarray(_square(_rgb(_upright(image, image)), into.shape[0]))


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turns any error into an UnreadableError of the image."""
    try:
        yield
    except Exception as error:  # for damaged files Pillow raises anything from SyntaxError to struct.error
        raise UnreadableError({name: _reason(error)}) from None


def _check_bytes(count: int) -> None:
    if count == 0:
        raise ValueError("empty file")
    if count > MAX_BYTES:
        raise ValueError(f"{count / 1e6:.0f} MB, at most {MAX_BYTES / 1e6:.0f} MB are read")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not an image, or none of {', '.join(FORMATS)}{HEIC_HINT}"
    if isinstance(error, Pillow.DecompressionBombError | Pillow.DecompressionBombWarning):
        return f"more than {DEFAULT_MAX_PIXELS / 1e6:g} megapixels"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return join_lines(text) or type(error).__name__


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Hides Pillow's warnings about unusual files; the one about too many pixels becomes an error."""
    Pillow.init()  # before several threads would do it at the same time
    if HAS_HEIC and "HEIF" not in Pillow.OPEN:
        with contextlib.suppress(ImportError):  # a damaged installation: HEIC files are then unreadable
            import pillow_heif

            pillow_heif.register_heif_opener()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Pillow.DecompressionBombWarning)
        yield


def _read_plain_jpeg(data: bytes, into: np.ndarray) -> bool:
    """Decode a JPEG that needs neither resizing nor rotation with simplejpeg, which is faster; False for all others."""
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


def _read_any(file: IO[bytes], size: int) -> np.ndarray:
    with Pillow.open(file, formats=FORMATS) as image:
        kind = f"{_variant(image)}{image.format}"
        most = MAX_PIXELS.get(kind, DEFAULT_MAX_PIXELS)
        if image.width * image.height > most:
            raise ValueError(f"{image.width} x {image.height} is more than {most / 1e6:g} megapixels, for {kind}")
        if image.width * image.height <= LARGE:
            return np.asarray(_square(_rgb(_upright(image, image)), size))
        with _large_image:
            return np.asarray(_upright(_large_square(image, size), image))


def _variant(image: Image) -> str:
    """What makes an image of its format take more memory."""
    if image.format == "HEIF" and (image.has_transparency_data or image.info["bit_depth"] > 8):
        return "HDR or transparent "
    return "progressive " if image.info.get("progressive") else ""


def _upright(image: Image, tagged: Image) -> Image:
    """The image rotated by the orientation tag of `tagged`. Other tags, which may be invalid, are not read."""
    if tagged.format == "TIFF":
        tagged.load()  # Pillow rotates a TIFF while loading, and then removes the tag
    try:
        transpose = TRANSPOSES.get(tagged.getexif().get(ORIENTATION, 1))
    except Exception:  # Pillow raises many types for invalid EXIF data
        return image
    return image if transpose is None else image.transpose(Transpose(transpose))


def _rgb(image: Image) -> Image:
    if image.mode == "F":
        raise ValueError("its pixels are floats of an unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip rather than scale
        return Pillow.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _large_square(image: Image, size: int) -> Image:
    """Like `_square`, but first reduced to twice the size, in bands, so that the whole image is not copied."""
    if image.format != "HEIF":  # of which this would be an embedded thumbnail
        image.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at a half, a quarter or an eighth
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    factor = max(1, side // (2 * size))
    height = factor * max(1, BAND_PIXELS // (side * factor))
    starts = range(top, top + side, height)
    bands = (image.crop((left, start, left + side, min(start + height, top + side))) for start in starts)
    reduced = Pillow.fromarray(np.concatenate([np.asarray(_rgb(band).reduce(factor)) for band in bands]))
    exact = side / factor  # the last row and column may cover fewer pixels than the others
    return reduced.resize((size, size), Resampling.BILINEAR, box=(0, 0, exact, exact))


def _square(image: Image, size: int) -> Image:
    """The largest centred square, resized; an image of the right size is returned unchanged."""
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))
