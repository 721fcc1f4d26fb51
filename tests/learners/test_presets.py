"""Presets: one word for the options that were chosen on validation tasks."""

from dataclasses import replace

import pytest
import yaml
from safetensors.torch import save_file

from dualnet.cli import flags
from dualnet.cli.learn import learn_options
from dualnet.experiments.experiment import Experiment, open_ended, parse
from dualnet.learners import DualNet
from dualnet.learners.dualnet import SlowEncoder, SoftLabels
from dualnet.learners.presets import BEST, FEW_LABELS_BELOW
from dualnet.models.model import NEW_MODEL, Model
from dualnet.nets import Encoder
from dualnet.reproduce.table_file import read_rows


def experiment(preset: str | None, protocol: str = "task_aware", share: float = 1.0, **options) -> Experiment:
    learner = {"name": "dualnet", **({} if preset is None else {"preset": preset}), **options}
    return parse(
        {
            "name": "x",
            "benchmark": {"name": "procedural"},
            "protocol": protocol,
            "labels": {"share": share},
            "learner": learner,
        }
    )


ROWS = {"task_aware": "ta/chosen-slow", "task_free_boundaries": "tf/chosen", "task_free": "strict/chosen"}


@pytest.mark.parametrize(
    ("protocol", "share", "name"),
    [
        *((protocol, share, ROWS[protocol]) for protocol in BEST for share in (FEW_LABELS_BELOW, 1.0)),
        ("task_aware", 0.1, "labels-10/chosen"),
    ],
)  # few labels are a row of the task-aware stream only
def test_the_best_is_a_row_of_the_table(protocol, share, name):
    """The table and the preset cannot drift apart."""
    rows = {row.name: row for row in read_rows("beyond")}
    expected = rows[f"beyond/{name}"].experiment({"benchmark": {"root": "x"}}).learner
    assert experiment("best", protocol, share).learner == expected


def test_the_best_has_no_slow_phase_for_an_encoder_that_is_frozen():
    with pytest.raises(ValueError, match=r"slow\.rounds"):
        experiment("best", encoder={"lr": 0.0})


@pytest.mark.parametrize("settings", ["authors", "paper"])
@pytest.mark.parametrize(
    "name", ["table-1/mini-imagenet-ta/dualnet", "table-1/mini-imagenet-tf/dualnet", "table-4/labels-10/dualnet"]
)
def test_the_presets_authors_and_paper_are_rows_of_the_tables(settings, name):
    (row,) = [row for row in read_rows("all", settings) if row.name == name]
    expected = row.experiment({"benchmark": {"root": "x"}})
    learner = experiment(settings, expected.protocol, expected.labels.share).learner
    assert learner == expected.learner


def test_without_a_preset_the_options_are_the_defaults():
    assert experiment(None).learner == DualNet.Config()


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_trained_is_the_best_from_the_starter(share):
    starter = {"weights": "starter", "width": 32}
    learner = experiment("trained", "task_free", share).learner
    assert learner == experiment("best", "task_free", share, encoder=starter).learner


@pytest.mark.parametrize("preset", ["lda", "few_images"])
def test_a_frozen_encoder_stays_frozen_whatever_the_share_of_labels(preset):
    assert experiment(preset, "task_free", share=0.1) == replace(
        experiment(preset, "task_free"), labels=experiment(preset, "task_free", share=0.1).labels
    )


def test_few_images_freezes_the_encoder():
    learner = experiment("few_images", "task_free").learner
    assert learner.encoder == SlowEncoder(weights="starter", width=32, lr=0.0) and learner.slow.rounds == 0
    rows = {row.name: row for row in read_rows("starter")}
    here = {"benchmark": {"root": "x", "test_root": "y"}}
    with_starter, without = (
        rows[f"starter/mnist/{name}"].experiment(here).learner for name in ("dualnet-starter", "dualnet")
    )
    assert with_starter == learner
    assert without == replace(learner, encoder=replace(learner.encoder, weights=None))


def test_the_live_learner_has_short_steps_with_a_slow_phase_on_all_images():
    learner, best = (experiment(preset, "task_free").learner for preset in ("live", "best"))
    assert (learner.encoder.weights, learner.encoder.width, learner.slow.source) == ("starter", 20, "memory_and_batch")
    assert 0 < learner.slow.rounds * learner.slow.inner_steps * learner.slow.batch_size < 10
    assert learner.replay_size < best.replay_size and learner.ema_rate == best.ema_rate


def test_a_new_model_uses_lda():
    """Its classes may become more, so that its memory has a fixed number of slots."""
    config = Model.create(image_size=28).learner.config
    own = {option: getattr(config, option) for option in ("memory", "soft_labels")}
    assert config == replace(experiment("lda", "task_free").learner, **own) and not config.has_soft_labels
    assert (config.memory.policy, config.memory.slots) == ("balanced", 2000)


