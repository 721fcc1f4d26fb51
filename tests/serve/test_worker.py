"""The learner, run in this process: damaged snapshots, corrections, rollbacks, new classes, failed saves."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from serving import LIVE, SIZE, SMALL, open_model, small_model

import dualnet
from dualnet.experiments import checkpoint
from dualnet.models.held_out import is_held_out, pixel_digest
from dualnet.models.memory_images import stored_examples
from dualnet.models.model import Model
from dualnet.options import merge
from dualnet.serve import state_folder
from dualnet.serve.background import catch_up
from dualnet.serve.errors import RequestError
from dualnet.serve.held_out import scores
from dualnet.serve.journal import Journal
from dualnet.serve.options import Options
from dualnet.serve.service import REPLY_SECONDS, Service
from dualnet.serve.serving_model import ServingModel, publication
from dualnet.serve.worker import SETTLED_STEPS, Worker

Start = Callable[..., Worker]


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """The two ends of the link between the processes: that of the HTTP process and that of the worker."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def link(ends: tuple[Connection, Connection]) -> Connection:
    """Receives the messages of the worker."""
    return ends[0]


@pytest.fixture
def start(tmp_path: Path, ends: tuple[Connection, Connection]) -> Iterator[Start]:
    """start(**options): a worker with a small model; start(worker.options): another one, as after a kill."""
    workers: list[Worker] = []
    small_model(tmp_path / "model")

    def begin(options: Options | None = None, **changes: Any) -> Worker:
        if options is None:
            changes = {"model": tmp_path / "model", "device": "cpu", **changes}
            options = Options(tmp_path / "state", **changes)
        (options.state / state_folder.SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        workers.append(Worker(options, ends[1]))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.journal.database.close()


@pytest.fixture
def worker(start: Start) -> Worker:
    """With two classes."""
    worker = start(held_out_every=2)
    worker.journal.add_classes(["cat", "dog"])
    follow(worker)
    return worker


def follow(worker: Worker) -> None:
    """Process the whole journal."""
    while worker.journal.entries_after(worker.position, 1):
        worker.work()


def notices(link: Connection) -> list[str]:
    """The kinds of the notices sent so far."""
    messages: list[tuple[Any, ...]] = []
    while link.poll():
        messages.append(link.recv())
        if messages[-1][0] == "published":
            link.recv_bytes()  # the weights
    return [message[1] for message in messages if message[0] == "notice"]


def held_out_images(count: int) -> list[np.ndarray]:
    drawn = np.random.default_rng(0).integers(0, 256, (10 + 4 * count, 3, SIZE, SIZE), np.uint8)
    return [image for image in drawn if is_held_out(pixel_digest(image.tobytes()), 2)][:count]


def hold_out(worker: Worker, count: int) -> None:
    """Add held-out examples, each labelled with the class that the model predicts."""
    images = held_out_images(count)
    answers = worker.model.predict(torch.from_numpy(np.stack(images)), top=1)
    labels = [worker.journal.classes()[int(answer.classes[0])] for answer in answers]
    ids = [f"example-{number}" for number in range(count)]
    worker.journal.add_examples(ids, images, labels, False)
    follow(worker)


@pytest.mark.filterwarnings("ignore:damaged checkpoint")
def test_a_damaged_checkpoint_does_not_displace_the_good_one(tmp_path: Path) -> None:
    """Two are kept, so that there is always one to go back to."""
    options = Options(tmp_path, image_size=SIZE, device="cpu")
    folder = tmp_path / state_folder.MODEL / "checkpoint"
    for _ in range(3):
        state_folder.save(open_model(options), options, state_folder.NEW_PROGRESS)
        checkpoint.file_of(folder, checkpoint.steps(folder)[-1]).write_text("{")
    open_model(options)


@pytest.mark.filterwarnings("ignore:damaged checkpoint")
@pytest.mark.parametrize("damage", [shutil.rmtree, lambda folder: checkpoint.file_of(folder, 1).write_text("{")])
def test_an_unreadable_snapshot_is_not_restored_and_learning_continues(
    worker: Worker, link: Connection, damage: Any
) -> None:
    number = state_folder.create_snapshot(worker.model, worker.options, "")["number"]
    damage(state_folder.snapshot_folder(worker.options, number) / "checkpoint")
    model = worker.model
    _, (status, message) = worker.execute("restore", number)
    assert (status, message.endswith("nothing was restored")) == (409, True)
    assert notices(link) == ["not_restored"] and worker.model is model


def test_a_restore_is_saved_before_it_is_acknowledged(worker: Worker, link: Connection) -> None:
    number = state_folder.create_snapshot(worker.model, worker.options, "")["number"]
    hold_out(worker, 1)
    position = worker.journal.last_position()
    worker.publish()
    assert notices(link) == []  # reads the weights, of which the pipe does not hold two
    assert worker.execute("restore", number) == (None, None) and notices(link) == ["restored"]
    worker.do_what_is_due()
    for _ in range(2):
        restored, progress = state_folder.open_model(worker.options, worker.journal)
        assert progress["position"] == position, "the older checkpoint too"
        assert publication(restored).equal(publication(worker.model))
        newest = max((worker.options.state / state_folder.MODEL / "checkpoint").glob("*.safetensors"))
        newest.unlink()


def test_corrected_labels_of_held_out_examples_are_no_drop_in_accuracy(worker: Worker, link: Connection) -> None:
    hold_out(worker, 20)
    worker.evaluate()
    assert sum(worker.results.values()) == 20
    for number in range(20):
        name = worker.journal.example(f"example-{number}").name
        worker.journal.set_label(f"example-{number}", "dog" if name == "cat" else "cat", False)
    follow(worker)
    worker.evaluate()
    assert notices(link) == [] and not any(worker.results.values())
    assert {right for right, _ in scores(worker.results).values()} == {0}


def test_the_accuracy_of_a_class_ends_with_its_last_held_out_example(worker: Worker, link: Connection) -> None:
    worker.journal.add_examples(["a", "b"], held_out_images(2), ["cat", "dog"], False)
    service = Service(worker.options)
    service.model = ServingModel(worker.options)
    for deleted, measured in ((None, ["cat", "dog"]), ("a", ["dog"]), ("b", [])):
        if deleted:
            worker.journal.delete(deleted)
        follow(worker)
        worker.evaluate()
        while link.poll():
            service.on_status(link.recv()[1])
        status = service.status()
        assert [row["name"] for row in status["classes"] if row["held_out_accuracy"] is not None] == measured
    assert status["held_out_accuracy"] is None
    service.journal.database.close()


def test_unmeasured_weights_are_evaluated_before_a_class_is_added(worker: Worker, link: Connection) -> None:
    hold_out(worker, 20)
    worker.evaluate()
    for weights in worker.model.learner.parameters():
        weights.data.mul_(-1)  # a harmful update
    worker.unmeasured = True
    worker.journal.add_classes(["cow"])
    follow(worker)
    assert notices(link) == ["rolled_back"] and not worker.unmeasured


def test_a_failure_ends_the_start_and_later_is_a_notice(worker: Worker) -> None:
    """Later failures restart the learner."""
    service = Service(worker.options)
    service.on_failed(failure := ValueError("at the start"))
    assert service.failure is failure and not service.events
    service.failure, service.model = None, ServingModel(worker.options)
    service.on_failed(OSError("later"))
    assert service.failure is None and service.events[0][2]["kind"] == "learner_failed"
    service.journal.database.close()


def test_a_snapshot_is_deleted_once_and_unfinished_ones_are_removed(worker: Worker) -> None:
    options = worker.options
    number = state_folder.create_snapshot(worker.model, options, "")["number"]
    folder = state_folder.snapshot_folder(options, number)
    shutil.copytree(folder, folder.with_name("7.tmp"))
    state_folder.delete_snapshot(options, number)
    with pytest.raises(RequestError):
        state_folder.delete_snapshot(options, number)
    assert state_folder.list_snapshots(options) == []
    state_folder.remove_unfinished(options)
    assert [path.name for path in folder.parent.iterdir()] == [state_folder.LAST_FILE]
    again = state_folder.create_snapshot(worker.model, options, "")["number"]
    assert again == number + 1, "a late request to restore must not find another snapshot"


def test_a_failed_snapshot_leaves_no_files(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_full_disk(folder: Path, *_: object) -> None:
        (folder / "part").touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("dualnet.experiments.checkpoint.write", on_full_disk)
        _, (status, message) = worker.execute("snapshot", "")
        assert status == 507 and "No space left" in message
    assert [path.name for path in (worker.options.state / state_folder.SNAPSHOTS).iterdir()] == [state_folder.LAST_FILE]


def stored(worker: Worker) -> list[str]:
    """The labels of the examples in the memory."""
    classes = names(worker)
    return sorted(classes[label] for *_, label in stored_examples(worker.model.learner))


def test_an_image_has_one_label_the_last(start: Start) -> None:
    """Several examples may have the same pixels."""
    worker, image = start(held_out_every=0), np.zeros((3, SIZE, SIZE), np.uint8)
    journal = worker.journal
    journal.add_examples(["a", "b"], [image] * 2, ["cat"] * 2, True)
    follow(worker)
    assert {*stored(worker)} == {"cat"}
    journal.set_label("a", "dog", True)
    follow(worker)
    assert stored(worker) == ["dog"]
    journal.add_examples(["c"], [image], ["cow"], True)
    journal.delete("c")  # before it is learned
    follow(worker)
    assert {*stored(worker)} == {"dog"}
    for id in "ab":
        journal.delete(id)
    follow(worker)
    assert stored(worker) == []


def test_soft_labels_are_refreshed_when_a_class_is_added_after_background_training(
    tmp_path: Path, start: Start
) -> None:
    """The predictions for an image that has hardly been learned would be poor soft labels."""
    for synchronous, expected in ((False, "task_end"), (True, "insertion")):  # without background training
        new = Options(tmp_path / expected, image_size=SIZE, device="cpu", synchronous=synchronous)
        assert open_model(new).learner.config.soft_labels.when == expected
    learner = merge(LIVE, SMALL)
    Model.create(image_size=SIZE, learner=learner, boundaries=True).save(tmp_path / "boundaries")
    images = list(np.random.default_rng(0).integers(0, 256, (6, 3, SIZE, SIZE), np.uint8))
    worker = start(model=tmp_path / "boundaries", held_out_every=0)
    [memory] = worker.model.learner.memories
    worker.journal.add_examples(["a", "b", "c"], images[:3], ["cat"] * 3, True)
    follow(worker)
    worker.journal.add_examples(["d"], images[3:4], ["dog"], True)
    follow(worker)
    assert memory.filled.sum() == 4 and not memory.has_logits.any()
    for _ in range(SETTLED_STEPS):
        worker.background_step()
    worker.journal.add_examples(["e"], images[4:5], ["cow"], True)
    follow(worker)
    assert memory.has_logits[memory.filled].tolist() == [True] * 4 + [False]
    first = memory.logits[0].clone()
    worker.journal.add_examples(["f"], images[5:6], [None], True)
    for _ in range(SETTLED_STEPS):
        worker.background_step()
    worker.save()
    follow(worker)
    worker.journal.add_classes(["hen"])
    again = start(worker.options)
    assert again.background.steps_since_taught == SETTLED_STEPS
    follow(worker)
    assert memory.has_logits[memory.filled].all(), "images without labels do not reset the count"
    assert (memory.logits[0, : len(first)] != first).any(), "all are refreshed"


def test_the_serving_model_follows_every_publication(worker: Worker) -> None:
    """Also one with other classes than the checkpoint: a learner may save before its first publication is read."""
    older = worker.status(), publication(worker.model).numpy().tobytes()
    worker.journal.add_classes(["cow"])
    follow(worker)
    for _ in range(8):  # the average begins to lag behind
        worker.step(torch.randint(256, (4, 3, SIZE, SIZE), dtype=torch.uint8), ["1", "2"] * 2)
    worker.save()
    published = ServingModel(worker.options)
    newer = worker.status(), publication(worker.model).numpy().tobytes()
    assert publication(published.model).numpy().tobytes() == newer[1], "averaged ones, also of a checkpoint"
    for removed in (None, 1):
        if removed:
            worker.journal.remove_class(removed)
            follow(worker)
            newer = worker.status(), publication(worker.model).numpy().tobytes()
        for status, weights in (older, newer):
            published.update(status, weights)
            assert published.version == status["version"] and published.model.class_names == status["classes"]
            assert publication(published.model).numpy().tobytes() == weights
    images = torch.randint(256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    answers = [prediction.classes for prediction in published.predict(images, 5)[1]]
    assert {*answers[0]} == {"2", "3"} and answers == [answer.classes for answer in worker.model.predict(images)]


def test_a_pause_and_the_history_survive_a_restart(worker: Worker, link: Connection, start: Start) -> None:
    worker.execute("pause", True)
    assert start(worker.options).background.paused
    service = Service(worker.options)
    service.model = ServingModel(worker.options)
    service.on_status(worker.status())
    service.journal.database.close()
    again = Service(worker.options)
    [(number, kind, content)], [past] = service.events, again.events_after(0)
    assert [row["name"] for row in content.pop("classes")] == ["cat", "dog"] and past == (number, kind, content)
    assert next(again.event_numbers) > number


def test_events_carry_what_changed_and_a_start_does_not_depend_on_the_number_of_classes(
    worker: Worker, link: Connection
) -> None:
    service = Service(worker.options)
    service.model = ServingModel(worker.options)

    def follow_both() -> list[dict[str, Any]]:
        """The classes in the event after all was learned."""
        follow(worker)
        service.on_status(worker.status())
        return service.events[-1][2]["classes"]

    worker.journal.add_classes([f"class {number}" for number in range(900)])
    began = time.monotonic()
    assert len(follow_both()) == 902 and follow_both() == []
    assert time.monotonic() - began < 5
    worker.journal.rename_class(2, "wolf")
    worker.journal.remove_class(1)
    images = [np.full((3, SIZE, SIZE), 7, np.uint8)]
    worker.journal.add_examples(["new"], images, ["class 5"], False)
    changed = {row["number"]: row for row in follow_both()}
    assert changed.keys() == {1, 2, 8} and (changed[1]["name"], changed[2]["name"]) == (None, "wolf")
    assert changed[8]["examples"] == 1 and changed[8] in service.status()["classes"]
    assert sum(len(json.dumps(content)) for _, _, content in service.history) < 2000
    service.journal.database.close()


def test_images_without_labels_move_the_average_of_a_model_without_a_slow_learner(tmp_path: Path, start: Start) -> None:
    model = small_model(tmp_path / "fast", slow={"rounds": 0}, unlabelled="skip")
    worker = start(model=model, held_out_every=0)
    worker.journal.add_examples(["one"], [np.zeros((3, SIZE, SIZE), np.uint8)], [None], False)
    worker.background_step()
    assert worker.background.steps == 1 and worker.model.learner.ema.steps == 1


def test_a_learned_image_is_classified_correctly_however_slow_the_average(worker: Worker) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 3, SIZE, SIZE), np.uint8)
    learner = worker.model.learner
    for number, name in enumerate(["1", "2"] * 5):
        worker.model.learn(images[number : number + 1], [name])
    learner.ema.steps.fill_(1e4)  # its rate is ema_rate by now
    pixels = torch.from_numpy(images[-1:])
    for _ in range(10):
        worker.model.learn(pixels, ["3"], add_classes=True)
    lagging = worker.model.predict(pixels, top=1)[0].name
    catch_up(worker.model, pixels, ["3"])
    assert lagging != "3" and worker.model.predict(pixels, top=1)[0].name == "3"


def test_a_deleted_image_leaves_the_checkpoints_also_after_a_failed_save(
    worker: Worker, link: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_out(worker, 1)
    worker.journal.delete("example-0")
    follow(worker)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(state_folder, "save", lambda *_: state_folder.Path("/proc/no").mkdir())
        for _ in range(3):
            worker.do_what_is_due()
        assert notices(link) == ["not_saved"], "the next attempt waits"
    worker.saved_at -= worker.options.save_seconds
    for _ in range(2):
        assert worker.saves_due > 0
        worker.do_what_is_due()
    assert worker.saves_due == 0 and not worker.unsaved


def test_a_deleted_image_leaves_the_checkpoints_also_after_a_restart(
    worker: Worker, link: Connection, start: Start
) -> None:
    """Killed after the first of two saves: the next learner process makes the second, at the latest when it stops."""
    hold_out(worker, 1)
    worker.journal.delete("example-0")
    follow(worker)
    worker.save()
    assert worker.saves_due == 1
    again = start(worker.options)
    assert again.saves_due == 1
    link.send(("stop", 0, None))
    again.run()
    assert again.saves_due == 0 == start(worker.options).saves_due


def test_a_reply_after_the_timeout_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualnet.serve.service.REPLY_SECONDS", 0.01)
    service = Service(Options(tmp_path))
    service.link, theirs = Pipe()
    service.alive, service.process = True, Mock()
    with service.link, theirs, pytest.raises(RequestError):
        service.call("memory")
    service.on_reply(1, [], None)
    assert service.replies == {}
    service.journal.database.close()


def test_a_command_is_refused_if_the_learner_is_not_running_or_ends_before_it_replies(tmp_path: Path) -> None:
    service = Service(Options(tmp_path))
    service.link, theirs = Pipe()
    service.alive = service.stopping = True
    service.process = Mock(exitcode=1)
    began = time.monotonic()
    with ThreadPoolExecutor() as pool, service.link:
        response = pool.submit(service.call, "memory")
        assert theirs.recv()[0] == "memory"
        theirs.close()
        service.supervise()
        for error in (response.exception(), pool.submit(service.call, "memory").exception()):
            assert isinstance(error, RequestError) and "not running" in str(error) and error.headers
    assert time.monotonic() - began < REPLY_SECONDS / 2
    service.journal.database.close()


def test_requests_that_write_nothing_leave_nothing_behind(tmp_path: Path) -> None:
    service = Service(Options(tmp_path))
    service.link, theirs = Pipe()
    with service.link, theirs:
        for position in (3, 3, 3, 4, 4):
            service.notify_learner(position)
    assert [position for position, _ in service.unpublished] == [3, 4]
    service.journal.database.close()


def test_no_status_is_ahead_of_the_model_that_predicts(worker: Worker) -> None:
    """A synchronous request is acknowledged by the status: the model must have the new weights by then."""
    assigned: list[tuple[str, Any]] = []

    class Watched(Service):
        def __setattr__(self, name: str, value: Any) -> None:
            assigned.append((name, value))
            super().__setattr__(name, value)

    service = Watched(worker.options)
    weights = publication(worker.model).numpy().tobytes()
    for version in ("1.1", "1.2", "1.3"):
        assigned.clear()
        status = worker.status() | {"version": version}
        service.on_published(status, weights)
        names = [name for name, value in assigned if name == "model" or value is status]
        assert names[-2:] == ["model", "learner_status"]
        assert service.model is not None and service.model.version == version
        assert version == "1.1" or names == ["model", "learner_status"]
    service.journal.database.close()


def executed(worker: Worker, link: Connection, command: str, argument: Any) -> Any:
    """The result of a command. Reads the published weights, of which the pipe does not hold two."""
    worker.publish()
    notices(link)
    result = worker.execute(command, argument)
    notices(link)
    return result


def names(worker: Worker) -> list[str]:
    """Of the classes of the model."""
    return [worker.journal.classes()[int(number)] for number in worker.model.class_names]


def test_new_names_reach_everything_learned_before_and_exports(worker: Worker, link: Connection, start: Start) -> None:
    worker.journal.options = worker.options = replace(worker.options, held_out_every=0)
    images = list(np.random.default_rng(1).integers(0, 256, (2, 3, SIZE, SIZE), np.uint8))
    worker.journal.add_examples(["a", "b"], images, ["cat", "dog"], False)
    follow(worker)
    number = executed(worker, link, "snapshot", "")[0]["number"]
    worker.save()
    position, example = worker.journal.last_position(), worker.journal.example("a")
    for renamed, name in ((1, "?"), (2, "cat"), (1, "dog"), (1, "dog")):  # they exchange their names
        worker.journal.rename_class(renamed, name)
    assert worker.journal.last_position() == position, "nothing to learn"
    assert worker.journal.example("a") == example._replace(name="dog")
    worker.journal.add_classes(["cow"])
    again = start(worker.options)  # as after a kill
    follow(again)
    assert names(again) == ["dog", "cat", "cow"] and stored(again) == ["cat", "dog"]
    exported = worker.options.state / "export"
    assert executed(again, link, "restore", number) == executed(again, link, "export", exported) == (None, None)
    assert dualnet.load(exported).class_names == ("dog", "cat", "cow") and names(again) == ["dog", "cat", "cow"]
    for (number, name), status in {(1, "cat"): 409, (4, "lynx"): 404}.items():
        with pytest.raises(RequestError) as error:
            worker.journal.rename_class(number, name)
        assert error.value.status == status


def test_a_removed_class_leaves_the_model_the_memory_and_the_journal(
    worker: Worker, link: Connection, start: Start
) -> None:
    journal = worker.journal
    hold_out(worker, 20)
    worker.evaluate()
    journal.options = worker.options = replace(worker.options, held_out_every=0)
    images = list(np.random.default_rng(1).integers(0, 256, (5, 3, SIZE, SIZE), np.uint8))
    journal.add_examples(["a", "b", "c"], images[:3], ["cat", "cat", "dog"], False)
    follow(worker)
    assert stored(worker) == ["cat", "cat", "dog"]
    number = executed(worker, link, "snapshot", "")[0]["number"]
    worker.save()
    journal.set_label("a", "dog", False)  # not learned yet, as all that follows
    journal.set_label("c", "cat", False)
    journal.add_examples(["d", "e"], images[3:], ["cat", "cow"], True)
    journal.set_label("e", "cat", False)
    journal.remove_class(1)
    assert [*journal.classes().values()] == ["dog", "cow"]
    for running in (worker, start(worker.options)):  # as it is, and as after a kill
        follow(running)
        running.evaluate()
        notices(link)
        assert names(running) == ["dog", "cow"] and stored(running) == ["dog"], "a is a dog now"
        assert running.saves_due == 2 and set(scores(running.results)) <= {2}
        assert executed(running, link, "restore", number) == (None, None)
        assert names(running) == ["dog", "cow"] and stored(running) == []
    for id in ("b", "c", "d", "e"):
        with pytest.raises(RequestError, match="was deleted"):
            journal.example(id)
    with pytest.raises(RequestError, match="class 1 does not exist"):
        journal.remove_class(1)
    journal.add_examples(["new"], images[:1], ["cat"], True)
    follow(worker)
    assert journal.classes() == {2: "dog", 3: "cow", 4: "cat"} and stored(worker) == ["cat"]


def test_a_class_that_is_removed_before_it_is_learned_leaves_nothing_to_wait_for(
    worker: Worker, link: Connection
) -> None:
    worker.journal.add_classes(["mistake"])
    worker.journal.remove_class(3)
    follow(worker)
    assert worker.position == worker.journal.last_position() and names(worker) == ["cat", "dog"]


def test_the_names_of_a_given_model_are_numbered_once(tmp_path: Path) -> None:
    """A start that was killed after the names were stored, and before the model was, is repeated."""
    model = dualnet.load(small_model(tmp_path / "model"))
    model.add_classes(["cat", "dog"])
    model.save(tmp_path / "model")
    options = Options(tmp_path / "state", model=tmp_path / "model", device="cpu")
    options.state.mkdir()
    journal = Journal(options.state / state_folder.JOURNAL, options)
    assert journal.adopt(["cat", "dog"]) == [1, 2] and journal.adopt(["dog", "cat"]) == [2, 1]
    assert state_folder.open_model(options, journal)[0].class_names == ("1", "2")
    assert journal.classes() == {1: "cat", 2: "dog"}
    journal.database.close()
