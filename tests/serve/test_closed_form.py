"""The service with its default learner: the model is a function of the current labelled examples, not of their history.

Run in this process, with a narrow encoder.
"""

import random
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import COLOURS, SIZE, picture

from dualnet.models.held_out import is_held_out, pixel_digest
from dualnet.models.model import Model, load
from dualnet.serve import state_folder
from dualnet.serve.errors import RequestError
from dualnet.serve.memory_contents import stored_digests
from dualnet.serve.options import Options
from dualnet.serve.serving_model import ServingModel, publication
from dualnet.serve.worker import Worker

DIFFERENT = 20  # images
SMALL = {"encoder": {"width": 4, "weights": None}, "memory": {"slots": 8}}
NAMES = ["cat", "dog", "cow"]
Start = Callable[..., Worker]


@pytest.fixture
def link() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def start(tmp_path: Path, link: tuple[Connection, Connection]) -> Iterator[Start]:
    """start(): a worker; start() again: another one, as after a kill."""
    workers: list[Worker] = []

    def begin(**changes: Any) -> Worker:
        options = Options(tmp_path, image_size=SIZE, device="cpu", learner=SMALL, **{"held_out_every": 0, **changes})
        workers.append(Worker(options, link[1]))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.journal.database.close()


def image(number: int) -> np.ndarray:
    """One of three kinds."""
    return picture([*COLOURS][number % 3], number).transpose(2, 0, 1)


def follow(worker: Worker) -> None:
    """Learn the whole journal, and settle."""
    while worker.journal.entries_after(worker.position, 1):
        worker.work()
    worker.calibrate()


def probabilities(model: Model) -> dict[str, torch.Tensor]:
    """Of some images, by class."""
    images = torch.from_numpy(np.stack([image(number) for number in range(12)]))
    return dict(zip(model.class_names, model.probabilities(images).T, strict=True))


def assert_is_function_of_journal(worker: Worker) -> None:
    """Equal to a new model that learns every labelled image once, with its last label, in another order."""
    labels = dict(worker.journal.execute("SELECT digest, label FROM examples WHERE label NOT NULL ORDER BY labelled"))
    images = {pixel_digest(image(number).tobytes()): image(number) for number in range(DIFFERENT)}
    fresh = Model.create(worker.model.class_names, image_size=SIZE, learner=state_folder.learner_of(worker.options))
    fresh.learn(np.stack([images[each] for each in sorted(labels)]), [str(labels[each]) for each in sorted(labels)])
    fresh.calibrate()
    assert len(worker.model.examples) == len(labels)
    expected, actual = probabilities(fresh), probabilities(worker.model)
    assert expected.keys() == actual.keys() == {*map(str, worker.journal.classes())}
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_the_model_is_a_function_of_the_journal(start: Start, seed: int) -> None:
    """However the learner reads it: in parts, late, or again after a kill. Some images come under several ids."""
    chance, worker, ids, count = random.Random(seed), start(), [], 0
    journal = worker.journal

    def act() -> None:
        nonlocal count
        kind = chance.choice(["add", "add", "add", "label", "delete", "remove", "learn", "kill"])
        if kind == "add":
            count += 1
            label = chance.choice([*NAMES, None])
            journal.add_examples([f"{count}"], [image(chance.randrange(DIFFERENT))], [label], True)
            ids.append(f"{count}")
        elif kind in ("label", "delete") and ids:
            id = ids[chance.randrange(len(ids))]
            journal.set_label(id, chance.choice(NAMES), True) if kind == "label" else journal.delete(id)
        elif kind == "remove" and journal.classes() and chance.random() < 0.05:
            journal.remove_class(chance.choice([*journal.classes()]))
        elif kind == "learn":
            worker.work()
        elif kind == "kill":
            if chance.random() < 0.5:
                worker.save()
            restart()

    def restart() -> None:
        nonlocal worker, journal
        worker.journal.database.close()
        worker = start()
        journal = worker.journal

    for number in range(3):
        for _ in range(60):
            try:
                act()
            except RequestError as error:
                assert error.status in (409, 410)
        journal.add_examples([f"last {number}"], [image(0)], ["cat"], True)
        follow(worker)
        assert_is_function_of_journal(worker)
        for _ in range(2):
            worker.save()
    assert len(worker.model.examples) > 9 and worker.last_good is None
    assert journal.value("SELECT COUNT(*) FROM examples WHERE label NOT NULL AND pixels IS NULL") > 0, "nothing pruned"


