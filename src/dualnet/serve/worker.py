"""The learner process: reads the journal, learns, evaluates, publishes, saves, and trains in the background."""

import math
import os
import signal
import sqlite3
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from multiprocessing.connection import Connection
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.models.model import Model
from dualnet.serve import state_folder
from dualnet.serve.background import Background, catch_up, next_batch
from dualnet.serve.errors import DISK_ERRORS, RequestError, disk_message
from dualnet.serve.held_out import HeldOutTest, Results, accuracy_drop, scores
from dualnet.serve.images import to_tensor
from dualnet.serve.journal import Entry, Journal
from dualnet.serve.memory_contents import count_stored, follow, refresh_soft_labels, sample_images, stored_digests
from dualnet.serve.options import PRIVATE, Options
from dualnet.serve.rollback import RollbackPoint
from dualnet.serve.serving_model import publication
from dualnet.serve.suggestions import Suggestions

PUBLISH_SECONDS = 1.0  # between publications during background training
PUBLISH_SOON_SECONDS = 0.1  # between publications while journal entries are waiting
CALIBRATE_SECONDS = 0.2  # without journal entries, after which probabilities are calibrated
IDLE_SECONDS = 1.0  # longest wait for a command
EVALUATE_SHARE = 0.1  # largest share of the time spent on evaluation
READ_AHEAD = 200  # journal entries read at a time
BACKGROUND_BATCH_SIZE = 6
SETTLED_STEPS = 10  # background steps after which the latest examples count as learned


def main(options: Options, link: Connection) -> None:
    """Run until the HTTP process sends `stop`, or is gone."""
    os.umask(PRIVATE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the HTTP process, which then sends `stop`
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.showwarning = lambda message, *_, **__: link.send(("notice", "warning", str(message)))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1 - options.replicas))  # one is for the HTTP process
    lock = FileLock(options.state / state_folder.LEARNER_LOCK)  # the learner of a killed service may still be running
    try:
        with lock:
            Worker(options, link).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except (ValueError, *DISK_ERRORS) as error:
        link.send(("failed", state_folder.failure(error, options)))


