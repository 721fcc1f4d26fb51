"""The learner, run in this process: damaged snapshots, corrections, rollbacks, new classes, failed saves."""

import shutil
import time
from collections.abc import Iterator
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
from serving import SIZE, SMALL, small_model

from dualnet.models.model import Model
from dualnet.options import merged
from dualnet.serve import state_folder
from dualnet.serve.errors import RequestError
from dualnet.serve.memory_contents import stored_examples
from dualnet.serve.options import Options
from dualnet.serve.service import REPLY_SECONDS, Service
from dualnet.serve.serving_model import ServingModel, prediction_weights
from dualnet.serve.training import catch_up
from dualnet.serve.worker import SETTLED_STEPS, Worker


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
def worker(tmp_path: Path, ends: tuple[Connection, Connection]) -> Iterator[Worker]:
    """With two classes."""
    options = Options(tmp_path / "state", model=small_model(tmp_path / "model"), device="cpu", held_out_every=1)
    (options.state / state_folder.SNAPSHOTS).mkdir(parents=True)
    worker = Worker(options, ends[1])
    worker.journal.add_classes(["cat", "dog"])
    follow(worker)
    yield worker
    worker.journal.database.close()


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


def hold_out(worker: Worker, count: int) -> None:
    """Add held-out examples, each labelled with the class that the model predicts."""
    images = np.random.default_rng(0).integers(0, 256, (count, 3, SIZE, SIZE), np.uint8)
    labels = [str(found.name) for found in worker.model.predict(images, top=1)]
    ids = [f"example-{number}" for number in range(count)]
    worker.journal.add_examples(ids, list(images), labels, False)
    follow(worker)


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda folder: (folder / "model.yaml").write_text("{")])
def test_an_unreadable_snapshot_is_not_restored_and_learning_continues(
    worker: Worker, link: Connection, damage: Any
) -> None:
    number = state_folder.create_snapshot(worker.model, worker.options, "", [1, 2])["number"]
    damage(state_folder.snapshot_folder(worker.options, number))
    model = worker.model
    _, (status, message) = worker.execute("restore", number)
    assert (status, message.endswith("nothing was restored")) == (409, True)
    assert notices(link) == ["not_restored"] and worker.model is model


def test_a_restore_is_saved_before_it_is_acknowledged(worker: Worker, link: Connection) -> None:
    number = state_folder.create_snapshot(worker.model, worker.options, "", [1, 2])["number"]
    hold_out(worker, 1)
    position = worker.journal.last_position()
    worker.publish()
    assert notices(link) == []  # reads the weights, of which the pipe does not hold two
    assert worker.execute("restore", number) == (None, None) and notices(link) == ["restored"]
    worker.do_what_is_due()
    for _ in range(2):
        restored, progress = state_folder.open_model(worker.options)
        assert progress["position"] == position, "the older checkpoint too"
        assert prediction_weights(restored).equal(prediction_weights(worker.model))
        newest = max((worker.options.state / state_folder.MODEL / "checkpoint").glob("*.json"))
        newest.unlink()


def test_corrected_labels_of_held_out_examples_are_no_drop_in_accuracy(worker: Worker, link: Connection) -> None:
    hold_out(worker, 20)
    worker.evaluate()
    assert sum(worker.last_good.correct.values()) == 20
    for number in range(20):
        label = worker.journal.execute("SELECT label FROM examples WHERE number = ?", number + 1)[0][0]
        worker.journal.set_label(f"example-{number}", {"cat": "dog", "dog": "cat"}[label], False)
    follow(worker)
    worker.evaluate()
    assert notices(link) == [] and not any(worker.last_good.correct.values())
    assert set(worker.last_good.accuracy().values()) == {0.0}


def test_the_accuracy_of_a_class_ends_with_its_last_held_out_example(worker: Worker, link: Connection) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, SIZE, SIZE), np.uint8)
    worker.journal.add_examples(["a", "b"], list(images), ["cat", "dog"], False)
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
        assert [one["name"] for one in status["classes"] if one["held_out_accuracy"] is not None] == measured
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
    number = state_folder.create_snapshot(worker.model, options, "", [1, 2])["number"]
    folder = state_folder.snapshot_folder(options, number)
    shutil.copytree(folder, folder.with_name("7.tmp"))
    state_folder.delete_snapshot(options, number)
    with pytest.raises(RequestError):
        state_folder.delete_snapshot(options, number)
    assert state_folder.list_snapshots(options) == []
    state_folder.remove_unfinished(options)
    assert [path.name for path in folder.parent.iterdir()] == [state_folder.LAST_FILE]
    again = state_folder.create_snapshot(worker.model, options, "", [1, 2])["number"]
    assert again == number + 1, "a late request to restore must not find another snapshot"


