"""The Triton kernels that make views against the eager ones: by Triton's interpreter on the CPU."""

import pytest
import torch

from dualnet import image_ops
from dualnet.image_ops import ViewConfig, augmented_input, colour_basis, settings, two_views

CPU = torch.device("cpu")
CONFIGS = [
    ViewConfig(),
    ViewConfig(crop_area=(0.08, 1.0), crop_ratio=(0.75, 1.3333), normalisation="imagenet"),
    ViewConfig(blur_probability=(0.0, 1.0), grey_probability=1.0, flip_probability=0.0),
    ViewConfig(jitter_probability=0.0, blur_probability=(0.0, 0.0)),
]
# A view in one block of pixels; and in five, of which two blocks in turn share a program of the first kernel.
IN_ONE, IN_FIVE = (512, (40, 40), (22, 23)), (128, (31, 52), (17, 31))


def stored(sides: tuple[int, int], seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, *sides), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("seed", "config", "blocks"), [(0, CONFIGS[0], IN_FIVE), *((n + 1, each, IN_ONE) for n, each in enumerate(CONFIGS))]
)
def test_fused_views_agree_with_eager_ones(seed, config, blocks, monkeypatch):
    from dualnet.kernels import views

    pixels_at_a_time, sides, size = blocks
    monkeypatch.setattr(views, "PIXELS_AT_A_TIME", pixels_at_a_time)
    images = stored(sides, seed)
    draws = torch.rand(4, 12, generator=torch.Generator().manual_seed(seed))
    eager = torch.cat(two_views(images, size, config, torch.Generator().manual_seed(seed)))
    blur = draws[:, 10] < torch.tensor(config.blur_probability).repeat_interleave(2)
    fused = views.fused_views(images, size, draws, blur, settings(config, CPU), colour_basis(CPU))
    assert fused.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=2e-4)


@pytest.mark.usefixtures("interpreted")
def test_a_fused_resized_crop_agrees_with_the_eager_one():
    """Which leaves out the colours and the blur."""
    from dualnet.kernels import views

    _, sides, size = IN_ONE
    images, area = stored(sides, 4), (0.3, 0.9)
    config = ViewConfig(
        crop_area=area,
        crop_ratio=(3 / 4, 4 / 3),
        jitter_probability=0.0,
        grey_probability=0.0,
        normalisation="imagenet",
    )
    eager = augmented_input(images, size, "resized_crop", torch.Generator().manual_seed(9), area)
    draws = torch.rand(2, 12, generator=torch.Generator().manual_seed(9))
    fused = views.fused_views(images, size, draws, draws[:, 10] < 0, settings(config, CPU), colour_basis(CPU))
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=2e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_views_on_cuda_equal_those_on_the_cpu():
    from dualnet.kernels.views import fused_views

    config, size, cuda = ViewConfig(), (48, 56), torch.device("cuda")
    images = torch.randint(0, 256, (8, 3, 64, 72), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = torch.rand(16, 12, generator=torch.Generator().manual_seed(5))
    blur = draws[:, 10] < torch.tensor(config.blur_probability).repeat_interleave(8)
    known = image_ops.settings(config, cuda), image_ops.colour_basis(cuda)
    fused = fused_views(images.cuda(), size, draws.cuda(), blur.cuda(), *known)
    eager = torch.cat(image_ops.two_views(images, size, config, torch.Generator().manual_seed(5)))
    torch.testing.assert_close(fused.cpu(), eager, rtol=1e-4, atol=1e-3)
