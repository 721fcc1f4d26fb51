"""Batch normalisation in parts against torch.nn.BatchNorm, one pass per part."""

import pytest
import torch
from torch import nn

from dualnet import kernels
from dualnet.nets import Adapter, BatchNorm, Encoder, forward_batches
from dualnet.nets.conv import Conv, autocast_weights


def random_pair(num_features: int, relu: bool, dims: int) -> tuple[BatchNorm, nn.Module]:
    """Ours and PyTorch's with the same random weights and statistics."""
    generator = torch.Generator().manual_seed(num_features)
    theirs = (nn.BatchNorm2d if dims == 4 else nn.BatchNorm1d)(num_features)
    ours = BatchNorm(num_features, relu=relu)
    state = {
        "weight": torch.rand(num_features, generator=generator) + 0.5,
        "bias": torch.randn(num_features, generator=generator),
        "running_mean": torch.randn(num_features, generator=generator),
        "running_var": torch.rand(num_features, generator=generator) + 0.5,
    }
    ours.load_state_dict(state)
    theirs.load_state_dict(state | {"num_batches_tracked": torch.tensor(0)})
    return ours, theirs


def inputs(parts: int, dims: int, seed: int) -> torch.Tensor:
    shape = (3 * parts, 4, 5, 6)[:dims]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dims", [2, 4])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_equal_one_pass_after_another(parts, relu, with_residual, dims, training):
    ours, theirs = random_pair(4, relu, dims)
    ours.train(training)
    theirs.train(training)
    x, residual = inputs(parts, dims, 0), inputs(parts, dims, 1)
    x_copy, residual_copy = (tensor.detach().clone().requires_grad_() for tensor in (x, residual))

    out = ours(x, parts, residual if with_residual else None)
    expected = torch.cat([theirs(x_copy[3 * i : 3 * i + 3]) for i in range(parts)])
    if with_residual:
        expected = expected + residual_copy
    if relu:
        expected = expected.relu()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)

    slope = torch.linspace(-1, 2, out.numel()).view_as(out)
    (out * slope).sum().backward()
    (expected * slope).sum().backward()
    torch.testing.assert_close(x.grad, x_copy.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
    if with_residual:
        torch.testing.assert_close(residual.grad, residual_copy.grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, ceil_mode=True)], ids=["stem", "adapter"])
@pytest.mark.parametrize("parts", [1, 2])
def test_pooling_before_the_relu_equals_pooling_after_it_in_float64(parts, pool, layout, training):
    generator = torch.Generator().manual_seed(0)
    norm, conv = random_pair(20, True, 4)[0].train(training), Conv(3, 20, 3, padding=1, bias=False)
    images = torch.randn(3 * parts, 3, 9, 9, generator=generator)
    exact, weight = random_pair(20, True, 4)[1].double().train(training), conv.weight.detach().double().requires_grad_()
    conv.to(memory_format=layout)

    out = kernels.conv_norm_pool(images, conv, norm, pool, parts)
    maps = torch.nn.functional.conv2d(images.double(), weight, padding=1)
    expected = pool(torch.cat([exact(part) for part in maps.chunk(parts)]).relu())
    torch.testing.assert_close(out, expected, check_dtype=False)
    torch.testing.assert_close(norm.running_var, exact.running_var, check_dtype=False)

    slope = torch.randn(out.shape, generator=generator)
    (out * slope).sum().backward()
    (expected * slope).sum().backward()
    for ours, theirs in ((conv.weight, weight), (norm.weight, exact.weight), (norm.bias, exact.bias)):
        torch.testing.assert_close(ours.grad, theirs.grad, check_dtype=False, rtol=1e-4, atol=1e-4)


def test_a_map_in_bfloat16_is_pooled_and_stays_in_bfloat16():
    norm, pool, x = BatchNorm(4), nn.MaxPool2d(3, 2, 1), inputs(1, 4, 0).detach().bfloat16()
    pooled = norm.eager(x, 1, pool=pool)
    assert pooled.dtype == torch.bfloat16
    assert torch.equal(pooled, pool(norm.eager(x, 1)))


