"""One step of each learner with the literal forms of the authors' code and of the paper, in float64 from the equations.

Random draws, views and the networks are the learner's own, which other tests check; losses, gradients, updates and
Look-ahead are written here again.
"""

import copy

import contract
import pytest
import torch
from torch import Tensor

from dualnet.batch import StreamSpec
from dualnet.learners import DualNet, make_learner
from dualnet.learners.presets import apply_preset
from dualnet.nets import pooled
from dualnet.options import build, merge
from dualnet.reproduce.table_file import read_rows

HALF, IMAGENET = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PAPER_ROWS = read_rows("all")
SMALL = {
    "encoder": {"width": 4},
    "lr": 0.1,
    "updates": 1,
    "replay_size": 5,
    "slow": {"rounds": 1, "batch_size": 6, "lr": 0.05, "beta": 0.3},
    "memory": {"slots_per_class": 3},
}


def by_numbers(images: Tensor, statistics=IMAGENET) -> Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in statistics)
    return (images.double() / 255 - mean) / std


def own_classes(learner, logits: Tensor, task_ids: Tensor) -> list[Tensor]:
    """The logits of each example for the classes of its task."""
    return [row[learner.spec.class_mask[task]] for row, task in zip(logits, task_ids, strict=True)]


def cross_entropy(learner, logits: Tensor, labels: Tensor, task_ids: Tensor) -> Tensor:
    rows = own_classes(learner, logits, task_ids)
    places = [
        int(label - learner.spec.class_mask[task].nonzero()[0]) for label, task in zip(labels, task_ids, strict=True)
    ]
    return -torch.stack([(row.exp()[at] / row.exp().sum()).log() for row, at in zip(rows, places, strict=True)]).mean()


def divergence(learner, logits: Tensor, replay, counts: Tensor, soft) -> Tensor:
    """The mean over the examples that count of KL(stored || current), or KL(current || stored) as equation 7 prints."""
    terms = []
    stored = own_classes(learner, replay.logits.double(), replay.task_ids)
    for now, then, counted in zip(own_classes(learner, logits, replay.task_ids), stored, counts, strict=True):
        p, q = ((row / soft.temperature).exp() / (row / soft.temperature).exp().sum() for row in (then, now))
        p, q = (p, q) if soft.order == "stored_first" else (q, p)
        kl = (p * (p / q).log()).sum()
        terms += [kl / len(now) if soft.mean == "class" else kl] if counted else []
    return torch.stack(terms).mean() if terms else logits.sum() * 0


def barlow_twins(z_a: Tensor, z_b: Tensor, settings: str) -> Tensor:
    if settings == "authors":
        z_a, z_b = ((z - z.mean(dim=0)) / z.std(dim=0, correction=1) for z in (z_a, z_b))
        c = torch.stack([torch.outer(a, b) for a, b in zip(z_a, z_b, strict=True)]).mean(dim=0)
    else:
        c = (z_a.T @ z_b) / torch.outer(z_a.square().sum(dim=0).sqrt(), z_b.square().sum(dim=0).sqrt())
    diagonal = torch.eye(len(c), dtype=torch.bool)
    return (1 - c[diagonal]).square().sum() + 2e-3 * c[~diagonal].square().sum()


def simclr(z_a: Tensor, z_b: Tensor, settings: str) -> Tensor:
    if settings == "authors":
        z = torch.cat([(z - z.mean(dim=0)) / z.std(dim=0, correction=1) for z in (z_a, z_b)])
        s, own = z @ z.T / 100, True
    else:
        z = torch.cat([z_a, z_b])
        s, own = z @ z.T / torch.outer(z.norm(dim=1), z.norm(dim=1)) / 0.5, False
    terms = []
    for i in range(len(z)):
        among = [k for k in range(len(z)) if own or k != i]
        terms.append(-s[i, (i + len(z_a)) % len(z)] + s[i, among].exp().sum().log())
    return torch.stack(terms).mean()


def descend(loss: Tensor, weights: list[Tensor], rate: float) -> None:
    grads = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            weight -= rate * grad


