"""`dualnet learn`: sessions on folders of images, killed and resumed, and their summaries."""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import file_times
from forked import CommandLine
from PIL import Image

import dualnet
from dualnet import Model, cli
from dualnet.experiments import checkpoint
from dualnet.experiments.progress import RunDisplay
from dualnet.models.held_out import pixel_digest
from dualnet.models.session import Session
from dualnet.models.session_plan import LearnOptions
from dualnet.options import flatten

LETTERS = "abcdefghijklmno"
SMALL = {
    "encoder": {"width": 2},
    "updates": 1,
    "replay_size": 4,
    "memory": {"slots": 20},
    "slow": {"rounds": 1, "batch_size": 4},
}
LEARNER = {"name": "dualnet", "preset": "best", **SMALL, "slow": {"inner_steps": 1}}
WORDS = [
    "--image-size",
    "28",
    *(word for key, value in flatten(LEARNER).items() for word in (f"--learner.{key}", str(value))),
]

NARROW = ["--learner.encoder.weights", "null", "--learner.encoder.width", 2]


def draw(folder: Path, *names: str, count: int = 4, seed: int = 0) -> Path:
    """Images of noise, around a colour of each class."""
    for name in names:
        (folder / name).mkdir(parents=True)
        rng = np.random.default_rng([seed, *map(ord, name)])
        for number in range(count):
            noise = rng.integers(0, 90, (28, 28, 3)) + rng.integers(0, 160, 3)
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw(tmp_path / "photos", "cat", "dog")


@pytest.fixture
def learn() -> Callable[..., int]:
    """learn("photos", "--out", "m"): the command line's exit code."""
    return lambda *words: cli.main(["learn", *map(str, words), "--device", "cpu"])


def session_of(folder: Path) -> dict[str, Any]:
    _, tree, _ = checkpoint.newest(folder / "checkpoint") or (0, {}, "")
    return tree["session"]


@pytest.mark.filterwarnings("ignore:damaged checkpoint")  # killed while it wrote one
def test_three_killed_sessions_equal_one_process(tmp_path: Path, state_of: Any, differing: Any) -> None:
    """5 + 5 + 5 classes, some images without a label; every session is killed once and resumed."""
    parts = [draw(tmp_path / f"part-{n}", *LETTERS[5 * n : 5 * n + 5]) for n in range(3)]
    tests = draw(tmp_path / "test", *LETTERS[:5], seed=1)
    (tmp_path / "unlabelled").mkdir()
    for file in draw(tmp_path / "more", "x", count=6).glob("x/*"):
        file.rename(tmp_path / "unlabelled" / file.name)
    model = Model.create(image_size=28, learner=LEARNER, label_share=0.0)
    for part in parts:
        test = str(tests) if part != parts[0] else None
        session = Session(model, LearnOptions(str(part), str(tmp_path / "unlabelled"), test, batch_size=3))
        session.begin()
        session.run(tmp_path / "at-once", RunDisplay(), 100)

    out = tmp_path / "killed"
    for number, part in enumerate(parts):
        test = ["--test", tests] if number else []
        source = [out] if number else []
        new = [] if number else WORDS
        words = ["learn", *source, part, "--out", out, "--unlabelled", "unlabelled", "--batch-size", 3, *test, *new]
        process = CommandLine(*words, "--save-every", 1, "--device", "cpu")
        before = max(checkpoint.steps(out / "checkpoint"), default=0)
        while max(checkpoint.steps(out / "checkpoint"), default=0) < before + 3 and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.rest()[0] == -signal.SIGKILL
        there = session_of(out)
        assert 0 < there["step"] < there["steps"] == 9
        assert cli.main([*map(str, words), "--device", "cpu"]) == 0
        assert session_of(out)["step"] == 9

    loaded = dualnet.load(out)
    assert loaded.class_names == tuple(LETTERS) == model.class_names
    assert not differing(state_of(loaded.learner), state_of(model.learner))
    assert session_of(out)["after"] == session.record["after"] and "old" in session.record["after"]
    images = torch.from_numpy(session.images.files.decoded[np.arange(5)])
    assert loaded.predict(images) == model.predict(images)


