"""The Triton kernels against the eager BatchNorm: by Triton's interpreter on the CPU, so that CI sees them too."""

import itertools

import pytest
import torch
from torch.nn import MaxPool2d

from dualnet.kernels import second_use
from dualnet.nets.conv import Conv
from dualnet.nets.norm import BatchNorm

LAYOUT = torch.channels_last
POOLS = (MaxPool2d(3, 2, padding=1), MaxPool2d(2, ceil_mode=True))


@pytest.fixture(autouse=True)
def fused(interpreted):
    """fused.norm, fused.pool, fused.stem: the modules of the kernels, for which Triton must be there."""
    from dualnet import kernels
    from dualnet.kernels import norm, pool, stem

    assert norm and pool and stem
    return kernels


def tensor(shape, seed):
    values = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 5
    return values.to(memory_format=LAYOUT) if len(shape) == 4 else values


def near(tensor, expected):
    # As a whole: a gradient of a few rows is a difference of large numbers, and single ones lose their digits.
    assert float((tensor - expected).detach().norm() / expected.detach().norm()) < 1e-5


def normal(weight, seed):
    torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(seed))


def outcome(net, norm, used, *inputs):
    inputs = [value.clone().requires_grad_() for value in inputs]
    y, same = net(norm, *inputs)
    uses = {"first": [y], "second": [same], "both": [y, same]}[used]
    torch.autograd.backward(uses, [tensor(y.shape, seed) - 5 for seed in (7, 8)[: len(uses)]])
    grads = [value.grad for value in (*inputs, norm.weight, norm.bias)]
    return [y, same, *grads, norm.running_mean, norm.running_var]


def compare(channels, relu, eager, fused, *inputs, used="first"):
    results = []
    for net in (fused, eager):
        norm = BatchNorm(channels, relu)
        normal(norm.weight, 1)
        normal(norm.bias, 2)
        results.append(outcome(net, norm, used, *inputs))
    for tensor, expected in zip(*results, strict=True):
        near(tensor, expected)


def twice(y):
    return y, second_use(y)


# Every way to call it on one map by two kernels and by one; on others, whose channels and rows are split otherwise,
# both ways to read the gradient.
PATHS = [(1, True, None), (2, False, "both")]
CALLS = [*itertools.product((2,), (True, False), (None, "first", "second", "both")), *PATHS]
CASES = [(small_rows, (4, 20, 7, 5), *call) for small_rows in (0, 2048) for call in CALLS]
OTHERS = [(0, (2, 70, 9, 9)), (0, (6, 130)), (2048, (6, 36))]
CASES += [(*other, *path) for other in OTHERS for path in PATHS]


@pytest.mark.parametrize(("small_rows", "shape", "parts", "relu", "used"), CASES)
def test_a_norm_with_its_gradients(small_rows, shape, parts, relu, used, fused, monkeypatch):
    monkeypatch.setattr(fused.norm, "SMALL_ROWS", small_rows)
    inputs = [tensor(shape, 3)] if used is None else [tensor(shape, 3), tensor(shape, 4) - 5]
    compare(
        shape[1],
        relu,
        lambda norm, x, residual=None: twice(norm(x, parts, residual)),
        lambda norm, x, residual=None: twice(fused.norm.fused_norm(x, norm, parts, residual)),
        *inputs,
        used=used or "first",
    )


def test_both_results_share_memory_and_neither_may_be_overwritten(fused):
    x, residual = (tensor((4, 20, 7, 5), seed).requires_grad_() for seed in (3, 4))
    y, same = twice(fused.norm.fused_norm(x, BatchNorm(20), 2, residual))
    assert y.data_ptr() == same.data_ptr() and y is not same
    for result in (same, y):
        with pytest.raises(RuntimeError, match=r"in-?place"):
            (result.mul_(2).sum() + y.sum()).backward()