class Worker:
    def __init__(self, options: Options, link: Connection) -> None:
        self.options, self.link = options, link
        self.started = int(time.time())  # in the version, so that it differs from those of earlier processes
        self.journal = Journal(options.state / state_folder.JOURNAL, options)
        self.model, progress = state_folder.open_model(options, self.journal)
        self.trainable = bool(self.model.learner.optimizers())
        self.remember()
        self.held_out_test, self.suggestions = HeldOutTest(self.journal), Suggestions(self.journal)
        self.results: Results = {}  # of the last test
        self.position: int = progress["position"]
        self.background = Background(options, progress, self.trainable, self.journal.is_paused())
        self.version, self.saved_at = 0, time.monotonic()
        self.older_position = self.saved_position = self.position  # of the two checkpoints
        self.losses: dict[str, float] = {}
        self.unmeasured = True  # the results of an earlier process are not saved
        self.unsaved = self.save_failed = self.taught = False
        self.saves_due: int = progress["saves_due"]  # until no checkpoint contains a deleted image or a removed class
        self.published_at = self.evaluate_at = 0.0  # on the monotonic clock
        self.publish_at = math.inf  # infinite: nothing to publish
        self.calibrate_at = 0.0 if self.model.learner.closed_form is not None else math.inf

    def run(self) -> None:
        self.calibrate()
        self.publish()
        worked = True
        while self.handle_commands(0.0 if worked else self.idle_seconds()):
            worked = self.work()
            self.do_what_is_due()
        self.save_failed = False
        while (self.unsaved or self.saves_due) and not self.save_failed:
            self.save()

    def idle_seconds(self) -> float:
        """How long to wait for commands before the next thing is due."""
        until_due = min(self.publish_at, self.calibrate_at) - time.monotonic()
        return max(0.0, min(IDLE_SECONDS, until_due, self.background.delay() or IDLE_SECONDS))

    def work(self) -> bool:
        """Process journal entries, or make a background step. Returns whether there was anything to do."""
        if entries := self.journal.entries_after(self.position, READ_AHEAD):
            count = self.process(entries)
            if entries[0].kind == "class" and entries[count:]:  # publishing waits for the first example of a class
                self.process(entries[count:])
            return True
        if self.background.activity(self.journal.received()) == "learning" and self.background.delay() == 0:
            self.background_step()
            return True
        return False

    def do_what_is_due(self) -> None:
        now = time.monotonic()
        if now >= self.calibrate_at:
            self.calibrate()
        if now >= self.publish_at:
            self.publish()
        if self.unmeasured and now >= self.evaluate_at:
            self.evaluate()
        save_is_due = self.unsaved and now >= self.saved_at + self.options.save_seconds
        deletion_is_due = self.saves_due > 0 and not self.save_failed
        if save_is_due or (deletion_is_due and not self.journal.entries_after(self.position, 1)):
            self.save()

    # Learning

    def process(self, entries: Sequence[Entry]) -> int:
        """Learn the leading entries as a batch, or apply the first ones if they are no examples to learn.

        Returns their number.
        """
        first, batch = entries[0], next_batch(entries, self.options)
        done = batch or entries[:1]
        if batch:
            self.learn(batch)
        elif first.kind == "class":
            done = list(takewhile(lambda entry: (entry.kind, entry.request) == ("class", first.request), entries))
            self.add_classes([str(entry.label) for entry in done])
        elif first.kind in ("delete", "remove"):
            done = list(takewhile(lambda entry: entry.kind in ("delete", "remove"), entries))
            self.remove(done)
        self.position = done[-1].position
        self.background.on_new_entries(taught=first.kind == "class" or any(entry.label for entry in batch))
        self.unsaved = True
        self.unmeasured |= first.kind != "class"
        self.taught = True
        is_last = self.position == self.journal.last_position()
        self.publish_at = 0.0 if is_last or self.options.synchronous else self.published_at + PUBLISH_SOON_SECONDS
        if self.model.learner.closed_form is not None:
            self.calibrate_at = time.monotonic() + CALIBRATE_SECONDS
        return len(done)

    def add_classes(self, names: Sequence[str]) -> None:
        new = [name for name in names if name not in self.model.class_names]  # others: in that of a restored snapshot
        if not new:
            return
        self.evaluate_unmeasured()
        if self.background.steps_since_taught >= SETTLED_STEPS:
            refresh_soft_labels(self.model)
        self.model.add_classes(new)
        self.remember()

    def remove(self, entries: Sequence[Entry]) -> None:
        """Withdraw deleted examples, and remove classes."""
        names = [str(entry.label) for entry in entries if entry.kind == "remove"]
        deleted = {entry.digest for entry in entries if entry.digest}
        follow(self.journal, self.model, None if names else deleted)
        for name in [name for name in names if name in self.model.class_names]:
            self.evaluate_unmeasured()
            self.model.remove_class(name)
            self.remember()
        self.saves_due = 2

    def learn(self, batch: Sequence[Entry]) -> None:
        if not self.model.keeps_examples:  # otherwise the model itself knows the images whose labels change
            follow(self.journal, self.model, {entry.digest for entry in batch if entry.digest})
        pixels = to_tensor([entry.pixels for entry in batch if entry.pixels])
        names = [None if entry.label is None else str(entry.label) for entry in batch]
        self.losses |= self.step(pixels, names)
        if not self.options.synchronous:
            catch_up(self.model, pixels, names)

    def step(self, images: Tensor, labels: list[str | None] | None) -> dict[str, float]:
        """Returns the losses. Weights that diverge are rolled back."""
        size = self.options.batch_size
        try:
            if labels is None or set(labels) == {None}:  # `learn` refuses them if only the averaged weights change
                numbers = torch.full((len(images),), UNLABELLED)
                pixels = self.model.pixels_to_learn(images)
                return self.model.learn_batches(pixels, numbers, torch.zeros_like(numbers), size)
            return self.model.learn(images, labels, batch_size=size)
        except RuntimeError as error:
            if self.last_good is None:
                raise
            self.roll_back(self.last_good, str(error))
            return {}

    def calibrate(self) -> None:
        """Fit probabilities to the examples, if these have changed: what is predicted depends on nothing else."""
        if self.calibrate_at < math.inf:
            self.calibrate_at = math.inf
            self.model.calibrate()
            self.publish_at = 0.0

    def background_step(self) -> None:
        """Train on unlabelled images, or on images of the memory if there are none."""
        began = time.monotonic()
        images = self.journal.sample_unlabelled(BACKGROUND_BATCH_SIZE)
        pixels = to_tensor(images) if images else sample_images(self.model, BACKGROUND_BATCH_SIZE)
        if pixels is None:
            self.background.has_images = False
            return
        losses = self.step(pixels, None)
        losses.pop("labels", None)  # meaningless for a batch without labels
        self.losses |= losses
        self.background.on_step(time.monotonic() - began, sum(losses.values()))
        self.publish_at = min(self.publish_at, time.monotonic() + PUBLISH_SECONDS)
        self.unmeasured = self.unsaved = True

    def restore(self, number: int) -> None:
        """Load a snapshot, add the classes created since, and remove the examples deleted or corrected since.

        It is saved before it replaces the model, since the snapshot may be deleted once this is acknowledged.
        """
        try:
            model = state_folder.load_snapshot(self.options, number, self.journal, self.model)
        except ValueError as error:
            self.notice("not_restored", str(error))
            raise ValueError(f"{error}; nothing was restored") from error
        follow(self.journal, model)
        model.calibrate()
        self.saves_due = 2  # the older checkpoint, used if the newest is damaged, must not undo this
        self.write_checkpoint(model)
        self.model, self.losses, self.results, self.unmeasured = model, {}, {}, True
        self.remember()
        self.notice("restored", f"snapshot {number}")
        self.publish()

    # Evaluation

    def evaluate_unmeasured(self) -> None:
        """Only evaluated weights become the last good state, which a change of classes replaces."""
        if self.unmeasured and self.trainable:
            self.evaluate()

    def evaluate(self) -> None:
        """Measure the accuracy on held-out examples. Undo background training that lowered it by more than `--margin`.

        What was taught since the last time may move accuracy between classes, so then nothing is compared.
        """
        began = time.monotonic()
        results = self.held_out_test.run(self.model)
        self.unmeasured = results is None
        if results is not None:
            self.compare(results)
        self.evaluate_at = time.monotonic() + (time.monotonic() - began) / EVALUATE_SHARE

    def compare(self, results: Results) -> None:
        drop = 0.0 if self.taught else accuracy_drop(self.results, results)
        if self.last_good is not None and drop > self.options.margin:
            self.roll_back(self.last_good, f"accuracy on held-out examples fell by {drop:.0f} points")
            self.background.pause(True)
            with suppress(sqlite3.DatabaseError):  # such as a full disk: until a restart only
                self.journal.set_paused(True)
            return
        before, self.results, self.taught = self.results, results, False
        if results != before:
            self.link.send(("status", self.status()))
        self.remember()

    def remember(self) -> None:
        """As the state to go back to; a model without weights to train needs none."""
        self.last_good = RollbackPoint(self.model) if self.trainable else None

    def roll_back(self, point: RollbackPoint, reason: str) -> None:
        """Restore the last good weights. The memory is kept, so that replay still covers the examples since then."""
        point.restore(self.model)
        self.losses = {}
        self.notice("rolled_back", " ".join(reason.split()))
        self.publish_at = 0.0

    # Publishing and saving

    def publish(self) -> None:
        """Send a copy of what predicts to the HTTP process."""
        content = publication(self.model)
        if self.last_good is not None and not content.isfinite().all():
            self.roll_back(self.last_good, "a weight is not finite")
            content = publication(self.model)
        self.version += 1
        self.publish_at, self.published_at = math.inf, time.monotonic()
        self.link.send(("published", self.status()))
        self.link.send_bytes(content.numpy().data)

    def status(self) -> dict[str, Any]:
        activity = self.background.activity(self.journal.received())
        return {
            "version": f"{self.started}.{self.version}",
            "position": self.position,
            "classes": list(self.model.class_names),
            "losses": self.losses,
            "scores": scores(self.results),
            "background": {"activity": activity, "steps": self.background.steps},
            "memory": count_stored(self.model),
        }

    def write_checkpoint(self, model: Model) -> None:
        saves_due = max(0, self.saves_due - 1)
        progress = {**self.background.progress(), "position": self.position, "saves_due": saves_due}
        state_folder.save(model, self.options, progress)
        self.older_position, self.saved_position = self.saved_position, self.position
        self.saves_due = saves_due

    def save(self) -> None:
        """Write a checkpoint, and prune the journal. After a failure the next attempt waits for `--save-seconds`."""
        self.evaluate_unmeasured()
        try:
            self.write_checkpoint(self.model)
            self.journal.prune(self.older_position, stored_digests(self.model))
            self.unsaved = self.save_failed = False
        except DISK_ERRORS as error:  # such as a full disk; the journal has everything
            self.save_failed = True
            self.notice("not_saved", str(error))
        self.saved_at = time.monotonic()

    # Messages to and from the HTTP process

    def notice(self, kind: str, text: str) -> None:
        self.link.send(("notice", kind, text))

    def handle_commands(self, seconds: float) -> bool:
        """Wait up to some seconds for commands, and carry them out. Returns False after `stop`."""
        while self.link.poll(seconds):
            command, ticket, argument = self.link.recv()
            if command == "stop":
                return False
            if command != "wake":
                self.link.send(("reply", ticket, *self.execute(command, argument)))
            seconds = 0.0
        return True

    def execute(self, command: str, argument: Any) -> tuple[Any, tuple[int, str] | None]:
        """The result of a command; or, if it fails, HTTP status and message."""
        try:
            self.calibrate()
            if self.publish_at < math.inf:  # so that snapshots and exports contain what predicts
                self.publish()
            match command:
                case "memory":
                    return stored_digests(self.model), None
                case "suggest":
                    return self.suggestions.choose(self.model, argument), None
                case "snapshot":
                    return state_folder.create_snapshot(self.model, self.options, argument), None
                case "restore":
                    self.restore(argument)
                case "export":
                    state_folder.export(self.model, argument, self.journal.classes())
                case "pause":
                    self.journal.set_paused(argument)
                    self.background.pause(argument)
                    self.link.send(("status", self.status()))
            return None, None
        except RequestError as error:
            return None, (error.status, str(error))
        except ValueError as error:
            return None, (409, str(error))
        except DISK_ERRORS as error:  # such as a full disk
            return None, (507, disk_message(error))