def test_a_signal_saves_and_the_same_command_goes_on(
    photos: Path, learn: Any, default_sigint: Any, stop_at: Any, capsys: Any
) -> None:
    whole = ["photos", "--batch-size", 2, *WORDS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualnet.cli.learn.RunDisplay", lambda *_: stop_at(2))
        assert learn(*whole, "--out", "stopped") == 130
    assert "step 2 of 4" in capsys.readouterr().err
    assert session_of(Path("stopped"))["step"] == 2
    with pytest.warns(UserWarning, match=r"stopped: its session is at step 2 of 4 .*`dualnet learn` continues"):
        dualnet.load("stopped")
    assert learn(*whole, "--out", "stopped", "--epochs", 7) == 2
    assert "holds an unfinished session with other images or options; repeat" in capsys.readouterr().err
    assert learn("stopped", "photos", "--out", "stopped", "--epochs", 7) == 2, "in place as well"
    assert "holds an unfinished session with other images or options; repeat" in capsys.readouterr().err
    assert learn(*whole, "--out", "stopped") == learn(*whole, "--out", "whole") == 0
    trees = [checkpoint.newest(Path(name) / "checkpoint")[1] for name in ("stopped", "whole")]  # pyright: ignore
    assert all(torch.equal(value, trees[1]["learner"][key]) for key, value in trees[0]["learner"].items())


@pytest.mark.filterwarnings("always")
def test_what_it_says_at_the_end(photos: Path, learn: Any, capsys: Any, tmp_path: Path) -> None:
    """Old and new classes apart, before and after, on test images."""
    draw(tmp_path / "new", "owl", "cat", seed=1)
    draw(tmp_path / "test", "cat", "owl", "fox", count=3, seed=2)
    assert learn("photos", "--out", "m", *WORDS, "--batch-size", 8) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1:] == [
        "`dualnet predict m IMAGE` predicts the class of an image",
        "encoder: random weights, trained",
    ]
    assert captured.err == "", "one step tells nothing about how long it takes"
    assert learn("photos", "--out", "other", *WORDS, "--test", "test") == 0
    assert "  test images: " in capsys.readouterr().out
    assert learn("m", "new", "--test", "test", "--out", "m2", "--epochs", 2) == 0
    captured = capsys.readouterr()
    assert "--test: 1 of 3 classes, first fox: left out" in captured.err
    first, *lines = captured.out.splitlines()
    assert first.startswith("m2: 3 classes, ") and "owl" in first and "8 images" in first
    counts = {"old": 3, "new": 3}
    record = session_of(Path("m2"))
    assert {key: value[1] for key, value in record["after"].items()} == counts
    assert record["before"].keys() == {"old"}
    for (key, (accuracy, count)), line in zip(record["after"].items(), lines, strict=False):
        assert f"{accuracy:.1f} % now ({count} images)" in line
        assert (f"{record['before'][key][0]:.1f} % before" in line) if key != "new" else "before," not in line
    assert cli.main(["show", "m2"]) == 0
    learner, memory, *table, classes = capsys.readouterr().out.splitlines()
    assert (learner.partition(", ")[2], classes) == ("3 classes, 28 x 28 pixels", "classes: cat, dog, owl")
    assert memory.startswith("memory: 16 of ") and memory.endswith("(cat 8, dog 4, owl 4)")
    assert table[-1] == "images tested in the last session: test 3; test, new 3"
    assert not any(" now" in line for line in table), "the accuracies are in the table"
    assert dualnet.load("m").class_names == ("cat", "dog"), "the model before stays"
    assert learn("m", "new", "--test", "test", "--out", "m2", "--epochs", 2) == 0
    assert "finished" in capsys.readouterr().out and checkpoint.steps(Path("m2/checkpoint")) == [2]
    images = [Image.open("test/owl/0.png"), np.asarray(Image.open("test/cat/1.png"))]
    assert {prediction.name for prediction in dualnet.load("m2").predict(images)} <= {"cat", "dog", "owl"}


