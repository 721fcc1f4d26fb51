"""What every objective keeps to, alone and in DualNet; Barlow Twins against the paper's equations 1 and 2 in numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import DualNet
from dualnet.nets import Encoder
from dualnet.objectives import OBJECTIVES, Objective, objective_class
from dualnet.objectives.barlow_twins import TRADE_OFF, BarlowTwins, Config, barlow_twins_loss, cross_correlation
from dualnet.objectives.objective import embed
from dualnet.options import merge

NAMES = [*OBJECTIVES, "examples.alignment_uniformity.AlignmentUniformity"]  # the last one from outside of the package
SELF_SUPERVISED = [name for name in NAMES if name != "classification"]
EACH = [*((name, "look_ahead") for name in NAMES), ("barlow_twins", "sgd")]  # objectives and optimizers


def encoder_for(objective: str) -> str:
    """A quick one, where the objective takes another than the package's."""
    return "resnet18" if objective == "byol" else "own_encoder.ThreeMaps"


@pytest.fixture
def dualnet(small_learner):
    """dualnet(objective, optimizer, seed, **options): small."""

    def make(objective: str, optimizer: str = "look_ahead", **options):
        named = {"slow": {"objective": objective, "optimizer": optimizer}, "encoder": {"name": encoder_for(objective)}}
        return small_learner("dualnet", **merge(named, options))

    return make


@pytest.fixture
def make(spec):
    def pair(name: str, seed: int = 0) -> tuple[Objective, Encoder]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            encoder = Encoder(4)
            return objective_class(name)(encoder.channels[-1], spec), encoder

    return pair


def views(num: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Batch]:
    """Two noisy looks at the same images, and what is known of these: examples of two tasks of two classes."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num, 3, 28, 28, generator=generator)
    view_a, view_b = (images + 0.3 * torch.randn(images.shape, generator=generator) for _ in range(2))
    labels = torch.arange(num) % 4
    return view_a, view_b, Batch(images, labels, labels // 2)


# Every objective


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_a_scalar_whose_gradient_reaches_every_weight_of_the_encoder(name, make):
    objective, encoder = make(name)
    loss = objective(encoder, *views())
    assert loss.shape == () and loss.dtype == torch.float32
    loss.backward()
    assert not [key for key, weight in encoder.named_parameters() if weight.grad is None or not weight.grad.any()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["constant", "constant and alike", "two examples", "two equal examples"])
def test_loss_and_gradient_are_finite(name, case, make):
    objective, encoder = make(name)
    of_two = views(2)
    view_a, view_b = {
        "constant": (torch.zeros(6, 3, 28, 28), torch.ones(6, 3, 28, 28)),
        "constant and alike": (torch.ones(6, 3, 28, 28), torch.ones(6, 3, 28, 28)),
        "two examples": of_two[:2],
        "two equal examples": tuple(view[:1].repeat(2, 1, 1, 1) for view in of_two[:2]),
    }[case]
    loss = objective(encoder, view_a, view_b, views(len(view_a))[2])
    loss.backward()
    assert loss.isfinite()
    weights = [*encoder.parameters(), *objective.parameters()]
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in weights)


@pytest.mark.parametrize("name", NAMES)
def test_training_decreases_the_loss(name, make):
    objective, encoder = make(name)
    optimizer = torch.optim.Adam([*encoder.parameters(), *objective.parameters()], lr=3e-3)
    shown, losses = views(8), []
    for _ in range(12):
        loss = objective(encoder, *shown)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses[-3:]) < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_equal_weights_and_views_give_equal_bits(name, make):
    results = []
    for _ in range(2):
        objective, encoder = make(name)
        loss = objective(encoder, *views())
        loss.backward()
        results.append((loss.detach(), *(weight.grad for weight in encoder.parameters())))
    assert all(torch.equal(tensor, expected) for tensor, expected in zip(*results, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_is_never_stored(name, make):
    objective, encoder = make(name)
    names = set(objective.state_dict())
    objective(encoder, *views())
    assert set(objective.state_dict()) == names
    kept = {id(tensor) for tensor in [*objective.parameters(), *objective.buffers()]}
    assert not kept & {id(tensor) for tensor in [*encoder.parameters(), *encoder.buffers()]}
    assert encoder not in objective.modules() and encoder not in vars(objective).values()


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_keeps_full_precision_under_autocast(name, make):
    objective, encoder = make(name)
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(encoder, *views())
    assert loss.dtype == torch.float32 and loss.isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_on_the_host(name, fake_mode):
    """Nor by DualNet around it: test_contract.py with Look-ahead, and below with SGD."""
    spec, encoder = StreamSpec((3, 28, 28), torch.ones(3, 6, dtype=torch.bool)), Encoder(4)
    view, numbers = torch.zeros(4, 3, 28, 28), torch.zeros(4, dtype=torch.int64)
    objective = objective_class(name)(encoder.channels[-1], spec)
    objective(encoder, view, view.clone(), Batch(view, numbers, numbers)).backward()


@pytest.mark.parametrize("name", NAMES)
def test_only_classification_uses_labels(name, make):
    view_a, view_b, batch = views()
    losses = []
    for labels in (batch.labels, batch.labels ^ 1, torch.full_like(batch.labels, UNLABELLED)):
        objective, encoder = make(name)
        losses.append(objective(encoder, view_a, view_b, replace(batch, labels=labels)).item())
    assert len(set(losses)) == (1 if name in SELF_SUPERVISED else 3)


# Every objective in DualNet, by every optimizer


@pytest.mark.parametrize(("name", "optimizer"), EACH)
def test_dualnet_trains_with_it(name, optimizer, dualnet, stream, synchronising):
    learner = dualnet(name, optimizer)
    before = [weight.clone() for weight in learner.objective.parameters()]
    losses = learner.observe(stream[0])
    assert losses["slow"] != 0 and all(loss.isfinite() for loss in losses.values())
    assert not any(torch.equal(*pair) for pair in zip(before, learner.objective.parameters(), strict=True))
    assert not synchronising(lambda: learner.observe(stream[2]))


def test_a_step_of_sgd_reads_nothing_on_the_host(small_config, fake_mode):
    spec = StreamSpec((3, 28, 28), torch.ones(3, 6, dtype=torch.bool))
    options = {"slow": {"optimizer": "sgd"}, "encoder": {"name": encoder_for("barlow_twins")}}
    learner = DualNet(spec, small_config("dualnet", **options))
    numbers = torch.zeros(4, dtype=torch.int64)
    batch = Batch(torch.zeros(4, 3, 28, 28, dtype=torch.uint8), numbers, numbers)
    for case in (batch, Batch(batch.images, None, numbers)):
        learner.learn_slow(case)


def test_dualnet_resumes_with_sgd(dualnet, random_batch, state_of, differing):
    """With Look-ahead: test_objective_options.py, for every objective."""
    learner = dualnet("barlow_twins", "sgd", slow={"momentum": 0.0})
    learner.observe(random_batch(0))
    resumed = dualnet("barlow_twins", "sgd", slow={"momentum": 0.0}, seed=1)
    resumed.load_state_dict(learner.state_dict())
    for each in (learner, resumed):
        each.observe(random_batch(1, task=1))
    assert not differing(state_of(learner), state_of(resumed))


@pytest.mark.parametrize(("name", "statistics"), [*((name, "interpolate") for name in NAMES), ("barlow_twins", "keep")])
def test_sgd_equals_look_ahead_with_beta_1(name, statistics, dualnet, stream, state_of, differing):
    """Bit by bit, over rounds, batches and tasks; BatchNorm's statistics included, or left alone."""
    slow = {"rounds": 2, "momentum": 0.5, "statistics": statistics}
    sgd, look_ahead = dualnet(name, "sgd", slow=slow), dualnet(name, "look_ahead", slow={**slow, "beta": 1.0})
    for batch in (stream[0], stream[2]):
        before = state_of(sgd)
        for learner in (sgd, look_ahead):
            learner.store(batch)
        losses = [learner.learn_slow(batch)["slow"] for learner in (sgd, look_ahead)]
        assert losses[0].isfinite() and torch.equal(*losses)
        moved = differing(before, state_of(sgd))
        assert not differing(state_of(sgd), state_of(look_ahead))
        assert any("running" in key for key in moved) == (statistics == "interpolate")
        assert {f"slow.{key}" for key, _ in sgd.slow.named_parameters()} <= moved
        for learner in (sgd, look_ahead):
            learner.learn_fast(batch)


