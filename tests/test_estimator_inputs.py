"""Mixtures of kinds, types, shapes and sizes of input to the estimator: right, or one line that says what to give."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

pytest.importorskip("sklearn", reason="the extra `sklearn` is not installed")

from dualnet import DualNetClassifier

LEARNER = {"name": "er", "width": 4, "memory": {"slots": 6}}


def as_file(image: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(image).save(file, kind)
    return file.getvalue()


# Forms of one image, uint8 [H, W, 3]; each must stand for the same pixels.
RIGHT: dict[str, Any] = {
    "array": lambda image: image,
    "channels first": lambda image: np.ascontiguousarray(image.transpose(2, 0, 1)),
    "not contiguous": lambda image: np.repeat(image, 2, axis=1)[:, ::2],
    "floats": lambda image: image / 255,
    "half floats": lambda image: (image / 255).astype(np.float32),
    "tensor": lambda image: torch.from_numpy(image).permute(2, 0, 1),
    "float tensor": lambda image: torch.from_numpy(image).permute(2, 0, 1).float() / 255,
    "Pillow": Pillow.fromarray,
    "transparent": lambda image: Pillow.fromarray(image).convert("RGBA"),
    "PNG": lambda image: as_file(image, "PNG"),
    "BMP": lambda image: bytearray(as_file(image, "BMP")),
}
# Forms that are no image, or one that cannot be read without guessing.
REFUSED: dict[str, Any] = {
    "bytes": lambda image: image.tobytes(),
    "cut": lambda image: as_file(image, "PNG")[:60],
    "empty": lambda image: b"",
    "number": lambda image: 7,
    "nothing": lambda image: None,
    "mapping": lambda image: {"image": image},
    "0 to 255 in floats": lambda image: image.astype(np.float32) + 2,
    "NaN": lambda image: np.where(image > image.mean(), np.nan, 0.5),
    "int64": lambda image: image.astype(np.int64),
    "five channels": lambda image: np.stack([image[:, :, 0]] * 5),
    "no pixel": lambda image: image[:0],
    "no file": lambda image: "no/such/file.png",
    "four axes": lambda image: image[None],
}
SIDES = st.integers(4, 40)


@st.composite
def images(draw: Any) -> tuple[list[np.ndarray], list[Any], bool]:
    """Pixels, the same in some form, and whether all of them are images."""
    pixels, forms, wrong = [], [], draw(st.booleans())
    for number in range(draw(st.integers(1, 4))):
        generator = np.random.default_rng(draw(st.integers(0, 99)))
        pixels.append(generator.integers(0, 256, (draw(SIDES), draw(SIDES), 3), np.uint8))
        kinds = REFUSED if wrong and number == 0 else RIGHT
        forms.append(kinds[draw(st.sampled_from(sorted(kinds)))](pixels[-1]))
    return pixels, draw(st.permutations(forms)) if wrong else forms, not wrong


@st.composite
def arrays(draw: Any) -> tuple[list[np.ndarray], Any, bool]:
    """As `images`, in one array or tensor."""
    height, width, count = draw(SIDES), draw(SIDES), draw(st.integers(1, 4))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (count, height, width, 3), np.uint8)
    grey = np.repeat(pixels[..., :1], 3, axis=3)
    shown, form, right = draw(
        st.sampled_from(
            [
                (pixels, pixels, True),
                (pixels, pixels.transpose(0, 3, 1, 2), True),
                (pixels, (pixels / 255).astype(np.float32), True),
                (pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2), True),
                (pixels, torch.from_numpy(pixels), True),
                (grey, pixels[..., 0], True),
                (grey, pixels[..., :1], True),
                (grey, torch.from_numpy(pixels[..., 0]), True),
                (pixels, pixels.astype(np.int32), False),
                (pixels, pixels.astype(np.float64), False),
                (pixels, pixels[..., :2], False),
                (pixels, pixels[..., None], False),
                (pixels, pixels[:0], False),
                (pixels, pixels[:, :0], False),
            ]
        )
    )
    return list(shown), form, right


FEW_NAMES = ["fig", "pear", "plum", None, -1]


@st.composite
def labels(draw: Any, count: int) -> tuple[Any, bool]:
    right = draw(st.booleans())
    if right:
        names = draw(st.lists(st.sampled_from(FEW_NAMES), min_size=count, max_size=count))
        return draw(st.sampled_from([names, tuple(names), np.array(names, dtype=object)])), True
    wrong = [
        ["fig"] * (count + 1),
        list(range(count)),
        [0.5] * count,
        [["fig", "pear"]] * count,
        "fig",
        [np.nan] * count,
    ]
    return draw(st.sampled_from(wrong)), False


@pytest.fixture(scope="module")
def fitted() -> DualNetClassifier:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3), np.uint8)
    return DualNetClassifier(LEARNER, image_size=28).partial_fit(pixels, ["fig", "pear"] * 4)


def refused(call: Any) -> bool:
    try:
        call()
    except ValueError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 500
        return True
    return False


@settings(max_examples=100)
@given(st.one_of(images(), arrays()), st.data())
def test_images_and_labels_of_all_kinds(fitted: DualNetClassifier, mixture: Any, data: Any) -> None:
    pixels, form, right = mixture
    event(f"images are {'right' if right else 'wrong'}")
    if not right:
        assert refused(lambda: fitted.predict_proba(form))
        assert refused(lambda: copy.deepcopy(fitted).partial_fit(form, ["fig"] * len(form)))
        return
    plain = fitted.predict_proba([Pillow.fromarray(image) for image in pixels])
    assert np.abs(fitted.predict_proba(form) - plain).max() < 1e-6
    given, known = data.draw(labels(len(pixels)))
    learning = copy.deepcopy(fitted)
    assert refused(lambda: learning.partial_fit(form, given)) is not known
    names = {name for name in given if isinstance(name, str)} if known else set()
    assert set(learning.classes_) == {"fig", "pear"} | names


KINDS = ["bool", "uint8", "int16", "uint64", "float16", "float32", "float64", "object", "complex64", "str"]
NOT_READ = {"complex64", "str"}
DAMAGED: dict[str, Any] = {
    "NaN": lambda rows: np.where(rows == rows.max(), np.nan, rows),
    "infinite": lambda rows: np.where(rows == rows.max(), np.inf, rows),
    "no row": lambda rows: rows[:0],
    "no feature": lambda rows: rows[:, :0],
    "one axis": lambda rows: rows[0],
    "a word": lambda rows: [["red"] * rows.shape[1]] * len(rows),
}


def grey(values: np.ndarray, low: float, high: float) -> list[np.ndarray]:
    """The squares that rows stand for."""
    side = int(np.ceil(np.sqrt(values.shape[1])))
    shades = np.clip((values.astype(np.float64) - low) / max(high - low, 1e-300), 0, 1)
    padded = [np.concatenate([row, np.zeros(side * side - len(row))]) for row in shades]
    return [np.round(255 * row).astype(np.uint8).reshape(side, side) for row in padded]


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 30), st.sampled_from(KINDS), st.integers(0, 99), st.booleans(), st.data())
def test_rows_of_all_kinds(count: int, features: int, kind: str, seed: int, listed: bool, data: Any) -> None:
    rows = np.random.default_rng(seed).integers(0, 100, (count, features)).astype(kind)
    estimator = DualNetClassifier(LEARNER, image_size=28)
    damage = data.draw(st.sampled_from([None, None, *sorted(DAMAGED)]))
    if kind in NOT_READ or damage:
        wrong = DAMAGED[damage](rows) if damage and kind not in NOT_READ else rows
        assert refused(lambda: estimator.partial_fit(wrong, [0] * len(wrong)))
        return
    form = rows.tolist() if listed else rows
    estimator.partial_fit(form, [0] * count, classes=[0, 1])
    low, high = (0, 255) if kind == "uint8" and not listed else (rows.min(), rows.max())
    assert np.array_equal(estimator.predict_proba(form), estimator.predict_proba(grey(rows, float(low), float(high))))
    assert refused(lambda: estimator.predict(np.zeros((1, features + 1))))
