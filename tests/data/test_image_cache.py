"""The image cache: the right pixels of every kind of file, and never an incomplete file."""

import contextlib
import itertools
import resource
import struct
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from forked import FORKED, forked
from PIL import Image, ImageOps

from dualnet.data import image_cache
from dualnet.data.decode import UnreadableError
from dualnet.data.image_cache import CachedImages, unreadable

RNG = np.random.default_rng(0)


def pixels(height: int, width: int, *channels: int) -> np.ndarray:
    """Smooth, so that JPEG keeps most of it."""
    coarse = RNG.integers(0, 256, (height // 4 + 1, width // 4 + 1, *channels), dtype=np.uint8)
    return np.kron(coarse, np.ones((4, 4, *(1 for _ in channels)), np.uint8))[:height, :width]


def jpeg(path: Path, height: int = 16, width: int = 16, **options: object) -> Path:
    Image.fromarray(pixels(height, width, 3)).save(path, "JPEG", **options)
    return path


def jpegs(folder: Path, count: int) -> list[Path]:
    return [jpeg(folder / f"{number}.jpg") for number in range(count)]


def plain(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def caches(folder: Path) -> list[Path]:
    """All files of a cache but its lock."""
    return sorted(path for path in folder.iterdir() if path.name != "lock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(params=["simplejpeg", "Pillow"])
def either_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")


# -- pixels


@pytest.mark.usefixtures("either_decoder")
@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 2}, {"progressive": True}, {"quality": 30}]
)
def test_a_jpeg_of_the_size_is_decoded_and_no_more(tmp_path: Path, folder: Path, options: dict[str, int]) -> None:
    file = jpeg(tmp_path / "a.jpg", 24, 24, **options)
    images = CachedImages([file], 24, folder)
    assert images.shape == (1, 3, 24, 24) and images[0].dtype == np.uint8
    assert np.array_equal(images[0], plain(file))


KINDS: dict[str, Callable[[], Image.Image]] = {
    "RGB.png": lambda: Image.fromarray(pixels(8, 8, 3)),
    "grey.png": lambda: Image.fromarray(pixels(8, 8)),
    "grey.jpg": lambda: Image.fromarray(pixels(8, 8)),
    "one-bit.png": lambda: Image.fromarray(pixels(8, 8)).convert("1"),
    "palette.png": lambda: Image.fromarray(pixels(8, 8, 3)).quantize(16),
    "CMYK.jpg": lambda: Image.fromarray(pixels(8, 8, 3)).convert("CMYK"),
    "RGB.bmp": lambda: Image.fromarray(pixels(8, 8, 3)),
    "RGB.webp": lambda: Image.fromarray(pixels(8, 8, 3)),
    "palette.gif": lambda: Image.fromarray(pixels(8, 8, 3)).quantize(16),
    "grey.gif": lambda: Image.fromarray(pixels(8, 8)),
    "RGB.tif": lambda: Image.fromarray(pixels(8, 8, 3)),
    "grey.tiff": lambda: Image.fromarray(pixels(8, 8)),
    "one-bit.tif": lambda: Image.fromarray(pixels(8, 8)).convert("1"),
    "palette.tif": lambda: Image.fromarray(pixels(8, 8, 3)).quantize(16),
    "CMYK.tif": lambda: Image.fromarray(pixels(8, 8, 3)).convert("CMYK"),
}


@pytest.mark.usefixtures("either_decoder")
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_has_three_channels(tmp_path: Path, folder: Path, name: str) -> None:
    KINDS[name]().save(tmp_path / name)
    assert np.array_equal(CachedImages([tmp_path / name], 8, folder)[0], plain(tmp_path / name))


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_scaled_not_clipped(name: str, tmp_path: Path, folder: Path) -> None:
    deep = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(deep).save(tmp_path / name)
    images = CachedImages([tmp_path / name], 8, folder)
    assert np.array_equal(images[0], np.broadcast_to(deep >> 8, (3, 8, 8)))


def test_sixteen_bits_of_every_colour(tmp_path: Path, folder: Path) -> None:
    """Pillow writes no such TIFF: the header, the tags and the pixels."""
    deep = RNG.integers(0, 65536, (8, 8, 3), dtype=np.uint16)
    data, start = deep.astype("<u2").tobytes(), 8 + 2 + 8 * 12 + 4
    tags = ((256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 3, start), (259, 3, 1, 1), (262, 3, 1, 2))
    tags += ((273, 4, 1, start + 6), (277, 3, 1, 3), (279, 4, 1, len(data)))
    table = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    bits = struct.pack("<HHH", 16, 16, 16)
    (tmp_path / "deep.tif").write_bytes(b"II*\0" + struct.pack("<I", 8) + table + bits + data)
    images = CachedImages([tmp_path / "deep.tif"], 8, folder)
    assert np.array_equal(images[0], (deep >> 8).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.gif", "a.tif", "a.webp"])
def test_the_first_image_of_several_counts(name: str, tmp_path: Path, folder: Path) -> None:
    first, *others = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    first.save(tmp_path / name, save_all=True, append_images=others, **({"lossless": True} if "webp" in name else {}))
    assert CachedImages([tmp_path / name], 8, folder)[0][:, 4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("mode", "name"),
    [("RGBA", "a.png"), ("LA", "a.png"), ("P", "a.png"), ("RGBA", "a.gif"), ("RGBA", "a.tif"), ("RGBA", "a.webp")],
)
def test_what_is_transparent_is_white(tmp_path: Path, folder: Path, mode: str, name: str) -> None:
    image = Image.new("RGBA", (4, 4), (10, 10, 10, 255))
    image.putpixel((0, 0), (10, 10, 10, 0))
    image.convert(mode).save(tmp_path / name, **({"lossless": True} if "webp" in name else {}))
    image = CachedImages([tmp_path / name], 4, folder)[0]
    assert image[:, 0, 0].tolist() == [255] * 3 and image[:, 3, 3].tolist() == [10] * 3


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
@pytest.mark.parametrize("orientation", range(9))
def test_every_orientation_is_as_pillow_has_it(orientation: int, name: str, tmp_path: Path, folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels(16, 24, 3)).save(tmp_path / name, exif=exif.tobytes())
    expected = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / name)))
    middle = expected[4:20] if orientation > 4 else expected[:, 4:20]
    assert np.array_equal(CachedImages([tmp_path / name], 16, folder)[0], middle.transpose(2, 0, 1))