# The pass that they share


def test_views_have_separate_statistics(make):
    objective, encoder = make("barlow_twins")
    twin, twin_encoder = make("barlow_twins")
    view_a, view_b, _ = views()
    z_a, z_b = embed(encoder, objective.projector, view_a, 3 * view_b + 1)
    for z, view in ((z_a, view_a), (z_b, 3 * view_b + 1)):
        features = twin_encoder(view)[-1].mean(dim=(2, 3))
        torch.testing.assert_close(z, twin.projector(features), atol=1e-4, rtol=1e-4)


def test_the_projector_follows_the_authors(make):
    projector = make("barlow_twins")[0].projector
    shapes = {name: tuple(weight.shape) for name, weight in projector.named_parameters()}
    assert shapes == {"hidden.weight": (256, 32), "norm.weight": (256,), "norm.bias": (256,), "out.weight": (32, 256)}
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    hidden = x @ projector.hidden.weight.T
    hidden = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(projector(x), hidden.clamp(min=0) @ projector.out.weight.T, atol=1e-4, rtol=1e-4)


# Barlow Twins


def correlation(z_a: np.ndarray, z_b: np.ndarray) -> np.ndarray:
    """Equation 2 of centred embeddings, entry by entry."""
    a, b = z_a - z_a.mean(axis=0), z_b - z_b.mean(axis=0)
    out = np.empty((a.shape[1], b.shape[1]))
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = (a[:, i] * b[:, j]).sum() / np.sqrt((a[:, i] ** 2).sum() * (b[:, j] ** 2).sum())
    return out