def test_a_closed_form_head_shows_the_accuracy_on_learned_images_without_themselves(
    photos: Path, learn: Any, capsys: Any
) -> None:
    """For the earlier and the new classes; by learning again without each of them."""
    draw(photos, "cow", "hen", "pig", count=8)
    draw(Path("more"), "owl", "cat", count=8, seed=1)
    assert learn("photos", "--out", "m", "--image-size", 28, *NARROW) == 0
    assert learn("m", "more", "--out", "m2") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "leave-one-out" in line]
    first, second = (retaught(name, "photos", "more") for name in ("m", "m2"))
    old, new = second[:40], second[40:]
    assert len(first) == 32 and len(new) == 8
    text = "  learned images (leave-one-out)"
    assert lines == [
        f"{text}: {mean(first)} % now (32 images)",
        f"{text}, earlier classes: {mean(first)} % before, {mean(old)} % now (40 images)",
        f"{text}, new classes: {mean(new)} % now (8 images)",
    ]
    assert 0 < float(mean(old)) < 100


def retaught(name: str, *folders: str) -> list[bool]:
    """Whether each image of the classes of a model is right if it is withdrawn before; those of the class owl last."""
    model, files = dualnet.load(name), sorted(file for folder in folders for file in Path(folder).glob("*/*"))
    known = set(model.examples.labels)
    is_right = []
    for file in sorted(files, key=lambda file: file.parent.name == "owl"):
        digest = pixel_digest(model.pixels_to_learn(file).numpy().tobytes())
        if digest in known:
            model.withdraw([digest])
            is_right += [model.predict(file)[0].name == file.parent.name]
            model.learn(file, file.parent.name)
    return is_right


def mean(values: list[bool]) -> str:
    return f"{100 * sum(values) / len(values):.1f}"


@pytest.mark.filterwarnings("ignore:.*its session")
def test_every_session_is_listed(
    photos: Path, learn: Any, default_sigint: Any, stop_at: Any, capsys: Any, tmp_path: Path
) -> None:
    """Once, and only if it is finished; also after a stop, in another folder, after an edit, and saved from Python."""
    draw(tmp_path / "more", "owl", "cat", seed=1)
    draw(tmp_path / "test", "cat", "owl", count=3, seed=2)
    begun = time.time()
    assert learn("photos", "--out", "m", *WORDS) == learn("photos", "--out", "m", *WORDS) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualnet.cli.learn.RunDisplay", lambda *_: stop_at(2))
        assert learn("m", "more", "--out", "m2", "--test", "test", "--batch-size", 2) == 130
    assert len(dualnet.load("m2").sessions) == 1
    assert learn("m", "more", "--out", "m2", "--test", "test", "--batch-size", 2) == 0
    record = session_of(Path("m2"))
    assert cli.main(["edit", "m2", "--rename", "owl", "uhu", "--remove", "dog"]) == 0
    model = dualnet.load("m2")
    model.save("m3")
    first, second = dualnet.load("m3").sessions
    assert begun <= first["time"] <= second["time"] <= time.time()
    assert (first["images"], first["classes"], first["after"]) == (8, 2, {})
    assert (second["images"], second["classes"], second["old"]) == (8, 3, 2)
    assert second["before"] == record["before"] and second["after"] == record["after"] and "new" in second["after"]
    capsys.readouterr()
    assert cli.main(["show", "m3"]) == 0
    _, _, title, header, _, *lines = capsys.readouterr().out.splitlines()
    assert title.rstrip() == "sessions, accuracy in %"
    assert header.rstrip().endswith(" test, new") and "held out" not in header
    ended = [time.strftime("%Y-%m-%d %H:%M", time.localtime(session["time"])) for session in (first, second)]
    assert lines[0].split() == [*ended[0].split(), "8", "2", "—", "—"]
    change = f"{record['before']['old'][0]:.1f}→{record['after']['old'][0]:.1f}"
    assert lines[1].split() == [*ended[1].split(), "8", "3", change, f"{record['after']['new'][0]:.1f}"]