def test_a_new_model_with_soft_labels_computes_them_at_insertion():
    config = Model.create(
        image_size=28, learner={**NEW_MODEL, "preset": "few_images", "soft_labels": {"weight": 0.5}}
    ).learner.config
    assert config.soft_labels == SoftLabels(weight=0.5, mean="example", when="insertion")


def test_a_new_model_with_boundaries_computes_soft_labels_there():
    learner = {"name": "dualnet", "preset": "live", "encoder": {"weights": None, "width": 4}}
    taken = [Model.create(image_size=28, learner=learner, boundaries=told).learner.config for told in (False, True)]
    assert [config.soft_labels.when for config in taken] == ["insertion", "task_end"]


@pytest.mark.parametrize(
    ("words", "start", "width", "head", "slots", "side"),
    [
        ("", "starter", 32, "lda", 2000, 64),
        ("--encoder starter --learner.encoder.width 20 --image-size 40", "starter", 20, "lda", 2000, 40),
        ("--learner.encoder.name own_encoder.ThreeMaps --memory 0", None, 64, "lda", 0, 64),
        ("--learner.head ridge --learner.memory.slots 9 --memory 5", "starter", 32, "ridge", 9, 64),
        ("--encoder tests.safetensors --learner.preset few_images", "tests.safetensors", 4, "linear", 2000, 64),
    ],
)
def test_a_new_model_of_learn_has_the_preset_lda_unless_another_is_named(
    words, start, width, head, slots, side, tmp_path, monkeypatch
):
    """The encoder is frozen; what is given precedes the preset and the flags that stand for options."""
    monkeypatch.chdir(tmp_path)
    save_file(Encoder(4, 3).state_dict(), "tests.safetensors")
    arguments, rest = flags.parse(["learn", "photos", "--out", "model", *words.split()])
    options = learn_options(arguments, rest, None, "photos")
    config = Model.create(image_size=28, learner=options.learner).learner.config
    assert (config.encoder.weights, config.encoder.width, config.encoder.lr) == (start, width, 0)
    assert (config.head, config.memory.slots, options.image_size) == (head, slots, side)


@pytest.mark.parametrize(
    ("encoder", "rate"),
    [({"name": "own_encoder.ThreeMaps"}, None), ({"name": "own_encoder.ThreeMaps", "weights": "own.safetensors"}, 0.0)],
)
def test_a_preset_leaves_the_weights_of_another_encoder_to_the_user(encoder, rate):
    """It is frozen as the starter is, unless its weights are random."""
    learner = {"name": "dualnet", "preset": "few_images", "encoder": encoder}
    experiment = parse({"name": "x", "benchmark": {"name": "procedural"}, "protocol": "task_free", "learner": learner})
    for config in (experiment.learner, open_ended(learner)[1]):
        assert (config.encoder.weights, config.encoder.lr) == (encoder.get("weights"), rate)
        assert config.slow.rounds == 0


@pytest.mark.parametrize("folder", ["null", "~", "1", "[a]"])
def test_a_folder_may_be_called_as_something_else_is_written(folder):
    arguments, rest = flags.parse(["learn", folder, "--out", "model", "--unlabelled", folder, "--test", "other"])
    with pytest.raises(ValueError, match="--unlabelled"):
        learn_options(arguments, rest, None, folder)
    options = learn_options(arguments, rest, None, "photos")
    assert (options.train, options.unlabelled, options.test) == ("photos", folder, "other")


def test_options_take_precedence_over_the_preset():
    learner = experiment("best", ema_rate=0.5, memory={"slots_per_class": 7}, share=0.1).learner
    assert learner.ema_rate == 0.5
    assert (learner.memory.slots_per_class, learner.memory.replay) == (7, "all")


def test_a_saved_experiment_lists_all_options_instead_of_the_preset():
    whole = yaml.safe_load(yaml.safe_dump(experiment("best", share=0.1).mapping()))
    assert "preset" not in whole["learner"]
    assert parse(whole) == experiment("best", share=0.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learner": {"name": "dualnet", "preset": "bets"}}, r"learner\.preset.*best"),
        ({"learner": {"name": "dualnet", "preset": None}}, r"learner\.preset"),
        ({"learner": {"name": "er", "preset": "best"}}, r"learner\.preset.*er"),
        ({"learner": {"preset": "best"}}, r"learner\."),
        ({"learner": {"name": "dualnet", "preset": "best"}, "protocol": "task_fre"}, "^protocol"),
        ({"learner": {"name": "dualnet", "preset": "best"}, "labels": {"share": 0}}, r"^labels\.share"),
        ({"learner": {"name": "dualnet", "preset": "best"}, "labels": 3}, "^labels"),
    ],
)
def test_invalid_presets_are_refused_in_one_line(changes, named):
    with pytest.raises(ValueError, match=named) as caught:
        parse({"name": "x", "benchmark": {"name": "procedural"}} | changes)
    assert "\n" not in str(caught.value)
