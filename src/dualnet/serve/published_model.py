"""The published model as one file, from which another machine predicts: `GET /v1/model`. No images, and no pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from dualnet.experiments import checkpoint, saved_learner
from dualnet.files import READ_ERRORS, describe_error
from dualnet.models.model import Model
from dualnet.serve import state_folder
from dualnet.serve.options import Options
from dualnet.serve.serving_model import ServingModel, frozen_tensors


class Source:
    """What does not change while a service runs: how its learner is made, and the weights of a frozen encoder."""

    def __init__(self, model: Model) -> None:
        learner = model.learner
        self.learner = saved_learner.describe(learner, model.class_names)
        self.frozen = frozen_tensors(learner)
        self.digest = checkpoint.digest(self.learner, checkpoint.snapshot(self.frozen)[1])

    def pack(self, status: Mapping[str, Any], weights: bytes, names: Mapping[int, str], known: str) -> bytes:
        """A publication with the names of its classes; without the frozen weights, if their digest is `known`."""
        content = {
            "learner": self.learner,
            "digest": self.digest,
            "frozen": None if known == self.digest else self.frozen,
            "version": status["version"],
            "classes": list(status["classes"]),
            "names": dict(names),
            "weights": torch.frombuffer(bytearray(weights), dtype=torch.float32),
        }
        return checkpoint.encode(checkpoint.snapshot(content))[0]


def tag_of(status: Mapping[str, Any], names: Mapping[int, str]) -> str:
    """The ETag of a publication with these names of classes."""
    return f'"{status["version"]}-{blake2b(json.dumps([*names.items()]).encode(), digest_size=8).hexdigest()}"'


@dataclass
class Published:
    """Such a file, read."""

    status: dict[str, Any]  # with the names of the classes
    weights: memoryview
    digest: str  # of the frozen weights
    learner: dict[str, Any]
    frozen: dict[str, Tensor] | None

    @torch.no_grad()
    def make(self, options: Options) -> ServingModel:
        """A model with the frozen weights, and without any others. Raises ValueError if it cannot be made."""
        learner, names = saved_learner.make_empty(self.learner, state_folder.device_of(options))
        frozen, values = self.frozen or {}, frozen_tensors(learner)
        if {name: value.shape for name, value in values.items()} != {name: frozen[name].shape for name in frozen}:
            raise ValueError("its frozen weights are not those of its learner")
        for name, value in values.items():
            value.copy_(frozen[name])
        return ServingModel(options, Model(learner, names))


def unpack(data: bytes, source: str) -> Published:
    """Raises ValueError if it is damaged, or names code from outside of this package."""
    try:
        content, _ = checkpoint.decode(data)
        names = {int(number): str(name) for number, name in content["names"].items()}
        status = {"version": str(content["version"]), "classes": [*map(str, content["classes"])], "names": names}
        weights = memoryview(content["weights"].float().numpy()).cast("B")
        published = Published(status, weights, str(content["digest"]), content["learner"], content["frozen"])
        saved_learner.check_trusted(published.learner["options"], source, trust=False)
    except READ_ERRORS as error:
        raise ValueError(f"its model cannot be read ({describe_error(error)})") from error
    return published
