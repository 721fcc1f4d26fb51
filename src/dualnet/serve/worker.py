"""The learner's process: reads the journal, learns, measures, publishes its weights, saves; in between it practises."""

import math
import os
import signal
import sqlite3
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from dualnet.data.cache_file import locked
from dualnet.runs.model import load_with_state
from dualnet.serve import saved
from dualnet.serve.background import Background
from dualnet.serve.good import Good
from dualnet.serve.images import stacked
from dualnet.serve.journal import Entry, Journal, digest_of
from dualnet.serve.kept import drop_images
from dualnet.serve.learning import batch_of, catch_up
from dualnet.serve.options import Options
from dualnet.serve.published import answering
from dualnet.serve.remembered import counts, forget, remembered, renew_soft_labels, some_remembered

PUBLISH_SECONDS = 1.0  # between publications while only the background learns
PUBLISH_SOON_SECONDS = 0.1  # while entries of the journal come
IDLE_SECONDS = 1.0  # how long it waits for news, at most
EVALUATE_SHARE = 0.1  # of the time
LOOK_AHEAD = 200  # journal entries read at a time
PRACTICE_SIZE = 6  # images of a step of the background
SETTLED_STEPS = 10  # of the background since anything was taught: then the model knows what it was taught
PAUSED = "paused"  # in the notes of the journal


