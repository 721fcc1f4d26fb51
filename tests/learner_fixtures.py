"""Fixtures for tests of learners: random batches, small learners, and comparison of their states."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import profiler

from dualnet import image_ops
from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import LEARNERS, Learner, learner_class, make_learner
from dualnet.objectives import barlow_twins
from dualnet.options import build, merge

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # for tests/kernels; Triton reads it once, at its import

CLASSES_PER_TASK = 2
TRAINED = [name for name in LEARNERS if name != "slda"]  # by gradients
SMALL = {
    "encoder": {"width": 4},
    "replay_size": 4,
    "candidates": 6,
    "embedding_size": 8,
    "slow": {"batch_size": 6, "rounds": 1},
    "memory": {"slots_per_class": 3},
}
# What waits for the device, or has a shape that depends on the values: none of it can be captured in a CUDA graph.
SYNCHRONISING = {
    f"aten::{op}"
    for op in (
        *("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy"),
        *("masked_select", "unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount"),
    )
}


@pytest.fixture(scope="session")
def spec() -> StreamSpec:
    """Three tasks of two classes, colour images of 28 pixels."""
    mask = torch.eye(3, dtype=torch.bool).repeat_interleave(CLASSES_PER_TASK, dim=1)
    return StreamSpec((3, 28, 28), mask)


@pytest.fixture(scope="session")
def random_batch(spec: StreamSpec) -> Callable[..., Batch]:
    """random_batch(seed, task, size): noise of one task; `unlabelled` first examples lose their label."""
    default = spec

    def make(seed: int = 0, task: int = 0, size: int = 4, unlabelled: int = 0, spec: StreamSpec = default) -> Batch:
        generator = torch.Generator().manual_seed(1000 + seed)
        images = torch.randint(0, 256, (size, *spec.image_shape), dtype=torch.uint8, generator=generator)
        choice = spec.class_mask[task].nonzero().flatten()
        labels = choice[torch.randint(0, len(choice), (size,), generator=generator)]
        labels[:unlabelled] = UNLABELLED
        return Batch(images, labels, torch.full((size,), task))

    return make


@pytest.fixture(scope="session")
def stream(random_batch: Callable[..., Batch]) -> list[Batch]:
    """Two batches of each of two tasks, the last one partly unlabelled."""
    return [random_batch(0), random_batch(1), random_batch(2, task=1), random_batch(3, task=1, unlabelled=2)]


@pytest.fixture(scope="session")
def without_labels() -> Callable[[Batch], Batch]:
    return lambda batch: Batch(batch.images, None, batch.task_ids)


@pytest.fixture(scope="session")
def small_config() -> Callable[..., Any]:
    """small_config(name, **options): the learner's Config with small networks and memories; `slow={"rounds": 0}`."""

    def make(name: str, **options: Any) -> Any:
        config = learner_class(name).Config
        known = {field.name for field in dataclasses.fields(config)}
        return build(config, merge({key: value for key, value in SMALL.items() if key in known}, options))

    return make


@pytest.fixture(scope="session")
def small_learner(spec: StreamSpec, small_config: Callable[..., Any]) -> Callable[..., Learner]:
    """small_learner(name, seed, spec, device, **options)."""
    default = spec

    def make(name: str, seed: int = 0, spec: StreamSpec = default, device: str = "cpu", **options: Any) -> Learner:
        return make_learner(name, spec, small_config(name, **options), seed, device)

    return make


@pytest.fixture(scope="session")
def quick_learner(small_learner: Callable[..., Learner]) -> Callable[..., Learner]:
    """As small_learner, with an encoder of three convolutions: a third of the time, if the encoder does not matter."""

    def make(name: str, *given: Any, **options: Any) -> Learner:
        return small_learner(name, *given, **merge({"encoder": {"name": "own_encoder.ThreeMaps"}}, options))

    return make


@pytest.fixture(scope="session")
def state_of() -> Callable[..., dict[str, Tensor]]:
    """A copy of the state of a module, or of a learner with its optimizers: tensors by name."""

    def copy(module: torch.nn.Module) -> dict[str, Tensor]:
        state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        if isinstance(module, Learner):
            for name, optimizer in module.optimizers().items():
                for index, values in optimizer.state_dict()["state"].items():
                    tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
                    state |= {f"optimizer.{name}.{index}.{key}": value.clone() for key, value in tensors.items()}
        return state

    return copy


@pytest.fixture(scope="session")
def differing() -> Callable[[dict[str, Tensor], dict[str, Tensor]], set[str]]:
    """Names of the tensors that differ in any bit, or that only one of the states has."""

    def bits(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.dtype, tensor.shape, tensor.detach().cpu().contiguous().numpy().tobytes()

    def names(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
        return {name for name in before.keys() & after.keys() if bits(before[name]) != bits(after[name])} | (
            before.keys() ^ after.keys()
        )

    return names


@pytest.fixture
def fake_mode() -> Iterator[FakeTensorMode]:
    """Tensors without values: reading one on the host raises an error. Constants cached meanwhile are dropped."""
    caches = (image_ops.constant, image_ops.colour_basis, barlow_twins.targets)
    for cached in caches:
        cached.cache_clear()
    with FakeTensorMode() as mode:
        yield mode
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(scope="session")
def synchronising() -> Callable[[Callable[[], Any]], set[str]]:
    """The operations of a call, including nested ones, that would wait for a device."""

    def changed_names(call: Callable[[], Any]) -> set[str]:
        with profiler.profile() as recorded:
            call()
        assert recorded.kineto_results is not None
        # As recorded: the profiler takes ten times as long as the call to sum them up.
        return {event.name() for event in recorded.kineto_results.events()} & SYNCHRONISING

    return changed_names
