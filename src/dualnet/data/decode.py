"""The one door for images: bytes to an RGB square. EXIF orientation applied, short side resized, centre cropped."""

import contextlib
import importlib.metadata
import io
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError
from PIL.Image import Image, Resampling, Transpose

from dualnet import files
from dualnet.data import image_header
from dualnet.text import escape, join_first, join_lines

MAX_SIZE = 1024  # side in pixels of a decoded square
MAX_BYTES = 200_000_000  # of a file
RESIZE_RULE = "short side, centre, bilinear; transparency on white; JPEG from twice the size"
try:  # earlier versions may not refuse images that are larger than their header says
    HAS_HEIC = tuple(map(int, importlib.metadata.version("pillow-heif").split(".")[:2])) >= (1, 8)
except (importlib.metadata.PackageNotFoundError, ValueError):
    HAS_HEIC = False
HEIC_HINT = "" if HAS_HEIC else ", and HEIC after pip install 'dualnet[heic]'"  # for messages, after formats
FORMATS = tuple(name for name in image_header.FORMATS if name != "HEIF" or HAS_HEIC)  # of several images the first
ORIENTATION = 0x0112  # an EXIF tag
TRANSPOSES = {  # by orientation
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
SUFFIXES = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"))
SUFFIXES |= {".heic", ".heif", ".hif"} if HAS_HEIC else set()
APP1, SCAN = b"\xff\xe1", b"\xff\xda"  # JPEG markers: of EXIF and XMP, which can hold an orientation; of a scan
MAX_STORED = 4  # bytes of a plain JPEG for each of its pixels' bytes
MAX_NAME_LENGTH = 300  # in a message, counted from its end
OnError = Literal["stop", "skip"]  # for unreadable images: raise an error that names them, or leave them out


class Budget:
    """Memory, handed out in the order of the requests, so that a large one is not put off by small ones."""

    def __init__(self, total: int) -> None:
        self.rest, self.turn, self.freed = total, threading.Lock(), threading.Condition()

    @contextlib.contextmanager
    def take(self, amount: int) -> Iterator[None]:
        with self.turn, self.freed:
            self.freed.wait_for(lambda: self.rest >= amount)
            self.rest -= amount
        try:
            yield
        finally:
            with self.freed:
                self.rest += amount
                self.freed.notify()


_memory = Budget(image_header.MAX_MEMORY)


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
        _decode(files.read_bytes(path, MAX_BYTES), into)


def read_size(path: str) -> tuple[int, int]:
    """Width and height of a file that `read_image` can decode, before it is turned."""
    header = image_header.read_header(files.read_bytes(path, MAX_BYTES), MAX_SIZE)
    assert header is not None
    return header.width, header.height


def read_bytes(data: bytes, into: np.ndarray, name: str) -> None:
    """The same for the content of a file; `name` identifies the image in messages."""
    with _naming(name):
        _decode(data, into)


def read_pillow(image: Image, into: np.ndarray, name: str) -> None:
    """The same for a Pillow image."""
    with _naming(name):
        into[...] = np.asarray(_square(image, into.shape[0]))


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turns any error into an UnreadableError of the image."""
    try:
        yield
    except Exception as error:  # for damaged files Pillow raises anything from SyntaxError to struct.error
        raise UnreadableError({name: _reason(error)}) from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not an image, or none of {', '.join(FORMATS)}{HEIC_HINT}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if text == "could not create decoder object":  # Pillow's words for any damaged WebP
        return "a WEBP that is truncated or damaged"
    return join_lines(text) or type(error).__name__


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Hides Pillow's warnings about unusual files."""
    Pillow.init()  # before several threads would do it at the same time
    if HAS_HEIC and "HEIF" not in Pillow.OPEN:
        with contextlib.suppress(ImportError):  # a damaged installation: HEIC files are then unreadable
            import pillow_heif

            pillow_heif.register_heif_opener()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _decode(data: bytes, into: np.ndarray) -> None:
    if not data:
        raise ValueError("empty file")
    if _decode_plain_jpeg(data, into):
        return
    size = into.shape[0]
    header = image_header.read_header(data, size)
    if header is None or header.format not in FORMATS:
        raise UnidentifiedImageError
    with _memory.take(header.memory), Pillow.open(io.BytesIO(data), formats=[header.format]) as image:
        if image.width * image.height > header.width * header.height:
            raise ValueError("its headers contradict each other")
        if image.format != "HEIF":  # of which this would be an embedded thumbnail
            image.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at a half, a quarter or an eighth
        into[...] = np.asarray(_square(image, size))


def _decode_plain_jpeg(data: bytes, into: np.ndarray) -> bool:
    """Decode a JPEG that needs neither resizing nor rotation with simplejpeg, which is faster; False for all others."""
    try:
        import simplejpeg
    except ImportError:
        return False
    if not data.startswith(b"\xff\xd8") or len(data) > MAX_STORED * into.size or APP1 in data:
        return False
    if data.count(SCAN) > image_header.MAX_SCANS:
        return False
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if (height, width) != into.shape[:2] or colours not in ("YCbCr", "Gray"):
            return False
        simplejpeg.decode_jpeg(data, "RGB", buffer=into)
    except ValueError:
        return False
    return True


def _square(image: Image, size: int) -> Image:
    """The largest centred square, resized, in RGB and upright; the pixels of one that has this size are not resized."""
    image.load()  # Pillow turns a TIFF here, and then removes the tag
    orientation = _orientation(image)
    if image.mode in ("1", "P", "PA") or "transparency" in image.info:  # whose values cannot be averaged
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.size != (size, size):
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))
    image = _rgb(image)
    return image if orientation is None else image.transpose(orientation)


def _orientation(image: Image) -> Transpose | None:
    """What makes the image upright. Other tags, which may be invalid, are not read."""
    try:
        return TRANSPOSES.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # Pillow raises many types for invalid EXIF data
        return None


def _rgb(image: Image) -> Image:
    if image.mode == "F":
        raise ValueError("its pixels are floats of an unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip rather than scale
        return Pillow.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