def equation_1(c: np.ndarray, trade_off: float) -> float:
    invariance = sum((1 - c[i, i]) ** 2 for i in range(len(c)))
    redundancy = sum(c[i, j] ** 2 for i in range(len(c)) for j in range(len(c)) if i != j)
    return invariance + trade_off * redundancy


def embeddings(num: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two views, wide enough that the eps of the standard deviation does not show."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(num, features, generator=generator, dtype=torch.float64)
    return tuple(
        300 * shared + 100 * torch.randn(shared.shape, generator=generator, dtype=torch.float64) for _ in range(2)
    )


@given(st.integers(3, 12), st.integers(1, 8), st.integers(0, 999), st.sampled_from([TRADE_OFF, 0.5]))
def test_barlow_twins_against_numpy(num, features, seed, trade_off):
    z_a, z_b = embeddings(num, features, seed)
    np.testing.assert_allclose(cross_correlation(z_a, z_b), correlation(z_a.numpy(), z_b.numpy()), atol=1e-5)
    loss = barlow_twins_loss(z_a, z_b, trade_off).item()
    assert loss == pytest.approx(equation_1(correlation(z_a.numpy(), z_b.numpy()), trade_off), rel=1e-5, abs=1e-5)


@given(st.integers(3, 12), st.integers(1, 8), st.integers(0, 999))
def test_the_correlations_of_the_authors_and_of_the_paper(num, features, seed):
    z_a, z_b = (z + 50 for z in embeddings(num, features, seed))
    a, b = z_a.numpy(), z_b.numpy()
    standardised = [(z - z.mean(axis=0)) / z.std(axis=0, ddof=1) for z in (a, b)]
    of_authors = sum(np.outer(*rows) for rows in zip(*standardised, strict=True)) / num
    as_printed = np.empty((features, features))
    for i in range(features):
        for j in range(features):
            as_printed[i, j] = sum(a[:, i] * b[:, j]) / (math.sqrt(sum(a[:, i] ** 2)) * math.sqrt(sum(b[:, j] ** 2)))
    for kind, expected in {"sample": of_authors, "uncentred": as_printed}.items():
        np.testing.assert_allclose(cross_correlation(z_a, z_b, kind), expected, atol=1e-12)
        loss = BarlowTwins(features, None, Config(trade_off=0.5, correlation=kind)).loss(z_a, z_b).item()
        assert loss == pytest.approx(equation_1(expected, 0.5), rel=1e-10)


def test_identical_and_decorrelated_views_have_no_loss():
    hadamard = torch.tensor([[1.0, 1, 1, -1], [1, -1, -1, -1], [-1, 1, -1, 1], [-1, -1, 1, 1]])
    z = 5 * hadamard[:, :2]
    assert barlow_twins_loss(z, z).item() == pytest.approx(0, abs=1e-6)
    assert barlow_twins_loss(z, -z).item() == pytest.approx(8, rel=1e-4)  # (1 + 1)^2 for each of two features


numbers = hnp.arrays(
    np.float32, st.tuples(st.integers(2, 8), st.integers(1, 6)), elements=st.floats(-100, 100, width=32)
)


@given(
    numbers.flatmap(
        lambda a: st.tuples(st.just(a), hnp.arrays(np.float32, a.shape, elements=st.floats(-9, 9, width=32)))
    )
)
def test_the_loss_is_never_negative_and_correlations_are_bounded(pair):
    z_a, z_b = (torch.from_numpy(z) for z in pair)
    assert cross_correlation(z_a, z_b).abs().max() <= 1 + 1e-4
    assert barlow_twins_loss(z_a, z_b).item() >= -1e-6  # rounding: off-diagonal entries are a difference of two sums
    assert barlow_twins_loss(z_a, z_b).isfinite()


@given(st.integers(0, 999), st.lists(st.tuples(st.floats(0.5, 50), st.floats(-20, 20)), min_size=4, max_size=4))
def test_scale_and_shift_of_a_feature_do_not_matter(seed, changes):
    z_a, z_b = embeddings(8, 4, seed)
    scale, shift = (torch.tensor(column, dtype=torch.float64) for column in zip(*changes, strict=True))
    before = cross_correlation(z_a, z_b)
    torch.testing.assert_close(cross_correlation(z_a * scale + shift, z_b), before, atol=1e-4, rtol=0)
    torch.testing.assert_close(cross_correlation(z_a, z_b * scale + shift), before, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "free"), [*((name, False) for name in NAMES), ("barlow_twins", True)])
def test_dualnet_trains_with_it_on_batches_of_one(name, free, dualnet, random_batch, without_labels, spec):
    """The slow learner sees two examples at least, by `slow.batch_size`: in the first batch one of them twice."""
    spec = spec.task_free() if free else spec
    learner = dualnet(name, spec=spec, slow={"batch_size": 2})
    for step in range(3):
        batch = random_batch(step, task=0 if free else step // 2, size=1, spec=spec)
        for case in (batch, without_labels(batch)):
            assert all(loss.isfinite() for loss in learner.observe(case).values())
    assert all(weight.isfinite().all() for weight in learner.parameters())
