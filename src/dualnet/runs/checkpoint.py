"""Checkpoints: a tree of tensors and plain values as safetensors and JSON, bound to its run by a digest. No pickle."""

import json
import re
import warnings
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from dualnet import atomic
from dualnet.files import DAMAGES, because, read_bytes, read_json

KEPT = 2  # checkpoints: if the newest is damaged, the one before it is used
LARGEST = 1 << 40  # bytes
UNKNOWN: Mapping[str, Any] = {}  # identity of a run that does not matter

Snapshot = tuple[Any, dict[str, Tensor]]  # values for JSON, where a tensor is named, and the tensors, on the host


def snapshot(tree: Mapping[str, Any]) -> Snapshot:
    """A copy of the tree, to be written while the run continues."""
    tensors: dict[str, Tensor] = {}
    return take_out_tensors(tree, tensors), tensors


def write(folder: Path, step: int, taken: Snapshot, identity: Mapping[str, Any] = UNKNOWN) -> None:
    """Write the checkpoint of a step, then delete those that are no longer needed.

    The JSON file is written last and holds the digest of everything: without it there is no checkpoint. `identity`
    says of which run it is: a file of another run, or of another step under this one's name, is refused.
    """
    folder.mkdir(exist_ok=True)
    values, tensors = taken
    data = safetensors.torch.save(tensors)
    value_file, tensor_file = files_of(folder, step)
    atomic.write(tensor_file, data)
    run = {**identity, "step": step}
    content = {"digest": digest(data, values, run), "run": run, "tree": values}
    atomic.write(value_file, json.dumps(content))
    there = steps(folder)
    # A later step than this one was passed over: it must not outlive a good one.
    for old in set(there) - set([other for other in there if other <= step][-KEPT:]):
        for file in files_of(folder, old):
            file.unlink(missing_ok=True)


def load(folder: Path, step: int, identity: Mapping[str, Any] = UNKNOWN) -> dict[str, Any]:
    """The tree of a step. Raises ValueError, one line, if it is damaged or of another run."""
    file, tensor_file = files_of(folder, step)
    try:
        content = read_json(file, relaxed=True)
        data = read_bytes(tensor_file, LARGEST)
        run = content.get("run")  # a checkpoint of an older version has none
        if digest(data, content["tree"], run) != content["digest"]:
            raise ValueError("its content does not match its digest")
        for key, value in {**identity, "step": step}.items():
            if run is not None and run.get(key, value) != value:
                raise ValueError(f"it is of another run or step: its {key} is {run[key]}, not {value}")
        return put_back_tensors(content["tree"], safetensors.torch.load(data))
    except (*DAMAGES, safetensors.SafetensorError) as error:
        raise ValueError(f"damaged checkpoint {because(file, error)}") from error


def newest(folder: Path, identity: Mapping[str, Any] = UNKNOWN) -> tuple[int, dict[str, Any]] | None:
    """Step and tree of the newest checkpoint that can be used. Others are passed over with a warning."""
    there = steps(folder)
    while there:
        step = there.pop()
        try:
            return step, load(folder, step, identity)
        except ValueError as error:
            instead = "the one before it is used" if there else "there is none before it"
            warnings.warn(f"{error}; {instead}", stacklevel=2)
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, or half of one, oldest first."""
    found = (re.fullmatch(r"step-(\d+)\.(json|safetensors)", path.name) for path in folder.glob("step-*"))
    return sorted({int(match[1]) for match in found if match})


def clean(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in folder.glob(f"*{atomic.TEMPORARY}"):
        path.unlink(missing_ok=True)


def files_of(folder: Path, step: int) -> tuple[Path, Path]:
    """Of the values, and of the tensors."""
    return folder / f"step-{step:08d}.json", folder / f"step-{step:08d}.safetensors"


def digest(data: bytes, values: Any, run: Any) -> str:
    """Of the tensors as they are on disk, and of the rest as `json.dumps` writes it, which survives a round trip."""
    hashed = blake2b(data, digest_size=16)
    hashed.update(json.dumps(values).encode())
    if run is not None:
        hashed.update(json.dumps(run, sort_keys=True).encode())
    return hashed.hexdigest()


def take_out_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON can hold it; tensors go into the dict and leave their name."""
    if isinstance(node, Tensor):
        name = str(len(tensors))
        # A copy: safetensors refuses tensors that share memory, and a strided one must be laid out plainly.
        tensors[name] = node.detach().contiguous().to("cpu", copy=True)
        return {"tensor": name}
    if isinstance(node, Mapping):  # as pairs, since an optimizer's state has numbers for keys
        return {"dict": [[key, take_out_tensors(value, tensors)] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        return [take_out_tensors(value, tensors) for value in node]
    return node


def put_back_tensors(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, dict) and "tensor" in node:
        return tensors[node["tensor"]]
    if isinstance(node, dict):
        return {key: put_back_tensors(value, tensors) for key, value in node["dict"]}
    if isinstance(node, list):
        return [put_back_tensors(value, tensors) for value in node]
    return node
