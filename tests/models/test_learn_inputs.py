"""Mixtures of images and labels to `Model.learn`: learned as given, or refused in one line and nothing has changed."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_forms import SIDE, Given, images, nonsense, unreadable

from dualnet import Model
from dualnet.data.inputs import pixels_of

LEARNER = {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 2, "memory": {"slots": 8}}
names = st.sampled_from(["a", "b", "c", "ä", "a b", None])
wrong_names = st.sampled_from([0, 1.5, float("nan"), b"a", ["a"], True, object])


def model() -> Model:
    return Model.create(["a", "b"], image_size=SIDE, learner=LEARNER)


@st.composite
def lessons(draw: Any) -> tuple[list[Given], list[str | None]]:
    shown = draw(st.lists(images, max_size=5))
    return shown, draw(st.lists(names, min_size=len(shown), max_size=len(shown)))


@given(lessons(), st.integers(1, 6), st.booleans())
@settings(max_examples=60)
def test_mixtures_are_learned_as_given(lesson: Any, batch_size: int, add_classes: bool) -> None:
    (shown, labels), taught = lesson, model()
    forms, new = [image for image, _ in shown], [name for name in dict.fromkeys(labels) if name not in ("a", "b", None)]
    if (new and not add_classes) or set(labels) == {None}:
        refused(taught, forms, labels, batch_size=batch_size)
        return
    losses = taught.learn(forms, labels, batch_size=batch_size, add_classes=add_classes)
    assert taught.class_names == ("a", "b", *new)
    assert all(value == value for value in losses.values()) and bool(losses) == any(labels)
    memory = taught.learner.memory
    stored = [
        (taught.class_names[int(memory.labels[slot])], memory.images[slot])
        for slot in memory.filled.nonzero().flatten()
    ]
    pixels = pixels_of(forms, (3, SIDE, SIDE))
    expected = [(name, image) for name, image in zip(labels, pixels, strict=True) if name is not None]
    assert [name for name, _ in stored] == [name for name, _ in expected]
    assert all(torch.equal(image, sent) for (_, image), (_, sent) in zip(stored, expected, strict=True))


wrong: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda name: {"labels": ["a", name]}, wrong_names),
    st.builds(lambda count: {"labels": ["a"] * count}, st.sampled_from([0, 1, 3])),
    st.builds(lambda size: {"batch_size": size}, st.sampled_from([0, -1, 2.5, None, "3"])),
    st.builds(lambda task: {"task": task}, st.sampled_from([1, -1, 0.5, "a"])),
    st.builds(lambda image: {"images": image}, nonsense),
    st.builds(lambda image: {"images": [image, image]}, st.one_of(nonsense, unreadable)),
)


@given(wrong)
@settings(max_examples=60)
def test_nonsense_changes_nothing(mistake: dict[str, Any]) -> None:
    images = [torch.zeros(3, 9, 9, dtype=torch.uint8)] * 2
    refused(model(), **{"images": images, "labels": ["new", "b"], "add_classes": True, **mistake})


def refused(taught: Model, images: Any, labels: Any, **options: Any) -> None:
    """Some arrays at random are two images after all, and learned."""
    before = {key: value.clone() for key, value in taught.learner.state_dict().items()}
    try:
        taught.learn(images, labels, **options)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        assert taught.class_names == ("a", "b")
        assert all(torch.equal(value, before[key]) for key, value in taught.learner.state_dict().items())
    else:
        assert len(pixels_of(images, (3, SIDE, SIDE))) == len(labels) == 2 and taught.class_names == ("a", "b", "new")