def test_a_failed_snapshot_leaves_no_files(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:

    def on_full_disk(folder: Path, *_: object) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("dualnet.experiments.checkpoint.write", on_full_disk)
        _, (status, message) = worker.execute("snapshot", "")
        assert status == 507 and "No space left" in message
    assert [path.name for path in (worker.options.state / state_folder.SNAPSHOTS).iterdir()] == [state_folder.LAST_FILE]


def stored(worker: Worker) -> list[str]:
    """The labels of the examples in the memory."""
    return sorted(name for *_, name in stored_examples(worker.model))


def test_one_of_several_examples_with_equal_pixels_can_be_deleted(tmp_path: Path) -> None:
    options = Options(tmp_path / "state", model=small_model(tmp_path / "model"), device="cpu", held_out_every=0)
    (options.state / state_folder.SNAPSHOTS).mkdir(parents=True)
    ours, theirs = Pipe()
    image = np.zeros((3, SIZE, SIZE), np.uint8)
    with ours, theirs:
        worker = Worker(options, theirs)
        journal = worker.journal
        journal.add_examples(["a", "b", "c"], [image] * 3, ["cat"] * 3, True)
        follow(worker)
        assert stored(worker) == ["cat"] * 3
        journal.delete("a")
        follow(worker)
        assert stored(worker) == ["cat"] * 2
        journal.set_label("b", "dog", True)
        follow(worker)
        assert stored(worker) == ["cat", "dog"]
        journal.add_examples(["d"], [image], ["cat"], True)
        journal.delete("d")  # before it is learned
        journal.set_label("b", "cat", True)
        follow(worker)
        assert stored(worker) == ["cat"] * 2
        journal.database.close()


def test_soft_labels_are_refreshed_when_a_class_is_added_after_background_training(tmp_path: Path) -> None:
    """The predictions for an image that has hardly been learned would be poor soft labels."""
    fresh, _ = state_folder.open_model(Options(tmp_path / "fresh", image_size=SIZE, device="cpu"))
    assert fresh.learner.config.soft_labels == "task_end"
    alone, _ = state_folder.open_model(Options(tmp_path / "alone", image_size=SIZE, device="cpu", synchronous=True))
    assert alone.learner.config.soft_labels == "insertion", "there is no background training"
    learner = merged(state_folder.DEFAULT_LEARNER, SMALL)
    Model.create(image_size=SIZE, learner=learner, boundaries=True).save(tmp_path / "model")
    options = Options(tmp_path / "state", model=tmp_path / "model", device="cpu", held_out_every=0)
    (options.state / state_folder.SNAPSHOTS).mkdir(parents=True)
    images = list(np.random.default_rng(0).integers(0, 256, (6, 3, SIZE, SIZE), np.uint8))
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(options, theirs)
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
        again = Worker(options, theirs)
        assert again.background.steps_since_taught == SETTLED_STEPS
        again.journal.database.close()
        follow(worker)
        assert memory.has_logits[memory.filled].all(), "images without labels do not reset the count"
        assert (memory.logits[0, : len(first)] != first).any(), "all are refreshed"
        worker.journal.database.close()


def test_the_serving_model_follows_every_publication(worker: Worker) -> None:
    """Also one with fewer classes than the checkpoint: a learner may save before its first publication is read."""
    older = worker.status(), prediction_weights(worker.model).numpy().tobytes()
    worker.journal.add_classes(["cow"])
    follow(worker)
    for _ in range(8):  # the average begins to lag behind
        worker.step(torch.randint(256, (4, 3, SIZE, SIZE), dtype=torch.uint8), ["cat", "dog"] * 2)
    worker.save()
    published = ServingModel(worker.options)
    newer = worker.status(), prediction_weights(worker.model).numpy().tobytes()
    assert prediction_weights(published.model).numpy().tobytes() == newer[1], "averaged ones, also of a checkpoint"
    for status, weights in (older, newer):
        published.update(status, weights)
        assert published.version == status["version"] and published.model.class_names == status["classes"]
        assert prediction_weights(published.model).numpy().tobytes() == weights


def test_a_pause_and_the_history_survive_a_restart(worker: Worker, link: Connection) -> None:
    worker.execute("pause", True)
    assert Worker(worker.options, worker.link).background.paused
    service = Service(worker.options)
    service.model = ServingModel(worker.options)
    service.on_status(worker.status())
    service.journal.database.close()
    again = Service(worker.options)
    assert again.events_after(0)[0] == service.events[0] and next(again.event_numbers) > service.events[0][0]
    again.journal.database.close()


def test_images_without_labels_move_the_average_of_a_model_without_a_slow_learner(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model", slow_rounds=0, unlabelled="skip")
    (tmp_path / "state").mkdir()
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(Options(tmp_path / "state", model=model, device="cpu"), theirs)
        worker.journal.add_examples(["one"], [np.zeros((3, SIZE, SIZE), np.uint8)], [None], False)
        worker.background_step()
        assert worker.background.steps == 1 and worker.model.learner.ema.steps == 1
        worker.journal.database.close()


def test_a_learned_image_is_classified_correctly_however_slow_the_average(worker: Worker) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 3, SIZE, SIZE), np.uint8)
    learner = worker.model.learner
    for number, name in enumerate(["cat", "dog"] * 5):
        worker.model.learn(images[number : number + 1], [name])
    learner.ema.steps.fill_(1e4)  # its rate is ema_rate by now
    pixels = torch.from_numpy(images[-1:])
    for _ in range(10):
        worker.model.learn(pixels, ["cow"], add_classes=True)
    lagging = worker.model.predict(pixels, top=1)[0].name
    catch_up(worker.model, pixels, ["cow"])
    assert lagging != "cow" and worker.model.predict(pixels, top=1)[0].name == "cow"


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


