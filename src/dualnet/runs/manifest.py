"""The protocol of a run, in the few fields that two results must share to be compared, and a digest of them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualnet.batch import StreamSpec
from dualnet.data import Benchmark
from dualnet.memory import MemoryConfig
from dualnet.runs.experiment import Experiment
from dualnet.runs.record import digest_of
from dualnet.stream.labels import LabelsConfig


@dataclass(frozen=True)
class Manifest:
    """None where a learner has no such thing. Rates and weights of losses are not here: they are the method's own."""

    benchmark: str
    num_tasks: int
    class_order: str  # digest of the class names, task by task
    split: str  # digest of which images are for training and which for testing
    image_size: int  # side in pixels that the networks see
    heads: str  # per_task: only the classes of the task may be answered; single: all of them
    boundaries: str  # told: the learner hears of the end of a task; hidden
    batch_size: int
    passes: int  # over the stream; more than one mixes all tasks
    label_share: float  # of the training images that have a label
    labels_drawn: str  # what keeps its label or loses it: sample or batch; all: none is lost
    label_delay: str  # batches of images between an image and its label: 0, or 20 to 40
    augmentation: str  # of the images that are learned with labels
    memory: str  # policy
    memory_slots: int  # in all
    updates: int | None  # supervised steps per batch; CTN's inner ones, taken in each outer step
    width: int | None  # channels of the first stage
    forgetting: str  # the definition of FM; ACC and LA have one

    def mapping(self) -> dict[str, Any]:
        """As it is written down, with its digest first."""
        return {"digest": self.digest, **dataclasses.asdict(self)}

    @property
    def digest(self) -> str:
        return digest_of(dataclasses.asdict(self))


FIELDS = tuple(field.name for field in dataclasses.fields(Manifest))
FORGETTING = "paper"  # the definition that a result and a ledger use
HEADS = {"task_aware": "per_task", "task_free": "single", "task_free_boundaries": "single"}
BOUNDARIES = {"task_aware": "told", "task_free": "hidden", "task_free_boundaries": "told"}


def manifest_of(experiment: Experiment, benchmark: Benchmark) -> Manifest:
    spec = benchmark.spec if experiment.protocol == "task_aware" else benchmark.spec.task_free()
    options = experiment.learner
    return Manifest(
        benchmark=experiment.benchmark_name,
        num_tasks=len(benchmark.tasks),
        class_order=class_order_digest(benchmark),
        split=benchmark.split_digest,
        image_size=spec.network_size[0],
        heads=HEADS[experiment.protocol],
        boundaries=BOUNDARIES[experiment.protocol],
        batch_size=experiment.batch_size,
        passes=getattr(options, "epochs", 1),
        label_share=experiment.labels.share,
        labels_drawn=experiment.labels.drawn_per if experiment.labels.share < 1 else "all",
        label_delay=delay_words(experiment.labels),
        augmentation=augmentation_of(options),
        **memory_fields(options, spec),
        updates=getattr(options, "updates", getattr(options, "inner_steps", None)),
        width=getattr(options, "width", None),
        forgetting=FORGETTING,
    )


def augmentation_of(options: Any) -> str:
    """A run that says `views` is older: its views were crops of a constant 43 % of the area."""
    augment = getattr(options, "augment", "none")
    return "barlow-twins-views" if augment == "views" else str(augment)


def delay_words(labels: LabelsConfig) -> str:
    """
    >>> delay_words(LabelsConfig()), delay_words(LabelsConfig(delay=20, delay_spread=20))
    ('0', '20 to 40')
    """
    spread = f" to {labels.delay + labels.delay_spread}" if labels.delay_spread else ""
    return f"{labels.delay}{spread}"


def memory_fields(options: Any, spec: StreamSpec) -> dict[str, Any]:
    config = getattr(options, "memory", None)
    if not isinstance(config, MemoryConfig):
        return {"memory": "none", "memory_slots": 0}
    return {"memory": config.policy_for(spec), "memory_slots": config.num_slots(spec)}


def class_order_digest(benchmark: Benchmark) -> str:
    """The order of the classes within a task does not matter."""
    tasks = [row.nonzero().flatten().tolist() for row in benchmark.spec.class_mask]
    return digest_of([sorted(benchmark.class_names[number] for number in task) for task in tasks])


def differences(ours: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two protocols differ: ours, theirs. What one of them leaves open does not differ.

    >>> differences({"width": 64, "heads": "single"}, {"width": 20, "updates": 2})
    {'width': (64, 20)}
    """
    both = [field for field in FIELDS if field in ours and field in stated]
    return {field: (ours[field], stated[field]) for field in both if ours[field] != stated[field]}