@pytest.mark.parametrize("pool", POOLS, ids=["3", "2"])
@pytest.mark.parametrize(("shape", "parts"), [((4, 20, 8, 8), 2), ((2, 40, 7, 9), 2), ((2, 5, 11, 11), 1)])
def test_a_pool_with_its_gradients(shape, parts, pool, fused):
    compare(
        shape[1],
        True,
        lambda norm, x: twice(pool(norm(x, parts))),
        lambda norm, x: twice(fused.pool.fused_pool(x, norm, pool, parts)),
        tensor(shape, 3),
    )


def stem(channels, bias):
    conv = Conv(3, channels, 3, padding=1, bias=bias)
    for weight in conv.parameters():
        normal(weight, 1)
    return conv.to(memory_format=LAYOUT)


def stem_outcome(net, channels, bias):
    conv, norm = stem(channels, bias), BatchNorm(channels)
    normal(norm.weight, 1)
    y = net(conv, norm)
    y.backward(tensor(y.shape, 7) - 5)
    # Before a BatchNorm a bias has no gradient but the rounding: its size tells nothing.
    return [y, conv.weight.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]


@pytest.mark.parametrize("pool", POOLS, ids=["3", "2"])
@pytest.mark.parametrize(("bias", "layout"), [(True, LAYOUT), (False, torch.contiguous_format)])
@pytest.mark.parametrize(("shape", "channels", "parts"), [((4, 3, 9, 7), 20, 2), ((2, 3, 8, 12), 70, 1)])
def test_a_stem_with_its_gradients(shape, channels, parts, bias, layout, pool, fused):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(memory_format=layout)

    def by_kernels(conv, norm):
        return fused.stem.fused_stem(images, conv.weight, conv.bias, norm, pool, parts)

    def eager(conv, norm):
        return pool(norm(conv(images), parts))

    results = [stem_outcome(net, channels, bias) for net in (by_kernels, eager)]
    for tensor, expected in zip(*results, strict=True):
        near(tensor, expected)


# By the running statistics, where nothing is learned


def answering(channels, relu=True):
    norm = BatchNorm(channels, relu).eval()
    for seed, values in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        torch.nn.init.uniform_(values, -1, 1, torch.Generator().manual_seed(seed))
    norm.running_var.abs_()
    return norm


@torch.no_grad()
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", [(3, 20, 7, 5), (1, 70, 9, 9), (1, 13)])
def test_a_norm_in_eval_mode(shape, relu, residual, fused):
    x, added, norm = tensor(shape, 3), tensor(shape, 4) if residual else None, answering(shape[1], relu)
    near(fused.norm.fused_norm(x, norm, 1, added), norm(x, 1, added))


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pool", POOLS, ids=["3", "2"])
def test_a_pool_and_a_stem_in_eval_mode(pool, bias, fused):
    x, norm = tensor((3, 20, 9, 7), 3), answering(20)
    near(fused.pool.fused_pool(x, norm, pool, 1), pool(norm(x)))
    images, conv = torch.randn(3, 3, 9, 7, generator=torch.Generator().manual_seed(3)), stem(20, bias)
    near(fused.stem.fused_stem(images, conv.weight, conv.bias, norm, pool, 1), pool(norm(conv(images))))


def test_nan_reaches_the_loss(fused, monkeypatch):
    """A diverged run is stopped by it."""
    x = tensor((2, 4, 8, 8), 3)
    x[0, 1, 2, 2] = float("nan")
    for small_rows in (0, 2048):
        monkeypatch.setattr(fused.norm, "SMALL_ROWS", small_rows)
        assert fused.norm.fused_norm(x, BatchNorm(4), 1, None)[:, 1].isnan().all()
    assert fused.pool.fused_pool(x, BatchNorm(4), POOLS[0], 1)[:, 1].isnan().all()
    conv = stem(4, True)
    assert fused.stem.fused_stem(x[:, :3], conv.weight, conv.bias, BatchNorm(4), POOLS[0], 1).isnan().all()
