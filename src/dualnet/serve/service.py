"""The HTTP process's side of the service: the journal, the published weights, and the learner's process."""

import itertools
import multiprocessing
import sqlite3
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from dualnet.engine import choose_device
from dualnet.runs.model import load
from dualnet.serve import saved, worker
from dualnet.serve.errors import BusyError, ConflictError
from dualnet.serve.journal import Journal
from dualnet.serve.kept import Event, keep_status, kept_statuses
from dualnet.serve.options import Options
from dualnet.serve.published import Published

EVENTS_KEPT = 1000
KEEP_SECONDS = 5.0  # between statuses that are kept on the disk
START_SECONDS = 300.0  # within which there is something that answers
ANSWER_SECONDS = 60.0  # within which the learner does what it is asked for
STOP_SECONDS = 30.0  # within which it saves
RESTART_SECONDS = (0.0, 1.0, 5.0, 20.0, 60.0)  # before the learner is started again, the more often it ended


class Service:
    def __init__(self, options: Options) -> None:
        self.options = options
        (options.state / saved.SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        self.journal = Journal(options.state / saved.JOURNAL, options)
        self.start_number = self.journal.start()
        self.started = time.time()
        self.status_now: dict[str, Any] = {}
        self.kept = kept_statuses(self.journal)
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        last = self.kept[-1][0] if self.kept else 0
        self.event_numbers = itertools.count(max(last + 1, int(1000 * time.time())))  # higher than before a restart
        self.keep_at = 0.0  # on the monotonic clock
        self.tickets = itertools.count(1)
        self.answers: dict[int, tuple[Any, str | None]] = {}
        self.sending = threading.Lock()
        self.changed = threading.Condition()  # of all that the learner tells
        self.counters: Counter[str] = Counter()
        self.published: Published | None = None
        self.stopping = False
        self.failure: str | None = None
        self.alive = False

    # The learner's process

    def start(self) -> None:
        """Returns once there is something that answers."""
        self.launch()
        threading.Thread(target=self.supervise, daemon=True).start()
        try:
            self.wait(lambda: self.published is not None or self.failure is not None, START_SECONDS)
        except BusyError:
            self.failure = f"--state {self.options.state}: the learner did not start in {START_SECONDS:g} s; try again"
        if self.failure is not None:
            raise ValueError(self.failure)

    def launch(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.link, theirs = spawn.Pipe()
        arguments = (self.options, theirs, self.start_number)
        self.process = spawn.Process(target=worker.main, args=arguments, name="dualnet-learner", daemon=True)
        self.process.start()
        theirs.close()
        self.alive = True

    def supervise(self) -> None:
        """Read what the learner tells; if its process ends by itself, start another one."""
        for ends in itertools.count():
            try:
                self.read(self.link)
            except Exception:  # a fault of ours: a learner that nobody reads must not go on as if it were heard
                traceback.print_exc()
                self.process.kill()
            self.process.join()
            self.alive = False
            if self.published is None and self.failure is None:
                self.failure = f"the learner's process ended while it started (exit code {self.process.exitcode})"
                with self.changed:
                    self.changed.notify_all()
            if self.stopping or self.failure is not None:
                return
            self.counters["learner_restarts"] += 1
            self.tell(
                "notice", {"kind": "learner_ended", "text": f"exit code {self.process.exitcode}; it is restarted"}
            )
            time.sleep(RESTART_SECONDS[min(ends, len(RESTART_SECONDS) - 1)])
            self.start_number = self.journal.start()
            self.launch()

    def read(self, link: Connection) -> None:
        while True:
            try:
                kind, *rest = link.recv()
                rest += [link.recv_bytes()] if kind == "published" else []
            except (EOFError, OSError):
                return
            getattr(self, f"on_{kind}")(*rest)
            with self.changed:
                self.changed.notify_all()

    def on_published(self, status: dict[str, Any], weights: bytes) -> None:
        published = self.published
        if published is None:
            device = choose_device(self.options.device).type  # pyright: ignore[reportArgumentType]
            folder = self.options.state / saved.MODEL
            published = Published(lambda: load(folder, device))
        published.put(status, weights)
        self.status_now, self.published = status, published  # in this order: whoever sees the second asks for the first
        self.on_status(status)

    def on_status(self, status: dict[str, Any]) -> None:
        self.status_now = status
        event = self.tell("status", self.status())
        if time.monotonic() >= self.keep_at:
            self.keep_at = time.monotonic() + KEEP_SECONDS
            with suppress(sqlite3.OperationalError):  # such as a full disk
                self.kept = keep_status(self.journal, self.kept, event)

    def on_notice(self, kind: str, text: str) -> None:
        self.counters[kind] += 1
        self.tell("notice", {"kind": kind, "text": text})

    def on_done(self, ticket: int, answer: Any, wrong: str | None) -> None:
        self.answers[ticket] = (answer, wrong)

    def on_failed(self, reason: str) -> None:
        if self.published is None:
            self.failure = reason
        else:  # it is started again
            self.on_notice("learner_failed", reason)

    def tell(self, kind: str, content: dict[str, Any]) -> Event:
        with self.changed:
            event = next(self.event_numbers), kind, {"time": time.time(), **content}
            self.events.append(event)
            self.changed.notify_all()
        return event

    def events_after(self, number: int) -> list[Event]:
        """The statuses that are kept, then all of the last events."""
        last = list(self.events)
        older = [event for event in self.kept if not last or event[0] < last[0][0]]
        return [event for event in older + last if event[0] > number]

    def send(self, command: str, ticket: int = 0, argument: Any = None) -> None:
        """Nothing is lost if the learner is gone: the next one reads the journal."""
        try:
            with self.sending:
                self.link.send((command, ticket, argument))
        except OSError:
            return

    def ask(self, command: str, argument: Any = None) -> Any:
        """What the learner answers. Raises ConflictError with what it says is wrong."""
        ticket = next(self.tickets)
        self.send(command, ticket, argument)
        self.wait(lambda: ticket in self.answers)
        answer, wrong = self.answers.pop(ticket)
        if wrong is not None:
            raise ConflictError(wrong)
        return answer

    def wait(self, condition: Callable[[], bool], seconds: float = ANSWER_SECONDS) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise BusyError("the learner did not answer in time; try again later")

    def wait_until_learned(self, position: int | None = None) -> None:
        target = self.journal.last_position() if position is None else position
        self.wait(lambda: self.status_now.get("position", 0) >= target)

    def wrote(self, position: int) -> None:
        """After every write to the journal: the learner looks at once; synchronously it is waited for."""
        self.send("wake")
        if self.options.synchronous:
            self.wait_until_learned(position)

    def stop(self) -> None:
        """The learner saves what it has; one that does not answer is ended, and nothing acknowledged is lost."""
        self.stopping = True
        if self.alive:
            self.send("stop")
            self.process.join(STOP_SECONDS)
            self.process.kill()

    # What is asked

    @property
    def size(self) -> int:
        assert self.published is not None
        return self.published.current.model.learner.spec.image_shape[1]

    def status(self) -> dict[str, Any]:
        """What `GET /v1/status` answers, and the event of the same name."""
        now, counts = self.status_now, self.journal.counts()
        in_memory = now["memory"]["examples"]
        classes = [
            {
                "name": name,
                "examples": counts.get(name, 0),
                "in_memory": in_memory.get(name, 0),
                "held_out_accuracy": now["accuracy"].get(name),
            }
            for name in self.journal.classes()
        ]
        measured = list(now["accuracy"].values())
        return {
            "version": now["version"],
            "learner": "running" if self.alive else "restarting",
            "synchronous": self.options.synchronous,
            "image_size": self.size,
            "started": self.started,
            "examples": sum(counts.values()),
            "unlabelled": counts.get(None, 0),
            "waiting": max(0, self.journal.last_position() - now["position"]),
            "classes": classes,
            "held_out_accuracy": sum(measured) / len(measured) if measured else None,
            "losses": now["losses"],
            "background": now["background"],
            "memory_slots": now["memory"]["slots"],
            "rolled_back": self.counters["rolled_back"],
        }
