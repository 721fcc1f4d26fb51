"""State folders that are damaged or incomplete: served, or refused in one line and mended by `--repair`."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
from serving import SIZE, small_model
from starlette.testclient import TestClient

from dualnet.serve import repair, state_folder
from dualnet.serve.app import make_app
from dualnet.serve.journal import Journal
from dualnet.serve.memory_contents import known_digests
from dualnet.serve.options import Options
from dualnet.serve.server import serve, verify
from dualnet.serve.service import Service
from dualnet.serve.worker import Worker

Damage = Callable[[Path], object]

IMAGES = list(np.random.default_rng(0).integers(0, 256, (6, 3, SIZE, SIZE), np.uint8))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state with four examples that are learned, one that is not yet, a snapshot and two checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    options = Options(folder / "state", model=small_model(folder / "model"), device="cpu", held_out_every=0)
    (options.state / state_folder.SNAPSHOTS).mkdir(parents=True)
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(options, theirs)
        with closing(worker.journal.database):
            worker.journal.add_examples([*"abc"], IMAGES[:3], ["cat", "cat", "dog"], True)
            follow(worker)
            state_folder.create_snapshot(worker.model, options, "two classes")
            worker.journal.add_examples(["d"], IMAGES[3:4], ["dog"], True)
            follow(worker)
            for _ in range(2):
                worker.save()
            worker.journal.add_examples(["e"], IMAGES[4:5], ["cow"], True)
    return options.state


@pytest.fixture
def options(whole: Path, tmp_path: Path) -> Options:
    return Options(shutil.copytree(whole, tmp_path / "state"), device="cpu", held_out_every=0)


def follow(worker: Worker) -> None:
    while worker.journal.entries_after(worker.position, 1):
        worker.work()


def learned(options: Options) -> set[tuple[str, str | None]]:
    """Id and class of the examples in the memory, after a start that learns what is waiting."""
    ours, theirs = Pipe()
    with ours, theirs:
        try:
            worker = Worker(options, theirs)
            with closing(worker.journal.database):
                worker.journal.check()
                follow(worker)
                return set(worker.journal.examples_with(known_digests(worker.model)))
        except sqlite3.DatabaseError as error:
            raise state_folder.failure(error, options) from error


def overwrite(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert data.count(old) > 0 and len(old) == len(new)
    file.write_bytes(data.replace(old, new))


def change(state: Path, query: str) -> None:
    with closing(sqlite3.connect(state / state_folder.JOURNAL, isolation_level=None)) as database:
        database.execute(query)


def steps(state: Path) -> list[Path]:
    return sorted((state / state_folder.MODEL / "checkpoint").iterdir())


def overwrite_root(state: Path, name: str) -> None:
    """Overwrite the root page of a table or an index."""
    with closing(sqlite3.connect(state / state_folder.JOURNAL)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name])
        [(size,)] = database.execute("PRAGMA page_size")
    with (state / state_folder.JOURNAL).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def pixels(state: Path) -> None:
    file = state / state_folder.JOURNAL
    change(state, "PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(file, IMAGES[1].tobytes()[:64], bytes(64))


OTHER_MODEL = (409, "snapshot 2 is of a model with other options; delete it; nothing was restored")
NUMBERS = {"cat": 1, "dog": 2, "cow": 3}
ALL = {("a", "cat"), ("b", "cat"), ("c", "dog"), ("d", "dog"), ("e", "cow")}
SERVED: dict[str, Damage] = {
    "nothing": lambda state: state,
    "newest checkpoint empty": lambda state: steps(state)[-1].write_bytes(b""),
    "newest checkpoint cut off": lambda state: steps(state)[-1].write_bytes(steps(state)[-1].read_bytes()[:5000]),
    "older checkpoint lost": lambda state: steps(state)[0].unlink(),
    "snapshot.json empty": lambda state: (state / "snapshots" / "1" / "snapshot.json").write_text(""),
    "snapshots/last empty": lambda state: (state / "snapshots" / "last").write_text(""),
    "a status of the history": lambda state: change(state, "INSERT INTO history VALUES (1, '{')"),
}
MENDED: dict[str, Damage] = {
    "model lost": lambda state: shutil.rmtree(state / state_folder.MODEL),
    "model and snapshots lost": lambda state: [shutil.rmtree(state / name) for name in ("model", "snapshots")],
    "both checkpoints changed": lambda state: [overwrite(step, b"digest", b"tsegid") for step in steps(state)],
    "both checkpoints lost": lambda state: [step.unlink() for step in steps(state)],
    "the model of a snapshot": lambda state: [
        shutil.rmtree(state / "model"), shutil.copytree(state / "snapshots" / "1", state / "model")
    ],
    "a class lost": lambda state: change(state, "DELETE FROM classes WHERE name = 'dog'"),
    "log lost": lambda state: change(state, "DELETE FROM log"),
    "page of an index": lambda state: overwrite_root(state, "by_digest"),
    "page of all classes": lambda state: overwrite_root(state, "classes"),
    "pixels changed": pixels,
}  # fmt: skip
REFUSED: dict[str, Damage] = {
    "journal lost": lambda state: [file.unlink() for file in state.glob("journal.sqlite*")],
    "journal emptied": lambda state: [file.write_bytes(b"") for file in state.glob("journal.sqlite*")],
    "journal is no database": lambda state: (state / state_folder.JOURNAL).write_bytes(bytes(5000)),
}


@pytest.mark.filterwarnings("ignore:damaged checkpoint")
@pytest.mark.parametrize("damage", SERVED.values(), ids=SERVED)
def test_what_can_be_done_without_is_served(options: Options, damage: Damage) -> None:
    damage(options.state)
    assert "5 examples, 3 classes, 1 snapshots" in verify(options)
    assert learned(options) == ALL
    with repair.opened_journal(options) as journal:
        model, _ = state_folder.open_model(options, journal)
        assert state_folder.create_snapshot(model, options, "")["number"] == 2
        assert [info["number"] for info in state_folder.list_snapshots(options)] == [1, 2]


@pytest.mark.filterwarnings("ignore:damaged checkpoint", "ignore:--state", "ignore:snapshot")
@pytest.mark.parametrize("damage", MENDED.values(), ids=MENDED)
def test_what_does_not_fit_together_is_refused_in_one_line_and_mended(
    options: Options, damage: Damage, request: pytest.FixtureRequest
) -> None:
    damage(options.state)
    for attempt in (learned, verify):
        with pytest.raises(ValueError, match=r"^[^\n]*--repair[^\n]*$"):
            attempt(options)
    repair.repair(options)
    assert "--state" in verify(options)
    without_name = {"a class lost": ["dog"], "page of all classes": ["cat", "dog", "cow"]}
    unnamed = without_name.get(request.node.callspec.id, [])
    assert learned(options) == {(id, f"class {NUMBERS[name]}" if name in unnamed else name) for id, name in ALL}


def test_a_snapshot_of_another_model_is_refused(options: Options, tmp_path: Path) -> None:
    """The HTTP process cannot predict by it."""
    shutil.copytree(small_model(tmp_path / "wide", encoder={"width": 5}), options.state / "snapshots" / "2")
    with pytest.raises(ValueError, match=r"^snapshot 2 is of a model with other options; delete it$"):
        verify(options)
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(options, theirs)
        with closing(worker.journal.database):
            assert worker.execute("restore", 2)[1] == OTHER_MODEL


@pytest.mark.parametrize("damage", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_mended_is_refused_with_what_to_do(options: Options, damage: Damage) -> None:
    damage(options.state)
    for attempt in (learned, verify, repair.repair):
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            attempt(options)
    other = replace(options, state=options.state.with_name("other"), model=options.state / state_folder.MODEL)
    other.state.mkdir()
    with closing(Journal(other.state / state_folder.JOURNAL, other).database):
        pass
    with repair.opened_journal(other) as journal:
        model, _ = state_folder.open_model(other, journal)
        assert model.class_names == ("1", "2") and model.learner.memories[0].filled.sum() == 4


LOSSES: dict[str, Callable[[Path], object]] = {
    "lost": lambda file: file.unlink(),
    "emptied": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "one bit changed": lambda file: overwrite(file, IMAGES[5].tobytes(), IMAGES[5].tobytes()[:-1] + b"!"),
}


@pytest.mark.parametrize("damage", LOSSES.values(), ids=LOSSES)
def test_the_loss_of_the_latest_changes_is_noticed(options: Options, damage: Callable[[Path], object]) -> None:
    """SQLite does not notice it: without the rest of its write-ahead log a database is as it was before."""
    journal = Journal(options.state / state_folder.JOURNAL, options)
    with closing(journal.database):
        journal.add_examples(["f"], IMAGES[5:6], ["cat"], False)
        killed = replace(options, state=shutil.copytree(options.state, options.state.with_name("killed")))
    assert "6 examples" in verify(replace(options, state=shutil.copytree(killed.state, options.state / "copy")))
    damage(killed.state / "journal.sqlite-wal")
    for attempt in (verify, lambda options: serve(options, print)):
        with pytest.raises(ValueError, match=r"^[^\n]*the last 1 changes are lost[^\n]*--repair$"):
            attempt(killed)
    with pytest.warns(UserWarning, match=r"the last 1 changes are lost\); 5 examples could be read"):
        repair.repair(killed)
    assert learned(killed) == ALL


def test_damage_while_the_service_runs_is_an_error_of_the_disk(options: Options) -> None:
    service = Service(options)
    overwrite_root(options.state, "examples")
    client = TestClient(make_app(service))
    for answer in (client.get("/v1/examples/a"), client.delete("/v1/examples/b"), client.delete("/v1/classes/1")):
        assert answer.status_code == 507 and "malformed" in answer.json()["error"]["message"]
    assert client.get("/v1/snapshots").status_code == 200
    service.journal.database.close()
