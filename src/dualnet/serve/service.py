"""The state of the HTTP process: the journal, the model that predicts, events, the learner process."""

import itertools
import sqlite3
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from dualnet.serve import learner_process, state_folder
from dualnet.serve.decoder import Decoders
from dualnet.serve.errors import RequestError
from dualnet.serve.journal import Event, Journal
from dualnet.serve.learner_process import Learner
from dualnet.serve.metrics import Metrics
from dualnet.serve.options import Options
from dualnet.serve.prediction import predict_named
from dualnet.serve.published_model import Source, tag_of
from dualnet.serve.schema import Prediction
from dualnet.serve.serving_model import ServingModel

MAX_EVENTS = 200  # in memory
MAX_CURVES = 20  # classes whose accuracy is in the events: the newest
HISTORY_SECONDS = 5.0  # between statuses that are stored on disk
START_SECONDS = 300.0  # until the first weights are published
REPLY_SECONDS = 60.0  # for the learner to carry out a command
STOP_SECONDS = 30.0  # for the learner to save
RESTART_SECONDS = (0.0, 1.0, 5.0, 20.0, 60.0)  # delays before the learner is restarted for the first, second, ... time


class Service:
    def __init__(self, options: Options, learner: Learner | None = None) -> None:
        """`learner` is a process that was started before; by default one is started."""
        self.options, self.learner = options, learner
        (options.state / state_folder.SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        self.journal = Journal(options.state / state_folder.JOURNAL, options)
        self.started = time.time()
        self.learner_status: dict[str, Any] = {}
        self.announced: dict[int, dict[str, Any]] = {}  # the classes as of the last event, by number
        self.history = self.journal.history()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        last = self.history[-1][0] if self.history else 0
        self.event_numbers = itertools.count(max(last + 1, int(1000 * time.time())))  # increasing across restarts
        self.history_due = 0.0  # on the monotonic clock
        self.tickets = itertools.count(1)
        # By ticket of a command in progress: its result; or, if it failed, HTTP status and message.
        self.replies: dict[int, tuple[Any, tuple[int, str] | None] | None] = {}
        self.sending, self.packing = threading.Lock(), threading.Lock()
        self.changed = threading.Condition()  # notified after every message from the learner
        self.notices: Counter[str] = Counter()  # by kind
        self.metrics = Metrics(lambda: (self.status(), self.notices))
        self.unpublished: deque[tuple[int, float]] = deque()  # positions that were written, and when
        self.last_written = 0  # the newest of all these
        self.model: ServingModel | None = None  # predicts
        self.spare: ServingModel | None = None  # receives the next weights, while the other one predicts
        self.published: tuple[Mapping[str, Any], bytes] = {}, b""  # the last status and weights
        self.on_weights: Callable[[Mapping[str, Any], bytes], None] = lambda status, weights: None  # for replicas
        self.num_replicas: Callable[[], int] = lambda: 0  # that have the newest weights
        self.decoders = Decoders()
        self.source: Source | None = None  # of the models that replicas elsewhere follow
        self.stopping = False
        self.failure: ValueError | OSError | None = None  # during the start
        self.alive = False
        self.supervisor = threading.Thread(target=self.supervise, daemon=True)

    # The learner process

    def start(self) -> None:
        """Returns once there is a model that predicts."""
        self.decoders.start()
        self.launch()
        self.supervisor.start()
        with self.changed:
            in_time = self.changed.wait_for(lambda: self.model is not None or self.failure is not None, START_SECONDS)
        if self.failure is not None:
            raise self.failure
        if not in_time:
            late = f"the learner did not start in {START_SECONDS:g} s; try again"
            raise ValueError(f"--state {self.options.state}: {late}")

    def launch(self) -> None:
        self.process, self.link = self.learner or learner_process.start()
        self.learner, self.alive = None, True
        with suppress(OSError):  # it has ended
            self.link.send(self.options)

    def supervise(self) -> None:
        """Handle the messages of the learner, and restart its process if it exits unexpectedly."""
        for restarts in itertools.count():
            try:
                self.receive(self.link)
            except Exception:  # without a reader, nothing that the learner does would take effect: restart it
                traceback.print_exc()
                self.process.kill()
            self.process.join()
            reason = f"exit code {self.process.exitcode}"
            with self.changed:
                self.alive = False
                if self.model is None and self.failure is None:
                    self.failure = ValueError(f"the learner process ended during its start ({reason})")
                self.changed.notify_all()
            if self.stopping or self.failure is not None:
                return
            self.on_notice("learner_ended", f"{reason}; restarting")
            time.sleep(RESTART_SECONDS[min(restarts, len(RESTART_SECONDS) - 1)])
            self.launch()

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
        spare = self.spare or ServingModel(self.options)
        spare.update(status, weights)
        # A request that sees the model needs a status; one that sees the new status needs the new model.
        self.learner_status = self.learner_status or status
        self.model, self.spare = spare, self.model or ServingModel(self.options)
        self.published = status, weights
        self.on_weights(status, weights)
        self.on_status(status)
        while self.unpublished and self.unpublished[0][0] <= status["position"]:
            self.metrics.learn_seconds.observe(time.monotonic() - self.unpublished.popleft()[1])

    def on_status(self, status: dict[str, Any]) -> None:
        self.learner_status = status
        number, kind, content = self.announce()
        if time.monotonic() >= self.history_due:
            self.history_due = time.monotonic() + HISTORY_SECONDS
            past = {key: value for key, value in content.items() if key != "classes"}
            with suppress(sqlite3.DatabaseError):  # such as a full disk
                self.history = self.journal.add_status(self.history, (number, kind, past))

    def announce(self) -> Event:
        """Add an event with the figures of the status, and the classes that have changed since the last one."""
        with self.changed:
            classes = {row["number"]: row for row in self.classes()}
            changed = [row for number, row in classes.items() if self.announced.get(number) != row]
            changed += [{"number": number, "name": None} for number in self.announced.keys() - classes.keys()]
            self.announced = classes
            measured = [row for row in classes.values() if row["held_out_accuracy"] is not None]
            accuracy = {row["number"]: row["held_out_accuracy"] for row in measured[-MAX_CURVES:]}
            return self.add_event("status", {**self.figures(), "accuracy": accuracy, "classes": changed})

    def on_notice(self, kind: str, text: str) -> None:
        self.notices[kind] += 1
        self.add_event("notice", {"kind": kind, "text": text})

    def on_reply(self, ticket: int, result: Any, error: tuple[int, str] | None) -> None:
        if ticket in self.replies:  # otherwise the request has timed out
            self.replies[ticket] = (result, error)

    def on_failed(self, reason: ValueError | OSError) -> None:
        if self.model is None:
            self.failure = reason
        else:  # the learner is restarted
            self.on_notice("learner_failed", str(reason))

    def add_event(self, kind: str, content: dict[str, Any]) -> Event:
        with self.changed:  # in the order of their numbers
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
        """Have the learner carry out a command, and return its result. Raises RequestError, also if it ends before."""
        ticket, learner = next(self.tickets), self.process
        self.replies[ticket] = None
        try:
            self.send(command, ticket, argument)
            self.wait(lambda: self.replies[ticket] is not None or not self.alive or self.process is not learner)
        finally:
            reply = self.replies.pop(ticket)
        if reply is None:
            raise RequestError(503, "the learner is not running at the moment; try again later", retry_after="5")
        result, error = reply
        if error is not None:
            raise RequestError(*error)
        return result

    def suggestions(self, count: int) -> list[str]:
        """The response to `GET /v1/suggestions`."""
        while (ids := self.call("suggest", count)) is None:
            pass  # between the calls it learns
        return ids

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, REPLY_SECONDS):
                raise RequestError(503, "the learner did not respond in time; try again later", retry_after="5")

    def wait_until_learned(self, position: int | None = None) -> None:
        target = self.journal.last_position() if position is None else position
        self.wait(lambda: self.learner_status.get("position", 0) >= target)

    def notify_learner(self, position: int) -> None:
        """Call after every write to the log. In synchronous mode, waits until the learner has read it."""
        if position > self.last_written:  # not after a duplicate, which writes nothing
            self.last_written = position
            self.unpublished.append((position, time.monotonic()))
        self.send("wake")
        if self.options.synchronous:
            self.wait_until_learned(position)

    def end_events(self) -> None:
        self.stopping = True  # ends the event streams

    def stop(self) -> None:
        """Let the learner save and end, or kill it if it does not: the journal has everything acknowledged."""
        self.stopping = True
        self.decoders.stop()
        if self.alive:
            self.send("stop")
            self.process.join(STOP_SECONDS)
            self.process.kill()
            if self.supervisor.is_alive():  # PyTorch aborts if Python exits while a thread loads a model
                self.supervisor.join(STOP_SECONDS)

    # Queries

    def tag_of_model(self) -> str:
        return tag_of(self.published[0], self.journal.classes())

    def packed_model(self, known: str) -> tuple[str, bytes]:
        """The tag and the file of the published model, for a replica that knows frozen weights of this digest."""
        assert self.model is not None
        with self.packing:  # one at a time
            self.source = self.source or Source(self.model.model)
            (status, weights), names = self.published, self.journal.classes()
            return tag_of(status, names), self.source.pack(status, weights, names, known)

    @property
    def image_size(self) -> int:
        assert self.model is not None
        return self.model.image_size

    def predict(self, images: Tensor, top: int) -> tuple[str, list[Prediction]]:
        """The version of the model, and the most probable classes of each image."""
        assert self.model is not None
        began = time.perf_counter()
        version, predictions = predict_named(self.model, images, top, lambda _: self.journal.classes())
        self.metrics.on_predicted(len(images), time.perf_counter() - began)
        return version, predictions

    def status(self) -> dict[str, Any]:
        """The response to `GET /v1/status`."""
        fixed = {
            "synchronous": self.options.synchronous,
            "image_size": self.image_size,
            "started": self.started,
            "memory_slots": self.learner_status["memory"]["slots"],
        }
        return {**self.figures(), **fixed, "classes": self.classes()}

    def figures(self) -> dict[str, Any]:
        """What changes all the time, whatever the number of classes."""
        learner, counts = self.learner_status, self.journal.counts()
        accuracy = [100 * right / tested for right, tested in learner["scores"].values()]
        return {
            "time": time.time(),
            "version": learner["version"],
            "learner": "running" if self.alive else "restarting",
            "examples": sum(counts.values()),
            "unlabelled": counts.get(None, 0),
            "waiting": max(0, self.journal.last_position() - learner["position"]),
            "held_out_accuracy": sum(accuracy) / len(accuracy) if accuracy else None,
            "losses": learner["losses"],
            "background": learner["background"],
            "rolled_back": self.notices["rolled_back"],
            "replicas": self.num_replicas(),
        }

    def classes(self) -> list[dict[str, Any]]:
        """The response to `GET /v1/classes`."""
        learner, counts, held_out = self.learner_status, self.journal.counts(), self.journal.held_out_counts()
        waiting = self.journal.waiting_counts(learner["position"])

        def row(number: int, name: str) -> dict[str, Any]:
            right, tested = learner["scores"].get(number, (0, 0))
            return {
                "number": number,
                "name": name,
                "examples": counts.get(number, 0),
                "held_out": held_out.get(number, 0),
                "waiting": waiting.get(number, 0),
                "in_memory": learner["memory"]["examples"].get(number, 0),
                "held_out_accuracy": 100 * right / tested if tested else None,
                "tested": tested,
            }

        return [row(number, name) for number, name in self.journal.classes().items()]