def test_what_is_published_predicts_as_the_model_and_contains_no_encoder(
    start: Start, link: tuple[Connection, Connection], tmp_path: Path
) -> None:
    worker, images = start(), [image(number) for number in range(12)]
    serving = ServingModel(worker.options)
    pixels = torch.from_numpy(np.stack(images))

    def publish() -> None:
        worker.publish()
        kind, status = link[0].recv()
        assert kind == "published"
        serving.update(status, link[0].recv_bytes())
        assert serving.version == status["version"]

    publish()
    worker.journal.add_examples([*map(str, range(4))], images[::3], ["red"] * 4, True)
    worker.journal.add_classes(["none yet"])
    follow(worker)
    publish()
    assert serving.predict(pixels, 3)[1][0].classes == (), "one class tells nothing apart"
    worker.journal.add_examples([*"abcd"], images[1::3], ["green"] * 4, True)
    follow(worker)
    publish()
    for answer, expected in zip(serving.predict(pixels, 3)[1], worker.model.predict(pixels, top=3), strict=True):
        assert (answer.classes, answer.unknown) == (expected.classes, expected.unknown)
        assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    names = [worker.journal.classes()[int(answer.name)] for answer in serving.predict(pixels, 1)[1]]
    assert names[::3] == ["red"] * 4 and names[1::3] == ["green"] * 4 and "none yet" not in names
    worker.journal.remove_class(1)
    follow(worker)
    publish()
    assert serving.predict(pixels, 3)[1][0].classes == ()
    features = len(worker.model.learner.closed_form.center)
    assert len(publication(worker.model)) < features**2 + 2000
    assert len(serving.model.examples) == 0 and stored_digests(serving.model) == set()


def test_a_restored_snapshot_has_the_labels_of_now(start: Start, link: tuple[Connection, Connection]) -> None:
    worker = start()
    journal = worker.journal
    journal.add_examples([*map(str, range(9))], [image(number) for number in range(9)], NAMES * 3, True)
    follow(worker)
    (worker.options.state / state_folder.SNAPSHOTS).mkdir()
    number = state_folder.create_snapshot(worker.model, worker.options, "")["number"]
    journal.delete("0")
    journal.set_label("1", "cat", False)
    journal.remove_class(3)
    follow(worker)
    worker.restore(number)
    assert_is_function_of_journal(worker)


def test_suggestions_are_those_of_the_model_among_unlabelled_images_that_would_be_learned(start: Start) -> None:
    worker = start(held_out_every=4)
    journal, numbers = worker.journal, [*range(60)]
    ids = [f"{number}" for number in numbers]
    with pytest.raises(ValueError, match="learned no images yet"):
        worker.suggestions.choose(worker.model, 5)
    labels = [NAMES[number % 3] if number < 12 else None for number in numbers]
    journal.add_examples(ids, [image(number) for number in numbers], labels, True)
    journal.add_examples(["again", "learned"], [image(30), image(0)], [None, None], False)
    follow(worker)
    *first, chosen, again = (worker.suggestions.choose(worker.model, 5) for _ in range(4))
    assert first == [None, None] and chosen == again is not None, "some features with each call"
    digests = {number: pixel_digest(image(number).tobytes()) for number in numbers}
    others = [number for number in numbers[:11:-1] if not is_held_out(digests[number], 4)]
    assert 10 < len(others) < 48, "some would be held out"
    expected = worker.model.suggest(np.stack([image(number) for number in others]).transpose(0, 2, 3, 1), 5)
    assert [id.replace("again", "30") for id in chosen] == [f"{others[row]}" for row in expected]
    journal.set_label(chosen[0], "cat", False)
    journal.delete(chosen[1])
    follow(worker)
    assert not {*chosen[:2]} & {*(worker.suggestions.choose(worker.model, 100) or chosen)}


def test_the_background_has_nothing_to_train_and_says_so(start: Start) -> None:
    worker = start()
    worker.journal.add_examples(["a"], [image(0)], [None], True)
    follow(worker)
    assert worker.status()["background"] == {"activity": "frozen encoder", "steps": 0} and not worker.work()


def test_a_large_batch_of_new_classes_is_no_reason_to_roll_back(
    start: Start, link: tuple[Connection, Connection]
) -> None:
    worker = start(held_out_every=2, margin=0.0)
    for name, numbers in (("few", range(60)), ("many", range(60, 180))):
        images = [image(number) for number in numbers]
        labels = [f"{name} {number % 3}" for number in numbers]
        worker.journal.add_examples([f"{number}" for number in numbers], images, labels, True)
        follow(worker)
        while worker.unmeasured:
            worker.evaluate()
        images = {number: image(number - 1) for number, _ in worker.journal.held_out()}
        answers = worker.model.predict(torch.from_numpy(np.stack([*images.values()])), top=1)
        right = [answer.name == str(label) for answer, (_, label) in zip(answers, worker.results, strict=True)]
        assert [*worker.results.values()] == right and len(right) > 20
    messages = [link[0].recv() for _ in iter(link[0].poll, False)]
    assert {message[0] for message in messages} == {"status"} and not worker.background.paused


@pytest.mark.parametrize(
    ("learner", "reason"),
    [
        ({"name": "dualnet", "head": "lda"}, "needs a frozen encoder"),
        ({"name": "er", "answer": "means"}, "answer: means would be computed anew after every example"),
    ],
)
def test_closed_form_heads_of_an_encoder_that_learns_are_refused(learner, reason, tmp_path: Path) -> None:
    learner = {**learner, "encoder": {"width": 4}}
    Model.create(["a"], image_size=SIZE, learner=learner).save(tmp_path / "model")
    options = Options(tmp_path / "state", model=tmp_path / "model", device="cpu")
    with pytest.raises(ValueError, match=reason):
        state_folder.check_model(load(tmp_path / "model"), options)
