"""SimSiam against the paper's equations 1 to 4 in numpy, and by what is known of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualnet.nets import Encoder
from dualnet.objectives.simsiam import SimSiam, simsiam_loss


def vectors(num: int, features: int, seed: int) -> list[Tensor]:
    """p_a, p_b, z_a, z_b."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(num, features, generator=generator, dtype=torch.float64) for _ in range(4)]


def equation_4(p_a: np.ndarray, p_b: np.ndarray, z_a: np.ndarray, z_b: np.ndarray) -> float:
    """Example by example."""

    def d(p: np.ndarray, z: np.ndarray) -> float:
        return -(p @ z) / (np.sqrt((p**2).sum()) * np.sqrt((z**2).sum()))

    return float(np.mean([d(p_a[i], z_b[i]) / 2 + d(p_b[i], z_a[i]) / 2 for i in range(len(p_a))]))


@given(st.integers(1, 9), st.integers(2, 8), st.integers(0, 999))
def test_simsiam_against_numpy(num, features, seed):
    tensors = vectors(num, features, seed)
    loss = simsiam_loss(*tensors).item()
    assert loss == pytest.approx(equation_4(*(tensor.numpy() for tensor in tensors)), rel=1e-6, abs=1e-9)
    assert -1 <= loss <= 1


def test_no_gradient_flows_through_the_targets():
    tensors = [tensor.requires_grad_() for tensor in vectors(5, 4, 0)]
    simsiam_loss(*tensors).backward()
    p_a, p_b, z_a, z_b = (tensor.grad for tensor in tensors)
    assert p_a.any() and p_b.any() and z_a is None and z_b is None


def test_the_embeddings_learn_through_the_predictor_only(spec, random_batch):
    """With a predictor that is constant in its input, nothing is left to learn for the encoder."""
    objective, encoder = SimSiam(32, spec), Encoder(4)
    torch.nn.init.zeros_(objective.predictor.hidden.weight)
    generator = torch.Generator().manual_seed(0)
    objective(encoder, *(torch.randn(4, 3, 28, 28, generator=generator) for _ in range(2)), random_batch()).backward()
    assert not any(weight.grad.any() for weight in encoder.parameters())


def test_the_predictor_is_a_bottleneck(spec):
    shapes = {name: tuple(weight.shape) for name, weight in SimSiam(32, spec).predictor.named_parameters()}
    assert shapes == {"hidden.weight": (8, 32), "norm.weight": (8,), "norm.bias": (8,), "out.weight": (32, 8)}