def test_a_deleted_image_leaves_the_checkpoints_also_after_a_restart(worker: Worker, link: Connection) -> None:
    """Killed after the first of two saves: the next learner process makes the second, at the latest when it stops."""
    hold_out(worker, 1)
    worker.journal.delete("example-0")
    follow(worker)
    worker.save()
    assert worker.saves_due == 1
    again = Worker(worker.options, worker.link)
    assert again.saves_due == 1
    link.send(("stop", 0, None))
    again.run()
    assert again.saves_due == 0 == Worker(worker.options, worker.link).saves_due


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


def test_progress_that_an_earlier_version_saved_is_completed(worker: Worker) -> None:
    state_folder.save(worker.model, worker.options, {"position": 2, "steps": 0})
    _, progress = state_folder.open_model(worker.options)
    assert progress == {**state_folder.NEW_PROGRESS, "position": 2}


def test_no_status_is_ahead_of_the_model_that_predicts(worker: Worker) -> None:
    """A synchronous request is acknowledged by the status: the model must have the new weights by then."""
    assigned: list[tuple[str, Any]] = []

    class Watched(Service):
        def __setattr__(self, name: str, value: Any) -> None:
            assigned.append((name, value))
            super().__setattr__(name, value)

    service = Watched(worker.options)
    weights = prediction_weights(worker.model).numpy().tobytes()
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


def test_a_class_is_renamed_with_its_examples_entries_and_results(worker: Worker, link: Connection) -> None:
    hold_out(worker, 20)
    worker.evaluate()
    before, journal = worker.last_good.accuracy(), worker.journal
    assert before
    images = list(np.random.default_rng(1).integers(0, 256, (2, 3, SIZE, SIZE), np.uint8))
    journal.options = Options(worker.options.state, held_out_every=0)
    journal.add_examples(["a", "b"], images, ["cat", "cow"], True)  # not learned yet, nor is the class
    for number, name in ((1, "tiger"), (3, "bull"), (2, "cat"), (1, "tiger")):
        assert executed(worker, link, "rename", (number, name)) == (None, None)
    assert journal.classes() == ["tiger", "cat", "bull"] and list(worker.model.class_names) == ["tiger", "cat"]
    new = {"cat": "tiger", "dog": "cat"}
    assert worker.last_good.accuracy() == {new[name]: value for name, value in before.items()}
    follow(worker)
    assert list(worker.model.class_names) == ["tiger", "cat", "bull"] and stored(worker) == ["bull", "tiger"]
    assert [journal.example(id).label for id in ("a", "b")] == ["tiger", "bull"]
    for argument, status, message in (
        ((1, "cat"), 409, "class 'cat' already exists"),
        ((4, "lynx"), 404, "class 4 does not exist"),
    ):
        assert executed(worker, link, "rename", argument) == (None, (status, message))


