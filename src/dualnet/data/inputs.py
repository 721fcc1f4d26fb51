"""Conversion to a batch of images: of files, folders, bytes, Pillow images, arrays and tensors."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from PIL.Image import Image
from torch import Tensor

from dualnet.data.class_folders import images_below
from dualnet.data.decode import UnreadableError, decoding, read_bytes, read_image, read_pillow

FORMS = "paths of files or folders, bytes, Pillow images, NumPy arrays or tensors"
CHANNELS = (1, 3)


def pixels_of(images: Any, image_shape: tuple[int, int, int]) -> Tensor:
    """The images as uint8 [B, C, H, W]: one image, a folder, a list, or an array or a tensor of images.

    Single images are resized to squares of the model's size; an array or a tensor of images keeps its size. Raises
    UnreadableError with all that cannot be decoded.
    """
    pixels, errors = readable(images, image_shape)
    if errors:
        reasons = {name: reason for error in errors.values() for name, reason in error.reasons.items()}
        raise UnreadableError(reasons, len(pixels) + len(errors))
    return pixels


def readable(images: Any, image_shape: tuple[int, int, int]) -> tuple[Tensor, dict[int, UnreadableError]]:
    """The same for the images that can be decoded, and the errors of the others by their number in the list."""
    if isinstance(images, Tensor) and images.ndim == 4:
        return (torch.from_numpy(to_uint8(numpy_of(images), "images")) if images.is_floating_point() else images), {}
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return batch_of(images), {}
    singles, size = list_images(images), square_side(image_shape)
    pixels = np.empty((len(singles), size, size, 3), np.uint8)
    errors: dict[int, UnreadableError] = {}
    with decoding():
        for number, image in enumerate(singles):
            try:
                read(image, pixels[number - len(errors)], f"images[{number}]")
            except UnreadableError as error:
                errors[number] = error
    return torch.from_numpy(pixels[: len(singles) - len(errors)]).permute(0, 3, 1, 2).contiguous(), errors


def square_side(image_shape: tuple[int, int, int]) -> int:
    """The side of the colour squares to which single images are decoded. Raises ValueError if a model needs others."""
    channels, height, width = image_shape
    if channels != 3 or height != width:
        shape = f"uint8 [B, {channels}, {height}, {width}]"
        raise ValueError(
            f"images: files are read as colour squares, but this model needs {shape}; give that from Python"
        )
    return height


def list_images(images: Any) -> list[Any]:
    """The single images; a folder is replaced by the files in it and below, sorted."""
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":  # mostly of paths
        images = images.flatten().tolist()
    if is_single(images):
        images = [images]
    if not isinstance(images, Iterable):
        raise ValueError(f"images: {type(images).__name__} is not an image; give {FORMS}")
    return [each for image in images for each in (images_below(os.fspath(image)) if is_folder(image) else [image])]


def is_single(image: Any) -> bool:
    return isinstance(image, str | os.PathLike | bytes | bytearray | Image | np.ndarray | Tensor)


def is_folder(image: Any) -> bool:
    return isinstance(image, str | os.PathLike) and os.path.isdir(image)


def read(image: Any, into: np.ndarray, name: str) -> None:
    """Decode one image of any form into uint8 [size, size, 3]."""
    if isinstance(image, str | os.PathLike):
        read_image(str(Path(image)), into)
    elif isinstance(image, bytes | bytearray):
        read_bytes(bytes(image), into, name)
    elif isinstance(image, Image):
        read_pillow(image, into, name)
    elif isinstance(image, np.ndarray | Tensor):
        read_pillow(Pillow.fromarray(channels_last(image, name)), into, name)
    else:
        raise ValueError(f"{name}: {type(image).__name__} is not an image; give {FORMS}")


def batch_of(images: np.ndarray) -> Tensor:
    """An array [B, H, W, C] or [B, C, H, W], uint8 or float from 0 to 1, as uint8 [B, C, H, W]."""
    if images.shape[3] in CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    elif images.shape[1] not in CHANNELS:
        raise ValueError(f"images: an array {list(images.shape)} has neither 1 nor 3 channels; give [B, H, W, 3]")
    return torch.from_numpy(np.array(to_uint8(images, "images"), order="C"))  # PyTorch warns about read-only arrays


def channels_last(image: np.ndarray | Tensor, name: str) -> np.ndarray:
    """One image, [H, W], [H, W, C] or [C, H, W], as uint8 [H, W] or [H, W, 3]; if both fit, a tensor is [C, H, W]."""
    array = numpy_of(image) if isinstance(image, Tensor) else image
    first, last = ((array.ndim == 3 and array.shape[side] in CHANNELS) for side in (0, 2))
    if first and (isinstance(image, Tensor) or not last):
        array = array.transpose(1, 2, 0)
    elif array.ndim != 2 and not last:
        raise ValueError(f"{name}: an array {list(array.shape)} is not an image; give [H, W, 3], [3, H, W] or [H, W]")
    if 0 in array.shape:
        raise ValueError(f"{name}: an array {list(array.shape)} has no pixels; give [H, W, 3]")
    return np.ascontiguousarray(to_uint8(array[:, :, 0] if array.shape[2:] == (1,) else array, name))


def numpy_of(tensor: Tensor) -> np.ndarray:
    """The tensor as an array; floats become float32, since NumPy has no bfloat16."""
    return (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()


def to_uint8(array: np.ndarray, name: str) -> np.ndarray:
    """An array of uint8, or of floats from 0 to 1, as uint8."""
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name}: {array.dtype} is not supported; give uint8, or float from 0 to 1")
    if array.size and not (array.min() >= 0 and array.max() <= 1):  # false for NaN too
        raise ValueError(
            f"{name}: float from {array.min():g} to {array.max():g}; give 0 to 1 (divide by 255?), or uint8"
        )
    return (array * 255).round().astype(np.uint8)