def test_a_broken_tag_beside_the_orientation_does_no_harm(tmp_path: Path, folder: Path) -> None:
    tags = struct.pack("<HHLHH", 0x0112, 3, 1, 6, 0)  # orientation, as it should be
    tags += struct.pack("<HHL4s", 0x011A, 2, 3, b"72\0\0")  # the resolution as text
    exif = b"Exif\0\0II*\0" + struct.pack("<LH", 8, 2) + tags + struct.pack("<L", 0)
    turned = jpeg(tmp_path / "a.jpg", exif=exif)
    with pytest.raises(TypeError):
        ImageOps.exif_transpose(Image.open(turned))
    assert np.array_equal(CachedImages([turned], 16, folder)[0], np.rot90(plain(turned), -1, axes=(1, 2)))


def test_the_short_side_fits_and_the_centre_stays(tmp_path: Path, folder: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = pixels(8, 8, 3)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    images = CachedImages([tmp_path / "wide.png", tmp_path / "tall.png"], 8, folder)
    assert np.array_equal(images[0], wide[:, 8:16].transpose(2, 0, 1))
    assert np.array_equal(images[1], images[0].transpose(0, 2, 1))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 300), (300, 1), (5, 7), (200, 131)])
def test_any_size_becomes_the_square(tmp_path: Path, folder: Path, height: int, width: int) -> None:
    Image.new("RGB", (width, height), (200, 100, 50)).save(tmp_path / "a.png")
    image = CachedImages([tmp_path / "a.png"], 16, folder)[0]
    assert (image == np.array([200, 100, 50], np.uint8)[:, None, None]).all()


def test_images_come_in_the_order_of_the_files(tmp_path: Path, folder: Path) -> None:
    files = jpegs(tmp_path, 2 * image_cache.CHUNK_ROWS + 3)[::-1]
    images = CachedImages(files, 16, folder)
    assert all(np.array_equal(image, plain(file)) for image, file in zip(images, files, strict=True))


# -- finding it again


def never(*_: object) -> None:
    raise AssertionError("decoded again")


def test_a_second_start_decodes_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = jpegs(tmp_path, 3)
    first = np.array(CachedImages(files, 16, folder))
    monkeypatch.setattr(image_cache, "read_image", never)
    monkeypatch.chdir(tmp_path)
    again = CachedImages([file.name for file in files], 16, folder)
    assert np.array_equal(first, again) and np.array_equal(again[np.array([2, 0])], first[[2, 0]])


