"""The options of every objective, and of one outside of the package: used, refused, written, resumed, loaded again."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dualnet
from dualnet import cli
from dualnet.experiments import checkpoint
from dualnet.experiments.experiment import parse_learner
from dualnet.experiments.stop import StopRequested
from dualnet.objectives import OBJECTIVES, objective_class

OWN = "examples.alignment_uniformity.AlignmentUniformity"
OTHER: dict[str, dict[str, Any]] = {  # a value of each option other than the default
    "barlow_twins": {"projector_hidden": 16, "trade_off": 0.1, "correlation": "sample"},
    "simclr": {"projector_hidden": 16, "similarity": "standardised", "temperature": 0.1},
    "simsiam": {"projector_hidden": 16, "predictor_hidden": 5},
    "vicreg": {"projector_hidden": 16, "invariance": 5.0, "variance": 9.0, "covariance": 2.0, "std": 0.5},
    "byol": {"projector_hidden": 16, "predictor_hidden": 8, "momentum": 0.5},
    "classification": {},
    OWN: {"projector_hidden": 16, "uniformity": 0.5, "scale": 1.0},
}
EACH = [(name, option) for name, options in OTHER.items() for option in options]
every_objective = pytest.mark.parametrize("name", OTHER)


def learner_options(name: str, **options: Any) -> dict[str, Any]:
    """With a quick encoder, if the objective supports it."""
    encoder = {} if name == "byol" else {"encoder": {"name": "own_encoder.ThreeMaps"}}
    return {"slow": {"objective": name, "objective_options": options}, **encoder}


def test_all_options_of_all_objectives_are_tested() -> None:
    assert {*OBJECTIVES, OWN} == OTHER.keys()
    for name, options in OTHER.items():
        assert {field.name for field in dataclasses.fields(objective_class(name).Config)} == options.keys()


@pytest.mark.parametrize(("name", "option"), EACH)
def test_an_option_changes_the_loss(name: str, option: str, small_learner: Any, stream: Any) -> None:
    given = learner_options(name, **{option: OTHER[name][option]})
    losses = [small_learner("dualnet", **each).observe(stream[0])["slow"] for each in (learner_options(name), given)]
    assert losses[0] != losses[1]


@every_objective
def test_the_defaults_may_be_given_also_as_text(
    name: str, small_learner: Any, stream: Any, state_of: Any, differing: Any
) -> None:
    defaults = dataclasses.asdict(objective_class(name).Config())
    text = {option: "null" if value is None else str(value) for option, value in defaults.items()}
    states = []
    for options in ({}, defaults, text):
        learner = small_learner("dualnet", **learner_options(name, **options))
        learner.observe(stream[0])
        states.append(state_of(learner))
    assert not differing(states[0], states[1]) and not differing(states[0], states[2])


@every_objective
def test_an_unknown_option_is_answered_with_the_known_ones(name: str, small_learner: Any) -> None:
    with pytest.raises(ValueError, match=r"^slow.objective_options.zzz: unknown option; there are [^\n]+$") as caught:
        small_learner("dualnet", **learner_options(name, zzz=1))
    assert str(caught.value).endswith(", ".join(OTHER[name]) or "none")


@pytest.mark.parametrize(("name", "option"), EACH)
def test_a_value_of_the_wrong_type_or_out_of_range_is_refused(name: str, option: str, small_learner: Any) -> None:
    refused = (("many", "number.* is needed"), (-1, "is not .*(or more|between)"))
    for value, words in (("many", "is not one of"),) if isinstance(OTHER[name][option], str) else refused:
        with pytest.raises(ValueError, match=rf"^slow.objective_options.{option}: [^\n]*{words}[^\n]*$"):
            small_learner("dualnet", **learner_options(name, **{option: value}))


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("simclrr", "not one of barlow_twins, .*nor an import path; did you mean simclr"),
        ("nowhere.Objective", "cannot import 'nowhere.Objective'"),
        ("own_encoder.ThreeMaps", "'own_encoder.ThreeMaps' is no Objective"),
        ("dualnet.objectives.EmbeddingObjective", ".* does not implement loss"),
        ("dualnet.objectives.BYOL", ".* needs the built-in encoder"),
    ],
)
def test_an_objective_that_cannot_be_used_is_one_line(objective: str, words: str, small_learner: Any) -> None:
    with pytest.raises(ValueError, match=rf"^slow.objective: [^\n]*{words}[^\n]*$"):
        small_learner("dualnet", **learner_options(objective))


@pytest.mark.parametrize("name", ["simclr", OWN])
def test_options_on_the_command_line(name: str, tiny_file: Path, tmp_path: Path, error_line: Any) -> None:
    words = ["run", str(tiny_file), "--device", "cpu", "--learner.slow.objective", name, "--out", str(tmp_path / "run")]
    for option, value in (("projector_hidden", "0"), ("momentum", "0.5")):
        line = error_line(*words, f"--learner.slow.objective_options.{option}", value)
        assert f"objective_options.{option}: " in line
    assert not (tmp_path / "run").exists()
    assert cli.main([*words, "--learner.slow.objective_options.projector_hidden", "8"]) == 0
    written = yaml.safe_load((tmp_path / "run/seed-0/experiment.yaml").read_text())["learner"]["slow"]
    assert (written["objective"], written["objective_options"]) == (name, {"projector_hidden": 8})


@every_objective
def test_a_run_with_options_resumes_and_its_model_is_loaded(
    name: str, tiny: Any, run: Any, stop_at: Any, run_state: Any, tmp_path: Path, state_of: Any, differing: Any
) -> None:
    experiment = tiny(learner_options(name, **OTHER[name]))
    whole = run_state(run(experiment, tmp_path / "whole"))
    with pytest.raises(StopRequested):
        run(experiment, tmp_path / "stopped", stop_at(4))
    if OTHER[name]:
        with pytest.raises(ValueError, match=r"holds another experiment \(learner.slow.objective_options"):
            run(tiny(learner_options(name)), tmp_path / "stopped")
    assert run_state(run(experiment, tmp_path / "stopped")) == whole
    written = yaml.safe_load((tmp_path / "stopped/experiment.yaml").read_text())["learner"]
    assert (written["slow"]["objective"], written["slow"]["objective_options"]) == (name, OTHER[name])
    assert parse_learner(written)[1] == experiment.learner

    model = dualnet.load(tmp_path / "stopped", trust=True)
    model.save(tmp_path / "model")
    again = dualnet.load(tmp_path / "model", trust=True)
    assert again.learner.config == model.learner.config == experiment.learner
    assert again.learner.objective.config == objective_class(name).Config(**OTHER[name])
    assert not differing(state_of(model.learner), state_of(again.learner))


def test_an_objective_from_outside_is_imported_only_if_it_is_trusted(
    tiny: Any, run: Any, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not_trusted.py").write_text("from dualnet.objectives import SimCLR")
    monkeypatch.syspath_prepend(tmp_path)
    file, folder = stopped / "experiment.yaml", stopped / "checkpoint"
    file.write_text(file.read_text().replace("objective: barlow_twins", "objective: not_trusted.SimCLR"))
    step, state, _ = checkpoint.newest(folder) or (0, {}, "")
    state["options"]["slow"]["objective"] = "not_trusted.SimCLR"
    checkpoint.write(folder, step, checkpoint.snapshot(state))
    with pytest.raises(ValueError, match=r"learner.slow.objective is not_trusted.SimCLR.*--trust.*trust=True"):
        dualnet.load(stopped)
    with pytest.raises(ValueError, match=r"holds another experiment \(learner.slow.objective is not_trusted.SimCLR"):
        run(tiny(), stopped)
    assert "not_trusted" not in sys.modules