@pytest.mark.parametrize("parts", [1, 2])
def test_input_and_residual_are_not_modified(parts):
    norm = BatchNorm(4)
    x, residual = inputs(2, 4, 0).detach(), inputs(2, 4, 1).detach()
    before = x.clone(), residual.clone()
    for mode in (True, False):
        norm.train(mode)
        norm(x, parts)
        norm(x, parts, residual)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


class Counting(nn.Module):
    """A small network that counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.passes = BatchNorm(4), 0

    def forward(self, images: torch.Tensor, parts: int) -> torch.Tensor:
        self.passes += 1
        return self.norm(images, parts).sum(dim=(2, 3))


@pytest.mark.parametrize(("sizes", "passes"), [((3, 3, 3), 1), ((5, 3, 3), 2), ((3, 5, 3), 3)])
def test_neighbours_of_equal_size_share_a_pass(sizes, passes):
    together, separate = Counting(), Counting()
    batches = [
        inputs(1, 4, seed)[:1].repeat(size, 1, 1, 1) * torch.rand(size, 1, 1, 1) for seed, size in enumerate(sizes)
    ]
    for out, batch in zip(forward_batches(together, batches), batches, strict=True):
        torch.testing.assert_close(out, separate(batch, 1))
    torch.testing.assert_close(together.norm.running_mean, separate.norm.running_mean)
    assert together.passes == passes


@pytest.mark.parametrize("num_second", [3, 5])
def test_joint_batches_are_normalised_as_one(num_second):
    joint, single = Counting(), Counting()
    first = inputs(1, 4, 0)
    second = torch.randn(num_second, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    together = torch.cat(forward_batches(joint, [first, second], True))
    torch.testing.assert_close(together, single(torch.cat([first, second]), 1))
    assert joint.passes == 1


# The fused kernels


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def large_inputs(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Far from zero mean, on the device, in the layout that the kernels take."""
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 5
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return x.to("cuda", dtype).to(memory_format=layout).requires_grad_()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(12, 20, 21, 21), (6, 130, 3, 5), (6, 256), (6, 1, 4, 4), (6, 8, 1, 1)], ids=str)
@pytest.mark.parametrize(("relu", "with_residual"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("parts", [1, 2])  # each combination is compiled, which takes seconds
def test_fused_kernels_equal_one_pass_after_another(parts, relu, with_residual, shape, dtype):
    ours, theirs = (norm.to("cuda") for norm in random_pair(shape[1], relu, len(shape)))
    x, residual = large_inputs(shape, 0, dtype), large_inputs(shape, 1, dtype)
    assert kernels.can_fuse(x, ours)
    x_copy, residual_copy = (tensor.detach().float().requires_grad_() for tensor in (x, residual))

    out = ours(x, parts, (residual - 5) if with_residual else None)
    expected = torch.cat([theirs(part) for part in x_copy.chunk(parts)])
    if with_residual:
        expected = expected + (residual_copy - 5)
    if relu:
        expected = expected.relu()
    exact = dtype == torch.float32
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if exact else {"atol": 0.05, "rtol": 0.02}
    assert out.dtype == dtype and out.stride() == x.stride()
    torch.testing.assert_close(out.float(), expected, **tolerance)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.running_var, theirs.running_var, atol=1e-4, rtol=1e-4)

    slope = torch.linspace(-1, 2, out.numel(), device="cuda").view(shape)
    (out.float() * slope).sum().backward()
    (expected * slope).sum().backward()
    if exact:  # in bfloat16 a value near zero may fall on either side of the ReLU
        scale = float(theirs.weight.grad.abs().max())
        torch.testing.assert_close(x.grad, x_copy.grad, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-4 * scale, rtol=1e-3)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, atol=1e-4 * scale, rtol=1e-3)
        if with_residual:
            torch.testing.assert_close(residual.grad, residual_copy.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@needs_cuda
def test_fused_kernels_refuse_a_single_value_per_channel():
    with pytest.raises(ValueError, match="BatchNorm"):
        BatchNorm(4).to("cuda")(torch.zeros(2, 4, device="cuda"), parts=2)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2, ceil_mode=True)], ids=str)
