"""Look-ahead against equations 3 and 4 in numpy, and bit by bit at the ends of beta's range."""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dualnet.optim import SGD, gradient_step, look_ahead

CURVATURE = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
MINIMUM = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def quadratic(weight: Tensor) -> Tensor:
    return 0.5 * (CURVATURE * (weight - MINIMUM).square()).sum()


Round = Callable[[Callable[[], Tensor]], Tensor]  # a round of Look-ahead, which takes the loss


def weight_and_round(start: list[float], steps: int, beta: float, lr: float, momentum: float = 0.0):
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    inner = torch.optim.SGD([weight], lr=lr, momentum=momentum)
    return weight, partial(look_ahead, inner, steps=steps, beta=beta, tensors=[weight], kept=[])


@given(
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    st.integers(1, 6),
    st.floats(0, 1),
    st.floats(0, 0.4),
    st.sampled_from([0.0, 0.9]),
    st.integers(1, 3),
)
def test_rounds_against_numpy(start, steps, beta, lr, momentum, rounds):
    weight, one_round = weight_and_round(start, steps, beta, lr, momentum)
    means = [one_round(lambda: quadratic(weight)).item() for _ in range(rounds)]

    slow, curvature, minimum = np.array(start), CURVATURE.numpy(), MINIMUM.numpy()
    velocity = np.zeros(3)
    for mean in means:
        fast, losses = slow.copy(), []
        for _ in range(steps):
            losses.append(0.5 * (curvature * (fast - minimum) ** 2).sum())
            velocity = momentum * velocity + curvature * (fast - minimum)
            fast = fast - lr * velocity
        slow = slow + beta * (fast - slow)
        assert mean == pytest.approx(np.mean(losses), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(weight.detach().numpy(), slow, rtol=1e-9, atol=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=3), st.integers(1, 4))
def test_beta_0_leaves_the_weights_bit_by_bit(start, steps):
    weight, one_round = weight_and_round(start, steps, beta=0.0, lr=0.1)
    before = weight.detach().clone()
    one_round(lambda: quadratic(weight))
    assert torch.equal(weight, before)


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=3), st.integers(1, 4))
def test_beta_1_is_plain_sgd_bit_by_bit(start, steps):
    weight, one_round = weight_and_round(start, steps, beta=1.0, lr=0.1)
    one_round(lambda: quadratic(weight))
    plain = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    sgd = torch.optim.SGD([plain], lr=0.1)
    for _ in range(steps):
        sgd.zero_grad()
        quadratic(plain).backward()
        sgd.step()
    assert torch.equal(weight, plain)


@pytest.mark.parametrize("keep", [True, False])
def test_without_tensors_to_interpolate_a_round_is_plain_sgd(keep):
    """Whatever beta is; statistics are put back or move freely."""
    net, plain = Counting(), Counting()
    inner, kept = torch.optim.SGD(net.parameters(), lr=0.1), [net.statistic] if keep else []
    mean = look_ahead(inner, net.loss, steps=3, beta=0.3, tensors=[], kept=kept)
    sgd, losses = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for _ in range(3):
        losses.append(plain.loss())
        gradient_step(sgd, losses[-1])
    assert torch.equal(net.weight, plain.weight) and torch.equal(mean, torch.stack(losses).mean())
    assert net.statistic.tolist() == [10.0 if keep else 22.0]


class Counting(nn.Module):
    """A weight, and a statistic that moves with every loss, as BatchNorm's do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("statistic", torch.tensor([10.0]))

    def loss(self) -> Tensor:
        self.statistic += 4
        return self.weight.square().sum()


def test_a_round_works_in_place_and_leaves_its_losses_detached():
    net = Counting()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    addresses = net.weight.data_ptr(), net.statistic.data_ptr()
    mean = look_ahead(inner, net.loss, steps=2, beta=0.5, tensors=[net.weight, net.statistic], kept=[])
    assert (net.weight.data_ptr(), net.statistic.data_ptr()) == addresses
    assert net.weight.requires_grad and net.weight.is_leaf
    assert not mean.requires_grad
    assert mean.item() == pytest.approx((4 + 1.6**2) / 2)


def test_a_gradient_step_discards_earlier_gradients():
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.tensor([100.0])
    gradient_step(optimizer, (3 * weight).sum())
    assert weight.item() == pytest.approx(-0.5)


def test_a_gradient_step_gives_no_other_weight_a_gradient():
    weight, other = (nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    other.grad = held = torch.tensor([100.0])
    gradient_step(torch.optim.SGD([weight], lr=0.5), (3 * weight * other).sum())
    assert weight.item() == pytest.approx(-0.5)
    assert other.grad is held and held.item() == 100, "a captured step would write there at every replay"


def test_a_loss_is_differentiated_again_with_new_weights_and_old_activations():
    """0.5 (b a x - y)^2, x = 3, y = 1: the residual and a x are those of the first weights, b is the new one."""
    a, b = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (0.5, 2.0))
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    loss = 0.5 * (b * (a * 3) - 1).square()
    residual, hidden = 2.0, 1.5  # 2 * 0.5 * 3 - 1 and 0.5 * 3
    gradient_step(optimizer, loss, keep_graph=True)
    assert (a.item(), b.item()) == pytest.approx((0.5 - 0.1 * residual * 2 * 3, 2 - 0.1 * residual * hidden))
    first = a.item(), b.item()
    gradient_step(optimizer, loss, keep_graph=True)
    expected = (first[0] - 0.1 * residual * first[1] * 3, first[1] - 0.1 * residual * hidden)
    assert (a.item(), b.item()) == pytest.approx(expected)


def test_without_being_asked_a_loss_is_differentiated_once():
    weight = nn.Parameter(torch.tensor(1.0))
    optimizer, loss = torch.optim.SGD([weight], lr=0.1), weight.square()
    gradient_step(optimizer, loss)
    with pytest.raises(RuntimeError, match="second time"):
        gradient_step(optimizer, loss)


def test_sgd_is_pytorchs_bit_by_bit_and_their_states_are_exchanged():
    weights = [nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2)]
    pair = [kind([weight], lr=0.3, momentum=0.9) for kind, weight in zip((SGD, torch.optim.SGD), weights, strict=True)]
    for _ in range(3):
        for optimizer, weight in zip(pair, weights, strict=True):
            gradient_step(optimizer, weight.square().sum())
        pair[0].load_state_dict(deepcopy(pair[1].state_dict()))
    assert torch.equal(*weights) and repr(pair[0]) == repr(pair[1])
    assert not any(weight.grad_fn for weight in weights)


def test_a_learner_that_learns_and_is_saved_imports_no_compiler(tmp_path):
    """torch._dynamo and what it imports take 1.6 s."""
    code = """if True:
        import sys, torch
        from dualnet import Batch, Model, StreamSpec, load, make_learner
        learner = make_learner("er", StreamSpec((3, 28, 28), torch.ones(1, 2, dtype=torch.bool)))
        learner.observe(Batch(torch.zeros(2, 3, 28, 28, dtype=torch.uint8), torch.arange(2)))
        Model(learner, class_names=["a", "b"]).save(sys.argv[1])
        load(sys.argv[1])
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, tmp_path / "model"], check=True)
