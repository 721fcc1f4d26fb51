"""The manifest: which options belong to the protocol, and that its digest differs if and only if they do."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dualnet.data.benchmark import Benchmark
from dualnet.data.splits import Split, divide_classes, make_benchmark
from dualnet.experiments.manifest import FIELDS, MANIFEST, class_order_digest, differences, manifest_of

TASK_AWARE = {"heads": "per_task", "boundaries": "told", "memory": "ring", "memory_slots": 8}


def test_what_a_manifest_says(tiny, benchmark: Benchmark) -> None:
    manifest = manifest_of(tiny("er"), benchmark)
    expected = {
        **TASK_AWARE,
        "benchmark": "procedural",
        "num_tasks": 2,
        "image_size": 28,
        "batch_size": 4,
        "passes": 1,
        "label_share": 1.0,
        "labels_drawn": "all",
        "label_delay": "0",
        "augmentation": "none",
        "updates": 1,
        "width": 2,
        "forgetting": "paper",
    }
    assert {key: manifest[key] for key in expected} == expected
    assert manifest["split"] == benchmark.split_digest != ""


CHANGES: dict[str, tuple[dict[str, Any], set[str]]] = {  # what is changed, and the fields that must change with it
    "batch size": ({"batch_size": 2}, {"batch_size"}),
    "few labels": ({"labels": {"share": 0.5}}, {"label_share", "labels_drawn"}),
    "all labels, however drawn": ({"labels": {"drawn_per": "batch"}}, set()),
    "late labels": ({"labels": {"delay": 1}}, {"label_delay"}),
    "labels out of order": ({"labels": {"delay_spread": 1}}, {"label_delay"}),
    "width": ({"learner": {"encoder": {"width": 3}}}, {"width"}),
    "updates": ({"learner": {"updates": 2}}, {"updates"}),
    "slots": ({"learner": {"memory": {"slots_per_class": 3}}}, {"memory_slots"}),
    "policy": ({"learner": {"memory": {"policy": "reservoir"}}}, {"memory"}),
    "no task told": ({"protocol": "task_free"}, {"heads", "boundaries", "memory"}),
    "blurry boundaries": (
        {"blurry": {"share": 0.5}, "protocol": "task_free"},
        {"blurry", "heads", "boundaries", "memory"},
    ),
    "boundaries told": ({"protocol": "task_free_boundaries"}, {"heads", "memory"}),
    "other images": ({"benchmark": {"seed": 1}}, {"split"}),
    "more images": ({"benchmark": {"train_per_class": 7}}, {"split"}),
    "larger images": ({"benchmark": {"image_size": 32}}, {"image_size"}),
    "another order": ({"benchmark": {"order_seed": 1}}, {"class_order"}),
    "more tasks": ({"benchmark": {"num_tasks": 3}}, {"num_tasks", "class_order", "split", "memory_slots"}),
    "no memory": ({"learner": {"name": "finetune", "encoder": {"width": 2}, "updates": 1}}, {"memory", "memory_slots"}),
    # What decides a result, but is the method's own, or decides nothing
    "rates": ({"learner": {"lr": 0.5, "slow": {"lr": 0.5, "beta": 0.1, "rounds": 2}}}, set()),
    "seed": ({"seed": 3, "name": "other", "log_every": 7, "precision": "fp32"}, set()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_changes_with_a_field_and_with_nothing_else(change: str, tiny) -> None:
    options, fields = CHANGES[change]
    default, other = (manifest_of(each, each.benchmark.make()) for each in (tiny(), tiny(**{"learner": {}, **options})))
    changed = {field for field in FIELDS if default.get(field) != other.get(field)}
    assert changed == fields
    assert (default["digest"] != other["digest"]) == bool(fields)
    assert set(differences(other, default)) == fields


def test_labels_that_are_lost_by_batch_are_another_protocol(tiny, benchmark: Benchmark) -> None:
    by_sample, by_batch = (
        manifest_of(tiny(labels={"share": 0.5, "drawn_per": what}), benchmark) for what in ("sample", "batch")
    )
    assert differences(by_sample, by_batch) == {"labels_drawn": ("sample", "batch")}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_in_the_digest(field: str, tiny, benchmark: Benchmark, monkeypatch) -> None:
    before = manifest_of(tiny(), benchmark)
    assert manifest_of(tiny(), benchmark) == before
    monkeypatch.setitem(MANIFEST, field, lambda *_: "another value")
    assert manifest_of(tiny(), benchmark)["digest"] != before["digest"]


def test_the_order_of_classes_counts_across_tasks_only() -> None:
    labels, is_test = np.repeat(np.arange(4), 2), np.tile([False, True], 4)
    images = np.zeros((8, 3, 28, 28), np.uint8)

    def digests(names: list[str]) -> tuple[str, str]:
        order = [names.index(name) for name in "abcd"]  # class number by name: each name keeps its images
        files = [f"{row}.png" for row in range(8)]
        made = make_benchmark(images, Split(np.array(order)[labels], is_test, names, divide_classes(4, 2), files))
        return class_order_digest(made), made.split_digest

    order, split = digests(list("abcd"))
    assert digests(list("badc")) == (order, split), "within a task"
    swapped, same = digests(list("cdab"))
    assert swapped != order and same == split, "another order of the same split"


def test_a_split_is_told_by_names_not_by_places() -> None:
    labels, is_test = np.array([0, 0, 1, 1]), np.array([False, True, False, True])
    files = ["x/1.png", "x/2.png", "x/3.png", "x/4.png"]
    split = Split(labels, is_test, ["a", "b"], [[0], [1]], files)
    assert dataclasses.replace(split, names=[f"/elsewhere/{name}" for name in files]).digest == split.digest
    other_order = Split(labels[::-1], is_test[::-1], ["a", "b"], [[0], [1]], files[::-1])
    assert other_order.digest == split.digest
    assert dataclasses.replace(split, is_test=~is_test).digest != split.digest
    assert dataclasses.replace(split, class_names=["a", "c"]).digest != split.digest


def test_differences_leave_out_what_is_open() -> None:
    assert differences({"width": 64}, {}) == differences({}, {"width": 20}) == {}
    assert differences({"digest": "x"}, {"digest": "y"}) == {}, "a digest is no field"
