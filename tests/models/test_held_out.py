"""Images that `dualnet learn` holds out: the same ones in every session, kept with the model, never learned."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import class_folders, picture
from forked import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from serving import open_model

import dualnet
from dualnet import Model, cli
from dualnet.experiments import checkpoint
from dualnet.models import held_out
from dualnet.models.held_out import HeldOut, is_held_out, pixel_digest
from dualnet.serve.options import Options

EVERY = 3
LEARNER = "--image-size 28 --learner.preset best --learner.encoder.width 2 --learner.updates 1 --learner.replay_size 4"
SLOW = "--learner.memory.slots 60 --learner.slow.rounds 1 --learner.slow.batch_size 4 --learner.slow.inner_steps 1"
NARROW = "--image-size 28 --learner.encoder.weights null --learner.encoder.width 4"
NEW = [*LEARNER.split(), *SLOW.split(), "--held-out-every", str(EVERY)]
EXACT = [*NARROW.split(), "--held-out-every", str(EVERY)]  # with a closed-form head


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def learn(*words: object) -> int:
    return cli.main(["learn", *map(str, words), "--device", "cpu"])


def state_at(folder: str) -> dict[str, Any]:
    return (checkpoint.newest(Path(folder, "checkpoint")) or (0, {}, ""))[1]


def images_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 2, 2), dtype=np.uint8)


def labels_of(held: HeldOut) -> dict[bytes, int]:
    return {image.tobytes(): label for image, label in zip(held.images.numpy(), held.labels.tolist(), strict=True)}


def in_bytes(images: Any) -> set[bytes]:
    return {np.asarray(image).tobytes() for image in images}


# What is held out, and kept


@pytest.mark.parametrize("every", [2, 5, 10])
def test_about_one_image_in_so_many_is_held_out(every: int) -> None:
    digests, count = [pixel_digest(image.tobytes()) for image in images_of(0, 4000)], 4000 / every
    assert abs(sum(is_held_out(digest, every) for digest in digests) - count) < 4 * count**0.5
    assert not any(is_held_out(digest, 0) for digest in digests)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40), st.integers(0, 40), st.randoms())
def test_what_is_kept_depends_on_the_images_and_not_on_their_order(pairs: Any, cut: int, random: Any) -> None:
    """In two sessions or in one, in any order; at most MAX_KEPT in all, shared equally by the classes."""
    images, labels = images_of(0, 31), dict(pairs)
    pairs = [(number, labels[number]) for number, _ in pairs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "MAX_KEPT", 12)
        kept = []
        for parts in ([pairs], [pairs[:cut], pairs[cut:]], [random.sample(pairs, len(pairs))]):
            held = HeldOut(5)
            for part in parts:
                held = held.with_images([images[number] for number, _ in part], [label for _, label in part])
            kept.append(labels_of(held))
            assert len(kept[-1]) == len(held.labels)
    assert kept[0] == kept[1] == kept[2]
    share = 12 // max(1, len({*labels.values()}))
    for label in {*labels.values()}:
        assert [*kept[0].values()].count(label) == min(share, [*labels.values()].count(label))


def test_an_image_that_comes_again_has_its_last_label() -> None:
    images = images_of(0, 3)
    held = HeldOut(5).with_images(images, [0, 0, 1]).with_images(images[:1], [1])
    assert labels_of(held) == {images[0].tobytes(): 1, images[1].tobytes(): 0, images[2].tobytes(): 1}


def test_a_removed_class_moves_the_others_down() -> None:
    images = images_of(0, 4)
    held = HeldOut(5).with_images(images, [2, 0, 1, 2]).without_class(1)
    assert held.labels.tolist() == [0, 1, 1] and in_bytes(held.images) == in_bytes(images[[1, 0, 3]])


# Sessions


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """The images that models learn, as bytes."""
    learned, model_learn = set[bytes](), Model.learn

    def learn_and_note(model: Model, images: Any, *rest: Any, **options: Any) -> Any:
        learned.update(in_bytes(images))
        return model_learn(model, images, *rest, **options)

    monkeypatch.setattr(Model, "learn", learn_and_note)
    return learned


def test_no_session_learns_what_another_one_tests(learned: set[bytes], capsys: Any) -> None:
    """The images come again under other names, in another folder, without a label, and with other images."""
    class_folders(["cat", "dog"], 12, "one")
    class_folders(["owl"], 12, "two", seed=1000)
    Path("two/dog").mkdir()
    for number, file in enumerate(sorted(Path("one/dog").iterdir())):
        shutil.copy(file, f"two/dog/IMG-{number}.png")
    shutil.copytree("one/cat", "unlabelled")
    for number in range(6):
        picture(Path("unlabelled", f"new-{number}.png"), 2000 + number)
    tested = list[set[bytes]]()
    first = ["one", "--unlabelled", "unlabelled", "--epochs", 2, *NEW]
    for words in (first, ["m", "two", "--unlabelled", "unlabelled"], ["m", "one"]):
        assert learn(*words, "--out", "m") == 0
        tested.append(in_bytes(dualnet.load("m").held_out.images))
    assert not learned & set().union(*tested)
    assert tested[0] and tested[0] <= tested[1] and tested[1] == tested[2]
    assert len(learned) + len(tested[2]) <= 42 and len(learned) > 20
    assert "before" in capsys.readouterr().out


def test_show_has_the_accuracy_on_held_out_images(capsys: Any) -> None:
    class_folders(["dog"], 8, "one")
    shutil.copytree(split_of("noise")[1], "one/cat")
    class_folders(["dog", "owl"], 12, "two", seed=1000)
    assert learn("one", "--out", "m", *NEW) == learn("m", "two", "--out", "m") == 0
    printed = capsys.readouterr().out
    kept = dualnet.load("m").held_out.labels.tolist()
    old, new = kept.count(1), kept.count(2)
    assert old and new and f" % now ({old} images)\n" in printed and f" % now ({new} images)" in printed
    assert "  no held-out images yet: cat\n" in printed
    assert cli.main(["show", "m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = (line.split() for line in lines if line.startswith("20"))
    assert first[-2] == "—" and "→" in second[-2] and "→" not in second[-1]
    assert any(line.endswith(f"held out {old}; held out, new {new}") for line in lines)


def test_the_accuracy_is_that_of_the_held_out_images(capsys: Any) -> None:
    class_folders(["cat", "dog"], 12, "one")
    class_folders(["owl", "dog"], 12, "two", seed=1000)
    class_folders(["cat", "dog"], 4, "test", seed=2000)
    assert learn("one", "--out", "m", *NEW) == 0
    first = dualnet.load("m")
    assert capsys.readouterr().out.splitlines()[1].startswith("  held-out images: ")
    assert learn("m", "two", "--out", "m2", "--test", "test") == 0
    line, *lines, _ = capsys.readouterr().out.splitlines()
    session, model = state_at("m2")["session"], dualnet.load("m2")
    images, labels = model.held_out.images, model.held_out.labels
    for part, rows in {"held_out_old": labels < 2, "held_out_new": labels == 2}.items():
        names = [model.class_names[label] for label in labels[rows]]
        evaluation = model.evaluate(images[rows], names)
        assert session["after"][part] == [pytest.approx(evaluation.accuracy), len(names)]
        if part == "held_out_old":
            before = first.evaluate(images[rows], names).accuracy
            assert session["before"][part] == [pytest.approx(before), len(names)]
            assert (
                f"  held-out images, earlier classes: {before:.1f} % before, {evaluation.accuracy:.1f} % now"
                in lines[0]
            )
    cat, dog, owl = (labels.tolist().count(number) for number in range(3))
    assert cli.main(["show", "m2"]) == 0
    kept = f"{len(labels)} images kept for testing (cat {cat}, dog {dog}, owl {owl})"
    assert f"held out: about one image in {EVERY}; {kept}" in capsys.readouterr().out.splitlines()
    assert "old" in session["after"] and "held_out_new" not in session["before"]
    held = count_held_out("two")
    assert f"learned from {24 - held} images; {held} held out" in line
    assert learn("m", "two", "--out", "m2", "--test", "test") == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == lines, "repeated: nothing changes"
    assert torch.equal(dualnet.load("m2").held_out.images, images)


@pytest.mark.filterwarnings("ignore:damaged checkpoint")
@pytest.mark.parametrize("new", [NEW, EXACT], ids=["gradients", "closed form"])
def test_killed_sessions_equal_whole_ones(new: list[str], state_of: Any, differing: Any) -> None:
    class_folders("abc", 12, "one")
    class_folders("cd", 12, "two", seed=1000)
    class_folders("abc", 12, "test", seed=2000)
    shutil.copy(min(Path("one/a").iterdir()), "two/c/corrected.png")
    for words in (["one", *new], ["OUT", "two", "--test", "test"]):
        for out in ("whole", "killed"):
            given = ["learn", *(out if word == "OUT" else word for word in words), "--out", out, "--batch-size", 3]
            given = [*map(str, given), "--save-every", "1", "--device", "cpu"]
            before = max(checkpoint.steps(Path(out, "checkpoint")), default=0)
            process = CommandLine(*given) if out == "killed" else None
            while process and max(checkpoint.steps(Path(out, "checkpoint")), default=0) < before + 3:
                assert process.poll() is None
                time.sleep(0.002)
            if process:
                process.send_signal(signal.SIGKILL)
                assert process.rest()[0] == -signal.SIGKILL
                session = state_at(out)["session"]
                assert 0 < session["step"] < session["steps"]
            assert cli.main(given) == 0
        whole, killed = dualnet.load("whole"), dualnet.load("killed")
        assert not differing(state_of(whole.learner), state_of(killed.learner))
        assert whole.examples.labels == killed.examples.labels and bool(whole.examples) == (new == EXACT)
        assert whole.held_out.every == killed.held_out.every == EVERY and len(whole.held_out.labels) > 4
        assert torch.equal(whole.held_out.images, killed.held_out.images)
        assert torch.equal(whole.held_out.labels, killed.held_out.labels)
        records = [state_at(out)["session"] for out in ("whole", "killed")]
        assert records[0]["after"] == records[1]["after"] and records[0]["before"] == records[1]["before"]


def test_a_removed_class_leaves_every_file_and_a_renamed_one_is_tested_by_its_new_name(capsys: Any) -> None:
    class_folders(["cat", "dog", "owl"], 12, "one")
    assert learn("one", "--out", "m", *NEW) == 0
    held = dualnet.load("m").held_out
    assert {*held.labels.tolist()} == {0, 1, 2}
    assert cli.main(["edit", "m", "--remove", "cat", "--rename", "owl", "uhu"]) == 0
    files = [file.read_bytes() for file in Path("m").rglob("*.safetensors")]
    for image, label in zip(held.images, held.labels.tolist(), strict=True):
        assert [image.numpy().tobytes() in file for file in files] == [label != 0]
    class_folders(["uhu", "cat"], 12, "two", seed=3000)
    capsys.readouterr()
    assert learn("m", "two", "--out", "m") == 0
    counts = state_at("m")["session"]["after"]
    uhu, cat = (count_held_out(f"two/{name}") for name in ("uhu", "cat"))
    assert counts["held_out_old"][1] == sum(held.labels > 0) + uhu and counts["held_out_new"][1] == cat > 0


def count_held_out(folder: str) -> int:
    return sum(map(is_selected, in_bytes(dualnet.load("m").pixels_to_learn(folder))))


def is_selected(image: bytes) -> bool:
    return is_held_out(pixel_digest(image), EVERY)


def split_of(folder: str) -> tuple[Path, Path]:
    """Folders of images that are held out, and that are not."""
    model = Model.create(image_size=28, learner={"name": "er", "encoder": {"width": 2}})
    for number in range(20):
        picture(file := Path(folder, f"{number}.png"), 5000 + number)
        side = "out" if is_selected(model.pixels_to_learn(file).numpy().tobytes()) else "learned"
        Path(folder, side).mkdir(exist_ok=True)
        file.rename(Path(folder, side, file.name))
    return Path(folder, "out"), Path(folder, "learned")


@pytest.mark.parametrize("new", [NEW, EXACT], ids=["gradients", "closed form"])
def test_of_a_new_class_one_image_is_learned(new: list[str], learned: set[bytes], capsys: Any) -> None:
    """In later sessions too; of a known class all images may be held out. Classes without a test are named."""
    out, rest = split_of("noise")
    first, second, *_ = sorted(out.iterdir())
    shutil.copytree(rest, "one/cat")
    for name, file in (("one/dog", first), ("two/cat", second), ("two/dog", first)):
        Path(name).mkdir(parents=True)
        shutil.copy(file, name)
    assert learn("one", "--out", "m", *new) == 0
    assert "  no held-out images yet: cat, dog\n" in capsys.readouterr().out
    dog = pixels_at(first)
    assert dog in learned
    assert learn("m", "two", "--out", "m") == learn("m", "two", "--out", "m") == 0
    printed = capsys.readouterr().out
    assert "learned from 1 image; 1 held out\n" in printed and "(1 image)" in printed and "yet: dog" in printed
    assert in_bytes(dualnet.load("m").held_out.images) == {pixels_at(second)}


def pixels_at(file: Path) -> bytes:
    return dualnet.load("m").pixels_to_learn(file).numpy().tobytes()


REFUSED = {
    "photos --held-out-every 1 --out m2": "held_out_every: with 1 no image is learned; give 2 or more, or 0",
    "photos --held-out-every -1 --out m2": "held_out_every: -1 is not 0 or more",
    "photos --held-out-every few --out m2": "--held-out-every",
    "m photos --held-out-every 3 --out m2": "--held-out-every: only for a new model; m keeps its own options",
    "photos --held-out-every 4 --out m": "--out m: holds a model that learned with other images or options",
    f"photos {LEARNER} {SLOW} --out m": "--out m: holds a model that learned with other images or options",
}


def test_nonsense_is_refused(error_line: Any) -> None:
    class_folders(["cat", "dog"], 6, "photos")
    assert learn("photos", "--out", "m", *NEW) == 0
    for words, message in REFUSED.items():
        assert message in error_line("learn", *words.split(), "--device", "cpu"), words
    assert not Path("m2").exists()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("labels", lambda labels: labels + 9),
        ("labels", lambda labels: labels[1:]),
        ("images", lambda images: images[:, :1]),
        ("every", lambda _: -2),
    ],
)
def test_held_out_images_that_do_not_match_the_model_are_refused(part: str, change: Any, error_line: Any) -> None:
    class_folders(["cat", "dog"], 12, "photos")
    assert learn("photos", "--out", "m", *NEW) == 0
    state = state_at("m")
    state["held_out"][part] = change(state["held_out"][part])
    checkpoint.write(Path("m/checkpoint"), 9, checkpoint.snapshot(state))
    assert "step-00000009.safetensors: cannot be used (held_out" in error_line("show", "m")


def test_a_service_does_not_take_over_the_images() -> None:
    class_folders(["cat", "dog"], 12, "photos")
    assert learn("photos", "--out", "m", *NEW) == 0
    model = open_model(Options(Path("live"), model=Path("m"), device="cpu"))
    held = dualnet.load("m").held_out
    assert model.held_out.every == 0 and len(held.images)
    files = [file.read_bytes() for file in Path("live").rglob("*.safetensors")]
    assert files and not any(image in file for image in in_bytes(held.images) for file in files)