@pytest.mark.parametrize("side", [150, 300])
def test_a_better_encoder_for_large_photos_is_named(side: int, learn: Any, capsys: Any) -> None:
    for name, colour in (("cat", "red"), ("dog", "blue")):
        Path("photos", name).mkdir(parents=True)
        Image.new("RGB", (400, side), colour).save(f"photos/{name}/0.png")
    assert learn("photos", "--out", "m", "--image-size", 28) == 0
    assert ("`--encoder lite0`" in capsys.readouterr().out) == (side == 300)
    assert learn("photos", "--out", "m2", "--image-size", 28, *NARROW) == learn("m", "photos", "--out", "m") == 0
    assert "lite0" not in capsys.readouterr().out, "for a new model with the starter only"


@pytest.mark.filterwarnings("always")
def test_the_only_class_is_named(learn: Any, capsys: Any) -> None:
    draw(Path("photos"), "cat")
    assert learn("photos", "--out", "m", *WORDS) == 0
    assert "warning: cat is the only class; teach another one" in capsys.readouterr().err


def test_every_image_is_stored_once_in_several_epochs(photos: Path, learn: Any) -> None:
    assert learn("photos", "--out", "m", *WORDS, "--epochs", 3) == 0
    (memory,) = dualnet.load("m").learner.memories
    stored = memory.images[memory.filled]
    assert len(stored) == len(stored.flatten(1).unique(dim=0)) == len(list(photos.glob("*/*")))


