"""The encoder that a learner's options describe: built-in or custom, its learning rate and its initial weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from dualnet.batch import StreamSpec
from dualnet.learners.shared_options import CommonOptions, EncoderOptions
from dualnet.nets import Adapter, BaseEncoder, Encoder
from dualnet.nets.encoder import CustomEncoder, timm_features
from dualnet.nets.weights import STARTER, load_weights, starter_file
from dualnet.registry import check_name, import_object
from dualnet.text import join_lines

CUSTOM = {"timm": timm_features}  # any other is given by its import path, such as `my_package.my_module.MyEncoder`


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
    check_name(options.name, ("resnet18", *CUSTOM), "encoder.name")
    make = CUSTOM.get(options.name) or import_object(options.name, "encoder.name")
    if not callable(make):
        raise ValueError(f"encoder.name: {options.name!r} is not a class or function that returns a torch.nn.Module")
    try:
        return CustomEncoder(make(**options.options), image_shape)
    except Exception as error:  # third-party code may raise anything
        raise ValueError(f"encoder.name: {options.name} with {options.options}: {join_lines(error)}") from error


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
    """Load the file that `encoder.weights` names into a new learner; a checkpoint needs no such file."""
    options = learner.config.encoder
    if options.weights is None:
        return
    file = starter_file(options.width) if options.weights == STARTER else Path(options.weights).expanduser()
    for module in learner.modules():
        if isinstance(module, BaseEncoder):
            load_weights(module.network, file)
        elif isinstance(module, Adapter):
            module.init_identity()