@pytest.mark.parametrize("channels", [20, 64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_first_block_in_one_go_rounds_no_more_than_its_parts(layout, channels, pool, monkeypatch):
    """Both in bfloat16 against float32, where a rounded value may win another window than the exact one."""
    images = torch.randn(12, 3, 37, 42, generator=torch.Generator().manual_seed(0)).to("cuda", memory_format=layout)

    def outcome(autocast: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        conv, norm = Conv(3, channels, 3, padding=1), BatchNorm(channels)
        conv, norm = conv.to("cuda", memory_format=torch.channels_last), norm.to("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast), autocast_weights(conv):
            out = kernels.conv_norm_pool(images, conv, norm, pool, 2).float()
        (out * torch.linspace(-1, 2, out.numel(), device="cuda").view_as(out)).sum().backward()
        grads = [conv.weight.grad, norm.weight.grad, norm.bias.grad]
        return [out.detach(), *(grad for grad in grads if grad is not None), norm.running_mean, norm.running_var]

    fused, exact = outcome(autocast=True), outcome(autocast=False)
    monkeypatch.setattr(kernels, "can_fuse_conv", lambda *_: False)
    for value, usual_value, true in zip(fused, outcome(autocast=True), exact, strict=True):
        error, usual = (float((computed - true).norm() / true.norm()) for computed in (value, usual_value))
        assert error < 1.5 * usual + 1e-3


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("used", ["all maps", "the last map"])  # by an adapter, by a classifier
def test_training_an_encoder_with_fused_kernels_equals_the_cpu(used):
    images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def outcome(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        encoder = Encoder(20).to(device, memory_format=torch.channels_last)
        maps = encoder(images.to(device, memory_format=torch.channels_last), 2)
        maps = maps if used == "all maps" else maps[-1:]
        slopes = [torch.linspace(-1, 2, feature_map.numel()).view_as(feature_map).to(device) for feature_map in maps]
        torch.autograd.backward(maps, slopes)
        grads = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
        assert len(grads) == len(list(encoder.parameters()))
        return [tensor.detach().cpu() for tensor in (*maps, *grads, *encoder.buffers())]

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        tensors, expected = outcome("cuda"), outcome("cpu")
    for tensor, expected_tensor in zip(tensors, expected, strict=True):
        # Where a value lies near zero the ReLU falls on either side of it, and a gradient goes another way: float32
        # itself is 3e-3 from float64 here, and convolutions that are off by 1e-7 move float64 by 9e-3 at times.
        assert float((tensor - expected_tensor).norm() / expected_tensor.norm()) < 1e-2


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("autocast", [False, True])
def test_inference_with_fused_kernels_equals_eager(autocast, monkeypatch):
    images = torch.randn(9, 3, 64, 64, generator=torch.Generator().manual_seed(0)).to("cuda")
    torch.manual_seed(1)
    encoder = Encoder(20)
    adapter = Adapter(encoder.channels, 10, "none")
    for module in (*encoder.modules(), *adapter.modules()):
        if isinstance(module, BatchNorm):
            torch.nn.init.uniform_(module.running_mean, -0.5, 0.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    encoder, adapter = (net.to("cuda", memory_format=torch.channels_last).eval() for net in (encoder, adapter))

    def answers(enabled: bool) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            return adapter(images, encoder(images)).float()

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        fused = answers(autocast)
        monkeypatch.setattr(kernels, "available", lambda _: False)
        usual, exact = answers(autocast), answers(False)
    error, usual_error = (float((computed - exact).norm() / exact.norm()) for computed in (fused, usual))
    assert error < 1.5 * usual_error + 1e-4
