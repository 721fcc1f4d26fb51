"""The encoder that a learner's options describe: built-in or custom, its learning rate and its initial weights."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from dualnet.batch import StreamSpec
from dualnet.learners.shared_options import CommonOptions, EncoderOptions
from dualnet.lookup import check_name, import_object
from dualnet.nets import Adapter, BaseEncoder, Encoder
from dualnet.nets.encoder import CustomEncoder
from dualnet.nets.pretrained import LITE0_MODEL, hub_weights, lite0_weights
from dualnet.nets.timm_encoder import PREFIX, TimmFeatures, complete_name, import_timm
from dualnet.nets.weights import LITE0, PRETRAINED, STARTER, load_weights, read, starter_file, width_of
from dualnet.text import join_lines

STARTER_SIZE = 64  # pixels


def encoder_options(word: str) -> dict[str, Any]:
    """The options of a frozen encoder by one word: starter, lite0, timm/MODEL, or a safetensors file of a resnet18."""
    if word.startswith(PREFIX):
        return {"name": PREFIX + complete_name(word.removeprefix(PREFIX)), "weights": PRETRAINED, "lr": 0.0}
    if word == LITE0:
        return {"name": PREFIX + LITE0_MODEL, "weights": LITE0, "lr": 0.0}
    if word == STARTER:
        return {"width": 32, "weights": STARTER, "lr": 0.0}
    if word.endswith(".safetensors"):
        return {"width": width_of(Path(word).expanduser()), "weights": word, "lr": 0.0}
    raise ValueError(f"encoder: {word!r} is not one of {STARTER}, {LITE0}, {PREFIX}MODEL, nor a safetensors file")


def image_size_of(options: Mapping[str, Any]) -> int:
    """The side in pixels of the images that an encoder, described as by `encoder_options`, was trained with."""
    name = options.get("name", "resnet18")
    if not name.startswith(PREFIX):
        return STARTER_SIZE
    return import_timm().models.get_pretrained_cfg(name.removeprefix(PREFIX)).input_size[-1]


def make_encoder(spec: StreamSpec, config: CommonOptions, block_relu: bool = True) -> BaseEncoder:
    """The encoder that the options describe, for the images of the stream."""
    options = config.encoder
    if options.name == "resnet18":
        encoder = Encoder(options.width, spec.image_shape[0], block_relu)
    else:
        encoder = custom_encoder(options, (spec.image_shape[0], *spec.network_size))
    if options.lr == 0:
        encoder.freeze()
    return encoder


def custom_encoder(options: EncoderOptions, image_shape: tuple[int, int, int]) -> CustomEncoder:
    make = maker_of(options.name)
    try:
        return CustomEncoder(make(**options.options), image_shape)
    except Exception as error:  # third-party code may raise anything
        reason = join_lines(error) or type(error).__name__
        raise ValueError(f"encoder.name: {options.name} with {options.options}: {reason}") from error


def maker_of(name: str) -> Callable[..., Any]:
    if name.startswith(PREFIX):
        return partial(TimmFeatures, name.removeprefix(PREFIX))
    check_name(name, ("resnet18", f"{PREFIX}MODEL"), "encoder.name")
    make = import_object(name, "encoder.name")
    if not callable(make):
        raise ValueError(f"encoder.name: {name!r} is not a class or function that returns a torch.nn.Module")
    return make


def parameter_groups(parameters: Iterable[nn.Parameter], encoder: BaseEncoder, config: CommonOptions) -> list[Any]:
    """Trainable parameters for an optimizer; those of the encoder are a separate group if it has a rate."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if config.encoder.lr is None:
        return trainable
    in_encoder = set(encoder.parameters())
    groups = [
        {"params": [parameter for parameter in trainable if parameter not in in_encoder]},
        {"params": [parameter for parameter in trainable if parameter in in_encoder], "lr": config.encoder.lr},
    ]
    return [group for group in groups if group["params"]]


def load_initial_weights(learner: Any) -> None:
    """Load the weights that `encoder.weights` names into a new learner; a checkpoint needs no such file."""
    options, weights = learner.config.encoder, learner.config.encoder.weights
    if weights is None:
        if options.name.startswith(PREFIX) and options.lr == 0:
            remedy = f"stays frozen at random ones; give {PRETRAINED}, or a file"
            warnings.warn(f"encoder.weights: none, so {options.name} {remedy}", stacklevel=2)
        return
    for module in learner.modules():
        if isinstance(module, BaseEncoder) and isinstance(module.network, TimmFeatures):
            load_timm_weights(module.network, weights)
        elif isinstance(module, BaseEncoder):
            is_starter = weights == STARTER
            file = starter_file(learner.config.encoder.width) if is_starter else Path(weights).expanduser()
            load_weights(module.network, file)
        elif isinstance(module, Adapter):
            module.init_identity()


def load_timm_weights(network: TimmFeatures, weights: str) -> None:
    if weights == LITE0:
        tensors = lite0_weights()
    else:
        tensors = hub_weights(network.model) if weights == PRETRAINED else read(Path(weights).expanduser())
    try:
        network.load(tensors)
    except ValueError as error:
        raise ValueError(f"encoder.weights: {weights}: {join_lines(error)}") from error
