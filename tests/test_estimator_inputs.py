"""All kinds, types, shapes and sizes of input to the estimator: accepted, or rejected with a one-line message."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_forms import SIDE, Given, images, unreadable
from PIL import Image

pytest.importorskip("sklearn", reason="the extra `sklearn` is not installed")

from dualnet import DualNetClassifier
from dualnet.data.inputs import pixels_of

pytestmark = pytest.mark.filterwarnings("ignore:y. no label is known")
LEARNER = {"name": "er", "encoder": {"width": 4}, "memory": {"slots": 6}}
sides = st.integers(4, 40)


@st.composite
def arrays(draw: Any) -> tuple[list[np.ndarray], Any, bool]:
    """Pixels, the same in one array or tensor, and whether these are images."""
    height, width, count = draw(sides), draw(sides), draw(st.integers(1, 4))
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
    pixels = np.random.default_rng(0).integers(0, 256, (8, SIDE, SIDE, 3), np.uint8)
    return DualNetClassifier(LEARNER, image_size=SIDE).partial_fit(pixels, ["fig", "pear"] * 4)


def refused(call: Any) -> bool:
    try:
        call()
    except ValueError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 500
        return True
    return False


def check(fitted: DualNetClassifier, form: Any, plain: list[Any], data: Any) -> None:
    """Valid images give the same result as plain arrays, and are learned unless their labels are invalid."""
    assert np.abs(fitted.predict_proba(form) - fitted.predict_proba(plain)).max() < 1e-6
    given, known = data.draw(labels(len(plain)))
    learning = copy.deepcopy(fitted)
    assert refused(lambda: learning.partial_fit(form, given)) is not known
    names = {name for name in given if isinstance(name, str)} if known else set()
    assert set(learning.classes_) == {"fig", "pear"} | names


@settings(max_examples=60)
@given(st.lists(images, min_size=1, max_size=4), st.booleans(), st.data())
def test_lists_of_all_kinds(fitted: DualNetClassifier, mixture: list[Given], wrong: bool, data: Any) -> None:
    form = [image for image, colour in mixture if colour is not None]
    if wrong:
        form.insert(data.draw(st.integers(0, len(form))), data.draw(unreadable))
        assert refused(lambda: fitted.predict_proba(form))
        assert refused(lambda: copy.deepcopy(fitted).partial_fit(form, ["fig"] * len(form)))
    elif form:
        form = data.draw(st.sampled_from([list, tuple]))(form)
        check(fitted, form, list(pixels_of(form, (3, SIDE, SIDE))), data)  # some kinds of file lose a little colour


@settings(max_examples=40)
@given(arrays(), st.data())
def test_arrays_of_all_kinds(fitted: DualNetClassifier, mixture: Any, data: Any) -> None:
    pixels, form, right = mixture
    if right:
        check(fitted, form, [Image.fromarray(image) for image in pixels], data)
    else:
        assert refused(lambda: fitted.predict_proba(form))
        assert refused(lambda: copy.deepcopy(fitted).partial_fit(form, ["fig"] * len(form)))


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
    estimator = DualNetClassifier(LEARNER, image_size=SIDE)
    damage = data.draw(st.sampled_from([None, None, *sorted(DAMAGED)]))
    if kind in NOT_READ or damage:
        wrong = DAMAGED[damage](rows) if damage and kind not in NOT_READ else rows
        assert refused(lambda: estimator.partial_fit(wrong, [0] * len(wrong)))
        return
    form = rows.tolist() if listed else rows
    estimator.partial_fit(form, [0] * count, classes=[0, 1])
    low, high = (0, 255) if kind == "uint8" and not listed else (rows.min(), rows.max())
    assert np.array_equal(estimator.predict_proba(form), estimator.predict_proba(grey(rows, float(low), float(high))))
    for wrong in (np.zeros((1, features + 1)), np.full((1, features), np.nan)):
        assert refused(lambda wrong=wrong: estimator.predict(wrong))
