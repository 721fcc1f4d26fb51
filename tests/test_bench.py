"""The benchmarks: complete figures, and counts that hold on any machine."""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks as bench
from benchmarks import counting, report, sizes, steps, timing
from benchmarks.__main__ import main
from benchmarks.suggestions import labels_needed
from benchmarks.unknown import area, calibration_error

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make a step tens of times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # for the processes that are started
        yield
    torch.set_num_threads(before)


def test_every_section_measures_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `python -m benchmarks` prints and what it writes, every section measured as briefly as can be.

    One test, since it takes 14 s and a module's fixture is made by every worker that runs a test of the module.
    """
    out = tmp_path / "bench.json"
    smallest = {
        "dualnet_width": 4,
        "er_width": 4,
        "image_size": 28,
        "evaluation_size": 20,
        "matmul_size": 256,
        "processes": 1,
    }
    monkeypatch.setattr(sizes, "SMALL", replace(sizes.SMALL, **smallest))
    monkeypatch.setattr(steps, "SEEDS", (1, 2))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["--device", "cpu", "--small", "--repeats", "2", "--images", "150", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["failed"] == []
    check_figures(written["figures"], printed.getvalue())
    check_environment(written["environment"])
    check_values({figure["what"]: figure["value"] for figure in written["figures"]})


def check_figures(figures: list[dict[str, Any]], printed: str) -> None:
    """Every section has figures, with units, and the table shows them."""
    assert list(dict.fromkeys(figure["section"] for figure in figures)) == list(bench.SECTIONS)
    assert len({figure["what"] for figure in figures}) == len(figures)
    for figure in figures:
        assert figure["unit"]
        assert figure["value"] > 0 if figure["value"] is not None else "not installed" in figure["note"]
        assert f" {figure['what']} " in printed
        assert f" {report.value_text(figure['value'])} " in printed


def check_environment(environment: dict[str, Any]) -> None:
    """It names device and versions, and no path."""
    assert environment["torch"] == torch.__version__
    assert environment["device_type"] == "cpu"
    assert environment["sizes"]["num_images"] == 150
    assert not any("/" in str(value) for value in environment.values() if not isinstance(value, dict))


def check_values(values: dict[str, float]) -> None:
    """Shares and sums agree."""
    assert values["DualNet step, 2 seeds, plain, per seed"] == pytest.approx(values["DualNet step, 2 seeds, plain"] / 2)
    assert values["DualNet arithmetic"] > values["ER arithmetic"]
    assert values["DualNet aten ops"] > values["ER aten ops"]


def test_arithmetic_of_a_step_against_a_count_by_hand():
    """ER: two updates of twenty images, each forward, for the weights and, except at the stem, for the maps below."""
    small = replace(sizes.SMALL, er_width=4, num_tasks=2)
    stepper = sizes.Stepper("er", sizes.config_of("er", small), sizes.spec_of(2, 32), CPU)
    per_image = {"stem": 3 * 4 * 9 * 32 * 32, "head": 32 * 10}
    width, side, before = 4, 16, 4
    for stage in range(4):
        side, width = (side // 2, width * 2) if stage else (side, width)
        convs = before * width * 9 + 3 * width * width * 9 + (before * width if stage else 0)
        per_image[f"stage {stage}"] = convs * side * side
        before = width
    inner = sum(per_image.values()) - per_image["stem"]
    by_hand = 2 * 20 * 2 * (3 * inner + 2 * per_image["stem"])
    assert counting.arithmetic(stepper.step) == pytest.approx(by_hand, rel=0.001)


def test_samples_of_the_papers_setting():
    full = sizes.choose_sizes(small=False)
    assert steps.samples_per_step(sizes.config_of("dualnet", full)) == 3 * 2 * 64 + 2 * 20
    assert steps.samples_per_step(sizes.config_of("er", full)) == 2 * 20


def test_replay_is_of_earlier_tasks_from_a_full_memory():
    stepper = sizes.Stepper("er", sizes.config_of("er", sizes.SMALL), sizes.spec_of(5, 32), CPU)
    memory = stepper.learner.get_submodule("memory")
    replay = memory.sample(10, stepper.learner.generator, beside=stepper.batches[0])  # pyright: ignore
    assert replay.stored.all()
    assert (replay.task_ids < 4).all()
    assert stepper.learner.spec.class_mask[replay.task_ids, replay.labels].all()


def test_variants_take_turns():
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = timing.in_turns(ways, CPU, repeats=2, warm_up=1, calls=2)
    assert "".join(calls) == "ab" + "aabb" + "aabb"
    assert [len(taken) for taken in times.values()] == [2, 2]


def test_only_the_sections_asked_for_are_measured():
    begun: list[str] = []
    asked = bench.bench("cpu", ["cache"], num_images=20, repeats=1, progress=begun.append)
    assert begun == ["cache"]
    assert {figure.section for figure in asked.figures} == {"cache"}


def test_a_section_that_fails_leaves_the_others_their_figures(monkeypatch):
    def out_of_memory(device: torch.device, sizes: Any) -> list[bench.Figure]:
        raise RuntimeError("CUDA out of memory.\nTried to allocate much")

    monkeypatch.setitem(bench.SECTIONS, "steps", out_of_memory)
    measured = bench.bench("cpu", ["steps", "cache"], num_images=20, repeats=1)
    assert measured.failed == ["steps"]
    assert measured.figures[0].note == "CUDA out of memory. Tried to allocate much"
    assert {figure.section for figure in measured.figures} == {"steps", "cache"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "stps"], ["'stps'", *bench.SECTIONS]),
        (["--images", "0"], ["images: 0"]),
        (["--out", "no/such/folder/bench.json"], ["no/such/folder"]),
    ],
)
def test_mistakes_are_one_line_that_names_them(options, words, capsys):
    assert main(["--device", "cpu", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


def test_the_comparison_with_avalanche_trains_the_same_network() -> None:
    """The rest of it needs avalanche-lib, in an environment of its own."""
    from benchmarks.peers.avalanche_replay import same_networks

    assert same_networks()


def test_figures_of_unknown_images_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra `sklearn` is not installed")
    generator = torch.Generator().manual_seed(0)
    known, other = (torch.randint(0, 9, (count,), generator=generator) + rise for count, rise in ((50, 0), (30, 2)))
    expected = metrics.roc_auc_score([0] * 50 + [1] * 30, torch.cat([known, other]))
    assert area(known, other) == pytest.approx(expected)
    probabilities, is_right = torch.tensor([0.9, 0.9, 0.9, 0.5]), torch.tensor([True, True, False, True])
    assert calibration_error(probabilities, is_right) == pytest.approx((3 * abs(0.9 - 2 / 3) + 0.5) / 4)


def test_labels_needed_are_those_of_the_first_round_that_reaches_the_last_of_random_images() -> None:
    random, suggested = np.array([[1, 3, 2], [1, 2, 5]]), np.array([[2, 3, 4], [1, 2, 3]])
    assert labels_needed(random, suggested, np.array([20, 30, 40])).tolist() == [30, 40]
