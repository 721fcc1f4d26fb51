"""The Triton kernels against the eager BatchNorm: by Triton's interpreter on the CPU, so that CI sees them too."""

CHECKS = """
import itertools
import torch
from torch.nn import MaxPool2d
from dualnet.kernels import norm as module
from dualnet.kernels.conv import Conv, second_use
from dualnet.kernels.norm import fused_norm
from dualnet.kernels.pool import fused_pool
from dualnet.kernels.stem import fused_stem
from dualnet.nets.norm import BatchNorm

LAYOUT = torch.channels_last
POOLS = (MaxPool2d(3, 2, padding=1), MaxPool2d(2, ceil_mode=True))


def tensor(shape, seed):
    values = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 5
    return values.to(memory_format=LAYOUT) if len(shape) == 4 else values


def outcome(net, norm, used, *inputs):
    inputs = [value.clone().requires_grad_() for value in inputs]
    y, same = net(norm, *inputs)
    uses = {"first": [y], "second": [same], "both": [y, same]}[used]
    torch.autograd.backward(uses, [tensor(y.shape, seed) - 5 for seed in (7, 8)[: len(uses)]])
    grads = [value.grad for value in (*inputs, norm.weight, norm.bias)]
    return [y, same, *grads, norm.running_mean, norm.running_var]


def compare(channels, relu, eager, fused, *inputs, used="first"):
    results = []
    for net in (eager, fused):
        norm = BatchNorm(channels, relu)
        torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.normal_(norm.bias, generator=torch.Generator().manual_seed(2))
        results.append(outcome(net, norm, used, *inputs))
    for one, other in zip(*results, strict=True):
        # As a whole: a gradient of a few rows is a difference of large numbers, and single ones lose their digits.
        assert float((one - other).detach().norm() / one.detach().norm()) < 1e-5


def twice(y):
    return y, second_use(y)


# Every way to call it on one map by two kernels and by one; on others, whose channels and rows are split otherwise,
# both ways to read the gradient.
PATHS = [(1, True, None), (2, False, "both")]
CALLS = [*itertools.product((2,), (True, False), (None, "first", "second", "both")), *PATHS]
cases = [(small_rows, (4, 20, 7, 5), *call) for small_rows in (0, 2048) for call in CALLS]
others = [(0, (2, 70, 9, 9)), (0, (6, 130)), (2048, (6, 36))]
cases += [(*other, *path) for other in others for path in PATHS]
for small_rows, shape, parts, relu, used in cases:
    module.SMALL_ROWS = small_rows
    eager = lambda norm, x, r=None: twice(norm(x, parts, r))
    fused = lambda norm, x, r=None: twice(fused_norm(x, norm, parts, r))
    if used is None:
        compare(shape[1], relu, eager, fused, tensor(shape, 3))
    else:
        compare(shape[1], relu, eager, fused, tensor(shape, 3), tensor(shape, 4) - 5, used=used)

# Both results lie in one memory: neither may be written over.
x, residual = (tensor((4, 20, 7, 5), seed).requires_grad_() for seed in (3, 4))
y, same = twice(fused_norm(x, BatchNorm(20), 2, residual))
assert y.data_ptr() == same.data_ptr() and y is not same
for result in (same, y):
    try:
        (result.mul_(2).sum() + y.sum()).backward()
    except RuntimeError as error:
        assert "inplace" in str(error) or "in-place" in str(error)
    else:
        raise AssertionError("written over")

for (shape, parts), pool in itertools.product([((4, 20, 8, 8), 2), ((2, 40, 7, 9), 2), ((2, 5, 11, 11), 1)], POOLS):
    eager = lambda norm, x: twice(pool(norm(x, parts)))
    fused = lambda norm, x: twice(fused_pool(x, norm, pool, parts))
    compare(shape[1], True, eager, fused, tensor(shape, 3))

def stem(channels, bias, seed=1):
    conv = Conv(3, channels, 3, padding=1, bias=bias)
    for weight in conv.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(seed))
    return conv.to(memory_format=LAYOUT)


def stem_outcome(net, channels, bias, images, pool, parts):
    conv, norm = stem(channels, bias), BatchNorm(channels)
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
    y = net(conv, norm, images, pool, parts)
    y.backward(tensor(y.shape, 7) - 5)
    # Before a BatchNorm a bias has no gradient but the rounding: its size tells nothing.
    return [y, conv.weight.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]


for (shape, channels, parts), pool, (bias, layout) in itertools.product(
    [((4, 3, 9, 7), 20, 2), ((2, 3, 8, 12), 70, 1)], POOLS, [(True, LAYOUT), (False, None)]
):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    images = images if layout is None else images.to(memory_format=layout)
    eager = lambda conv, norm, images, pool, parts: pool(norm(conv(images), parts))
    fused = lambda conv, norm, images, *rest: fused_stem(images, conv.weight, conv.bias, norm, *rest)
    results = [stem_outcome(net, channels, bias, images, pool, parts) for net in (eager, fused)]
    for one, other in zip(*results, strict=True):
        assert float((one - other).detach().norm() / one.detach().norm()) < 1e-5

# By the running statistics, where nothing is learned.
def answering(channels, relu=True):
    norm = BatchNorm(channels, relu).eval()
    for seed, tensor in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        torch.nn.init.uniform_(tensor, -1, 1, torch.Generator().manual_seed(seed))
    norm.running_var.abs_()
    return norm


def same(one, other):
    assert float((one - other).norm() / other.norm()) < 1e-5


with torch.no_grad():
    shapes, either = [(3, 20, 7, 5), (1, 70, 9, 9), (1, 13)], (True, False)
    for shape, relu, residual in itertools.product(shapes, either, either):
        x, added, norm = tensor(shape, 3), tensor(shape, 4) if residual else None, answering(shape[1], relu)
        same(fused_norm(x, norm, 1, added), norm(x, 1, added))
    for pool, bias in itertools.product(POOLS, (True, False)):
        x, norm = tensor((3, 20, 9, 7), 3), answering(20)
        same(fused_pool(x, norm, pool, 1), pool(norm(x)))
        images, conv = torch.randn(3, 3, 9, 7, generator=torch.Generator().manual_seed(3)), stem(20, bias)
        same(fused_stem(images, conv.weight, conv.bias, norm, pool, 1), pool(norm(conv(images))))

# A NaN must reach the loss: a diverged run is stopped by it.
x = tensor((2, 4, 8, 8), 3)
x[0, 1, 2, 2] = float("nan")
for module.SMALL_ROWS in (0, 2048):
    assert fused_norm(x, BatchNorm(4), 1, None)[:, 1].isnan().all()
assert fused_pool(x, BatchNorm(4), POOLS[0], 1)[:, 1].isnan().all()
conv = stem(4, True)
assert fused_stem(x[:, :3], conv.weight, conv.bias, BatchNorm(4), POOLS[0], 1).isnan().all()
"""


def test_fused_kernels_agree_with_eager_batch_norm(interpret):
    interpret(CHECKS)
