"""Photos of phones: HEIC files are read wherever images are, within limits, if pillow-heif is installed."""

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import environment, picture
from PIL import Image
from pillow_heif import from_bytes

from dualnet import Model, cli
from dualnet.data import decode
from dualnet.data.decode import UnreadableError, decoding, read_bytes, read_image
from dualnet.data.image_cache import find_unreadable
from dualnet.data.image_folder import ImageFolder

QUARTER = Image.Transpose.ROTATE_270  # clockwise


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def smooth(width: int = 96, height: int = 64) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - y], axis=2).astype(np.uint8))


def save(image: Image.Image, path: str, **options: Any) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with decoding():  # registers the format
        image.save(path, format="HEIF", **options)
    return Path(path)


def test_other_formats_are_read_if_pillow_heif_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"})
    smooth().save("photo.png")
    assert read(Path("photo.png")).any()


def read(path: Path, size: int = 16) -> np.ndarray:
    into = np.empty((size, size, 3), np.uint8)
    with decoding():
        read_image(str(path), into)
    return into.astype(int)


def square(image: Image.Image, size: int = 16) -> np.ndarray:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)).resize((size, size))).astype(int)


def test_the_pixels_are_those_of_the_photo() -> None:
    """Turned as the file says, once; a file that is called .jpg is read as well."""
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    plain, turned = save(smooth(), "a.heic", quality=95), save(smooth(), "b.jpg", quality=95, exif=exif.tobytes())
    assert abs(read(plain) - square(smooth())).max() < 12
    assert abs(read(turned) - square(smooth().transpose(QUARTER))).max() < 12


def test_transparency_is_white_and_ten_bits_are_scaled() -> None:
    clear = save(Image.new("RGBA", (32, 32), (255, 0, 0, 0)), "clear.heic")
    assert read(clear).min() > 250
    deep = from_bytes("RGB;16", (32, 32), np.full(32 * 32 * 3, 0x8000, np.uint16).tobytes())
    deep.save("deep.heic")
    assert abs(read(Path("deep.heic")) - 128).max() < 4


def with_size(path: Path, width: int, height: int) -> Path:
    """The file with another size in its header."""
    data = path.read_bytes()
    start = data.index(b"ispe") + 8
    assert data.count(b"ispe") == 1
    path.write_bytes(data[:start] + struct.pack(">II", width, height) + data[start + 8 :])
    return path


@pytest.mark.parametrize("side", [7072, 30000])
def test_too_many_pixels_are_refused_before_they_are_decoded(side: int) -> None:
    large = with_size(save(smooth(), "large.heic"), side, side)
    with pytest.raises(UnreadableError, match="more than 50 megapixels"):
        read(large)


def test_an_image_that_is_larger_than_its_header_is_refused() -> None:
    """Else the header of a small file could hide any number of pixels."""
    liar = with_size(save(Image.new("RGB", (1024, 1024)), "liar.heic"), 64, 64)
    with pytest.raises(UnreadableError, match="1024x1024 exceeds the maximum"):
        read(liar)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_truncated_file_is_named(share: float) -> None:
    data = save(Image.effect_noise((64, 64), 90), "a.heic").read_bytes()
    with decoding(), pytest.raises(UnreadableError, match=r"^a: unreadable image"):
        read_bytes(data[: int(len(data) * share)], np.empty((8, 8, 3), np.uint8), "a")


def test_commands_read_them(capsys: Any) -> None:
    """learn, predict and evaluate, and a benchmark; PNG and HEIC files together, with any of the suffixes."""
    for place, name in enumerate(("cat", "dog")):
        for number, suffix in enumerate(("heic", "HEIC", "heif", "hif")):
            save(Image.effect_noise((40, 30), 20 + 90 * place).convert("RGB"), f"photos/{name}/{number}.{suffix}")
        picture(Path(f"photos/{name}/4.png"), place)
    small = "--image-size 28 --learner.name er --learner.encoder.width 2 --learner.updates 1 --learner.memory.slots 20"
    assert cli.main(["learn", "photos", "--out", "m", *small.split(), "--device", "cpu"]) == 0
    assert "learned from 10 images" in capsys.readouterr().out
    assert cli.main(["predict", "m", "photos/cat", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert cli.main(["evaluate", "m", "photos"]) == 0
    assert "of 10 images correct" in capsys.readouterr().out
    made = ImageFolder(root="photos", classes_per_task=1, image_size=28).make()
    assert sum(len(part.labels) for task in made.tasks for part in (task.train, task.test)) == 10
    assert (
        len(
            Model.create(["a"], image_size=28, learner={"name": "er", "encoder": {"width": 2}}).predict(
                "photos/dog/1.HEIC"
            )
        )
        == 1
    )


def test_files_that_could_not_be_read_before_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(save(smooth(), "really-heic.jpg"))
    with monkeypatch.context() as patch:
        for module in ("decode", "image_cache"):
            patch.setattr(f"dualnet.data.{module}.FORMATS", decode.FORMATS[:-1])
        assert [*find_unreadable([file], 8, None)] == [str(Path(file).absolute())]
    assert find_unreadable([file], 8, None) == {}


def test_without_the_package_in_this_version_messages_name_the_extra() -> None:
    """In a folder of other images they are ignored; alone, and as a file, they are refused."""
    save(smooth(), "mixed/cat/0.heic")
    picture(Path("mixed/cat/1.png"), 0)
    save(smooth(), "only/cat/0.heic")
    code = """
import importlib.metadata, sys, warnings
real = importlib.metadata.version
importlib.metadata.version = lambda name: "1.7.4" if name == "pillow-heif" else real(name)
from dualnet.data.class_folders import files_by_class
from dualnet.data.inputs import pixels_of
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_, **__: print(message)
print(*files_by_class("mixed", ["cat"])["cat"])
for read in (lambda: files_by_class("only", ["cat"]), lambda: pixels_of("only/cat/0.heic", (3, 8, 8))):
    try:
        read()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    ignored, files, *refused = done.stdout.splitlines()
    assert (
        files.endswith("mixed/cat/1.png")
        and "mixed/cat/0.heic: ignored; only files directly in a class folder are read: .bmp " in ignored
    )
    assert " " not in files, "only that one"
    assert len(refused) == 2 and "no images (" in refused[0] and "not an image, or none of JPEG" in refused[1]
    assert all("and HEIC after pip install 'dualnet[heic]'" in line for line in (ignored, *refused))