def test_images_without_a_class_are_spread_among_the_others(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "cat", tmp_path / "unlabelled")
    model = Model.create(image_size=28, learner=LEARNER)
    session = Session(model, LearnOptions("photos", "unlabelled", batch_size=2, epochs=2))
    batches = session.images.batches
    known = [[session.names[row] is not None for row in rows] for rows in batches]
    assert known == 2 * [[True] * 2, [False] * 2, [True] * 2, [True] * 2, [False] * 2, [True] * 2]
    for epoch in (batches[:6], batches[6:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(12))
    names = [session.names[row] for row in np.concatenate(batches[:6]).tolist()]
    assert {name for name in names[:6] if name} == {"cat", "dog"}, "four of the eight: classes come mixed"


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("encoder.name", "own_encoder.ThreeMaps"),
        ("slow.objective", "examples.alignment_uniformity.AlignmentUniformity"),
        ("memory.policy", "examples.latest.Latest"),
    ],
)
def test_code_that_the_command_names_is_trusted(option: str, path: str, photos: Path, learn: Any, capsys: Any) -> None:
    """Also if the command is repeated; by any other command only with --trust."""
    words = ["photos", "--out", "m", "--image-size", 28, "--learner.preset", "best", f"--learner.{option}", path]
    small = ["--learner.slow.rounds", 0, "--learner.updates", 1, "--learner.memory.slots", 20]
    assert learn(*words, *small) == learn(*words, *small) == 0
    assert "already finished" in capsys.readouterr().out
    assert learn("photos", "--out", "m", *WORDS) == learn("m", "photos", "--out", "m") == cli.main(["show", "m"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(f"{path}, code from outside" in line for line in lines)
    assert all("give --trust" in line and "dualnet predict" not in line for line in lines)
    assert cli.main(["show", "m", "--trust"]) == 0 and "cat, dog" in capsys.readouterr().out


def test_unlabelled_images_need_a_preset_that_trains_the_encoder(
    photos: Path, learn: Any, capsys: Any, error_line: Any
) -> None:
    shutil.copytree(photos / "cat", "unlabelled")
    words = ["learn", "photos", "--unlabelled", "unlabelled", "--out", "m", "--image-size", 28, *NARROW]
    assert "has no slow phase" in error_line(*words) and not Path("m").exists()
    assert learn(*words[1:], "--learner.preset", "trained", "--learner.updates", 1) == 0
    assert "learned from 12 images (4 of them without a label)\n" in capsys.readouterr().out
    config = dualnet.load("m").learner.config
    assert (config.slow.rounds, config.unlabelled, config.soft_labels.when) == (8, "replay", "insertion")
    assert (config.encoder.weights, config.encoder.width, config.encoder.lr) == (None, 2, None)


def test_learn_says_that_the_encoder_of_a_new_model_is_fixed(photos: Path, learn: Any, capsys: Any) -> None:
    assert learn("photos", "--out", "m", "--image-size", 28) == 0
    assert capsys.readouterr().out.endswith("\nencoder: starter, fixed\n")
    assert learn("m", photos, "--out", "m") == 0 and "encoder:" not in capsys.readouterr().out


@pytest.mark.parametrize("given", ["none", "one", "two"])
def test_a_run_goes_on_and_keeps_its_protocol(
    given: str, finished: Path, learn: Any, tmp_path: Path, capsys: Any
) -> None:
    """Two tasks of two classes, task-aware: new classes are a new task, or of the one that is named."""
    names = dualnet.load(finished).class_names
    draw(tmp_path / "new", "owl", "fox", *([names[0]] if given == "two" else []))
    task = {"none": [], "one": ["--task", 1], "two": ["--task", 0]}[given]
    assert learn(finished, "new", "--out", "m", *task) == 0
    model = dualnet.load("m")
    last = capsys.readouterr().out.splitlines()[-1]
    assert "`dualnet predict m IMAGE --task N`" in last and f"(0 to {model.learner.spec.num_tasks - 1})" in last
    assert set(model.class_names[4:]) == {"fox", "owl"}
    own = model.learner.class_mask[{"none": 2, "one": 1, "two": 0}[given]]
    assert own[4:].all() and model.learner.spec.num_tasks == (3 if given == "none" else 2)
    stored = model.learner.memory
    assert stored.has_logits[stored.filled].all(), "the end of the session was the end of a task"


def test_unlabelled_images_of_a_new_task(
    finished: Path, learn: Any, tmp_path: Path, default_sigint: Any, stop_at: Any
) -> None:
    """They belong to the task of the new classes; those that are known keep theirs, also after a stop."""
    draw(tmp_path / "new", "owl", dualnet.load(finished).class_names[0])
    shutil.copytree("new/owl", "unlabelled")
    words = [finished, "new", "--unlabelled", "unlabelled", "--batch-size", 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualnet.cli.learn.RunDisplay", lambda *_: stop_at(2))
        assert learn(*words, "--out", "stopped") == 130
    assert learn(*words, "--out", "stopped") == learn(*words, "--out", "whole") == 0
    trees = [checkpoint.newest(Path(name) / "checkpoint")[1] for name in ("stopped", "whole")]  # pyright: ignore
    assert all(torch.equal(value, trees[1]["learner"][key]) for key, value in trees[0]["learner"].items())
    memory = dualnet.load("whole").learner.memory
    assert set(memory.task_ids[memory.labels == 0].tolist()) == {0} and 2 in memory.task_ids


@pytest.mark.filterwarnings("always")
def test_bad_files_are_left_out_if_wanted(photos: Path, learn: Any, capsys: Any) -> None:
    (photos / "cat" / "bad.png").write_bytes(b"nothing")
    assert learn("photos", "--out", "m", *WORDS) == 2
    assert "bad.png" in capsys.readouterr().err and not Path("m").exists()
    assert learn("photos", "--out", "m", *WORDS, "--on-error", "skip") == 0
    captured = capsys.readouterr()
    assert "bad.png" in captured.err and "8 images" in captured.out and "left out, since" not in captured.err
    for file in Path("photos/dog").glob("*.png"):
        file.write_bytes(b"no image")
    assert learn("photos", "--out", "m2", *WORDS, "--on-error", "skip") == 0
    assert "dog: left out, since no image in these class folders can be read\n" in capsys.readouterr().err


REFUSED: dict[str, tuple[str, str]] = {
    "no folder": ("missing --out m", "missing: "),
    "no out": ("photos", "--out"),
    "no image": ("empty --out m", "in this class folder; add images or remove the folder\n"),
    "splits": (
        "splits --out m",
        "splits: looks like a folder of splits; give splits/train for training, and splits/val for testing",
    ),
    "no class": ("photos/cat --out m", "photos/cat: the images of one class; did you mean photos"),
    "a file": ("photos/cat/0.png --out m", "photos/cat/0.png: "),
    "a model alone": ("model --out m", "model: is a model"),
    "a model that is none": (
        "photos photos --out m",
        "photos: holds no checkpoint that can be read; give",
    ),
    "a folder that holds a model": (
        ". photos --out m",
        "such as RUN, or for a new model only one folder of images",
    ),
    "a model that is not there": ("nowhere photos --out m", "nowhere: does not exist; give the folder of a run"),
    "two folders": ("model photos photos --out m", "photos: "),
    "out holds another model": ("photos --out model", "dualnet learn model photos --out model"),
    "out holds another model still": ("other more --out model", "--out model: holds a model"),
    "out holds files": ("photos --out photos", "photos: holds other files"),
    "out is a file": ("photos --out photos/cat/0.png", "photos/cat/0.png: cannot be used"),
    "out inside of the images": ("photos --out photos/m", "--out photos/m: is inside of photos, "),
    "out inside of the test images": ("photos --test more --out more/a/m", "--out more/a/m: is inside of more, "),
    "out inside of the unlabelled": ("photos --unlabelled more/owl --out more/owl/m", "is inside of more/owl, "),
    "out below a file": ("more --out photos/cat/0.png/m", "photos/cat/0.png/m: cannot be made"),
    "out is a run": ("photos --out RUN", "holds a run"),
    "the same class in other letters": ("model clash --out m", "'Cat' differs from 'cat'"),
    "unlabelled is the folder": ("photos --unlabelled photos --out m", "--unlabelled photos: "),
    "unlabelled is not there": ("photos --unlabelled missing --out m", "missing: "),
    "unlabelled holds no image": ("photos --unlabelled empty --out m", "empty: no images"),
    "unlabelled is not learned": ("model more --unlabelled photos/cat --out m", "model has no slow phase"),
    "test is the folder": ("photos --test ./photos/ --out m", "--test ./photos/: "),
    "test has other classes": ("model more --test others --out m", "--test: 'bus'"),
    "an option that the model has": ("model more --out m --learner.lr 1", "--learner: "),
    "a size that the model has": ("model more --out m --image-size 32", "--image-size: "),
    "an unknown option": ("photos --out m --learner.widht 3", "learner.widht: unknown option"),
    "another unknown option": ("photos --out m --epoch 3", "epoch: unknown option; did you mean epochs?"),
    **{
        f"{option} with an underscore": (
            f"photos --out m --{option} {value}",
            f"{option}: unknown option; did you mean {option.replace('_', '-')}?",
        )
        for option, value in (("batch_size", 4), ("on_error", "skip"), ("save_every", 1), ("image_size", 32))
    },
    "an unknown learner": ("photos --out m --learner.name dualnt", "learner.name: 'dualnt'"),
    "a learner that is no name": ("photos --out m --learner er", "--learner.name"),
    "an option of gradients": (
        "photos --out m --learner.updates 3",
        "learner.updates: has no effect with a closed-form",
    ),
    "several passes": ("photos --out m --epochs 2", "--epochs: with a closed-form head one pass learns all"),
    "no memory for a learner that replays": ("photos --out m --memory 0 --learner.name er", "memory.slots: 0 is for"),
    "a memory of less": ("photos --out m --memory -1", "learner.memory.slots: -1 is not 0 or more"),
    "a memory that the model has": ("model more --out m --memory 3", "--memory: only for a new model"),
    "an unknown encoder": ("photos --out m --encoder resnet", "encoder: 'resnet' is not one of"),
    "a learner with tasks": ("photos --out m --learner.name ctn", "learner.name: ctn needs tasks"),
    "no epoch": ("photos --out m --epochs 0", "--epochs: '0'"),
    "no batch": ("photos --out m --batch-size x", "--batch-size: 'x'"),
    "a seed below 0": ("photos --out m --seed -1", "seed: -1"),
    "too small": ("photos --out m --image-size 3", "too small"),
    "too large": ("photos --out m --image-size 4000", "image_size: 4000 is not between 1 and 1024"),
    "too many slots": ("photos --out m --learner.memory.slots 1000000000000", "memory.slots: 1000000000000 slots"),
    "a task of a model without": ("model more --task 1 --out m", "task: 1 is given, but the model has no tasks"),
    "a task that is not there": ("RUN more --task 7 --out m", "task: 7 "),
    "unlabelled of which task": ("RUN2 known --unlabelled photos/cat --out m", "--task: "),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """Folders to be refused; nothing is written here."""
    root = tmp_path_factory.mktemp("places")
    draw(root / "photos", "cat", "dog")
    draw(root / "more", "owl", "cat", seed=1)
    draw(root / "others", "bus")
    draw(root / "clash", "Cat")
    (root / "empty" / "cat").mkdir(parents=True)
    for split in ("train", "val"):
        draw(root / "splits" / split, "cat", "dog")
    shutil.copytree(finished, root / "RUN")
    shutil.copytree(finished, root / "RUN2")
    draw(root / "known", dualnet.load(finished).class_names[0])
    for name, seed in (("model", 0), ("other", 1)):
        small = {"name": "er", "encoder": {"width": 2}, "memory": {"slots": 4}}
        Model.create(["cat", "dog"], image_size=28, learner=small, seed=seed).save(root / name)
    return root


@pytest.mark.parametrize("what", REFUSED)
def test_nonsense_is_refused_in_one_line(
    what: str, places: Path, error_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, message = REFUSED[what]
    monkeypatch.chdir(places)
    before = file_times(places)
    assert message in error_line("learn", *words.split(), "--device", "cpu")
    assert file_times(places) == before, "nothing was made or changed"


def test_a_second_process_is_refused_before_it_loads_the_model(
    photos: Path, learn: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise it would save a model without the classes of the first one."""
    draw(tmp_path / "more", "owl")
    assert learn("photos", "--out", "m", *WORDS) == 0
    begin, codes = Session.begin, []

    def begin_beside_another(session: Session) -> None:
        monkeypatch.setattr(Session, "begin", begin)
        codes.append(learn("m", "more", "--out", "m"))
        begin(session)

    monkeypatch.setattr(Session, "begin", begin_beside_another)
    assert learn("m", "more", "--out", "m") == 0
    assert codes == [2] and "m: another process is running here" in capsys.readouterr().err
    assert dualnet.load("m").class_names == ("cat", "dog", "owl")


def test_a_refused_session_leaves_no_folder(photos: Path, learn: Any) -> None:
    (photos / "cat" / "bad.png").write_bytes(b"nothing")
    assert learn("photos", "--out", "models/new/m", *WORDS) == 2
    assert not Path("models").exists()


@pytest.mark.filterwarnings("ignore:.*its session")
def test_a_model_that_diverges_keeps_what_was_saved(photos: Path, learn: Any, capsys: Any) -> None:
    assert learn("photos", "--out", "m", *WORDS, "--learner.lr", "1e30", "--epochs", 9) == 1
    assert "diverged" in capsys.readouterr().err
    assert all(weight.isfinite().all() for weight in dualnet.load("m").learner.parameters())


@pytest.mark.filterwarnings("always")
def test_an_image_in_the_folders_of_several_classes_is_named_once(photos: Path, learn: Any, capsys: Any) -> None:
    """By its pixels; not twice in one class, not if it has no label, and not again when nothing is learned."""
    shutil.copy("photos/cat/0.png", "photos/cat/again.png")
    shutil.copytree("photos/dog", "unlabelled")
    words = ["photos", "--unlabelled", "unlabelled", "--out", "m", *WORDS]
    assert learn(*words) == 0 and "warning" not in capsys.readouterr().err
    draw(Path("photos"), "owl")
    Image.open("photos/cat/2.png").save("photos/owl/same.bmp")
    for name in ("dog", "owl"):
        shutil.copy("photos/cat/0.png", f"photos/{name}/copy.png")
    warning = "2 images are in the folders of several classes, first photos/cat/0.png and photos/dog/copy.png: keep"
    for number in range(2):
        assert learn("m", *words[:3], "--out", "m") == 0
        assert capsys.readouterr().err.count(warning) == 1 - number


@pytest.mark.filterwarnings("always")
def test_test_images_that_are_learned_are_counted(photos: Path, learn: Any, capsys: Any) -> None:
    draw(Path("test"), "cat", seed=1)
    for file in ("cat/0.png", "dog/1.png"):
        Path("test", file).parent.mkdir(exist_ok=True)
        shutil.copy(photos / file, Path("test", file).with_stem("copy"))
    size = len([*Path("test").glob("*/*.png")])
    assert learn("photos", "--out", "m", *WORDS, "--test", "test") == 0
    warning = f"--test: this session learns 2 of {size} images, first cat/copy.png; give other test images"
    assert capsys.readouterr().err.count(warning) == 1
    shutil.copytree("photos", "copies")
    assert learn("photos", "--out", "h", *WORDS, "--test", "copies", "--held-out-every", 3) == 0
    learned = dualnet.load("h").sessions[-1]["images"]
    assert 0 < learned < 8 and f"learns {learned} of 8 images, " in capsys.readouterr().err


def stored(model: Model) -> list[tuple[bytes, str]]:
    memory = model.learner.memories[0]
    examples = zip(memory.images[memory.filled], memory.labels[memory.filled].tolist(), strict=True)
    return [(image.numpy().tobytes(), model.class_names[label]) for image, label in examples]


def test_an_image_that_comes_again_is_stored_once_with_its_last_label(photos: Path, learn: Any) -> None:
    """A larger folder that is learned again, one file of which moved to the folder of its correct class."""
    assert learn("photos", "--out", "m", *WORDS) == 0
    before = stored(dualnet.load("m"))
    assert len({*before}) == len(before) == 8
    draw(photos, "owl")
    (photos / "cat" / "2.png").rename(photos / "dog" / "moved.png")
    assert learn("m", "photos", "--out", "m") == 0
    after = stored(dualnet.load("m"))
    assert len({image for image, _ in after}) == len(after) == 12
    [moved] = {*before} - {*after}
    assert moved[1] == "cat" and (moved[0], "dog") in after


def test_a_small_memory_stays_balanced_when_a_folder_is_learned_again(photos: Path, learn: Any) -> None:
    shutil.rmtree(photos)
    draw(photos, "cat", "dog", "owl", count=20)
    assert learn("photos", "--out", "m", *WORDS, "--learner.memory.slots", 30) == 0
    for epochs in (1, 2, 3):  # the same command again would change nothing
        assert learn("m", "photos", "--out", "m", "--epochs", epochs) == 0
        examples = stored(dualnet.load("m"))
        counts = Counter(name for _, name in examples)
        assert len({*examples}) == len(examples) and min(counts.values()) >= 6 and max(counts.values()) <= 11


def test_images_without_a_label_leave_the_memory_as_it_is(photos: Path, learn: Any) -> None:
    draw(Path("more"), "owl")
    shutil.copytree(photos / "cat", "unlabelled")
    assert learn("photos", "--unlabelled", "unlabelled", "--out", "m", *WORDS) == 0
    before = stored(dualnet.load("m"))
    assert learn("m", "more", "--unlabelled", "unlabelled", "--out", "m") == 0
    assert {*before} < {*stored(dualnet.load("m"))}
