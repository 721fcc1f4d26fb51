"""Encoder, adapter and classifier: counts, shapes, and the forward pass re-derived from plain functions."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.nets import Adapter, BatchNorm, Classifier, Encoder, pooled

SIZES = {28: (14, 7, 4, 2), 32: (16, 8, 4, 2), 64: (32, 16, 8, 4), 84: (42, 21, 11, 6), 128: (64, 32, 16, 8)}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def images(num: int, size: int, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(num, channels, size, size, generator=torch.Generator().manual_seed(seed))


def shuffle_norms(module: nn.Module) -> nn.Module:
    """Weights of the normalisations away from 1 and 0, where a mistake would not show."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, BatchNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(part.bias, -0.5, 0.5, generator=generator)
    return module


def normalised(x: Tensor, norm: BatchNorm) -> Tensor:
    """By the batch's own statistics, written out."""
    mean = x.mean(dim=(0, 2, 3), keepdim=True)
    variance = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


# Parameters


def encoder_count(width: int) -> int:
    """Convolutions without bias; a scale and a shift per normalised channel."""

    def conv(kernel: int, before: int, after: int) -> int:
        return kernel * kernel * before * after + 2 * after

    total = conv(3, 3, width) + 4 * conv(3, width, width)
    for before in (width, 2 * width, 4 * width):
        after = 2 * before
        total += conv(3, before, after) + 3 * conv(3, after, after) + conv(1, before, after)
    return total


def adapter_count(width: int, num_classes: int) -> int:
    sides = [3, width, 2 * width, 4 * width, 8 * width]
    convolutions = sum(9 * before * after + 3 * after for before, after in pairwise(sides))
    return convolutions + (8 * width + 1) * num_classes


@pytest.mark.parametrize(("width", "literal"), [(20, 1_093_140), (64, 11_168_832)])
def test_parameters_of_the_encoder(width, literal):
    # 11,168,832 is the ResNet18 for CIFAR, 11,173,962, without its head of ten classes.
    assert count(Encoder(width)) == encoder_count(width) == literal


@pytest.mark.parametrize(("width", "literal"), [(20, 166_325), (64, 1_596_501)])
def test_parameters_of_the_adapter(width, literal):
    assert count(Adapter(Encoder(width).channels, 85, "none")) == adapter_count(width, 85) == literal


@pytest.mark.parametrize(("width", "literal"), [(20, 1_106_825), (64, 11_212_437)])
def test_parameters_of_the_classifier(width, literal):
    assert count(Classifier(Encoder(width), 85)) == encoder_count(width) + (8 * width + 1) * 85 == literal


def test_fewer_input_channels_change_the_first_layers_only():
    assert count(Encoder(8)) - count(Encoder(8, in_channels=1)) == 2 * 9 * 8
    channels = Encoder(8).channels
    assert count(Adapter(channels, 5, "none")) - count(Adapter(channels, 5, "none", in_channels=1)) == 2 * 9 * 8


# Shapes


@pytest.mark.parametrize("size", SIZES)
def test_maps_of_encoder_and_adapter_agree(size):
    encoder = Encoder(4)
    x = images(2, size)
    maps = encoder(x)
    assert [tuple(h.shape) for h in maps] == [(2, 4 * 2**i, side, side) for i, side in enumerate(SIZES[size])]
    adapter = Adapter(encoder.channels, 5, "none")
    fast = x
    for block, slow in zip(adapter.blocks, maps, strict=True):
        fast = block(fast, 1)
        assert fast.shape == slow.shape
    assert adapter(x, maps).shape == (2, 5)


@pytest.mark.parametrize("size", [(28, 37), (45, 33)])
def test_oblong_and_odd_images(size):
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    encoder = Encoder(4)
    assert Adapter(encoder.channels, 5, "none")(x, encoder(x)).shape == (2, 5)


# Forward passes, by hand


