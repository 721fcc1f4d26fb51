"""The speed of random views and of the cache of decoded images."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Figure, milliseconds
from benchmarks.sizes import Sizes
from benchmarks.timing import in_turns, ratio, seconds
from dualnet.data.image_cache import CachedImages
from dualnet.image_ops import STATISTICS, ViewConfig, two_views

NUM_VIEWED, STORED_SIZE, VIEW_SIZE = 32, 128, 84
NUM_DRAWN = 200  # different JPEGs; the files repeat them
CPU = torch.device("cpu")


def augmentation(device: torch.device, sizes: Sizes) -> list[Figure]:
    """Two views of a batch, alternating with kornia if it is installed."""
    images = torch.randint(0, 256, (NUM_VIEWED, 3, STORED_SIZE, STORED_SIZE), dtype=torch.uint8).to(device)
    generator, config = torch.Generator(device).manual_seed(0), ViewConfig()
    ways: dict[str, Callable[[], Any]] = {
        "dualnet": lambda: two_views(images, (VIEW_SIZE, VIEW_SIZE), config, generator)
    }
    kornia = version_of("kornia")
    if kornia is not None:
        ways["kornia"] = kornia_views(images, config)
    times = in_turns(ways, device, sizes.repeats, warm_up=3, calls=5)
    note = f"of {NUM_VIEWED} images, {STORED_SIZE} to {VIEW_SIZE} px"
    ours = milliseconds("two views", median(times["dualnet"]), note)
    if kornia is None:
        return [ours, Figure("two views by kornia", None, "ms", "kornia is not installed")]
    return [
        ours,
        milliseconds(
            "two views by kornia", median(times["kornia"]), f"kornia {kornia}, the same transformations, alternating"
        ),
        Figure("time of kornia / ours", ratio(times, "kornia", "dualnet"), "x", "median of the ratios of all rounds"),
    ]


def kornia_views(images: Tensor, config: ViewConfig) -> Callable[[], list[Tensor]]:
    """The same transformations with the same options in kornia, which is not a dependency of this package."""
    kornia = import_module("kornia.augmentation")
    mean, std = (torch.tensor(values) for values in STATISTICS[config.normalisation])
    views = [
        kornia.AugmentationSequential(
            kornia.RandomCrop((VIEW_SIZE, VIEW_SIZE)),
            kornia.RandomHorizontalFlip(p=config.flip_probability),
            kornia.ColorJitter(
                config.brightness, config.contrast, config.saturation, config.hue, p=config.jitter_probability
            ),
            kornia.RandomGrayscale(p=config.grey_probability),
            kornia.RandomGaussianBlur((3, 3), config.blur_sigma, p=blur_probability),
            kornia.Normalize(mean, std),
        ).to(images.device)
        for blur_probability in config.blur_probability
    ]

    def make() -> list[Tensor]:
        pixels = images.float() / 255
        return [view(pixels) for view in views]

    return make


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cache(device: torch.device, sizes: Sizes) -> list[Figure]:
    """Building the cache from files in a temporary folder, and loading it again."""
    del device  # decoding runs on the host
    with tempfile.TemporaryDirectory() as folder:
        files = draw_jpegs(Path(folder), sizes.num_images)

        def load() -> Tensor:
            return torch.from_numpy(np.array(CachedImages(files, VIEW_SIZE, Path(folder, "cache"))))

        build = seconds(load, CPU)
        again = median(in_turns({"load": load}, CPU, repeats=3, warm_up=0)["load"])
    decoder = "Pillow" if version_of("simplejpeg") is None else "simplejpeg"
    note = f"{sizes.num_images:,} JPEGs of {VIEW_SIZE} px"
    return [
        Figure("image cache, built", sizes.num_images / build, "images/s", f"{note}, decoded by {decoder}"),
        Figure("image cache, loaded again", again, "s", f"{note}, every byte read"),
    ]


def draw_jpegs(folder: Path, num_images: int) -> list[Path]:
    """JPEG files of smooth noise, with about the file size of photographs."""
    drawn = [jpeg(seed) for seed in range(min(NUM_DRAWN, num_images))]
    files = [folder / f"{number}.jpg" for number in range(num_images)]
    for number, file in enumerate(files):
        file.write_bytes(drawn[number % len(drawn)])
    return files


def jpeg(seed: int) -> bytes:
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((VIEW_SIZE, VIEW_SIZE), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = random.integers(-16, 17, smooth.shape, dtype=np.int16)
    file = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
