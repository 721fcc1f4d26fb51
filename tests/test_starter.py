"""Training of the starter: from lists of images to a file that an encoder starts from, by its command."""

import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from dualnet.image_ops import network_input
from dualnet.nets import Encoder
from dualnet.nets.weights import load_weights
from starter.images import read, read_glyphs
from starter.train import main
from starter.views import INVERTED, REDUCED, SCALE, glyph_views, pairs, with_fewer_pixels

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
    np.savez(root / "glyphs.npz", images=random.integers(0, 255, (40, 32, 32), np.uint8), labels=np.arange(40) % 4)
    return root


def test_the_held_out_images_are_not_learned(data: Path, tmp_path: Path) -> None:
    learned, held_out = read(str(data), SIZE, num_held_out=1, cache=str(tmp_path))
    assert learned.labels.bincount().tolist() == [3] * 100 and held_out.labels.tolist() == list(range(100))
    of_learned = {image.numpy().tobytes() for image in learned.images}
    assert len(of_learned) == 300
    assert not of_learned & {image.numpy().tobytes() for image in held_out.images}


def test_training_writes_weights_with_their_statistics_and_a_card(data: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "starter-4.safetensors", str(tmp_path / "cache")
    options = f"--width 4 --image_size {SIZE} --view_size {SIZE} --held_out 1 --batch_size 32 --lr 0.1 --device cpu"
    files = ["--data", str(data), "--glyphs", str(data / "glyphs.npz"), "--cache", cache, "--out", str(out)]
    assert main([*options.split(), "--steps", "30", *files]) == 0
    card = out.with_suffix(".md").read_text()
    assert "| 30 of 32 images" in card and "| 300 photos and 40 " in card and " 100 photos held out" in card
    stored = safetensors.torch.load_file(out)
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() == 4} == {torch.float16}
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() == 1} == {torch.float32}
    encoder = Encoder(4).eval()
    load_weights(encoder, out)
    photos, glyphs = read(str(data), SIZE, 1, cache)[0].images, read_glyphs(str(data / "glyphs.npz"), SIZE, 100).images
    images = torch.cat([photos[::3], glyphs[:14]])  # 7 to 1
    conv = encoder.stem(network_input(images, (SIZE, SIZE)))
    mean, deviation = conv.mean(dim=(0, 2, 3)), conv.std(dim=(0, 2, 3))
    assert ((encoder.stem_norm.running_mean - mean).abs() < 0.03 * deviation).all()
    assert ((encoder.stem_norm.running_var.sqrt() / deviation - 1).abs() < 0.05).all()


def test_a_folder_without_lists_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "out.safetensors")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said and said.count("\n") == 1


def test_the_seconds_bound_the_steps(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"--width 4 --image_size {SIZE} --view_size {SIZE} --batch_size 16 --device cpu --seconds 12.5"
    files = ["--data", str(data), "--glyphs", str(data / "glyphs.npz"), "--out", str(tmp_path / "out.safetensors")]
    assert main([*options.split(), *files, "--cache", str(tmp_path)]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if " step " in line][-1]
    assert float(last.split()[0]) < 10 and int(last.split("step")[1].split()[0]) > 1


def test_views_are_of_the_whole_batch_some_with_fewer_pixels_some_inverted() -> None:
    generator = torch.Generator().manual_seed(0)
    photos = torch.full((400, 3, 64, 64), 255, dtype=torch.uint8)  # white: an inverted view is dark
    glyphs = torch.zeros(8, 3, 64, 64, dtype=torch.uint8)
    views = pairs(photos, glyphs, (48, 48), generator)
    assert views.shape == (816, 3, 48, 48) and views.isfinite().all()
    dark = (torch.cat([views[:400], views[408:808]]).mean(dim=(1, 2, 3)) < 0).float().mean().item()
    assert dark == pytest.approx(INVERTED, abs=0.04)


def test_three_of_four_first_views_have_fewer_pixels() -> None:
    noise = torch.rand(16, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    spread = with_fewer_pixels(noise).std(dim=(1, 2, 3)) / noise.std(dim=(1, 2, 3))
    assert [(spread[row::4] < 0.6).all().item() for row in range(4)] == [True, True, True, False]
    assert (spread[3::4] == 1).all() and len(REDUCED) == 3


def test_a_glyph_stays_whole_and_is_not_mirrored() -> None:
    """A bar on the left, which turning and moving leaves on the left."""
    glyphs = torch.zeros(100, 3, 64, 64, dtype=torch.uint8)
    glyphs[:, :, 20:44, 14:20] = 255
    views = glyph_views(glyphs, (48, 48), torch.Generator().manual_seed(0))
    ink = (views - views[:, :, :1, :1]).abs().mean(dim=1)
    assert (ink[:, :, :24].sum(dim=(1, 2)) > ink[:, :, 24:].sum(dim=(1, 2))).all()
    area = (ink / ink.amax(dim=(1, 2), keepdim=True)).sum(dim=(1, 2)) / (24 * 6 * (48 / 64) ** 2)
    assert math.exp(-2 * SCALE) * 0.9 < area.min() and area.max() < math.exp(2 * SCALE) * 1.1 and area.mean() > 0.9
