"""A whole encoder by the fused kernels, as it runs on CUDA, against the eager one: by Triton's interpreter."""

import weakref

import pytest
import torch
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile

from dualnet import kernels
from dualnet.nets import Encoder

pytestmark = pytest.mark.usefixtures("interpreted")
LAYOUT = torch.channels_last
IMAGES = torch.randn(4, 3, 20, 20, generator=torch.Generator().manual_seed(0)).to(memory_format=LAYOUT)


@pytest.fixture
def fused(monkeypatch):
    """fused(False): from here on the eager code runs; fused(True): the kernels do."""
    return lambda whether: monkeypatch.setattr(kernels, "available", lambda _: whether)


def make() -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Encoder(4).to(memory_format=LAYOUT)


def outcome(encoder):
    maps = encoder(IMAGES, 2)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.autograd.backward(maps, [torch.linspace(-1, 2, out.numel()).view_as(out) for out in maps])
    num_sums = sum(event.count for event in recorded.key_averages() if event.key in ("aten::add", "aten::add_"))
    grads = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    return dict(enumerate(maps)) | grads | dict(encoder.named_buffers()), num_sums


def agree(tensors, expected):
    for name, tensor in expected.items():
        assert tensor is not None and float((tensors[name] - tensor).detach().norm() / tensor.detach().norm()) < 1e-3, (
            name
        )


def evaluated(encoder):
    statistics = {name: 1.1 * buffer for name, buffer in encoder.named_buffers()}
    with_gradient = encoder(IMAGES)  # by eager code in any case
    with torch.no_grad():
        return dict(enumerate([*with_gradient, *encoder(IMAGES), *functional_call(encoder, statistics, (IMAGES,))]))


def test_an_encoder_by_fused_kernels_agrees_with_the_eager_one(fused):
    fused(True)
    encoder = make()
    tensors, num_sums = outcome(encoder)
    fused(False)
    agree(tensors, outcome(make())[0])
    # With its twin a block's output needs no kernel of autograd for the sum of its two gradients. One is left for the
    # pooled stem, and one for each of the first three maps, which are used besides the next block.
    assert num_sums == 4
    encoder.eval()
    expected = evaluated(encoder)
    fused(True)
    agree(evaluated(encoder), expected)


def test_nothing_keeps_the_maps_of_a_pass_in_memory_but_its_user(fused):
    fused(True)
    maps = make()(IMAGES, 2)
    assert kernels.second_use(maps[0]).data_ptr() == maps[0].data_ptr() and kernels.second_use(maps[0]) is not maps[0]
    watched = [weakref.ref(tensor) for tensor in (*maps, *map(kernels.second_use, maps), maps[-1].grad_fn)]
    del maps
    assert not any(reference() is not None for reference in watched)
