"""The manifest of a run: the fields of its protocol that must be equal for two results to be comparable."""

from collections.abc import Callable, Mapping
from typing import Any

from dualnet.data.benchmark import Benchmark
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.record import digest_of
from dualnet.memory import MemoryConfig
from dualnet.options import BY_SEED
from dualnet.stream.blurry import BlurryConfig
from dualnet.stream.schedule import LabelsConfig
from dualnet.stream.stream import spec_for_protocol

FORGETTING_DEFINITION = "paper"  # the definition that a result and a ledger use

# None if a learner has no such option. Learning rates and loss weights belong to the method and are not included.
MANIFEST: dict[str, Callable[[Experiment, Benchmark], Any]] = {
    "benchmark": lambda experiment, _: experiment.benchmark_name,
    "num_tasks": lambda _, benchmark: len(benchmark.tasks),
    # digest of the class names, task by task; seed: every seed has an order of its own
    "class_order": lambda experiment, benchmark: (
        BY_SEED if experiment.benchmark.has_order_by_seed else class_order_digest(benchmark)
    ),
    "split": lambda _, benchmark: benchmark.split_digest,  # of which images are for training and which for testing
    "image_size": lambda _, benchmark: benchmark.spec.network_size[0],  # side in pixels that the networks see
    # per_task: predictions among the classes of the task; single: among all classes
    "heads": lambda experiment, _: "per_task" if experiment.protocol == "task_aware" else "single",
    # told: the learner is told when a task ends
    "boundaries": lambda experiment, _: "hidden" if experiment.protocol == "task_free" else "told",
    "batch_size": lambda experiment, _: experiment.batch_size,
    "passes": lambda experiment, _: getattr(experiment.learner, "epochs", 1),  # more than one mixes all tasks
    "label_share": lambda experiment, _: experiment.labels.share,  # of the training images that have a label
    # whether labels are dropped per sample or per batch; all: none is dropped
    "labels_drawn": lambda experiment, _: experiment.labels.drawn_per if experiment.labels.share < 1 else "all",
    "label_delay": lambda experiment, _: delay_text(experiment.labels),  # batches between an image and its label
    "blurry": lambda experiment, _: blurry_text(experiment.blurry),  # examples that are dealt to all tasks
    "augmentation": lambda experiment, _: augmentation_text(experiment.learner),  # of images learned with labels
    "memory": lambda experiment, benchmark: memory_of(experiment, benchmark)[0],  # policy
    "memory_slots": lambda experiment, benchmark: memory_of(experiment, benchmark)[1],  # in all
    # supervised steps per batch; CTN's inner ones, taken in each outer step
    "updates": lambda experiment, _: getattr(
        experiment.learner, "updates", getattr(experiment.learner, "inner_steps", None)
    ),
    "width": lambda experiment, _: experiment.learner.encoder.width,  # channels of the first stage
    "forgetting": lambda *_: FORGETTING_DEFINITION,  # the definition of FM; ACC and LA have one
}
FIELDS = tuple(MANIFEST)


def manifest_of(experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """The fields with their digest."""
    fields = {name: value_of(experiment, benchmark) for name, value_of in MANIFEST.items()}
    return {"digest": digest_of(fields), **fields}


def augmentation_text(config: Any) -> str:
    replay = getattr(config, "augment_replay", "same")
    return config.augment if replay in ("same", config.augment) else f"{config.augment}, of the replay {replay}"


def delay_text(labels: LabelsConfig) -> str:
    """
    >>> delay_text(LabelsConfig()), delay_text(LabelsConfig(delay=20, delay_spread=20))
    ('0', '20 to 40')
    """
    spread = f" to {labels.delay + labels.delay_spread}" if labels.delay_spread else ""
    return f"{labels.delay}{spread}"


def blurry_text(blurry: BlurryConfig) -> str:
    """
    >>> blurry_text(BlurryConfig()), blurry_text(BlurryConfig(share=0.1)), blurry_text(BlurryConfig(0.1, disjoint=0.5))
    ('none', '0.1', '0.1 of the examples of 0.5 of the classes')
    """
    classes = f" of the examples of {1 - blurry.disjoint:.6g} of the classes" if blurry.disjoint else ""
    return f"{blurry.share}{classes}" if blurry.share else "none"


def memory_of(experiment: Experiment, benchmark: Benchmark) -> tuple[str, int]:
    config, spec = getattr(experiment.learner, "memory", None), spec_for_protocol(benchmark, experiment.protocol)
    return (config.policy_for(spec), config.num_slots(spec)) if isinstance(config, MemoryConfig) else ("none", 0)


def class_order_digest(benchmark: Benchmark) -> str:
    """Digest of the classes of each task; their order within a task does not matter."""
    tasks = [row.nonzero().flatten().tolist() for row in benchmark.spec.class_mask]
    return digest_of([sorted(benchmark.class_names[number] for number in task) for task in tasks])


def differences(ours: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two protocols differ: ours, theirs. Fields that one of them lacks are ignored.

    >>> differences({"width": 64, "heads": "single"}, {"width": 20, "updates": 2})
    {'width': (64, 20)}
    """
    both = [field for field in FIELDS if field in ours and field in stated]
    return {field: (ours[field], stated[field]) for field in both if ours[field] != stated[field]}
