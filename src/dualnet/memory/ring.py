"""Ring buffer (Lopez-Paz and Ranzato, 2017): first in, first out, with an equal share of the slots per task."""

from torch import Generator, Tensor

from dualnet.batch import Batch
from dualnet.memory.memory import Memory, num_earlier_equal


class Ring(Memory):
    def slots_for_tasks(self, added: int) -> int:
        """Each new task gets as many slots as every existing one."""
        return added * (self.num_slots // len(self.seen))

    def place(self, batch: Batch, labelled: Tensor, generator: Generator) -> Tensor:
        task_ids, share = batch.task_ids, self.num_slots // len(self.seen)
        return task_ids * share + (self.seen[task_ids] + num_earlier_equal(task_ids, labelled)) % share
