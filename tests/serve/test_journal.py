"""The journal: what it stores, what is pruned, which writes conflict."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from dualnet.models.held_out import pixel_digest
from dualnet.serve.errors import RequestError
from dualnet.serve.journal import MAX_HISTORY, Journal
from dualnet.serve.options import Options
from dualnet.serve.service import MAX_EVENTS, Service


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.sqlite", OPTIONS)
    yield made
    made.database.close()


OPTIONS = Options(Path(), held_out_every=5, most_classes=2, unlabelled_kept=4)


def image(number: int) -> np.ndarray:
    """Held out if the number is 4, 9, 14, ..."""
    images = (np.array([number, again] * 6, np.uint8).reshape(3, 2, 2) for again in range(256))
    return next(image for image in images if int.from_bytes(pixel_digest(image.tobytes())) % 5 == (number + 1) % 5)


def digest(number: int) -> bytes:
    return pixel_digest(image(number).tobytes())


def add(journal: Journal, numbers: Sequence[int], label: str | None = None) -> None:
    ids, images = [f"example-{number}" for number in numbers], [image(number) for number in numbers]
    journal.add_examples(ids, images, [label] * len(ids), True)


def with_pixels(journal: Journal) -> set[int]:
    rows = journal.execute("SELECT id FROM examples WHERE pixels IS NOT NULL")
    return {int(id.removeprefix("example-")) for (id,) in rows}


@pytest.mark.parametrize("number", [3, 4])
def test_an_image_under_many_ids_is_either_learned_or_held_out(journal: Journal, number: int) -> None:
    ids = [f"id-{again}" for again in range(20)]
    journal.add_examples(ids, [image(number)] * 20, ["cat"] * 20, True)
    assert {journal.example(id).held_out for id in ids} == {number == 4}


def test_examples_without_a_label_need_no_classes(journal: Journal) -> None:
    add(journal, range(3))
    journal.check()
    assert journal.mend() == (0, 0)


def test_pruning_keeps_images_of_the_log_the_memory_and_the_held_out_examples(journal: Journal) -> None:
    add(journal, range(10), "cat")
    add(journal, range(10, 20))
    contained = journal.last_position()
    add(journal, range(20, 22), "cat")
    journal.prune(contained, {digest(3)})
    assert with_pixels(journal) == {3, 4, 9, 16, 17, 18, 19, 20, 21}
    assert [entry.example for entry in journal.entries_after(0, 100)] == [21, 22]  # numbers from 1
    assert journal.counts() == {None: 10, 1: 12}
    with pytest.raises(RequestError, match="example-10"):
        journal.set_label("example-10", "cat", False)


def test_what_waits_for_the_learner_is_counted(journal: Journal) -> None:
    """An example that is labelled twice counts once, with its last label; a held-out one does not."""
    add(journal, range(3), "cat")
    read = journal.last_position()
    add(journal, range(3, 6), "cat")
    journal.set_label("example-0", "dog", True)
    journal.set_label("example-5", "dog", False)
    assert (journal.held_out_counts(), journal.waiting_counts(read)) == ({1: 1}, {1: 1, 2: 2})
    assert journal.examples_of(2, read, 9) == [("example-5", False, True), ("example-0", False, True)]
    assert journal.examples_of(1, read, 2) == [("example-4", True, True), ("example-3", False, True)]
    assert journal.waiting_counts(journal.last_position()) == {}


def test_held_out_images_are_limited(journal: Journal) -> None:
    add(journal, range(120), "cat")
    journal.prune(journal.last_position(), set())
    assert with_pixels(journal) == set(range(4, 120, 5)) - set(range(4, 20, 5))  # the newest 20 of 24


def test_a_request_is_atomic(journal: Journal) -> None:
    add(journal, [1], "cat")
    position = journal.last_position()
    with pytest.raises(RequestError, match="example-1"):  # the second id exists with another image
        journal.add_examples(["new", "example-1"], [image(5), image(6)], ["dog", "dog"], True)
    assert journal.classes() == {1: "cat"} and journal.last_position() == position
    with pytest.raises(RequestError, match="new"):
        journal.example("new")
    journal.add_classes(["dog"])
    with pytest.raises(RequestError, match="most-classes"):
        add(journal, [2], "third")
    assert journal.classes() == {1: "cat", 2: "dog"}
    journal.remove_class(2)
    journal.add_classes(["third"])
    assert journal.classes() == {1: "cat", 3: "third"}, "a number is not used again"


def test_entries_are_in_order_and_those_of_a_request_share_its_number(journal: Journal) -> None:
    add(journal, [1, 2], "cat")
    journal.set_label("example-1", "cat", False)  # as it is: nothing to learn
    journal.set_label("example-1", "dog", True)
    journal.delete("example-2")
    entries = journal.entries_after(0, 100)
    assert [entry.kind for entry in entries] == ["class", "example", "example", "class", "label", "delete"]
    assert [entry.request for entry in entries] == [1, 1, 1, 4, 4, 6]
    assert [entry.position for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert entries[2].pixels is None  # deleted before it was learned
    assert journal.entries_after(4, 1) == entries[4:5]


def test_of_a_deleted_example_the_id_remains_until_it_is_added_again(journal: Journal) -> None:
    add(journal, [1, 2], "cat")
    journal.delete("example-1")
    for request in (journal.example, journal.delete, lambda number: journal.set_label(number, "cat", False)):
        with pytest.raises(RequestError, match="'example-1' was deleted") as error:
            request("example-1")
        assert error.value.status == 410
    add(journal, [1])
    assert journal.example("example-1").name is None
    journal.delete("example-1")
    assert journal.execute("SELECT * FROM deleted_ids") == [("example-1",)]


def test_examples_are_counted_by_label(journal: Journal) -> None:
    add(journal, [1, 2, 3], "cat")
    add(journal, [4, 5])
    journal.set_label("example-4", "cat", False)
    journal.set_label("example-1", "dog", True)
    journal.delete("example-5")
    with pytest.raises(RequestError):
        journal.add_examples(["new", "example-2"], [image(6), image(7)], ["cat", "cat"], False)
    counted = dict(journal.execute("SELECT label, COUNT(*) FROM examples GROUP BY label"))
    assert {label: count for label, count in journal.counts().items() if count} == counted == {1: 3, 2: 1}
    journal.remove_class(1)
    assert journal.counts() == {None: 0, 2: 1}


def test_one_image_under_several_ids_is_held_out_as_a_whole(journal: Journal) -> None:
    for number in (4, 5):
        journal.add_examples([f"{number}-{id}" for id in range(20)], [image(number)] * 20, ["cat"] * 20, True)
    assert [journal.example(f"{number}-{id}").held_out for number in (4, 5) for id in range(20)] == [1] * 20 + [0] * 20


def test_an_image_has_the_label_that_was_given_last(journal: Journal) -> None:
    add(journal, range(1, 7), "cat")  # 4 is held out
    journal.add_examples(["twin"], [image(3)], ["dog"], True)
    journal.add_examples(["unlabelled"], [image(7)], [None], False)  # the model given by --model may have learned it
    journal.delete("example-1")
    cat, dog = journal.classes()

    def labels() -> dict[int, int | None]:
        numbers = {digest(number): number for number in range(1, 9)}
        return {numbers[key]: label for key, label in journal.current_labels(numbers).items()}

    assert labels() == {1: None, 2: cat, 3: dog, 4: None, 5: cat, 6: cat}
    journal.set_label("twin", "cat", False)
    journal.set_label("example-3", "dog", False)
    assert labels()[3] == dog
    journal.set_label("twin", "dog", False)
    journal.set_label("example-3", "cat", False)
    assert labels()[3] == cat
    journal.delete("example-3")
    assert labels()[3] == dog
    journal.remove_class(dog)
    assert labels()[3] is None


def test_the_status_history_is_evenly_spread_and_comes_before_the_latest_events(tmp_path: Path) -> None:
    service, count = Service(Options(tmp_path)), 3000
    service.journal.database.execute("PRAGMA synchronous=OFF")  # for speed
    for seconds in range(count):
        event = service.add_event("status", {"time": seconds})
        service.history = service.journal.add_status(service.history, event)
    times = [status["time"] for _, _, status in service.history]
    gaps = np.diff(times)
    assert len(times) == MAX_HISTORY and (times[0], times[-1]) == (0, count - 1)
    assert gaps.min() > 0 and gaps.max() <= 2 * count / MAX_HISTORY
    again = Service(Options(tmp_path))
    assert again.events_after(0) == again.history == service.history
    for _ in range(2 * MAX_EVENTS):
        again.add_event("notice", {})
    assert again.events_after(0) == [*service.history, *again.events] and len(again.events) == MAX_EVENTS
    assert again.events_after(service.history[-1][0]) == [*again.events]
    numbers = [number for number, _, _ in service.events_after(0)]  # it was not restarted
    assert numbers == sorted({event[0] for event in (*service.history, *service.events)})
    for running in (service, again):
        running.journal.database.close()


def test_examples_are_found_by_their_pixels(journal: Journal) -> None:
    add(journal, range(10), "cat")
    journal.add_examples(["twin"], [image(5)], [None], False)
    assert journal.examples_with(map(digest, (7, 5, 0, 42))) == [
        *((f"example-{number}", "cat") for number in (0, 5, 7)),
        ("twin", None),
    ]