def test_other_files_or_sizes_have_their_own_cache(tmp_path: Path, folder: Path) -> None:
    files = jpegs(tmp_path, 2)
    first = np.array(CachedImages(files, 16, folder))
    assert CachedImages(files, 8, folder).shape == (2, 3, 8, 8)
    assert np.array_equal(CachedImages(files[::-1], 16, folder), first[::-1])
    jpeg(files[0])
    assert np.array_equal(CachedImages(files, 16, folder)[0], plain(files[0]))
    assert len(caches(folder)) == 4


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "from-environment"))
    CachedImages(jpegs(tmp_path, 1), 16)
    assert len(caches(tmp_path / "from-environment")) == 1
    monkeypatch.delenv("DUALNET_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert image_cache.cache_folder() == tmp_path / ".cache" / "dualnet"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"\0" * len(data),
        lambda data: data.replace(b"'|u1'", b"'|i1'"),
        lambda data: data.replace(b"(2, 3, 16, 16)", b"(3, 2, 16, 16)"),
    ],
    ids=["cut", "longer", "empty", "zeros", "type", "shape"],
)
def test_a_file_that_does_not_fit_its_header_is_built_again(
    tmp_path: Path, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    files = jpegs(tmp_path, 2)
    first = np.array(CachedImages(files, 16, folder))
    (cache,) = caches(folder)
    intact = cache.read_bytes()
    cache.write_bytes(damage(intact))
    assert np.array_equal(CachedImages(files, 16, folder), first)
    assert caches(folder) == [cache] and cache.read_bytes() == intact


def test_a_cache_that_is_removed_in_use_is_still_read(tmp_path: Path, folder: Path) -> None:
    files = jpegs(tmp_path, 3)
    images = CachedImages(files, 16, folder)
    caches(folder)[0].unlink()
    assert all(np.array_equal(image, plain(file)) for image, file in zip(images, files, strict=True))


def test_images_that_change_while_they_are_decoded_are_not_mixed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, read_image = jpegs(tmp_path, 3), image_cache.read_image
    monkeypatch.setattr(image_cache, "read_image", lambda *of: (read_image(*of), jpeg(files[0], quality=20)))
    with pytest.raises(ValueError, match=f"^{files[0]}: .*start again"):
        CachedImages(files, 16, folder)
    assert caches(folder) == []


# -- bad files


def truncated(path: Path, suffix: str, size: int) -> None:
    Image.fromarray(RNG.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(path, suffix)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def png_bomb(path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def jpeg_bomb(path: Path, side: int, **options: object) -> None:
    data = jpeg(path, **options).read_bytes()
    path.write_bytes(data.replace(struct.pack(">HH", 16, 16), struct.pack(">HH", side, side)))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "empty file"),
    "text": (lambda path: path.write_text("no image"), "not an image"),
    "truncated-jpeg": (lambda path: truncated(path, "JPEG", 16), "[Tt]runcated"),
    "truncated-png": (lambda path: truncated(path, "PNG", 99), "truncated|broken"),
    "other-format": (lambda path: Image.new("RGB", (16, 16)).save(path, "PPM"), "none of JPEG, PNG"),
    "png-bomb": (lambda path: png_bomb(path, 60000), "more than 50 megapixels"),
    "small-png-bomb": (lambda path: png_bomb(path, 7072), "7072 x 7072 is more than 50 megapixels"),
    "truncated-tiff": (lambda path: truncated(path, "TIFF", 99), "not an image|truncated|-2"),
    "png-that-pillow-warns-of": (lambda path: png_bomb(path, 10000), "more than 50 megapixels"),
    "jpeg-bomb": (lambda path: jpeg_bomb(path, 65000), "more than 50 megapixels"),
}


@pytest.mark.usefixtures("either_decoder")
@pytest.mark.parametrize("kind", BAD)
def test_bad_images_are_named(tmp_path: Path, folder: Path, kind: str) -> None:
    make, reason = BAD[kind]
    files = [*jpegs(tmp_path, 2), tmp_path / "bad.jpg"]
    make(files[-1])
    with pytest.raises(ValueError, match=reason) as caught:
        CachedImages(files, 16, folder)
    message = str(caught.value)
    assert message.startswith(f"{files[-1]}: unreadable image (") and "; replace it or leave it out" in message
    assert "\n" not in message and " more)" not in message
    assert caches(folder) == []


@pytest.mark.parametrize(("bad", "end"), [((299, 7, 150), "; replace them"), (range(12), " and 2 more; replace them")])
def test_bad_images_are_named_up_to_ten(bad: Sequence[int], end: str, tmp_path: Path, folder: Path) -> None:
    files = jpegs(tmp_path, 300)
    for number in bad:
        files[number].write_bytes(b"")
    with pytest.raises(ValueError) as caught:
        CachedImages(files, 16, folder)
    named = ", ".join(f"{files[number]} (empty file)" for number in sorted(bad)[:10])
    assert str(caught.value).startswith(f"{len(bad)} of 300 images unreadable: {named}{end} or leave them out")
    assert caches(folder) == []


def test_an_unreadable_image_that_is_given_twice_is_all_there_is(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "bad.png"
    file.touch()
    with pytest.raises(UnreadableError, match=r"bad.png: unreadable image \(empty file\)"):
        unreadable([str(file)] * 2, 8, "skip", str(folder))


def test_nonsense_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="no images"):
        CachedImages([], 16, folder)
    for size in (0, -3, 10_000):
        with pytest.raises(ValueError, match=f"image_size: {size} is not 1 to 1024"):
            CachedImages(jpegs(tmp_path, 1), size, folder)
    assert not folder.exists()


# -- bad disks, interruptions, other processes


def test_a_full_disk_is_explained(tmp_path: Path, folder: Path) -> None:
    files, (soft, hard) = jpegs(tmp_path, 3), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ValueError, match=r"File too large\); free 1 MB there, or name another") as caught:
            CachedImages(files, 16, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)
    assert caches(folder) == []


