"""Checkpoints: a tree of tensors and plain values as safetensors and JSON, with a digest. No pickle."""

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
from dualnet.files import READ_ERRORS, describe_file_error, read_bytes, read_json

KEPT = 2  # checkpoints: if the newest is damaged, the previous one is used
MAX_TENSOR_BYTES = 1 << 40
ANY_RUN: Mapping[str, Any] = {}  # the identity of a run is not checked

Snapshot = tuple[Any, dict[str, Tensor]]  # values for JSON, with names in place of tensors, and the tensors by name


def snapshot(tree: Mapping[str, Any]) -> Snapshot:
    """A copy of the tree on the host, which can be written while the run continues."""
    tensors: dict[str, Tensor] = {}
    return extract_tensors(tree, tensors), tensors


def write(folder: Path, step: int, taken: Snapshot, identity: Mapping[str, Any] = ANY_RUN) -> None:
    """Write the checkpoint of a step, then delete those that are no longer needed.

    The JSON file is written last and holds the digest of both files: without it there is no checkpoint. `identity`
    says which run it belongs to: `load` refuses a file of another run, or of another step under this name.
    """
    folder.mkdir(exist_ok=True)
    values, tensors = taken
    data = safetensors.torch.save(tensors)
    value_file, tensor_file = files_of(folder, step)
    atomic.write(tensor_file, data)
    run = {**identity, "step": step}
    content = {"digest": digest(data, values, run), "run": run, "tree": values}
    atomic.write(value_file, json.dumps(content))
    existing = steps(folder)
    # Checkpoints of later steps are deleted too: they were damaged when the run resumed from an earlier one.
    for old in set(existing) - set([other for other in existing if other <= step][-KEPT:]):
        for file in files_of(folder, old):
            file.unlink(missing_ok=True)


def load(folder: Path, step: int, identity: Mapping[str, Any] = ANY_RUN) -> dict[str, Any]:
    """The tree of a step. Raises ValueError, one line, if it is damaged or belongs to another run."""
    file, tensor_file = files_of(folder, step)
    try:
        content = read_json(file, relaxed=True)
        data = read_bytes(tensor_file, MAX_TENSOR_BYTES)
        run = content.get("run")  # a checkpoint of an older version has none
        if digest(data, content["tree"], run) != content["digest"]:
            raise ValueError("its content does not match its digest")
        for key, value in {**identity, "step": step}.items():
            if run is not None and run.get(key, value) != value:
                raise ValueError(f"it belongs to another run or step: its {key} is {run[key]}, not {value}")
        return restore_tensors(content["tree"], safetensors.torch.load(data))
    except (*READ_ERRORS, safetensors.SafetensorError) as error:
        raise ValueError(f"damaged checkpoint {describe_file_error(file, error)}") from error


def newest(folder: Path, identity: Mapping[str, Any] = ANY_RUN) -> tuple[int, dict[str, Any]] | None:
    """Step and tree of the newest checkpoint that can be used. Damaged ones are skipped with one warning."""
    found, skipped = None, []
    for step in reversed(steps(folder)):
        try:
            found = step, load(folder, step, identity)
            break
        except ValueError as error:
            skipped.append(error)
    if skipped:
        instead = "there is no previous one" if found is None else "the previous one is used"
        warnings.warn("; ".join([*map(str, skipped), instead]), stacklevel=2)
    return found


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    found = (re.fullmatch(r"step-(\d+)\.json", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in found if match)


def clean(folder: Path) -> None:
    """Delete what a killed process left behind: temporary files, and tensors without their JSON file."""
    atomic.remove_temporary(folder)
    for path in folder.glob("step-*.safetensors"):
        if not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)


def files_of(folder: Path, step: int) -> tuple[Path, Path]:
    """The file of the values and that of the tensors."""
    return folder / f"step-{step:08d}.json", folder / f"step-{step:08d}.safetensors"


def digest(data: bytes, values: Any, run: Any) -> str:
    """Digest of the tensors as stored, and of the rest as `json.dumps` writes it, which survives a round trip."""
    hashed = blake2b(data, digest_size=16)
    hashed.update(json.dumps(values).encode())
    if run is not None:
        hashed.update(json.dumps(run, sort_keys=True).encode())
    return hashed.hexdigest()


def extract_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree in a form that JSON can hold; each tensor is moved to `tensors` and replaced by its name."""
    if isinstance(node, Tensor):
        name = str(len(tensors))
        # A contiguous copy: safetensors refuses tensors that share memory or are strided.
        tensors[name] = node.detach().contiguous().to("cpu", copy=True)
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
    if isinstance(node, dict):
        return {key: restore_tensors(value, tensors) for key, value in node["dict"]}
    if isinstance(node, list):
        return [restore_tensors(value, tensors) for value in node]
    return node
