"""Convolutions by matrix products give the numbers of a convolution in double precision, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.kernels import wide_conv
from dualnet.nets.conv import Conv

CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True)
def _on_any_processor(monkeypatch):
    monkeypatch.setattr(wide_conv, "IS_FASTER", True)


def conv_of(channels: int = 12, stride: int = 1, bias: bool = False, width: int = 128) -> Conv:
    torch.manual_seed(0)
    return Conv(channels, width, 3, stride, padding=1, bias=bias).to(memory_format=CHANNELS_LAST)


def maps(channels: int = 12, height: int = 2, width: int = 2, images: int = 3) -> Tensor:
    return torch.randn(images, channels, height, width).contiguous(memory_format=CHANNELS_LAST).requires_grad_()


@pytest.mark.parametrize("channels", [1, 12])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(2, 2), (1, 1), (4, 4), (7, 5), (24, 24)])
def test_results_and_gradients_are_those_of_a_convolution(height, width, stride, bias, channels):
    conv, x = conv_of(channels, stride, bias), maps(channels, height, width)
    out = conv(x)
    small = (height, width, stride, bias) == (2, 2, 1, False)
    assert type(out.grad_fn).__name__ == ("SmallConvBackward" if small else "PatchConvBackward")
    upstream = torch.randn_like(out)
    grads = torch.autograd.grad(out, [x, *conv.parameters()], upstream)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *conv.parameters())]
    expected = F.conv2d(*exact, stride=stride, padding=1)
    for grad, exact_grad in zip(grads, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out.detach().double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert all(tensor.is_contiguous(memory_format=CHANNELS_LAST) for tensor in (out, *grads[:2]))


def test_images_need_no_gradient():
    conv, x = conv_of(), maps(height=4, width=4).detach()
    conv(x).sum().backward()
    assert x.grad is None and conv.weight.grad is not None


def plain(conv: Conv, x: Tensor) -> bool:
    return type(conv(x).grad_fn).__name__ == "ConvolutionBackward0"


def test_few_channels_other_layouts_and_other_convolutions_are_left_to_pytorch():
    assert plain(conv_of(width=64), maps())
    assert plain(conv_of(), torch.randn(3, 12, 4, 4))
    assert plain(conv_of().to(memory_format=torch.contiguous_format), maps())
    assert plain(conv_of().requires_grad_(False), maps())
    assert plain(conv_of().double(), maps().double())
    for options in ({"kernel_size": 3}, {"kernel_size": 3, "padding": 1, "groups": 2}, {"kernel_size": 1, "stride": 2}):
        assert plain(Conv(12, 128, **options).to(memory_format=CHANNELS_LAST), maps(height=4, width=4))


def test_predictions_and_bfloat16_are_left_to_pytorch():
    conv, x = conv_of(), maps()
    with torch.no_grad():
        assert torch.equal(conv(x), F.conv2d(x, conv.weight, padding=1))
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(x).dtype == torch.bfloat16