def test_a_cache_folder_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        with pytest.raises(ValueError, match=r"cannot be used \(.*\); make it a folder .* or name another folder with"):
            CachedImages(jpegs(tmp_path, 1), 16, folder)


def test_an_interruption_leaves_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: str, into: np.ndarray) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(image_cache, "read_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        CachedImages(jpegs(tmp_path, 200), 16, folder)
    assert caches(folder) == []


def test_abandoned_files_of_a_cache_are_removed_before_the_next_one_is_built(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    for name in (f"{'a' * 32}.npy.123.tmp", "thesis.tmp"):
        (folder / name).touch()
    CachedImages(jpegs(tmp_path, 1), 16, folder)
    assert [path.name for path in folder.glob("*.tmp")] == ["thesis.tmp"]


def test_a_cache_is_read_while_another_is_built(tmp_path: Path, folder: Path) -> None:
    files = jpegs(tmp_path, 1)
    CachedImages(files, 16, folder)
    with FileLock(folder / "lock"):
        assert np.array_equal(CachedImages(files, 16, folder)[0], plain(files[0]))


def build(folder: Path, cache: Path, wait: float, link: Connection) -> None:
    """Tells when half of the images are decoded, where it waits, and then their sum."""
    files, read_image, numbers = sorted(folder.glob("*.jpg")), image_cache.read_image, itertools.count(1)

    def slow(path: str, into: np.ndarray) -> None:
        read_image(path, into)
        if next(numbers) == 128:
            link.send("halfway")
            time.sleep(wait)

    image_cache.read_image = slow
    link.send(int(np.array(CachedImages(files, 16, cache)).sum(dtype=np.int64)))


def builder(files: Path, cache: Path, wait: float) -> tuple[ForkServerProcess, Connection]:
    link, theirs = FORKED.Pipe()
    process = forked(build, files, cache, wait, theirs)
    theirs.close()
    return process, link


def told(link: Connection) -> list[Any]:
    """All that a process says until it ends."""
    said = []
    with link, contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            said.append(link.recv())
    return said


def test_processes_that_race_and_one_that_is_killed(tmp_path: Path, folder: Path) -> None:
    """One is killed while it builds and two wait for it: one of them builds, the other finds its work done."""
    files = tmp_path / "files"
    files.mkdir()
    total = sum(int(plain(file).sum(dtype=np.int64)) for file in jpegs(files, 400))
    killed, link = builder(files, folder, 600)
    with link:
        assert link.recv() == "halfway"
        assert [path.suffix for path in caches(folder)] == [".tmp"]
        racers = [builder(files, folder, 0.2) for _ in range(2)]
        killed.kill()
        killed.join()
    answers = [told(link) for _, link in racers]
    for process, _ in racers:
        process.join()
    assert [process.exitcode for process, _ in racers] == [0, 0], answers
    assert sorted(answers, key=len) == [[total], ["halfway", total]]
    assert [path.suffix for path in caches(folder)] == [".npy"]
