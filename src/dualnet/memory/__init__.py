"""The registry of episodic memories by policy, and their options. Others are given by their import path."""

from dataclasses import dataclass
from typing import Literal

from dualnet.batch import StreamSpec
from dualnet.lookup import check_name, find_class
from dualnet.memory.memory import Memory, Replay, check_slots, has_later_equal, num_earlier_equal
from dualnet.memory.policies import Balanced, Reservoir, Ring
from dualnet.options import check_fields

MEMORIES: dict[str, type[Memory]] = {"ring": Ring, "reservoir": Reservoir, "balanced": Balanced}


def memory_class(name: str) -> type[Memory]:
    """The memory with that policy, or the class at an import path such as `my_package.my_module.MyMemory`."""
    return find_class(name, MEMORIES, Memory, "memory.policy")


@dataclass(frozen=True)
class MemoryConfig:
    """The options of an episodic memory."""

    policy: str = "auto"  # auto (ring; if task-free: reservoir) | ring | reservoir | balanced | import path
    slots_per_class: int = 10  # the paper: 10 (50 per task of five) if task-aware, 100 if task-free
    slots: int | None = None  # in total; None: slots_per_class for each known class; 0: no memory
    replay: Literal["earlier_tasks", "all"] = "earlier_tasks"  # which are drawn; the paper, or a single task: all
    replay_from: Literal["start", "second_task"] = "start"  # second_task: none before a task has ended; the authors

    def __post_init__(self) -> None:
        check_fields(self, slots=0)
        check_name(self.policy, ("auto", *MEMORIES), "policy")

    def make(self, spec: StreamSpec, with_logits: bool = True, set_aside: int = 0) -> Memory:
        """The memory for a stream, without the slots that a learner reserves for a second memory."""
        only_earlier_tasks = self.replay == "earlier_tasks" and spec.num_tasks > 1
        num_slots = self.num_slots(spec) - set_aside
        memory = memory_class(self.policy_for(spec))(spec, num_slots, only_earlier_tasks, with_logits)
        return memory.hold() if self.replay_from == "second_task" else memory

    def policy_for(self, spec: StreamSpec) -> str:
        # With a single task a ring would hold only the latest examples of the whole stream.
        return ("ring" if spec.num_tasks > 1 else "reservoir") if self.policy == "auto" else self.policy

    def num_slots(self, spec: StreamSpec) -> int:
        # After all classes are removed there is still a memory for those to come.
        return self.slots_per_class * max(spec.num_classes, 1) if self.slots is None else self.slots


__all__ = ["MEMORIES", "Balanced", "Memory", "MemoryConfig", "Replay", "Reservoir", "Ring"]
__all__ += ["check_slots", "has_later_equal", "memory_class", "num_earlier_equal"]
