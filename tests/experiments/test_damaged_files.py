"""Damaged files of a run, a search and a saved model: each reader gives a ValueError of one line, or a warning."""

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_fixtures import CPU

import dualnet
from dualnet.experiments import checkpoint
from dualnet.experiments.run import Run
from dualnet.experiments.run_folder import RunFolder
from dualnet.jobs.rows import read_outcome
from dualnet.report import report
from dualnet.report.rows import compare
from dualnet.reproduce.ledger import make_ledger
from dualnet.reproduce.table_file import read_rows
from dualnet.stream.stream import Stream

NUM_MUTATIONS = 40  # of each file
WORDS = ["", "x" * 300, "\0", "null", "\u202e", "../..", "dualnet", "1e400", "er"]
NUMBERS = [0, -1, 1, 2**31, 2**53, 10**30, 10**400, 1e-300, 1e308, float("nan"), float("inf")]


def damaged_value(value: Any, chance: random.Random) -> Any:
    """A value of another type or size, somewhere in a tree."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if chance.random() < 0.2 else {**rest, key: damaged_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], damaged_value(value[place], chance), *value[place + 1 :]]
    deep: Any = 0
    for _ in range(chance.choice([5, 60, 150])):
        deep = [deep] if chance.random() < 0.5 else {"a": deep}
    word, number = chance.choice(WORDS), chance.choice(NUMBERS)
    return chance.choice([None, True, [], {}, [value], {"name": value}, deep, word, number])


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut out or put in twice."""
    data = bytearray(content)
    start, length = chance.randrange(len(data)), chance.choice([1, 3, 40])
    way = chance.randrange(4)
    if way == 0:
        data[start] ^= 1 << chance.randrange(8)
    elif way == 1:
        del data[start : start + length]
    elif way == 2:
        data[start:start] = data[start : start + length] * chance.choice([1, 200])
    else:
        del data[start:]
    return bytes(data)


def damage(file: Path, chance: random.Random) -> None:
    if file.suffix == ".safetensors" or chance.random() < 0.5:
        file.write_bytes(damaged_bytes(file.read_bytes(), chance))
        return
    text = file.read_text()
    if file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(damaged_value(yaml.safe_load(text), chance)))
    elif file.suffix == ".jsonl":
        lines = text.splitlines()
        place = chance.randrange(len(lines))
        lines[place] = json.dumps(damaged_value(json.loads(lines[place]), chance))
        file.write_text("\n".join(lines) + "\n")
    else:
        file.write_text(json.dumps(damaged_value(json.loads(text), chance)))


def assert_one_line(read: Callable[[], Any], what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except ValueError as error:
            assert type(error) is ValueError and "\n" not in str(error) and len(str(error)) < 2000, (what, str(error))
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__} instead of ValueError") from error


def fuzz(whole: Path, name: str, place: Path, read: Callable[[Path], Any], keep: bool = False) -> None:
    for number in range(NUM_MUTATIONS):
        folder = place / str(number)
        shutil.copytree(whole, folder)
        (file,) = folder.glob(name)
        damage(file, random.Random(f"{name} {number}"))
        assert_one_line(lambda folder=folder: read(folder), f"{name}, mutation {number}")
        if not keep:
            shutil.rmtree(folder)


EVENTS = (
    {"event": "stability", "task": 1, "step": 60, "seconds": 3.0, "accuracy": [70.0]},
    {"event": "anytime", "task": 1, "step": 60, "seconds": 3.0, "accuracy": 70.0, "classes": 4},
    {"event": "memory", "task": 1, "step": 80, "seconds": 3.0, "slots": 4, "tasks": [2, 2], "classes": [1, 1, 1, 1]},
)
OF_A_RUN = ["result.json", "log.jsonl", "experiment.yaml"]


MISTAKE = {"truth": 0, "answer": 1, "probability": 0.9, "image": "a/1.png", "thumbnail": "/9j/4AAQ"}
CLASSES = {"counts": [5, 5, 5, 5], "confusions": [[0, 1, 2], [3, 2, 1]], "mistakes": [MISTAKE]}


@pytest.mark.parametrize("name", [*OF_A_RUN, "classes.json"])
def test_a_report(name: str, make_run, plots_unsaved, tmp_path: Path) -> None:
    cost = {"forward_samples": 10, "backward_samples": 10}
    whole = make_run(tmp_path / "whole", events=EVENTS, cost=cost, classes=CLASSES)
    fuzz(whole, name, tmp_path / "damaged", lambda folder: compare([folder]), keep=True)
    assert_one_line(lambda: report([tmp_path / "damaged"], tmp_path / "report"), name)
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_ledger(name: str, make_run, tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    shared = {"benchmark": {"name": "procedural"}, "learner": {"name": "er"}}
    table.write_text(yaml.safe_dump({"shared": shared, "groups": {"g": {"rows": {"er": {}}}}}))
    (row,) = read_rows(str(table))
    make_run(tmp_path / "whole" / row.runs_of / "seed-0")
    make_run(tmp_path / "whole" / row.runs_of / "seed-1", seed=1)
    name = f"{row.runs_of}/seed-1/{name}"
    fuzz(tmp_path / "whole", name, tmp_path / "damaged", lambda out: make_ledger([row], out, "authors", 2.0))


@pytest.mark.parametrize("name", [*OF_A_RUN, "checkpoint/step-00000005.safetensors"])
def test_a_resume(name: str, tiny, benchmark, stopped: Path, make_run, tmp_path: Path) -> None:
    shutil.copy(make_run(tmp_path / "made") / "result.json", stopped)
    stream = Stream(benchmark, "task_aware", 4, CPU)

    def resume(path: Path) -> None:
        folder = RunFolder(path)
        folder.check_purpose(validation=False)
        folder.prepare(tiny(), benchmark, CPU)
        Run(tiny(), folder, stream)

    fuzz(stopped, name, tmp_path / "damaged", resume)


def test_a_model(stopped: Path, tmp_path: Path) -> None:
    fuzz(stopped, "checkpoint/step-00000005.safetensors", tmp_path / "damaged", dualnet.load)


def test_a_checkpoint_whose_digest_fits(tiny, benchmark, stopped: Path) -> None:
    """As one of a learner whose code has changed."""
    folder, stream = RunFolder(stopped), Stream(benchmark, "task_aware", 4, CPU)
    chance = random.Random(0)
    tree, tensors = checkpoint.snapshot(checkpoint.load(folder.checkpoints, 5).tree)
    for number in range(NUM_MUTATIONS):
        checkpoint.write(folder.checkpoints, 5, (damaged_value(tree, chance), tensors))
        assert_one_line(lambda: Run(tiny(), folder, stream), f"resume, tree {number}")
        assert_one_line(lambda: dualnet.load(stopped), f"load, tree {number}")


@pytest.mark.parametrize("name", ["seed-0/result.json", "seed-0/log.jsonl"])
def test_an_outcome(name: str, make_run, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    events = [{"event": "diverged", "step": 80, "reason": "loss is not finite"}]
    make_run(whole / "seed-0", None if "log" in name else [[80.0, None], [60.0, 70.0]], events=events)
    fuzz(whole, name, tmp_path / "damaged", lambda out: read_outcome(out / "seed-0"))
