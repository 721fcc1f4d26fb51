"""Encoders by their options: weights to start from, encoders from outside, their rate, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from learner_fixtures import TRAINED
from own_encoder import ThreeMaps

from dualnet.cost import Cost, counted
from dualnet.nets import Adapter, BaseEncoder, Encoder, pooled
from dualnet.nets.encoder import CustomEncoder
from dualnet.nets.weights import load_weights, starter_file
from starter.train import save_weights

every_learner = pytest.mark.parametrize("name", TRAINED)
OWN = "own_encoder.ThreeMaps"


def encoder_of(learner: torch.nn.Module) -> BaseEncoder:
    return next(module for module in learner.modules() if isinstance(module, BaseEncoder))


def weights_without(learner: torch.nn.Module, encoder: BaseEncoder) -> list[torch.Tensor]:
    return [weight for weight in learner.parameters() if weight not in set(encoder.parameters())]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Weights of a small encoder, as `starter.train` writes them."""
    torch.manual_seed(5)
    encoder = Encoder(4)
    encoder(torch.randn(8, 3, 32, 32))  # statistics that are not those of a new one
    (tmp_path / "weights.safetensors").write_bytes(save_weights(encoder, {"width": "4"}))
    return str(tmp_path / "weights.safetensors")


# Weights to start from


@every_learner
def test_the_encoder_starts_from_a_file_and_learns(name: str, file: str, small_learner: Any, stream: Any) -> None:
    learner, other = (
        small_learner(name, encoder={"width": 4, "weights": file}),
        small_learner(name, encoder={"width": 4}),
    )
    stored = safetensors.torch.load_file(file)
    started = encoder_of(learner).state_dict()
    assert started.keys() == stored.keys()
    for key, tensor in started.items():
        assert torch.equal(tensor, stored[key].float()), key
    assert not torch.equal(encoder_of(other).state_dict()["stem.weight"], started["stem.weight"])
    learner.observe(stream[0])
    assert not torch.equal(encoder_of(learner).state_dict()["stem.weight"], stored["stem.weight"].float())


def test_the_adapter_is_initialised_to_the_identity(file: str, small_learner: Any, random_batch: Any) -> None:
    learner = small_learner("dualnet", encoder={"width": 4, "weights": file}, adapter_norm="none").eval()
    pixels = learner.network_input(random_batch(0).images)
    features = pooled(learner.slow(pixels)[-1])
    assert torch.equal(learner.net(pixels), learner.fast.head(features))


def test_the_starter_is_shipped_and_refuses_another_width(small_learner: Any) -> None:
    for width in (20, 32):
        learner = small_learner("er", encoder={"width": width, "weights": "starter"})
        fresh = Encoder(width)
        load_weights(fresh, starter_file(width))
        assert torch.equal(encoder_of(learner).state_dict()["stem.weight"], fresh.stem.weight)
    with pytest.raises(ValueError, match=r"^encoder.weights: .*24.*20 or 32$"):
        small_learner("er", encoder={"width": 24, "weights": "starter"})


@pytest.mark.parametrize(
    ("content", "width", "words"),
    [(None, 4, "No such file"), (b"no tensors", 4, "safetensors"), ("weights", 8, r"stem\.weight is \[4, 3, 3, 3\]")],
)
def test_a_file_that_cannot_be_used(content: Any, width: int, words: str, file: str, small_learner: Any) -> None:
    if content is None:
        Path(file).unlink()
    elif isinstance(content, bytes):
        Path(file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"weights\.safetensors: .*{words}") as caught:
        small_learner("dualnet", encoder={"width": width, "weights": file})
    assert "\n" not in str(caught.value)


# Encoders from outside


@every_learner
def test_a_learner_learns_with_a_custom_encoder(name: str, small_learner: Any, stream: Any) -> None:
    learner = small_learner(name, encoder={"name": OWN, "options": {"width": 5}})
    encoder = encoder_of(learner)
    assert encoder.channels == (5, 10, 15)
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    cost = Cost()
    with counted(learner, cost):
        for batch in stream:
            losses = learner.observe(batch)
    assert all(loss.isfinite() for loss in losses.values())
    assert cost.forward_samples >= sum(len(batch) for batch in stream) and cost.backward_samples > 0
    assert all(
        not torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items() if tensor.dim() == 4
    )
    assert learner.predict(stream[0].images, stream[0].task_ids).shape == (len(stream[0]),)


def test_parts_have_separate_batchnorm_statistics() -> None:
    torch.manual_seed(0)
    images = torch.cat([torch.randn(4, 3, 32, 32), 3 + torch.randn(4, 3, 32, 32)])
    together, apart = CustomEncoder(ThreeMaps(), (3, 32, 32)), CustomEncoder(ThreeMaps(), (3, 32, 32))
    apart.load_state_dict(together.state_dict())
    maps = together(images, parts=2)
    each = [apart(part) for part in images.chunk(2)]
    for number, feature_map in enumerate(maps):
        assert torch.equal(feature_map, torch.cat([of_part[number] for of_part in each]))
    for name, tensor in together.state_dict().items():
        assert torch.equal(tensor, apart.state_dict()[name]), name