def residual_block(block: nn.Module, x: Tensor, stride: int) -> Tensor:
    out = F.conv2d(x, block.conv1.weight, stride=stride, padding=1)
    out = normalised(out, block.norm1).clamp(min=0)
    out = normalised(F.conv2d(out, block.conv2.weight, padding=1), block.norm2)
    if stride == 2:
        x = normalised(F.conv2d(x, block.shortcut.weight, stride=2), block.shortcut_norm)
    return (out + x).clamp(min=0)


def test_the_encoder_is_a_resnet18():
    encoder = shuffle_norms(Encoder(4))
    x = images(3, 32)
    maps = encoder(x)
    h = normalised(F.conv2d(x, encoder.stem.weight, padding=1), encoder.stem_norm).clamp(min=0)
    h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
    for stage, (first, second) in enumerate(encoder.stages):
        h = residual_block(second, residual_block(first, h, stride=1 if stage == 0 else 2), stride=1)
        torch.testing.assert_close(maps[stage], h, atol=1e-4, rtol=1e-4)


def scaled(m: Tensor, normalise: str) -> Tensor:
    """m / ||m||^2 with the norm over a whole map or over the channels of a pixel, example by example."""
    out = m.clone()
    for example in out:
        if normalise == "map":
            example /= (example**2).sum()
        elif normalise == "pixel":
            example /= (example**2).sum(dim=0).clamp(min=1e-6)
    return out


@pytest.mark.parametrize("normalise", ["none", "map", "pixel"])
def test_the_adapter_follows_the_paper(normalise):
    encoder = Encoder(4)
    adapter = shuffle_norms(Adapter(encoder.channels, 5, normalise))
    x = images(3, 28)
    with torch.no_grad():
        maps = encoder(x)
        adapted = x
        for block, h in zip(adapter.blocks, maps, strict=True):
            m = F.conv2d(adapted, block.conv.weight, block.conv.bias, padding=1)
            m = F.max_pool2d(normalised(m, block.norm).clamp(min=0), kernel_size=2, ceil_mode=True)
            adapted = h * scaled(m, normalise)
        expected = adapted.mean(dim=(2, 3)) @ adapter.head.weight.T + adapter.head.bias
        torch.testing.assert_close(adapter(x, maps), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("normalise", ["none", "map", "pixel"])
def test_zero_maps_stay_finite(normalise):
    m = torch.zeros(2, 8, 3, 3, requires_grad=True)
    out = Adapter((8,), 2, normalise).normalised(m)
    out.sum().backward()
    assert out.isfinite().all() and m.grad.isfinite().all()


def test_the_classifier_is_an_encoder_with_a_head():
    net = Classifier(Encoder(4), 5).eval()
    x = images(2, 28)
    torch.testing.assert_close(net(x), net.head(net.encoder(x)[-1].mean(dim=(2, 3))))


def test_pooling_is_the_mean_over_pixels():
    feature_map = torch.arange(24.0).view(1, 2, 3, 4)
    assert pooled(feature_map).tolist() == [[5.5, 17.5]]


@pytest.mark.parametrize("part", ["classifier", "dualnet"])
def test_two_batches_in_one_pass_equal_two_passes(part):
    def make() -> tuple[nn.Module, ...]:
        torch.manual_seed(0)
        encoder = Encoder(4)
        return (Classifier(Encoder(4), 5),) if part == "classifier" else (encoder, Adapter(encoder.channels, 5, "none"))

    def run(nets: tuple[nn.Module, ...], x: Tensor, parts: int) -> Tensor:
        return nets[0](x, parts) if len(nets) == 1 else nets[1](x, nets[0](x, parts), parts)

    together, separate = make(), make()
    a, b = images(3, 28, seed=1), 2 * images(3, 28, seed=2) + 1
    joined = run(together, torch.cat([a, b]), 2)
    torch.testing.assert_close(joined, torch.cat([run(separate, a, 1), run(separate, b, 1)]), atol=1e-4, rtol=1e-4)
    for norm, expected_norm in zip(together, separate, strict=True):
        for buffer, expected in zip(norm.buffers(), expected_norm.buffers(), strict=True):
            torch.testing.assert_close(buffer, expected, atol=1e-4, rtol=1e-4)
