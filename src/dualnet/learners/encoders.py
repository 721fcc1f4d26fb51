"""The encoder of a learner by its options: ours or any other, its rate, and the weights that it starts from."""

import importlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from dualnet.batch import StreamSpec
from dualnet.learners.options import CommonOptions
from dualnet.nets import Adapter, AnyEncoder, Encoder
from dualnet.nets.other import OtherEncoder, timm_features
from dualnet.nets.start import STARTER, load_weights, starter_file

ENCODERS = {"timm": timm_features}  # others go by their import path


def make_encoder(spec: StreamSpec, config: CommonOptions, block_relu: bool = True) -> AnyEncoder:
    """The encoder that the options name, for images of the stream."""
    if config.encoder is None:
        encoder = Encoder(config.width, spec.image_shape[0], block_relu)
    else:
        make = partial(encoder_factory(config.encoder), **config.encoder_options)
        try:
            encoder = OtherEncoder(make, (spec.image_shape[0], *spec.network_size))
        except Exception as error:  # whatever code from outside raises
            words = " ".join(str(error).split())
            raise ValueError(f"encoder: {config.encoder} with {config.encoder_options}: {words}") from error
    if config.encoder_lr == 0:
        encoder.freeze()
    return encoder


def encoder_factory(name: str) -> Any:
    """What makes the encoder of that name, or at an import path such as `my_package.my_module.MyEncoder`."""
    found = ENCODERS[name] if name in ENCODERS else imported(name, "encoder")
    if not callable(found):
        raise ValueError(f"encoder: {name!r} is not a class or function that makes a torch.nn.Module")
    return found


def imported(path: str, option: str) -> Any:
    """The object at an import path."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: a path such as `..a.B`
        raise ValueError(f"{option}: cannot import {path!r} ({error}); is its folder on PYTHONPATH?") from error


def parameter_groups(net: Iterable[nn.Parameter], encoder: AnyEncoder, config: CommonOptions) -> list[Any]:
    """For an optimizer: all weights that learn, those of the encoder in a group of their own if it has a rate."""
    learned = [weight for weight in net if weight.requires_grad]
    if config.encoder_lr is None:
        return learned
    of_encoder = set(encoder.parameters())
    groups = [
        {"params": [weight for weight in learned if weight not in of_encoder]},
        {"params": [weight for weight in learned if weight in of_encoder], "lr": config.encoder_lr},
    ]
    return [group for group in groups if group["params"]]


def weights_file(config: Any) -> Path | None:
    """The file that the options `start` or `weights` name."""
    asked = getattr(config, "start", None) or getattr(config, "weights", None)
    if asked is None:
        return None
    return starter_file(config.width) if asked == STARTER else Path(asked).expanduser()


def start(learner: Any) -> None:
    """Give a new learner the weights that its options name. One from a checkpoint has its own, and needs no file."""
    file = weights_file(learner.config)
    if file is None:
        return
    for module in learner.modules():
        if isinstance(module, AnyEncoder):
            load_weights(module.inner, file)
        elif isinstance(module, Adapter):
            module.pass_on()
