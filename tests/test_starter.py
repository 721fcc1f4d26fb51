"""Training of the starter: from lists of images to a file that an encoder starts from, by its command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from dualnet.image_ops import network_input
from dualnet.nets import Encoder
from dualnet.nets.start import load_weights
from starter.images import read
from starter.train import main

SIZE = 28


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 classes of two training and two test images; the colour tells the class."""
    root = tmp_path_factory.mktemp("mini")
    (root / "images").mkdir()
    random = np.random.default_rng(0)
    for prefix, labels in (("cl", range(15, 100)), ("val", range(15))):
        for part in ("train", "test"):
            rows = []
            for label in labels:
                for number in range(2):
                    name = f"images/{prefix}-{part}-{label}-{number}.png"
                    colour = np.array([label % 5, label // 5 % 5, label // 25]) * 50
                    pixels = colour + random.integers(0, 50, (SIZE, SIZE, 3))
                    Image.fromarray(pixels.astype(np.uint8)).save(root / name)
                    rows.append(f"{name},{label}\n")
            (root / f"{prefix}_{part}.csv").write_text("".join(rows))
    return root


def test_the_held_out_images_are_not_learned(data: Path, tmp_path: Path) -> None:
    learned, held_out = read(str(data), SIZE, num_held_out=1, cache=str(tmp_path))
    assert learned.labels.bincount().tolist() == [3] * 100 and held_out.labels.tolist() == list(range(100))
    of_learned = {image.numpy().tobytes() for image in learned.images}
    assert len(of_learned) == 300
    assert not of_learned & {image.numpy().tobytes() for image in held_out.images}


def test_training_writes_weights_with_their_statistics_and_a_card(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cache = tmp_path / "starter-4.safetensors", str(tmp_path / "cache")
    options = f"--width 4 --image_size {SIZE} --held_out 1 --batch_size 30 --lr 0.1 --device cpu --seconds 1"
    assert main(["--data", str(data), *options.split(), "--cache", cache, "--out", str(out)]) == 0
    assert "61 steps" in capsys.readouterr().out  # no more fit into a second
    card = out.with_suffix(".md").read_text()
    assert "| 61 of 30 images" in card and "| 300 learned, 100 held out" in card
    stored = safetensors.torch.load_file(out)
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() == 4} == {torch.float16}
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() == 1} == {torch.float32}
    encoder = Encoder(4).eval()
    load_weights(encoder, out)
    images = read(str(data), SIZE, 1, cache)[0].images
    conv = encoder.stem(network_input(images, (SIZE, SIZE)))
    mean, deviation = conv.mean(dim=(0, 2, 3)), conv.std(dim=(0, 2, 3))
    assert ((encoder.stem_norm.running_mean - mean).abs() < 0.03 * deviation).all()
    assert ((encoder.stem_norm.running_var.sqrt() / deviation - 1).abs() < 0.05).all()


def test_a_folder_without_lists_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "out.safetensors")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said and said.count("\n") == 1