def test_the_trial_pass_does_not_change_the_encoder() -> None:
    torch.manual_seed(0)
    plain = ThreeMaps().state_dict()
    torch.manual_seed(0)
    encoder = CustomEncoder(ThreeMaps(), (3, 32, 32))
    assert encoder.training and encoder.net.training
    for name, tensor in encoder.net.state_dict().items():
        assert torch.equal(tensor, plain[name]), name


def test_the_adapter_fits_maps_of_any_size() -> None:
    maps = [torch.randn(2, channels, side, side) for channels, side in ((4, 11), (6, 11), (3, 20))]
    adapter = Adapter((4, 6, 3), 5, "none")
    assert adapter(torch.randn(2, 3, 32, 32), maps).shape == (2, 5)


def test_a_weights_file_may_contain_a_larger_network(tmp_path: Path, small_learner: Any) -> None:
    net = ThreeMaps()
    safetensors.torch.save_file({**net.state_dict(), "classifier.weight": torch.zeros(3)}, tmp_path / "own.safetensors")
    learner = small_learner("dualnet", encoder={"name": OWN, "weights": str(tmp_path / "own.safetensors")})
    assert torch.equal(encoder_of(learner).state_dict()["net.blocks.0.0.weight"], net.blocks[0][0].weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder": {"name": "own_encoder.OneVector"}}, "encoder.name: own_encoder.OneVector .*list of feature maps"),
        ({"encoder": {"name": "own_encoder.fails"}}, "encoder.name: own_encoder.fails .*no such"),
        ({"encoder": {"name": "own_encoder.NOTHING"}}, "encoder.name: 'own_encoder.NOTHING'"),
        ({"encoder": {"name": "builtins.dict"}}, "encoder.name: builtins.dict .*torch.nn.Module"),
        ({"encoder": {"name": "own_encoder.Absent"}}, "encoder.name: .*'own_encoder.Absent'"),
        (
            {"encoder": {"name": "nowhere"}},
            "encoder.name: 'nowhere' is not one of resnet18, timm/MODEL, nor",
        ),
        ({"encoder": {"name": OWN, "options": {"depth": 3}}}, "encoder.name: .*depth"),
        ({"encoder": {"name": OWN, "weights": "starter"}}, "encoder.weights: starter .*own_encoder"),
        ({"encoder": {"options": {"width": 3}}}, "encoder.options: .*other encoders"),
        ({"encoder": {"lr": -1.0}}, "encoder.lr: -1"),
        ({"encoder": {"lr": 0.0}, "slow": {"rounds": 1}}, "slow.rounds: 1"),
        ({"encoder": {"name": OWN}, "slow": {"objective": "byol"}}, "slow.objective: byol"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options: dict[str, Any], words: str, small_learner: Any) -> None:
    with pytest.raises(ValueError, match=f"^{words}") as caught:
        small_learner("dualnet", **options)
    assert "\n" not in str(caught.value)


# Its rate


@every_learner
def test_a_frozen_encoder_does_not_change(
    name: str, small_learner: Any, stream: Any, state_of: Any, differing: Any
) -> None:
    frozen = {"encoder": {"lr": 0.0}} | ({"slow": {"rounds": 0}} if name == "dualnet" else {})
    learner = small_learner(name, **frozen, ema_rate=0.1)
    encoder = encoder_of(learner)
    others = [weight.clone() for weight in weights_without(learner, encoder)]
    before = state_of(encoder)
    for batch in stream:
        learner.train().observe(batch)
    learner.predict(stream[0].images, stream[0].task_ids)
    assert not differing(before, state_of(encoder))
    after = weights_without(learner, encoder)
    assert any(not torch.equal(old, new) for old, new in zip(others, after, strict=True))


@pytest.mark.parametrize("name", ["er", "mir", "dualnet"])
def test_its_rate_scales_the_step_of_the_encoder(name: str, small_learner: Any, random_batch: Any) -> None:
    options = {"updates": 1, "lr": 0.1} | ({"slow": {"rounds": 0}} if name == "dualnet" else {})
    learners = [small_learner(name, **options), small_learner(name, **options, encoder={"lr": 0.05})]
    moved = []
    for learner in learners:
        encoder = encoder_of(learner)
        parts = [list(encoder.parameters()), weights_without(learner, encoder)]
        before = [[weight.detach().clone() for weight in part] for part in parts]
        learner.observe(random_batch(0))
        pairs = [zip(part, old, strict=True) for part, old in zip(parts, before, strict=True)]
        moved.append([torch.cat([(new - old).flatten() for new, old in pair]) for pair in pairs])
    assert moved[0][0].abs().max() > 1e-4
    torch.testing.assert_close(moved[1][0], moved[0][0] / 2, rtol=1e-3, atol=1e-7)
    assert torch.equal(moved[1][1], moved[0][1])
