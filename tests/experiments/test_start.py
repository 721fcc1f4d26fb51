"""Runs and models with initial weights or an encoder from outside: errors before the run, saving and loading."""

from pathlib import Path
from typing import Any

import pytest
import torch

import dualnet
from dualnet.experiments import checkpoint
from dualnet.experiments.experiment import parse
from dualnet.experiments.stop import StopRequested
from dualnet.nets import Encoder
from dualnet.nets.weights import starter_file
from starter.train import save_weights

OWN = {"encoder": {"name": "own_encoder.ThreeMaps"}, "slow": {"rounds": 0}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    (tmp_path / "weights.safetensors").write_bytes(save_weights(Encoder(2), {}))
    return tmp_path / "weights.safetensors"


@pytest.mark.parametrize("name", ["dualnet", "ctn"])
@pytest.mark.parametrize("benchmark_name", ["mini_imagenet", "tiny_imagenet"])
def test_the_starter_is_refused_where_it_knows_the_classes(
    name: str, benchmark_name: str, tmp_path: Path, error_line: Any
) -> None:
    experiment = tmp_path / "own.yaml"
    learner = f"{{name: {name}, encoder: {{width: 20, weights: starter}}}}"
    experiment.write_text(f"benchmark: {{name: {benchmark_name}, root: {tmp_path}}}\nlearner: {learner}\n")
    line = error_line("run", experiment, "--out", tmp_path / "runs")
    assert "learner.encoder.weights" in line and benchmark_name in line
    assert not (tmp_path / "runs").exists()
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(starter_file(20).read_bytes())
    own = {"name": "own", "benchmark": {"name": benchmark_name, "root": str(tmp_path)}}
    with pytest.raises(ValueError, match="weights"):
        parse(own | {"learner": {"name": name, "encoder": {"width": 20, "weights": str(copy)}}})
    with pytest.raises(ValueError, match="weights"):
        parse(own | {"learner": {"name": name, "encoder": {"name": "dualnet.nets.Encoder", "weights": str(copy)}}})
    other = {"name": "cifar100", "root": str(tmp_path)}
    parse(
        {"name": "own", "benchmark": other, "learner": {"name": name, "encoder": {"width": 20, "weights": "starter"}}}
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"encoder": {"weights": "starter", "width": 3}}, "width 3"),
        ({"encoder": {"weights": "nowhere"}}, "nowhere"),
        ({"encoder": {"name": "a.b"}}, "a.b"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_folder_is_made(
    options: dict[str, Any], word: str, tiny: Any, run: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=word):
        run(tiny(options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_and_its_model_is_loaded_without_the_file(
    file: Path, tiny: Any, run: Any, stop_at: Any, run_state: Any, tmp_path: Path
) -> None:
    experiment = tiny({"encoder": {"weights": str(file)}})
    whole = run_state(run(experiment, tmp_path / "whole"))
    assert whole != run_state(run(tiny(), tmp_path / "random"))
    with pytest.raises(StopRequested):
        run(experiment, tmp_path / "stopped", stop_at(3))
    file.unlink()
    assert run_state(run(experiment, tmp_path / "stopped")) == whole
    model = dualnet.load(tmp_path / "stopped")
    model.save(tmp_path / "model")
    again = dualnet.load(tmp_path / "model")
    assert again.learner.config.encoder.weights == str(file)
    for name, tensor in model.learner.state_dict().items():
        assert torch.equal(tensor, again.learner.state_dict()[name]), name


def test_an_encoder_from_outside_is_loaded_only_if_it_is_trusted(tiny: Any, run: Any, tmp_path: Path) -> None:
    run(tiny(OWN), tmp_path / "run")
    dualnet.load(tmp_path / "run", trust=True).save(tmp_path / "model")
    for folder in (tmp_path / "run", tmp_path / "model"):
        with pytest.raises(ValueError, match=r"learner.encoder.name is own_encoder.ThreeMaps.*--trust.*trust=True"):
            dualnet.load(folder)
        assert dualnet.load(folder, trust=True).learner.config.encoder.name == OWN["encoder"]["name"]


def test_a_path_into_this_package_is_not_trusted_as_an_encoder(tiny: Any, run: Any, tmp_path: Path) -> None:
    """It could name any function, such as one that writes a file."""
    run(tiny({"slow": {"rounds": 0}}), tmp_path / "run")
    folder, victim = tmp_path / "run" / "checkpoint", tmp_path / "victim"
    step, state, _ = checkpoint.newest(folder) or (0, {}, "")
    state["options"]["encoder"] |= {"name": "dualnet.atomic.write", "options": {"path": str(victim), "data": "gone"}}
    checkpoint.write(folder, step, checkpoint.snapshot(state))
    with pytest.raises(ValueError, match=r"learner\.encoder\.name is dualnet\.atomic\.write"):
        dualnet.load(tmp_path / "run")
