"""Invalid options of `dualnet serve`."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from serving import SIZE, open_model, small_model

from dualnet.serve import state_folder
from dualnet.serve.options import Options
from dualnet.serve.server import serve


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("port", 10**20),
        ("batch_size", 0),
        ("most_classes", 0),
        ("margin", math.nan),
        ("share", 0.0),
        ("share", 1.5),
        ("save_seconds", math.nan),
        ("client_seconds", 0),
        ("device", "tpu"),
        ("held_out_every", 1),
    ],
)
def test_an_invalid_value_is_reported_with_its_option(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value}"):
        Options(Path(), **{name: value})


@pytest.mark.parametrize("size", [0, 100_000])
def test_the_images_of_a_new_model_have_a_size_that_can_be_decoded(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"--image-size: {size}"):
        open_model(Options(tmp_path, image_size=size, device="cpu"))


def test_another_image_size_than_that_of_the_model_is_refused(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    state = tmp_path / "state"
    with pytest.raises(ValueError, match=f"--image-size 64: .* {SIZE} pixels; omit --image-size"):
        open_model(Options(state, model=model, image_size=64, device="cpu"))
    open_model(Options(state, model=model, device="cpu"))
    open_model(Options(state, model=model, image_size=SIZE, device="cpu"))  # as a learner that restarts
    with pytest.raises(ValueError, match=r"^--image-size 64: [^\n]* omit --image-size[^\n]*$"):
        open_model(Options(state, image_size=64, device="cpu"))


def test_options_of_a_learner_are_for_a_new_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out --learner"):
        Options(tmp_path, model=tmp_path, learner={"preset": "live"})
    live = open_model(Options(tmp_path, image_size=SIZE, device="cpu", learner={"preset": "live"}))
    assert live.learner.closed_form is None and live.learner.ema is not None
    with pytest.warns(UserWarning, match="--learner: not used"):
        state_folder.warn_of_unused_model(Options(tmp_path, learner={"preset": "lda"}))


def test_a_model_that_is_not_used_is_a_warning(tmp_path: Path) -> None:
    """The first command can be repeated, even if the folder of its model is gone."""
    options = Options(tmp_path / "state", model=small_model(tmp_path / "model"), device="cpu")
    state_folder.warn_of_unused_model(options)
    open_model(options)
    with pytest.warns(UserWarning, match=f"--model {options.model}: not used"):
        state_folder.warn_of_unused_model(options)
    open_model(dataclasses.replace(options, model=tmp_path / "gone"))


def test_a_model_or_a_run_is_not_a_state_folder(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("dualnet.serve.server.bound_socket")  # so that a service which is not refused ends
    for folder in (small_model(tmp_path / "model"), finished):
        before = sorted(folder.rglob("*"))
        with pytest.raises(ValueError, match=f"--state {folder}: is a run or a model; .* --model {folder}"):
            serve(Options(folder, port=0, device="cpu"), print)
        assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("file", ["photos/red/0.png", "photos/0.jpg"])
def test_a_folder_of_images_is_not_a_state_folder(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which the state would be taken for classes."""
    monkeypatch.delattr("dualnet.serve.server.bound_socket")
    image, folder = tmp_path / file, tmp_path / "photos"
    image.parent.mkdir(parents=True)
    image.touch()
    with pytest.raises(ValueError, match=f"--state {folder}: holds images; .* dualnet teach {folder}"):
        serve(Options(folder, port=0, device="cpu"), print)
    assert {*folder.rglob("*")} <= {image, image.parent}
