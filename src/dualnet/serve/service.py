"""The state of the HTTP process: the journal, the model that predicts, events, and the learner process."""

import itertools
import multiprocessing
import sqlite3
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from dualnet.engine import choose_device
from dualnet.runs.model import load
from dualnet.serve import state_folder, worker
from dualnet.serve.errors import BusyError, ConflictError
from dualnet.serve.journal import Journal
from dualnet.serve.options import Options
from dualnet.serve.retention import Event, add_status, status_history
from dualnet.serve.serving_model import ServingModel

MAX_EVENTS = 1000  # in memory
HISTORY_SECONDS = 5.0  # between statuses that are stored on disk
START_SECONDS = 300.0  # until the first weights are published
REPLY_SECONDS = 60.0  # for the learner to carry out a command
STOP_SECONDS = 30.0  # for the learner to save
RESTART_SECONDS = (0.0, 1.0, 5.0, 20.0, 60.0)  # delays before the learner is restarted for the first, second, ... time


class Service:
    def __init__(self, options: Options) -> None:
        self.options = options
        (options.state / state_folder.SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        self.journal = Journal(options.state / state_folder.JOURNAL, options)
        self.start_number = self.journal.count_start()
        self.started = time.time()
        self.learner_status: dict[str, Any] = {}
        self.history = status_history(self.journal)
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        last = self.history[-1][0] if self.history else 0
        self.event_numbers = itertools.count(max(last + 1, int(1000 * time.time())))  # increasing across restarts
        self.history_due = 0.0  # on the monotonic clock
        self.tickets = itertools.count(1)
        self.pending: dict[int, Future[Any]] = {}  # commands without a reply, by ticket
        self.not_restored: dict[int, str] = {}  # reasons, by position of the journal entry
        self.sending = threading.Lock()
        self.changed = threading.Condition()  # notified after every message from the learner
        self.counters: Counter[str] = Counter()
        self.model: ServingModel | None = None
        self.stopping = False
        self.failure: ValueError | OSError | None = None  # during the start
        self.alive = False

    # The learner process

    def start(self) -> None:
        """Returns once there is a model that predicts."""
        self.launch()
        threading.Thread(target=self.supervise, daemon=True).start()
        try:
            self.wait(lambda: self.model is not None or self.failure is not None, START_SECONDS)
        except BusyError:
            late = f"--state {self.options.state}: the learner did not start in {START_SECONDS:g} s; try again"
            self.failure = ValueError(late)
        if self.failure is not None:
            raise self.failure

    def launch(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.link, learner_link = spawn.Pipe()
        arguments = (self.options, learner_link, self.start_number)
        self.process = spawn.Process(target=worker.main, args=arguments, name="dualnet-learner", daemon=True)
        self.process.start()
        learner_link.close()
        self.alive = True

    def supervise(self) -> None:
        """Handle the messages of the learner, and restart its process if it exits unexpectedly."""
        for restarts in itertools.count():
            try:
                self.receive(self.link)
            except Exception:  # without a reader, nothing that the learner does would take effect: restart it
                traceback.print_exc()
                self.process.kill()
            self.process.join()
            self.alive = False
            self.refuse_pending()
            reason = f"exit code {self.process.exitcode}"
            if self.model is None and self.failure is None:
                self.failure = ValueError(f"the learner process ended during its start ({reason})")
                with self.changed:
                    self.changed.notify_all()
            if self.stopping or self.failure is not None:
                return
            self.on_notice("learner_ended", f"{reason}; restarting")
            time.sleep(RESTART_SECONDS[min(restarts, len(RESTART_SECONDS) - 1)])
            self.start_number = self.journal.count_start()
            self.launch()

    def refuse_pending(self) -> None:
        """A learner that has ended does not reply."""
        for reply in list(self.pending.values()):
            if not reply.done():
                reply.set_exception(learner_not_running())

    def receive(self, link: Connection) -> None:
        while True:
            try:
                kind, *content = link.recv()
                content += [link.recv_bytes()] if kind == "published" else []
            except (EOFError, OSError):
                return
            getattr(self, f"on_{kind}")(*content)
            with self.changed:
                self.changed.notify_all()

    def on_published(self, status: dict[str, Any], weights: bytes) -> None:
        model = self.model
        if model is None:
            device = choose_device(self.options.device).type  # pyright: ignore[reportArgumentType]
            folder = self.options.state / state_folder.MODEL
            model = ServingModel(lambda: load(folder, device))
        model.update(status, weights)
        self.learner_status, self.model = status, model  # in this order: a request that sees the model needs the status
        self.on_status(status)

    def on_status(self, status: dict[str, Any]) -> None:
        self.learner_status = status
        event = self.add_event("status", self.status())
        if time.monotonic() >= self.history_due:
            self.history_due = time.monotonic() + HISTORY_SECONDS
            with suppress(sqlite3.OperationalError):  # such as a full disk
                self.history = add_status(self.journal, self.history, event)

    def on_notice(self, kind: str, text: str) -> None:
        self.counters[kind] += 1
        self.add_event("notice", {"kind": kind, "text": text})

    def on_not_restored(self, position: int, reason: str) -> None:
        self.not_restored[position] = f"{reason}; nothing was restored"
        self.on_notice("not_restored", reason)

    def on_reply(self, ticket: int, result: Any, error: str | None) -> None:
        if (reply := self.pending.get(ticket)) is None:  # the request has timed out
            return
        if error is None:
            reply.set_result(result)
        else:
            reply.set_exception(ConflictError(error))

    def on_failed(self, reason: ValueError | OSError) -> None:
        if self.model is None:
            self.failure = reason
        else:  # the learner is restarted
            self.on_notice("learner_failed", str(reason))

    def add_event(self, kind: str, content: dict[str, Any]) -> Event:
        event = next(self.event_numbers), kind, {"time": time.time(), **content}
        self.events.append(event)
        return event

    def events_after(self, number: int) -> list[Event]:
        """The stored status history, then the latest events of all kinds."""
        latest = list(self.events)
        older = [event for event in self.history if not latest or event[0] < latest[0][0]]
        return [event for event in older + latest if event[0] > number]

    def send(self, command: str, ticket: int = 0, argument: Any = None) -> None:
        """Does nothing if the learner is not running: the next one reads the journal."""
        with suppress(OSError), self.sending:
            self.link.send((command, ticket, argument))

    def call(self, command: str, argument: Any = None) -> Any:
        """Have the learner carry out a command, and return its result.

        Raises ConflictError if it fails, and BusyError if the learner is not running or ends before it replies.
        """
        ticket, reply = next(self.tickets), Future[Any]()
        self.pending[ticket] = reply
        try:
            if not self.alive:  # checked after the command became pending: otherwise the learner might end in between
                raise learner_not_running()
            self.send(command, ticket, argument)
            return reply.result(REPLY_SECONDS)
        except TimeoutError:
            raise learner_timeout() from None
        finally:
            del self.pending[ticket]

    def wait(self, condition: Callable[[], bool], seconds: float = REPLY_SECONDS) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise learner_timeout()

    def wait_until_learned(self, position: int | None = None) -> None:
        target = self.journal.last_position() if position is None else position
        self.wait(lambda: self.learner_status.get("position", 0) >= target)

    def restore(self, snapshot: int) -> None:
        """Raises ConflictError if the snapshot cannot be read."""
        position = self.journal.restore(snapshot)
        self.send("wake")
        self.wait_until_learned(position)
        if reason := self.not_restored.pop(position, None):
            raise ConflictError(reason)

    def notify_learner(self, position: int) -> None:
        """Call after every write to the journal. In synchronous mode, waits until the learner has read it."""
        self.send("wake")
        if self.options.synchronous:
            self.wait_until_learned(position)

    def stop(self) -> None:
        """Let the learner save and end, or kill it if it does not: the journal has everything acknowledged."""
        self.stopping = True
        if self.alive:
            self.send("stop")
            self.process.join(STOP_SECONDS)
            self.process.kill()

    # Queries

    @property
    def image_size(self) -> int:
        assert self.model is not None
        return self.model.current.model.learner.spec.image_shape[1]

    def status(self) -> dict[str, Any]:
        """The response to `GET /v1/status`, and the content of `status` events."""
        learner, counts = self.learner_status, self.journal.counts()
        classes = [
            {
                "name": name,
                "examples": counts.get(name, 0),
                "in_memory": learner["memory"]["examples"].get(name, 0),
                "held_out_accuracy": learner["accuracy"].get(name),
            }
            for name in self.journal.classes()
        ]
        accuracies = list(learner["accuracy"].values())
        return {
            "version": learner["version"],
            "learner": "running" if self.alive else "restarting",
            "synchronous": self.options.synchronous,
            "image_size": self.image_size,
            "started": self.started,
            "examples": sum(counts.values()),
            "unlabelled": counts.get(None, 0),
            "waiting": max(0, self.journal.last_position() - learner["position"]),
            "classes": classes,
            "held_out_accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
            "losses": learner["losses"],
            "background": learner["background"],
            "memory_slots": learner["memory"]["slots"],
            "rolled_back": self.counters["rolled_back"],
        }


def learner_not_running() -> BusyError:
    return BusyError("the learner is not running at the moment; try again later")


def learner_timeout() -> BusyError:
    return BusyError("the learner did not respond in time; try again later")