def test_a_checkpoint_and_a_snapshot_from_before_get_the_new_names(worker: Worker, link: Connection) -> None:
    number = executed(worker, link, "snapshot", "")[0]["number"]
    worker.save()
    for renamed, name in ((1, "?"), (2, "cat"), (1, "dog")):  # they exchange their names
        assert executed(worker, link, "rename", (renamed, name)) == (None, None)
    worker.journal.add_classes(["cow"])
    again = Worker(worker.options, worker.link)  # as after a kill
    assert list(again.model.class_names) == ["dog", "cat"] == again.journal.classes()[:2]
    follow(again)
    assert executed(again, link, "restore", number) == (None, None)
    assert list(again.model.class_names) == ["dog", "cat", "cow"]
    again.journal.database.close()


def test_the_classes_of_a_state_that_an_earlier_version_saved_are_numbered(worker: Worker, link: Connection) -> None:
    """Its journal has numbered them from 1 on, its checkpoint has no numbers."""
    state_folder.save(worker.model, worker.options, {"position": worker.position, "steps": 0})
    worker.journal.rename_class(2, "wolf")
    again = Worker(worker.options, worker.link)
    assert list(again.model.class_names) == ["cat", "wolf"]
    again.journal.database.close()


def test_a_removed_class_leaves_the_model_the_memory_and_the_journal(worker: Worker, link: Connection) -> None:
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
    assert executed(worker, link, "remove", 1) == (None, None)
    assert journal.classes() == ["dog", "cow"] and list(worker.model.class_names) == ["dog"]
    assert set(worker.last_good.accuracy()) <= {"dog"} and worker.saves_due == 2
    for one in (worker, again := Worker(worker.options, worker.link)):  # as it is, and as after a kill
        assert one.saves_due == 2
        follow(one)
        assert list(one.model.class_names) == ["dog", "cow"] and stored(one) == ["dog"], "a is a dog now"
        assert executed(one, link, "restore", number) == (None, None)
        assert list(one.model.class_names) == ["dog", "cow"] and stored(one) == []
    again.journal.database.close()
    for id in ("b", "c", "d", "e"):
        with pytest.raises(RequestError, match="was deleted"):
            journal.example(id)
    assert not journal.execute("SELECT * FROM log WHERE name = 'cat'")
    assert executed(worker, link, "remove", 1) == (None, (404, "class 1 does not exist"))
    journal.add_examples(["new"], images[:1], ["cat"], True)
    follow(worker)
    assert journal.classes_by_number() == {2: "dog", 3: "cow", 4: "cat"} and stored(worker) == ["cat"]


def test_a_class_that_is_removed_before_it_is_learned_leaves_nothing_to_wait_for(
    worker: Worker, link: Connection
) -> None:
    worker.journal.add_classes(["mistake"])
    assert executed(worker, link, "remove", 3) == (None, None)
    follow(worker)
    assert worker.position == worker.journal.last_position() and list(worker.model.class_names) == ["cat", "dog"]


def test_a_number_is_not_used_again(worker: Worker) -> None:
    journal = worker.journal
    for number in (2, 1):
        journal.remove_class(number)
    journal.adopt(["fox"])
    assert journal.classes() == [], "the journal is not new"
    journal.add_classes(["cow"])
    assert journal.classes_by_number() == {3: "cow"}


def test_the_http_process_follows_removals(worker: Worker, link: Connection) -> None:
    worker.save()
    published = ServingModel(worker.options)
    pixels = torch.randint(256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    for change in (
        lambda: worker.journal.add_classes(["cow"]),
        lambda: executed(worker, link, "remove", 1),
        lambda: worker.journal.add_classes(["cat"]),
        lambda: executed(worker, link, "rename", (4, "lynx")),
    ):
        change()
        follow(worker)
        worker.model.learn(pixels, [worker.model.class_names[-1]] * 2)
        published.update(worker.status(), prediction_weights(worker.model).numpy().tobytes())
        assert published.model.class_names == list(worker.model.class_names)
        assert published.predict(pixels, 5)[1] == worker.model.predict(pixels, top=5)
    assert published.model.class_names == ["dog", "cow", "lynx"]
