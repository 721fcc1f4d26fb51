"""Checkpoints: a tree of tensors and plain values in one safetensors file, with a digest. No pickle."""

import json
import re
import warnings
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from dualnet import atomic
from dualnet.files import READ_ERRORS, describe_file_error, read_bytes

KEPT = 2  # checkpoints: if the newest is damaged, the previous one is used
MAX_BYTES = 1 << 40
METADATA = "checkpoint"  # the only entry in the metadata of the file, since the order of several is not fixed

Snapshot = tuple[Any, dict[str, Tensor]]  # values for JSON, with names in place of tensors, and the tensors by name


def snapshot(tree: Mapping[str, Any]) -> Snapshot:
    """A copy of the tree on the host, which can be written while the run continues."""
    tensors: dict[str, Tensor] = {}
    return extract_tensors(tree, tensors), tensors


def write(folder: Path, step: int, taken: Snapshot, kept: int = KEPT) -> str:
    """Write the checkpoint of a step, then delete all others but the `kept` newest. Returns its digest.

    Those of later steps are deleted too: they were damaged when the run resumed from an earlier one.
    """
    content, stated = encode(taken)
    folder.mkdir(exist_ok=True)
    atomic.write(file_of(folder, step), content)
    existing = steps(folder)
    for old in set(existing) - set([other for other in existing if other <= step][-kept:]):
        file_of(folder, old).unlink(missing_ok=True)
    return stated


def encode(taken: Snapshot) -> tuple[bytes, str]:
    """The content of a file, and its digest."""
    tree, tensors = taken
    stated = digest(tree, tensors)
    return safetensors.torch.save(tensors, {METADATA: json.dumps({"digest": stated, "tree": tree})}), stated


def decode(data: bytes) -> tuple[dict[str, Any], str]:
    """The inverse of `encode`. Raises ValueError, or another of READ_ERRORS, if the content is damaged."""
    try:
        tensors, content = safetensors.torch.load(data), read_metadata(data)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    if digest(content["tree"], tensors) != content["digest"]:
        raise ValueError("its content does not match its digest")
    tree = restore_tensors(content["tree"], tensors)
    if not isinstance(tree, dict):
        raise ValueError("it is not a mapping")
    return tree, content["digest"]


class Saved(NamedTuple):
    """A checkpoint that was read."""

    step: int
    tree: dict[str, Any]
    digest: str


def load(folder: Path, step: int, expected: Mapping[str, Any] | None = None) -> Saved:
    """The checkpoint of a step. Raises ValueError, one line, if it is damaged or lacks one of the `expected` values."""
    file = file_of(folder, step)
    try:
        tree, stated = decode(read_bytes(file, MAX_BYTES))
        for key, value in (expected or {}).items():
            if tree.get(key) != value:
                raise ValueError(f"it belongs to another run: its {key} is {tree.get(key)}, not {value}")
        return Saved(step, tree, stated)
    except READ_ERRORS as error:
        raise ValueError(f"damaged checkpoint {describe_file_error(file, error)}") from error


def newest(folder: Path, expected: Mapping[str, Any] | None = None) -> Saved | None:
    """The newest checkpoint that can be used. Damaged ones are skipped with one warning."""
    usable, skipped = None, []
    for step in reversed(steps(folder)):
        try:
            usable = load(folder, step, expected)
            break
        except ValueError as error:
            skipped.append(error)
    if skipped:
        instead = "there is no previous one" if usable is None else "the previous one is used"
        warnings.warn("; ".join([*map(str, skipped), instead]), stacklevel=2)
    return usable


def remove_later(folder: Path, step: int) -> None:
    """Remove checkpoints that were skipped as damaged: else the next `write` would keep them and not the good one."""
    for later in steps(folder):
        if later > step:
            file_of(folder, later).unlink()


def newest_digest(folder: Path) -> str:
    """The digest that the newest checkpoint states; empty if there is none."""
    existing = steps(folder)
    if not existing:
        return ""
    file = file_of(folder, existing[-1])
    try:
        with file.open("rb") as opened:  # only the header: the tensors may take hundreds of megabytes
            start = opened.read(8)
            return read_metadata(start + opened.read(int.from_bytes(start, "little")))["digest"]
    except READ_ERRORS as error:
        raise ValueError(f"damaged checkpoint {describe_file_error(file, error)}") from error


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    matches = (re.fullmatch(r"step-(\d+)\.safetensors", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in matches if match)


def file_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def read_metadata(data: bytes) -> dict[str, Any]:
    """Digest and tree, from the header of a safetensors file: its length in 8 bytes, then JSON."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"][METADATA])


def digest(tree: Any, tensors: Mapping[str, Tensor]) -> str:
    """Of the tree as `json.dumps` writes it, which survives a round trip, and of the tensors."""
    hashed = blake2b(json.dumps(tree).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hashed.update(tensor.flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def extract_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree in a form that JSON can hold; each tensor is moved to `tensors` and replaced by its name."""
    if isinstance(node, Tensor):
        name = str(len(tensors))
        # A contiguous copy: safetensors refuses tensors that share memory or are strided.
        tensors[name] = node.detach().contiguous().to("cpu", copy=True)
        if node.dtype == torch.float32 and torch.equal(half := tensors[name].half(), tensors[name]):
            tensors[name] = half  # nothing is lost: such are pretrained weights that are not trained
            return {"half": name}
        return {"tensor": name}
    if isinstance(node, Mapping):  # as pairs, since an optimizer's state has numbers for keys
        return {"dict": [[key, extract_tensors(value, tensors)] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        return [extract_tensors(value, tensors) for value in node]
    return node


def restore_tensors(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `extract_tensors`; tuples have become lists."""
    if isinstance(node, dict) and "tensor" in node:
        return tensors[node["tensor"]]
    if isinstance(node, dict) and "half" in node:
        return tensors[node["half"]].float()
    if isinstance(node, dict):
        return {key: restore_tensors(value, tensors) for key, value in node["dict"]}
    if isinstance(node, list):
        return [restore_tensors(value, tensors) for value in node]
    return node
