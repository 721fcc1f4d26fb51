"""In synchronous mode, the service gives the results of `dualnet run`."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import Server, png

import dualnet
from dualnet.data.benchmark import Benchmark
from dualnet.experiments.experiment import Experiment
from dualnet.experiments.runner import stream_of
from dualnet.models.model import Model

pytest.importorskip("fastapi")


def test_a_stream_taught_over_http_ends_with_the_weights_of_a_run(
    tmp_path: Path,
    tiny: Callable[..., Experiment],
    benchmark: Benchmark,
    run: Callable[..., Path],
    state_of: Callable[..., dict[str, Any]],
    differing: Callable[..., set[str]],
) -> None:
    learner = {"soft_labels": {"when": "insertion"}, "unlabelled": "replay", "ema_rate": 0.1}
    experiment = tiny(learner, protocol="task_free", labels={"share": 0.5})
    expected = dualnet.load(run(experiment, tmp_path / "run"))
    stream = stream_of(experiment, benchmark, torch.device("cpu"))
    names = [str(name) for name in expected.class_names]
    fresh = Model(dualnet.make_learner("dualnet", stream.spec, experiment.learner, experiment.seed), names)
    fresh.save(tmp_path / "model")
    with Server(tmp_path / "state", "--model", tmp_path / "model", "--synchronous", "--held-out-every", 0) as server:
        for period in stream.periods:
            for batch in stream.batches(period, experiment.seed):
                images = [png(image.permute(1, 2, 0).numpy()) for image in batch.images]
                numbers = [-1] * len(images) if batch.labels is None else batch.labels.tolist()
                labels = ["" if number < 0 else names[number] for number in numbers]
                assert server.upload("/v1/examples", *images, label=labels)[0] == 201
        assert server.get("/v1/status")["waiting"] == 0
        archive = zipfile.ZipFile(io.BytesIO(server.get("/v1/export")))
        archive.extractall(tmp_path / "export")
    exported = dualnet.load(tmp_path / "export" / "model")
    assert differing(state_of(exported.learner), state_of(expected.learner)) == set()