def main(options: Options, link: Connection, start: int) -> None:
    """Until it is told to stop, or the HTTP process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the HTTP process, which says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.showwarning = lambda message, *_, **__: link.send(("notice", "warning", str(message)))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # one core answers
    try:
        with locked(options.state / saved.LEARNER_LOCK):  # the learner of a killed service may finish its step
            Worker(options, link, start).run()
    except ValueError as error:
        link.send(("failed", str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


class Worker:
    def __init__(self, options: Options, link: Connection, start: int) -> None:
        self.options, self.link, self.start = options, link, start
        self.journal = Journal(options.state / saved.JOURNAL, options)
        self.model, notes = saved.open_model(options)
        self.position: int = notes["position"]
        self.background = Background(options)
        self.background.steps, self.background.ready = notes["steps"], self.position > 0
        self.background.steps_since_taught = notes.get("steps_since_taught", 0)  # none in a state of an older version
        self.background.paused = bool(self.journal.note(PAUSED))
        self.journal.adopt_classes(self.model.class_names)
        self.good = Good(self.model)
        self.saved_positions = [0, self.position]  # those of the two checkpoints that are kept
        self.version, self.saved_at = 0, time.monotonic()
        self.losses: dict[str, float] = {}
        self.accuracy: dict[str, float] = {}
        self.unmeasured = self.unsaved = False
        self.saves_due = 0  # until no checkpoint holds a deleted image
        self.published_at = self.evaluate_at = 0.0  # on the monotonic clock
        self.publish_at = math.inf  # there is nothing new

    def run(self) -> None:
        self.publish()
        going = True
        while going:
            worked = self.work()
            self.keep_up()
            going = self.listen(0.0 if worked else self.pause())
        if self.unsaved:
            self.save()

    def pause(self) -> float:
        """Seconds to wait for news, at most."""
        until_published = self.publish_at - time.monotonic()
        return max(0.0, min(IDLE_SECONDS, until_published, self.background.wait() or IDLE_SECONDS))

    def work(self) -> bool:
        """The next entries of the journal, or a step of the background. Whether there was anything to do."""
        if entries := self.journal.after(self.position, LOOK_AHEAD):
            self.take(entries)
            if entries[0].kind == "class" and len(entries) > 1:  # nobody needs the weights before its first example
                self.take(entries[1:])
            return True
        if self.background.activity(self.journal.received()) == "learning" and self.background.wait() == 0:
            self.practise()
            return True
        return False

    def keep_up(self) -> None:
        now = time.monotonic()
        if now >= self.publish_at:
            self.publish()
        if self.unmeasured and now >= self.evaluate_at:
            self.evaluate()
        due = now >= self.saved_at + self.options.save_seconds
        if (self.unsaved and due) or (self.saves_due > 0 and not self.journal.after(self.position, 1)):
            self.save()

    # The journal

    def take(self, entries: Sequence[Entry]) -> None:
        first, batch = entries[0], batch_of(entries, self.options)
        if batch:
            self.learn(batch)
        elif first.kind == "class" and first.name not in self.model.class_names:
            assert first.name is not None
            if self.unmeasured:  # what has not been measured is not good
                self.evaluate()
            if self.background.steps_since_taught >= SETTLED_STEPS:
                renew_soft_labels(self.model)
            self.model.add_classes([first.name])
            self.good.take(self.model)
        elif first.kind == "delete":
            assert first.digest is not None
            forget(self.model, self.journal, first.position, [first.digest])
            self.saves_due = 2
        elif first.kind == "restore":
            self.restore(int(first.name or 0), first.position)
        self.position = batch[-1].position if batch else first.position
        self.background.news(taught=first.kind == "class" or any(entry.name for entry in batch))
        self.unsaved = True
        if first.kind == "restore":
            self.save()  # before it is acknowledged: the snapshot may be deleted then
        self.unmeasured |= first.kind != "class"
        self.publish_at = 0.0 if self.options.synchronous else self.published_at + PUBLISH_SOON_SECONDS

    def learn(self, batch: Sequence[Entry]) -> None:
        images = [entry.pixels for entry in batch if entry.pixels is not None]
        if corrected := [digest_of(entry.pixels) for entry in batch if entry.kind == "label" and entry.pixels]:
            forget(self.model, self.journal, batch[0].position, corrected)  # it may be there with another label
        pixels, names = stacked(images), [entry.name for entry in batch]
        self.losses |= self.step(pixels, names)
        if not self.options.synchronous:
            catch_up(self.model, pixels, names)

    def step(self, images: Tensor, labels: list[str | None] | None) -> dict[str, float]:
        """Returns the losses. A step that ends with numbers that are not finite is undone."""
        try:
            return self.model.learn(images, labels, batch_size=self.options.batch_size)
        except RuntimeError as error:
            self.roll_back(str(error))
            return {}

    def practise(self) -> None:
        """A step of the background, on images without labels, and on the memory's where there are none."""
        began = time.monotonic()
        images = self.journal.some_unlabelled(PRACTICE_SIZE)
        pixels = stacked(images) if images else some_remembered(self.model, PRACTICE_SIZE)
        if pixels is None:
            self.background.ready = False
            return
        losses = self.step(pixels, None)
        losses.pop("labels", None)  # of a batch that has none
        self.losses |= losses
        self.background.done(time.monotonic() - began, sum(losses.values()))
        self.publish_at = min(self.publish_at, time.monotonic() + PUBLISH_SECONDS)
        self.unmeasured = self.unsaved = True

    def set_paused(self, paused: bool) -> None:
        """Kept for the next start too."""
        self.background.paused = paused
        self.background.losses.clear()
        with suppress(sqlite3.OperationalError):  # such as a full disk
            self.journal.set_note(PAUSED, int(paused))

    def restore(self, number: int, position: int) -> None:
        """The model of a snapshot, with the classes that came since, without what was deleted or corrected since."""
        folder, device = saved.snapshot_folder(self.options, number), self.model.learner.class_mask.device.type
        try:
            self.model, _ = load_with_state(folder, device, trust=False)
        except (ValueError, OSError) as error:
            self.notice("restore", f"snapshot {number} cannot be read ({error}); nothing was restored")
            return
        for name in self.journal.classes():
            if name not in self.model.class_names:
                self.model.add_classes([name])
        forget(self.model, self.journal, position)
        self.good = Good(self.model)
        self.accuracy, self.losses, self.unmeasured = {}, {}, False
        self.notice("restored", f"snapshot {number}")

    # Measuring

    @torch.no_grad()
    def evaluate(self) -> None:
        """The accuracy on what is held out; a fall beyond the margin is undone."""
        began, self.unmeasured = time.monotonic(), False
        rows = [row for row in self.journal.held_out() if row[1] in self.model.class_names]
        if rows:
            answers = self.model.predict(stacked([pixels for *_, pixels in rows]), top=1)
            right = {row[:2]: answer.name == row[1] for row, answer in zip(rows, answers, strict=True)}
            if (fall := self.good.fall(right)) > self.options.margin:
                self.roll_back(f"accuracy on held-out examples fell by {fall:.0f} points")
                self.set_paused(True)
                return
            self.good = Good(self.model, right)
            self.accuracy = self.good.accuracy()
            self.link.send(("status", self.status()))
        self.evaluate_at = time.monotonic() + (time.monotonic() - began) / EVALUATE_SHARE

    def roll_back(self, reason: str) -> None:
        """The weights of the last good state; the memory stays, so that what was taught since is practised."""
        self.good.put_back(self.model)
        self.losses = {}
        self.notice("rolled_back", " ".join(reason.split()))
        self.publish_at = 0.0

    # Towards the HTTP process, and the disk

    def publish(self) -> None:
        """Send a copy of the weights that answer."""
        weights = answering(self.model)
        if not weights.isfinite().all():
            self.roll_back("a weight is not finite")
            weights = answering(self.model)
        self.version += 1
        self.publish_at, self.published_at = math.inf, time.monotonic()
        self.link.send(("published", self.status()))
        self.link.send_bytes(weights.numpy().data)

    def status(self) -> dict[str, Any]:
        return {
            "version": f"{self.start}.{self.version}",
            "position": self.position,
            "classes": list(self.model.class_names),
            "losses": self.losses,
            "accuracy": self.accuracy,
            "background": {
                "activity": self.background.activity(self.journal.received()),
                "steps": self.background.steps,
            },
            "memory": counts(self.model),
        }

    def notes(self) -> dict[str, int]:
        """What is kept with the model."""
        steps, since_taught = self.background.steps, self.background.steps_since_taught
        return {"position": self.position, "steps": steps, "steps_since_taught": since_taught}

    def save(self) -> None:
        if self.unmeasured:
            self.evaluate()
        try:
            saved.save(self.model, self.options.state / saved.MODEL, self.notes())
            self.saved_positions = [self.saved_positions[1], self.position]
            digests = [digest for _, _, digest, _ in remembered(self.model)]
            drop_images(self.journal, self.saved_positions[0], digests)
        except (OSError, sqlite3.OperationalError) as error:  # such as a full disk; the journal has it all
            self.notice("not_saved", str(error))
        self.saves_due, self.unsaved, self.saved_at = max(0, self.saves_due - 1), False, time.monotonic()

    def notice(self, kind: str, text: str) -> None:
        self.link.send(("notice", kind, text))

    def listen(self, seconds: float) -> bool:
        """Do what the HTTP process asks for, and wait for it as long. False: it asks to stop."""
        while self.link.poll(seconds):
            command, ticket, argument = self.link.recv()
            if command == "stop":
                return False
            if command != "wake":
                self.link.send(("done", ticket, *self.answer(command, argument)))
            seconds = 0.0
        return True

    def answer(self, command: str, argument: Any) -> tuple[Any, str | None]:
        """The answer, or what is wrong."""
        try:
            if self.publish_at < math.inf:  # what is kept is what answers
                self.publish()
            if command == "pause":
                self.set_paused(argument)
                self.link.send(("status", self.status()))
            if command == "snapshot":
                return saved.make_snapshot(self.model, self.options, argument, self.notes()), None
            if command == "memory":
                return [(digest, name) for _, _, digest, name in remembered(self.model)], None
            if command == "export":
                self.model.save(argument)
            return None, None
        except (ValueError, OSError) as error:
            return None, str(error)
