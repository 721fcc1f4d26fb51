"""Mixtures of all forms of images: those that are read have the right colours, the others are errors of one line."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_forms import SIDE, Given, arrays, images, nonsense, unreadable

from dualnet.batch import StreamSpec
from dualnet.data.inputs import list_images, readable
from dualnet.learners import ER, make_learner
from dualnet.learners.shared_options import EncoderOptions
from dualnet.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    spec = StreamSpec((3, SIDE, SIDE), torch.ones(1, 3, dtype=torch.bool))
    return Model(make_learner("er", spec, ER.Config(EncoderOptions(width=2))), ["a", "b", "c"])


def check_pixels(pixels: torch.Tensor, expected: list[tuple[int, int, int] | None]) -> None:
    assert pixels.dtype == torch.uint8 and pixels.shape == (len(expected), 3, SIDE, SIDE)
    for image, colour in zip(pixels.int(), expected, strict=True):
        if colour is not None:  # within what JPEG, a palette and a change of colour space lose
            assert (image - torch.tensor(colour)[:, None, None]).abs().max() <= 6, colour


@given(st.lists(st.one_of(images, unreadable.map(lambda item: (item, "unreadable"))), max_size=6))
def test_mixtures_of_images(model: Model, given: list[Given]) -> None:
    all_images, kinds = [image for image, _ in given], [colour for _, colour in given]
    pixels, errors = readable(all_images, (3, SIDE, SIDE))
    assert set(errors) == {number for number, kind in enumerate(kinds) if kind == "unreadable"}
    check_pixels(pixels, [kind for kind in kinds if kind != "unreadable"])
    answers = model.predict(all_images, on_error="skip")
    assert [bool(answer.error) for answer in answers] == [kind == "unreadable" for kind in kinds]
    assert [answer for answer in answers if not answer.error] == model.predict(pixels)


@given(st.one_of(nonsense, st.lists(st.one_of(nonsense, arrays.map(lambda item: item[0])), max_size=4)))
def test_nonsense_is_one_line(model: Model, given: Any) -> None:
    try:
        answers = model.predict(given)
    except ValueError as error:
        assert (
            "\n" not in str(error) and len(str(error)) < 500 and any(word in str(error) for word in ("give", "replace"))
        )
    else:
        assert all(answer.classes for answer in answers)


def test_a_folder_stands_for_its_regular_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "folder.png").mkdir(parents=True)
    (folder / "b.png").touch()
    for name, target in {"a.png": "b.png", "dead.png": "nowhere", "loop.png": "loop.png"}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.jpg")
    expected = [str(folder / name) for name in ("a.png", "b.png")]
    assert list_images(folder) == list_images(str(folder)) == expected
    with os.scandir(tmp_path) as entries:
        assert list_images(entries) == expected


def test_a_folder_includes_its_sub_folders(tmp_path: Path) -> None:
    names = ("z.png", "b/c/1.png", "b/2.png", "a b/1.png", ".hidden/1.png", "__MACOSX/1.png", "b/notes.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "a b")
    (tmp_path / "root").symlink_to("/")
    expected = [str(tmp_path / name) for name in ("z.png", "a b/1.png", "b/2.png", "b/c/1.png")]
    assert list_images(tmp_path) == expected
    assert list_images(tmp_path / "linked") == [str(tmp_path / "linked" / "1.png")], "it is named by the user"
    (tmp_path / "c" / "empty").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"/c: no images .* in this folder and below; name a folder with images"):
        list_images(tmp_path / "c")
