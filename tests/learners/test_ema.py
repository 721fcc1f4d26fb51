"""The average of the weights that predicts, for every learner: its formula, its state, what it leaves alone."""

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_fixtures import TRAINED
from torch import nn

from dualnet.batch import Batch
from dualnet.learners.ema import EMA, WARM_UP, prediction_tensors
from dualnet.learners.learner import Learner

every_learner = pytest.mark.parametrize("name", TRAINED)


@pytest.fixture
def averaging(quick_learner):
    return functools.partial(quick_learner, ema_rate=0.1)


@every_learner
def test_a_step_does_not_synchronise(name, averaging, stream, synchronising):
    learner = averaging(name)
    learner.observe(stream[0])
    assert synchronising(lambda: learner.observe(stream[1])) <= {"aten::item", "aten::_local_scalar_dense"}


def trained(learner: Learner, stream: list[Batch]) -> Learner:
    for batch in stream:
        learner.observe(batch)
    return learner


@every_learner
def test_the_average_is_off_by_default_and_changes_no_weight(
    name, quick_learner, averaging, stream, state_of, differing
):
    steps = stream[:1] if name == "derpp" else stream  # its stored logits are the average's from the second step on
    plain, averaged = trained(quick_learner(name), steps), trained(averaging(name), steps)
    assert plain.ema is None
    own = {key: value for key, value in state_of(averaged).items() if not key.startswith("ema.")}
    assert not differing(own, state_of(plain))


@every_learner
def test_predictions_are_those_of_the_average(name, quick_learner, averaging, stream):
    learner, plain = trained(averaging(name), stream), quick_learner(name)
    plain.load_state_dict({key: value for key, value in learner.state_dict().items() if not key.startswith("ema.")})
    images, task_ids = stream[2].images, stream[2].task_ids
    of_weights = plain.logits(images, task_ids)
    with torch.no_grad():
        for key, mean in learner.ema.means().items():
            plain.state_dict()[key].copy_(mean)
    assert torch.equal(learner.logits(images, task_ids), plain.logits(images, task_ids))
    assert not torch.equal(learner.logits(images, task_ids), of_weights)


@every_learner
def test_exactly_the_tensors_used_for_prediction_are_averaged(name, averaging, stream):
    learner = averaging(name)
    trained(learner, stream[:1])
    logits = learner.train()(stream[0].images, stream[0].task_ids)
    grads = torch.autograd.grad(logits.sum(), [*learner.parameters()], allow_unused=True)
    used = {key for (key, _), grad in zip(learner.named_parameters(), grads, strict=True) if grad is not None}
    statistics = {key for key in learner.state_dict() if key.partition(".")[0] != "objective" and "running" in key}
    statistics = {key for key in statistics if not key.startswith("ema.")}
    assert learner.ema.means().keys() == used | statistics


def test_before_the_first_step_the_weights_predict(averaging, quick_learner, stream):
    averaged, plain = averaging("er"), quick_learner("er")
    assert torch.equal(averaged.logits(stream[0].images), plain.logits(stream[0].images))


@given(values=st.lists(st.floats(-100, 100), min_size=1, max_size=30), rate=st.floats(0.01, 1))
def test_the_formula(values, rate):
    module = nn.Sequential(nn.Linear(1, 1, bias=False))
    ema, mean = EMA(rate), 0.0
    for number, value in enumerate(values):
        nn.init.constant_(module[0].weight, value)
        ema.update(module)
        now = max(rate, WARM_UP / (WARM_UP + number))
        mean = (1 - now) * mean + now * value
        assert float(ema.means()["0.weight"]) == pytest.approx(mean, abs=1e-3)


def test_weights_of_another_memory_format_are_averaged_alike(averaging, stream):
    """The kernel walks through memory, so the averages must follow."""
    plain, channels_last = (trained(averaging("er"), stream[:1]) for _ in range(2))
    for weight in plain.parameters():
        weight.data = weight.data.contiguous()
    for learner in (plain, channels_last):
        with torch.no_grad():
            for number, weight in enumerate(learner.parameters()):
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
        learner.ema.update(learner)
    other = channels_last.ema.means()
    assert any(not mean.is_contiguous() for mean in other.values())
    for key, mean in plain.ema.means().items():
        assert torch.equal(mean, other[key])


def test_soft_labels_come_from_the_average(averaging, stream):
    learner = trained(averaging("dualnet"), stream)
    memory = learner.memory
    learner.end_task()
    slots = memory.filled.nonzero().flatten()
    torch.testing.assert_close(memory.logits[slots], learner.logits(memory.images[slots], memory.task_ids[slots]))


def test_a_state_from_before_the_first_step_can_be_loaded(averaging, stream, state_of, differing):
    learner = averaging("er")
    start = copy.deepcopy(learner.state_dict())
    trained(learner, stream)
    learner.load_state_dict(start)
    assert not learner.ema.means()
    assert not differing(state_of(trained(learner, stream)), state_of(trained(averaging("er"), stream)))


def test_averages_keep_their_order_and_their_tensors(averaging, stream):
    """Checkpoints of one run have the same bytes; a captured step goes on after a state is loaded, as for weights."""
    learner = trained(averaging("er"), stream)
    assert list(learner.ema.means()) == [name for name, _ in prediction_tensors(learner)]
    places = {name: mean.data_ptr() for name, mean in learner.ema.means().items()}
    state = copy.deepcopy(learner.state_dict())
    trained(learner, stream)
    learner.load_state_dict(state)
    assert places == {name: mean.data_ptr() for name, mean in learner.ema.means().items()}
    assert all(torch.equal(mean, state[f"ema.{name.replace('.', '/')}"]) for name, mean in learner.ema.means().items())


def test_a_state_without_averages_is_refused(averaging, quick_learner):
    with pytest.raises(RuntimeError, match=r"ema\.steps"):
        averaging("er").load_state_dict(quick_learner("er").state_dict())


def test_the_average_of_a_single_number_outlives_a_change_of_classes(averaging, stream):
    learner = averaging("er")
    learner.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.0)))
    trained(learner, stream[:1]).add_classes(1)
    assert learner.ema.means()["scale"] == 2
