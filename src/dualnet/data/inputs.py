"""Images in the forms that people have them: files, folders, bytes, Pillow images, NumPy arrays, tensors."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from PIL.Image import Image
from torch import Tensor

from dualnet.data.class_folders import images_in
from dualnet.data.decode import UnreadableError, decoding, read_bytes, read_image, read_pillow

FORMS = "paths of files or folders, bytes, Pillow images, NumPy arrays or tensors"
CHANNELS = (1, 3)


def pixels_of(images: Any, image_shape: tuple[int, int, int]) -> Tensor:
    """uint8 [B, C, H, W] of one image, of a folder, of a list of any forms, or of an array or a tensor of images.

    Single images become squares of the model's size, as files do. An array or a tensor of images keeps its size.
    UnreadableError names all that cannot be decoded.
    """
    pixels, errors = readable(images, image_shape)
    if errors:
        reasons = {name: reason for error in errors.values() for name, reason in error.reasons.items()}
        raise UnreadableError(reasons, len(pixels) + len(errors))
    return pixels


def readable(images: Any, image_shape: tuple[int, int, int]) -> tuple[Tensor, dict[int, UnreadableError]]:
    """The same of those that can be decoded, and what is wrong with the others, by their number in the list."""
    if isinstance(images, Tensor) and images.ndim == 4:
        return (torch.from_numpy(in_bytes(numpy_of(images), "images")) if images.is_floating_point() else images), {}
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return batch_of(images), {}
    channels, height, width = image_shape
    singles = listed(images)
    if channels != 3 or height != width:
        shape = f"uint8 [B, {channels}, {height}, {width}]"
        raise ValueError(
            f"images: single ones are read as squares in colour, and this model learned {shape}; give that"
        )
    pixels = np.empty((len(singles), height, width, 3), np.uint8)
    errors: dict[int, UnreadableError] = {}
    with decoding():
        for number, image in enumerate(singles):
            try:
                read(image, pixels[number - len(errors)], f"images[{number}]")
            except UnreadableError as error:
                errors[number] = error
    return torch.from_numpy(pixels[: len(singles) - len(errors)]).permute(0, 3, 1, 2).contiguous(), errors


def listed(images: Any) -> list[Any]:
    """Single images; the files of a folder stand for it, sorted."""
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":  # of paths, mostly
        images = images.flatten().tolist()
    if is_single(images):
        images = [images]
    if not isinstance(images, Iterable):
        raise ValueError(f"images: {type(images).__name__} is no image; give {FORMS}")
    return [each for image in images for each in (images_in(os.fspath(image)) if is_folder(image) else [image])]


def is_single(image: Any) -> bool:
    return isinstance(image, str | os.PathLike | bytes | bytearray | Image | np.ndarray | Tensor)


def is_folder(image: Any) -> bool:
    return isinstance(image, str | os.PathLike) and os.path.isdir(image)


def read(image: Any, into: np.ndarray, name: str) -> None:
    """One image of any form into uint8 [size, size, 3]."""
    if isinstance(image, str | os.PathLike):
        read_image(str(Path(image)), into)
    elif isinstance(image, bytes | bytearray):
        read_bytes(bytes(image), into, name)
    elif isinstance(image, Image):
        read_pillow(image, into, name)
    elif isinstance(image, np.ndarray | Tensor):
        read_pillow(Pillow.fromarray(colours_last(image, name)), into, name)
    else:
        raise ValueError(f"{name}: {type(image).__name__} is no image; give {FORMS}")


def batch_of(images: np.ndarray) -> Tensor:
    """[B, H, W, C] or [B, C, H, W], uint8 or float from 0 to 1, as uint8 [B, C, H, W]."""
    if images.shape[3] in CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    elif images.shape[1] not in CHANNELS:
        raise ValueError(f"images: an array {list(images.shape)} has neither 1 nor 3 channels; give [B, H, W, 3]")
    return torch.from_numpy(np.array(in_bytes(images, "images"), order="C"))  # PyTorch warns of one that is read-only


def colours_last(image: np.ndarray | Tensor, name: str) -> np.ndarray:
    """One image, [H, W], [H, W, C] or [C, H, W], as uint8 [H, W] or [H, W, 3]; if both fit, a tensor is [C, H, W]."""
    array = numpy_of(image) if isinstance(image, Tensor) else image
    first, last = ((array.ndim == 3 and array.shape[side] in CHANNELS) for side in (0, 2))
    if first and (isinstance(image, Tensor) or not last):
        array = array.transpose(1, 2, 0)
    elif array.ndim != 2 and not last:
        raise ValueError(f"{name}: an array {list(array.shape)} is no image; give [H, W, 3], [3, H, W] or [H, W]")
    if 0 in array.shape:
        raise ValueError(f"{name}: an array {list(array.shape)} holds no pixel; give [H, W, 3] with some")
    return np.ascontiguousarray(in_bytes(array[:, :, 0] if array.shape[2:] == (1,) else array, name))


def numpy_of(tensor: Tensor) -> np.ndarray:
    """NumPy knows fewer kinds of float, such as no bfloat16."""
    return (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()


def in_bytes(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name}: {array.dtype} is not read; give uint8, or float from 0 to 1")
    if array.size and not (array.min() >= 0 and array.max() <= 1):  # NaN is neither
        raise ValueError(
            f"{name}: float from {array.min():g} to {array.max():g}; give 0 to 1 (divide by 255?), or uint8"
        )
    return (array * 255).round().astype(np.uint8)