def assert_same_state(learned: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Weights and running statistics, within the rounding of float32."""
    for (name, value), (_, other) in zip(learned.state_dict().items(), expected.state_dict().items(), strict=True):
        if value.is_floating_point():
            torch.testing.assert_close(
                value.double(), other, atol=2e-4, rtol=2e-3, msg=lambda text, name=name: f"{name}: {text}"
            )


def dualnet(spec, settings: str, protocol: str, **options):
    preset = apply_preset({"name": "dualnet", "preset": settings, "slow": options.get("slow", {})}, protocol, 1.0)
    preset = {key: value for key, value in preset.items() if key != "name"}
    kind = {"adapter_norm": "none"} if protocol == "task_aware" else {}  # divided maps hardly change in one step
    chosen = merge(merge(merge(preset, SMALL), kind), options)
    return make_learner("dualnet", spec, build(DualNet.Config, chosen), 0, "cpu")


def expected_step(learner, batch, settings: str) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]:
    """Slow learner, fast learner and projector after one batch. `learner` is a copy of the one that is tested."""
    config = learner.config
    learner.store(batch)
    slow, fast, projector = (
        copy.deepcopy(part).double() for part in (learner.slow, learner.fast, learner.objective.projector)
    )
    parts = torch.nn.ModuleList([slow, projector])
    first = copy.deepcopy(parts.state_dict())
    for view_a, view_b, _ in learner.slow_steps(batch):
        z_a, z_b = (projector(pooled(slow(view.double())[-1])) for view in (view_a, view_b))
        loss = (simclr if config.slow.objective == "simclr" else barlow_twins)(z_a, z_b, settings)
        descend(loss, list(parts.parameters()), config.slow.lr)
    if config.slow.optimizer == "look_ahead":
        now = parts.state_dict()
        parts.load_state_dict({name: first[name] + config.slow.beta * (now[name] - first[name]) for name in now})

    replay = learner.memory.sample(config.replay_size, learner.generator, beside=batch)
    statistics = HALF if config.normalisation == "half" else IMAGENET
    pixels = by_numbers(batch.images, statistics)
    now_logits = fast(pixels, slow(pixels))
    loss = cross_entropy(learner, now_logits, batch.labels, batch.task_ids)
    if len(replay.images):
        pixels = by_numbers(replay.images, statistics)
        logits = fast(pixels, slow(pixels))
        counts = replay.stored if config.soft_labels.missing == "slot" else replay.has_logits
        loss = loss + cross_entropy(learner, logits, replay.labels, replay.task_ids)
        loss = loss + config.soft_labels.weight * divergence(learner, logits, replay, counts, config.soft_labels)
    descend(loss, [*slow.parameters(), *fast.parameters()], config.lr)
    return slow, fast, projector


@pytest.fixture
def one_task(spec):
    """The classes of `spec` as one task."""
    return StreamSpec(spec.image_shape, torch.ones(1, spec.num_classes, dtype=torch.bool))


@pytest.mark.parametrize("settings", ["authors", "paper"])
@pytest.mark.parametrize("protocol", ["task_aware", "task_free_boundaries"])
@pytest.mark.parametrize("slow", [{}, {"objective": "simclr", "optimizer": "sgd", "inner_steps": 1}])
def test_a_step_of_dualnet(settings, protocol, slow, spec, one_task, random_batch):
    of_tasks = spec if protocol == "task_aware" else one_task
    learner = dualnet(of_tasks, settings, protocol, slow=slow, soft_labels={"weight": 2.0})
    for seed in range(2):
        learner.observe(random_batch(seed, size=5, spec=of_tasks))
    learner.end_task()
    learner.observe(random_batch(2, task=len(of_tasks.class_mask) - 1, size=5, spec=of_tasks))
    batch = random_batch(7, task=len(of_tasks.class_mask) - 1, size=4, spec=of_tasks)
    expected = expected_step(copy.deepcopy(learner), batch, settings)
    learner.observe(batch)
    for part, other in zip((learner.slow, learner.fast, learner.objective.projector), expected, strict=True):
        assert_same_state(part, other)


def test_in_the_authors_first_task_the_slow_learner_sees_the_batch_and_nothing_is_replayed(spec, random_batch):
    """Neither its loss nor the statistics include anything else."""
    learner = dualnet(spec, "authors", "task_aware", slow={"lr": 0.005})
    placeholders = dualnet(spec, "authors", "task_aware", slow={"lr": 0.005}, memory={"replay_from": "start"})
    for each in (learner, placeholders):
        each.observe(random_batch(0, size=6))
    batch = random_batch(1, size=6)
    expected = expected_step(copy.deepcopy(learner), batch, "authors")
    shown = [examples.images for _, _, examples in copy.deepcopy(learner).slow_steps(batch)]
    assert len(shown) == 2 and all(torch.equal(images, batch.images) for images in shown)
    assert learner.observe(batch)["replay"] == 0
    placeholders.observe(batch)
    for part, other in zip((learner.slow, learner.fast, learner.objective.projector), expected, strict=True):
        assert_same_state(part, other)
    means = [each.slow.stem_norm.running_mean for each in (learner, placeholders)]
    assert (means[0] - means[1]).norm() > 0.01 * means[0].norm()


def test_a_first_task_whose_last_batch_is_one_image(spec, random_batch):
    """BatchNorm of the projector cannot normalise it, so that the slow learner leaves it out."""
    learner = dualnet(spec, "authors", "task_aware")
    learner.observe(random_batch(0))
    assert "slow" not in learner.observe(random_batch(1, size=1))
    learner.end_task()
    assert "slow" in learner.observe(random_batch(2, task=1, size=1))


def test_a_memory_that_is_held_stays_so_in_a_checkpoint(spec, random_batch):
    learner, resumed = (dualnet(spec, "authors", "task_aware") for _ in range(2))
    learner.observe(random_batch(0))
    resumed.load_state_dict(learner.state_dict())
    assert resumed.memory.is_held
    learner.end_task()
    resumed.load_state_dict(learner.state_dict())
    assert not resumed.memory.is_held and not learner.memory.is_held


def test_soft_labels_in_training_mode_move_the_statistics(spec, random_batch, monkeypatch):
    """In passes of 64 examples, here 2, and the rest."""
    monkeypatch.setattr("dualnet.learners.learner.NORMALISED_BATCH", 2)
    learner = dualnet(spec, "authors", "task_aware")
    learner.observe(random_batch(0, size=5))
    slow, fast = copy.deepcopy(learner.slow).double(), copy.deepcopy(learner.fast).double()
    stored = learner.memory.filled.nonzero().flatten()
    assert len(stored) == 5
    logits = []
    for chunk in (stored[:2], stored[2:4], stored[4:]):
        pixels = by_numbers(learner.memory.images[chunk])
        logits.append(fast(pixels, slow(pixels)))
    learner.end_task()
    own = learner.spec.class_mask[0]
    torch.testing.assert_close(
        learner.memory.logits[stored][:, own].double(), torch.cat(logits)[:, own], atol=1e-3, rtol=1e-3
    )
    assert_same_state(learner.slow, slow)


def test_what_the_slot_of_an_example_without_soft_labels_holds(one_task, random_batch):
    """Nothing, so that all classes are equal, until the reservoir is full; then the logits of the replaced example."""
    learner = dualnet(one_task, "authors", "task_free_boundaries", slow={"rounds": 0}, memory={"slots_per_class": 1})
    memory = learner.memory
    learner.observe(random_batch(0, size=3, spec=one_task))
    learner.end_task()
    of_first = memory.logits[:3].clone()
    assert (of_first != 0).all()
    for seed in range(1, 12):
        learner.observe(random_batch(seed, size=4, spec=one_task))
    replaced = ~memory.has_logits[:3]
    assert replaced.any() and torch.equal(memory.logits[:3], of_first) and not memory.logits[3:6].any()
    replay = memory.sample(6, learner.generator, beside=random_batch(0, spec=one_task))
    logits = torch.randn(6, 6, dtype=torch.float64)
    soft = learner.config.soft_labels
    expected = divergence(learner, logits, replay, torch.ones(6), soft)
    torch.testing.assert_close(soft.loss(logits, replay).double(), expected, atol=1e-5, rtol=1e-5)
    kept = dualnet(one_task, "authors", "task_free_boundaries", soft_labels={"missing": "skip"}).config.soft_labels
    without = divergence(learner, logits, replay, replay.has_logits, kept)
    torch.testing.assert_close(kept.loss(logits, replay).double(), without, atol=1e-5, rtol=1e-5)
    assert abs(expected - without) > 1e-3


def expected_ctn(learner, batch) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Base and controller of the authors' CTN after a batch, with one inner and one outer step."""
    config = learner.config
    batch, labels = learner.set_aside(batch, batch.labels)
    learner.memory.add(batch, learner.generator)
    base, controller = copy.deepcopy(learner.base).double(), copy.deepcopy(learner.controller).double()

    def logits(examples) -> Tensor:
        features = base.features(by_numbers(examples.images))
        scale, shift = (part[:, :, None, None] for part in controller(examples.task_ids))
        return base.head((torch.relu(scale * features + shift) + torch.relu(features)).mean(dim=(2, 3)))

    labelled = labels >= 0
    kept = type(batch)(batch.images, labels, batch.task_ids)
    loss = cross_entropy(learner, logits(kept)[labelled], labels[labelled], batch.task_ids[labelled])
    replay = learner.memory.sample(config.replay_size, learner.generator, beside=batch)
    if len(replay.images):
        past = logits(replay)
        soft = divergence(learner, past, replay, replay.has_logits, config.soft_labels)
        loss = loss + cross_entropy(learner, past, replay.labels, replay.task_ids) + config.soft_labels.weight * soft
    descend(loss, list(base.parameters()), config.lr)
    outer = learner.semantic.sample(config.replay_size, learner.generator, beside=batch)
    loss = cross_entropy(learner, logits(outer), outer.labels, outer.task_ids)
    weights = list(controller.parameters())
    with torch.no_grad():
        for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight -= config.controller_lr * grad.clamp(-1, 1)
    return base, controller


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_of_ctn(task, spec, random_batch, small_config):
    (row,) = (row for row in PAPER_ROWS if row.name == "table-1/mini-imagenet-ta/ctn")
    options = apply_preset(row.options["learner"], "task_aware", 1.0)
    options = {key: value for key, value in options.items() if key != "name"}
    small = {"encoder": {"width": 4}, "embedding_size": 8, "replay_size": 5, "inner_steps": 1, "outer_steps": 1}
    config = small_config("ctn", **merge(merge(options, small), {"memory": {"slots_per_class": 8}}))
    learner = make_learner("ctn", spec, config, 0, "cpu")
    for seed in range(2):
        learner.observe(random_batch(seed, size=6))
    if task == 1:
        learner.end_task()
    batch = random_batch(7, task=task, size=6)
    expected = expected_ctn(copy.deepcopy(learner), batch)
    losses = learner.observe(batch)
    assert losses.keys() >= {"labels", "controller"} and ("replay" in losses) == (task == 1)
    for part, other in zip((learner.base, learner.controller), expected, strict=True):
        assert_same_state(part, other)


ROWS = [
    *(f"table-1/mini-imagenet-tf/{row}" for row in ("er", "er-aug", "derpp", "derpp-aug")),
    *(f"table-1/mini-imagenet-ta/{row}" for row in ("er", "derpp")),
    *(f"table-5/mini-imagenet-ta/{row}" for row in ("mir", "offline")),
    *(f"beside the paper/task-free/{learner}" for learner in ("finetune", "er_ace")),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_step_of_the_baselines(row, spec, one_task, random_batch, small_config, monkeypatch):
    """DER++ is ER with another loss; task-free -Aug only crops and resizes. Crops and MIR's choice are its own."""
    name = row.rpartition("/")[2]
    options = {each.name: each.options["learner"] for each in PAPER_ROWS}.get(row, {"name": name})
    name, options = options["name"], {key: value for key, value in options.items() if key != "name"}
    small = {"encoder": {"width": 4}, "updates": 1}
    small |= {"replay_size": 5, "memory": {"slots_per_class": 3}} if name not in ("offline", "finetune") else {}
    of_tasks = spec if "-ta/" in row else one_task
    learner = make_learner(name, of_tasks, small_config(name, **merge(options, small)), 0, "cpu")
    for seed in range(3):
        learner.observe(random_batch(seed, size=6, spec=of_tasks))
    batch = random_batch(7, task=len(of_tasks.class_mask) - 1, size=5, spec=of_tasks)
    by_hand, given, training_input = copy.deepcopy(learner), [], type(learner).training_input

    def recorded(*arguments, **options):
        given.append(training_input(*arguments, **options))
        return given[-1]

    monkeypatch.setattr(type(learner), "training_input", recorded)
    learner.observe(batch)
    by_hand.store(batch)
    draws = []
    if name == "derpp":
        draws = [by_hand.memory.sample(5, by_hand.generator, beside=batch) for _ in range(2)]
    elif name in ("er", "mir", "er_ace"):
        draws = [by_hand.replay(batch, batch.labels)]
    net = copy.deepcopy(by_hand.net).double()
    if "augment" not in options:
        for pixels, each in zip(given, [batch, *draws], strict=True):
            torch.testing.assert_close(pixels.double(), by_numbers(each.images), atol=1e-5, rtol=0)
    now, *past = (net(pixels.double()) for pixels in given)
    allowed = torch.ones(of_tasks.num_classes, dtype=torch.bool)
    if name == "er_ace":  # the classes of the batch, and for the replay those seen so far
        now = now[:, batch.labels.unique()]
        loss = torch.nn.functional.cross_entropy(now, torch.searchsorted(batch.labels.unique(), batch.labels))
        allowed = by_hand.seen.clone()
        allowed[batch.labels] = True
    else:
        loss = cross_entropy(by_hand, now, batch.labels, batch.task_ids)
    if draws:
        masked = past[-1].masked_fill(~allowed, -torch.inf)
        loss = loss + cross_entropy(by_hand, masked, draws[-1].labels, draws[-1].task_ids)
    if name == "derpp":
        mask = of_tasks.class_mask[draws[0].task_ids]
        loss = loss + by_hand.config.logit_weight * (past[0] - draws[0].logits.double())[mask].square().mean()
    descend(loss, list(net.parameters()), by_hand.config.lr)
    assert_same_state(learner.net, net)


def test_the_task_free_rows_with_augmentation_crop_as_barlow_twins_and_never_flip():
    rows = {row.name: row.experiment({"benchmark": {"root": "x"}}).learner for row in PAPER_ROWS if "-tf/" in row.name}
    augmented = [config for name, config in rows.items() if name.endswith("-aug")]
    assert {(config.augment, config.crop_area) for config in augmented} == {("random_crop", (0.08, 1.0))}
    assert {config.augment for name, config in rows.items() if not name.endswith("-aug")} == {"none"}


FORMS = {
    "dualnet": {
        "views": {"library": "kornia"},
        "slow": {"objective_options": {"correlation": "sample"}},
        "soft_labels": {"statistics": "train", "missing": "slot", "order": "current_first"},
        "memory": {"replay_from": "second_task"},
        "normalisation": "half",
    },
    "ctn": {"batch_pass": "outer", "soft_labels": {"statistics": "train"}, "memory": {"replay_from": "second_task"}},
}
CHECKS = [  # of the contract, what the forms could break
    "test_equal_seeds_give_equal_bits_and_other_seeds_do_not",
    "test_a_learner_leaves_the_global_generator_alone",
    "test_stopped_and_resumed_equals_never_stopped",
    "test_partly_labelled_batches",
    "test_observe_reads_nothing_on_the_host",
    "test_no_operation_of_observe_synchronises",
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FORMS)
def test_the_contract_holds_with_the_literal_forms(name, check, request, small_config, small_learner):
    def make(named, *given, **options):
        return small_learner(named, *given, **merge(FORMS[name], options))

    def config(named, **options):
        return small_config(named, **merge(FORMS[name], options))

    contract.holds(check, request, name=name, make=make, small_config=config)
