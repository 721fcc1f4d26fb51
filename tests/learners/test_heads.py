"""Heads on every level, the closed-form answer from the memory, and the averaged weights as teacher."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.engine import EAGER_STEPS, Engine
from dualnet.losses import MASKED, label_losses, logit_loss, mask_logits, soft_label_loss
from dualnet.models.model import Model, load
from dualnet.nets import pooled
from dualnet.nets.closed_form import ClosedForm, pooled_features

REPLAYING = ("er", "er_ace", "derpp", "mir", "dualnet")
every_replay = pytest.mark.parametrize("name", REPLAYING)
OPTIONS = {"heads": "all", "ema_rate": 0.1, "teacher_weight": 1.0}


def trained(learner, stream):
    for batch in stream:
        learner.observe(batch)
    return learner


def maps_by_hand(learner, images: Tensor) -> list[Tensor]:
    """Of every level, by the averaged weights."""
    copied = copy.deepcopy(learner).eval()
    for name, mean in learner.ema.means().items():
        copied.state_dict()[name].copy_(mean)
    pixels = copied.network_input(images)
    if not hasattr(copied, "fast"):
        return copied.net.encoder(pixels)
    adapted, maps = pixels, []
    for block, slow_map in zip(copied.fast.blocks, copied.slow(pixels), strict=True):
        adapted = slow_map * block(adapted, 1)
        maps.append(adapted)
    return maps


# Heads


@every_replay
def test_every_head_learns_and_their_mean_answers(name, small_learner, stream, differing, state_of):
    learner = small_learner(name, **OPTIONS)
    before = state_of(learner)
    trained(learner, stream)
    net = learner.fast if name == "dualnet" else learner.net
    heads = [*net.lower_heads, net.head]
    assert len(heads) == 4 and len([key for key in differing(before, state_of(learner)) if "lower_heads" in key]) == 12
    averages = learner.ema.means()
    images, logits = stream[0].images, []
    for level, (head, each_map) in enumerate(zip(heads, maps_by_hand(learner, images), strict=True)):
        prefix = f"{'fast' if name == 'dualnet' else 'net'}.{'head' if level == 3 else f'lower_heads.{level}'}."
        assert head.weight.shape == averages[prefix + "weight"].shape
        logits.append(F.linear(pooled(each_map), averages[prefix + "weight"], averages[prefix + "bias"]))
    with torch.no_grad():
        torch.testing.assert_close(learner.logits(images), torch.stack(logits).mean(dim=0), rtol=1e-4, atol=1e-5)
        last = small_learner(name, **OPTIONS, answer="last")
        last.load_state_dict(learner.state_dict())
        torch.testing.assert_close(last.logits(images), logits[-1], rtol=1e-4, atol=1e-5)


def test_losses_of_several_heads_are_their_sum():
    generator = torch.Generator().manual_seed(0)
    logits, stored = torch.randn(5, 3, 4, generator=generator), torch.randn(5, 4, generator=generator)
    allowed = torch.tensor([[True, True, False, False], [False, False, True, True]])[[0, 1, 0, 1, 0]]
    labels, has_logits = torch.tensor([0, 2, 1, UNLABELLED, 0]), torch.tensor([True, True, False, True, True])
    masked = mask_logits(logits, allowed)
    assert torch.equal(masked == MASKED, ~allowed[:, None].expand(5, 3, 4))
    each = masked.unbind(dim=1)
    assert torch.equal(mask_logits(logits, allowed[0]), logits.masked_fill(~allowed[0], MASKED))
    for loss in (
        lambda rows: label_losses(rows, labels),
        lambda rows: soft_label_loss(rows, stored, has_logits, 2.0, "class"),
        lambda rows: soft_label_loss(rows, stored, has_logits, 2.0),
        lambda rows: logit_loss(rows, stored, has_logits),
    ):
        torch.testing.assert_close(loss(masked), sum(map(loss, each)))


# The closed-form answer


@every_replay
@pytest.mark.parametrize("answer", ["means", "lda", "ridge"])
def test_the_closed_form_answer_is_that_of_the_memory(name, answer, small_learner, stream):
    learner = trained(small_learner(name, ema_rate=0.1, answer=answer, answer_levels=2), stream)
    memory = learner.memory
    slots = memory.filled.nonzero().flatten()
    features = pooled_features([each.detach() for each in maps_by_hand(learner, memory.images[slots])[2:]])
    head = ClosedForm(features.shape[1], learner.spec.num_classes, answer)
    head.add(features, memory.labels[slots])
    images, task_ids = stream[3].images, stream[3].task_ids
    expected = head.logits(pooled_features([each.detach() for each in maps_by_hand(learner, images)[2:]]))
    logits = learner.logits(images)
    torch.testing.assert_close(logits.argsort(dim=1), expected.argsort(dim=1))
    assert torch.equal(learner.logits(images, task_ids), learner.mask_logits(logits, task_ids))


def test_mirror_images_are_further_examples_and_a_second_view(small_learner, stream):
    learner = trained(small_learner("er", ema_rate=0.1, answer="lda", answer_levels=4, answer_mirrored=True), stream)
    memory, images = learner.memory, stream[0].images
    slots = memory.filled.nonzero().flatten()

    def features_of(view: Tensor) -> Tensor:
        return pooled_features([each.detach() for each in maps_by_hand(learner, view)])

    features = [features_of(memory.images[slots]), features_of(memory.images[slots].flip(3))]
    head = ClosedForm(features[0].shape[1], learner.spec.num_classes)
    head.add(torch.cat(features), memory.labels[slots].repeat(2))
    head.calibrate(torch.cat(features), memory.labels[slots].repeat(2))
    shown = [
        pooled_features([each.detach() for each in maps_by_hand(learner, view)]) for view in (images, images.flip(3))
    ]
    expected = (head.logits(shown[0]) + head.logits(shown[1])) / 2
    torch.testing.assert_close(learner.logits(images), expected, rtol=1e-3, atol=1e-3)


def test_it_is_computed_when_asked_for_and_kept_until_a_change(quick_learner, stream, monkeypatch):
    fitted, calibrate = [], ClosedForm.calibrate
    monkeypatch.setattr(ClosedForm, "calibrate", lambda *given: (fitted.append(None), calibrate(*given)))
    learner = trained(quick_learner("er", answer="means"), stream)
    assert not fitted, "nobody has asked"
    images = stream[0].images
    first = learner.logits(images)
    assert torch.equal(learner.logits(images), first) and len(fitted) == 1
    learner.observe(stream[0])
    assert not torch.equal(learner.logits(images), first) and len(fitted) == 2
    learner.load_state_dict(learner.state_dict())
    learner.logits(images)
    assert len(fitted) == 3
    learner.add_classes(1)
    assert learner.logits(images).shape == (4, 7) and len(fitted) == 4


class SilentGraph:
    """Replays as a CUDA graph does: no Python but that of `learn` and the average runs."""

    def __init__(self, engine, inputs):
        self.engine, self.inputs = engine, inputs

    def replay(self):
        for learner, batch in zip(self.engine.learners, self.inputs, strict=True):
            learner.learn(batch)
            learner.ema.update(learner)


@every_replay
def test_replayed_steps_are_answered_like_eager_ones(
    name, quick_learner, random_batch, monkeypatch, state_of, differing
):
    from dualnet.cost import Cost
    from dualnet.engine import Captured

    def capture(self, batches):
        inputs = [copy.deepcopy(batch) for batch in batches]
        return Captured(SilentGraph(self, inputs), inputs, [{} for _ in inputs], [Cost() for _ in inputs])

    monkeypatch.setattr(Engine, "capture", capture)
    learners = [quick_learner(name, seed, **OPTIONS, answer="means") for seed in (0, 1, 0, 1)]
    stepped, plain = learners[:2], learners[2:]
    engine = Engine(stepped, "fp32")
    engine.capture_steps = True
    images = random_batch(99).images
    for seed in range(EAGER_STEPS + 3):
        engine.step([random_batch(seed), random_batch(seed + 50)])
        for learner, batch in zip(plain, (random_batch(seed), random_batch(seed + 50)), strict=True):
            learner.observe(batch)
        for learner, expected in zip(stepped, plain, strict=True):
            assert torch.equal(engine.logits(learner, images), expected.logits(images))
    assert len(engine.captured) == 1
    for learner, expected in zip(stepped, plain, strict=True):
        assert not differing(state_of(learner), state_of(expected))


@every_replay
def test_a_step_does_not_synchronise(name, quick_learner, stream, synchronising):
    learner = quick_learner(name, **OPTIONS, answer="lda")
    learner.observe(stream[0])
    assert synchronising(lambda: learner.observe(stream[1])) <= {"aten::item", "aten::_local_scalar_dense"}


def test_a_saved_model_answers_the_same_and_forgets_what_is_withdrawn(tmp_path, stream):
    options = {"name": "er", "encoder": {"width": 4}, "answer": "means", "memory": {"slots": 20}}
    model = Model.create(["a", "b"], image_size=28, learner=options)
    images = stream[0].images
    model.learn(images, ["a", "b", "a", "b"])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(again.probabilities(images), model.probabilities(images))
    before = again.probabilities(images)
    again.relabel(dict.fromkeys(list(digests(again))[:1]))
    assert not torch.equal(again.probabilities(images), before)
    with pytest.raises(ValueError, match=r"^learner\.answer: means needs"):
        from dualnet.models.onnx import export

        export(model, tmp_path / "model.onnx")


def digests(model: Model):
    from dualnet.models.memory_images import stored_examples

    return (digest for _, _, digest, _ in stored_examples(model.learner))


# The teacher


def test_the_teacher_adds_its_divergence(quick_learner, stream):
    """From the second step on; with SGD the change of the weights is linear in the weight of the loss."""
    steps = {}
    for weight in (0.0, 1.0, 2.0):
        learner = quick_learner("er", ema_rate=0.1, updates=1, teacher_weight=weight)
        trained(learner, stream[:1])
        start = torch.cat([parameter.detach().flatten() for parameter in learner.parameters()])
        learner.observe(stream[1])
        steps[weight] = torch.cat([parameter.detach().flatten() for parameter in learner.parameters()]) - start
    pull = steps[1.0] - steps[0.0]
    assert pull.abs().max() > 1e-5
    torch.testing.assert_close(steps[2.0] - steps[0.0], 2 * pull, rtol=1e-2, atol=1e-6)


def test_options_that_do_not_go_together(small_config):
    with pytest.raises(ValueError, match=r"teacher_weight: 1\.0 needs averaged weights"):
        small_config("er", teacher_weight=1.0)
    with pytest.raises(ValueError, match="head: lda is the only head"):
        small_config("dualnet", head="lda", slow={"rounds": 0}, heads="all")
