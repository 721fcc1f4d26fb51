"""Digests of small runs, bit by bit: every learner under every protocol, on the CPU with one thread.

    python tests/digests/compute.py                 # prints them
    python tests/digests/compute.py --write         # records them for test_digests.py, after a change of results
    python tests/digests/compute.py --against REV   # compares with those of another commit, on this machine

A refactoring must leave them as they are. Bits depend on the processor and on the version of torch: the record names
both.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("digests.json")
METRICS = ("ACC", "FM", "LA", "BWT")  # later ones are left out, so that digests stay comparable
ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "encoder": {"width": 4},
    "replay_size": 4,
    "candidates": 6,
    "embedding_size": 8,
    "slow": {"batch_size": 6, "rounds": 1, "momentum": 0.9},
    "memory": {"slots_per_class": 3},
}
PROTOCOLS = ("task_aware", "task_free", "task_free_boundaries")
LEARNERS = ("dualnet", "er", "er_ace", "finetune", "derpp", "mir", "offline", "ctn")
VARIANTS: dict[str, dict[str, Any]] = {
    **{
        f"dualnet/{name}": {"learner": {"name": "dualnet", "slow": {"objective": name}}}
        for name in ("simclr", "simsiam", "vicreg", "byol", "classification")
    },
    "dualnet/sgd": {"learner": {"name": "dualnet", "slow": {"optimizer": "sgd", "statistics": "keep"}}},
    "dualnet/adapter_norm": {"learner": {"name": "dualnet", "adapter_norm": "pixel"}},
    "dualnet/late_labels": {"learner": {"name": "dualnet"}, "labels": {"share": 0.5, "delay": 1, "delay_spread": 1}},
    "dualnet/few_labels": {
        "learner": {"name": "dualnet", "slow": {"source": "memory_and_batch"}},
        "labels": {"share": 0.5, "drawn_per": "batch"},
    },
    **{f"{name}/views": {"learner": {"name": name, "augment": "views"}} for name in ("er", "derpp", "ctn", "mir")},
    **{
        f"{name}/joint": {"learner": {"name": name, "joint_statistics": True}, "labels": {"share": 0.6}}
        for name in ("er", "derpp", "ctn", "mir", "dualnet")
    },
    "ctn/authors": {
        "learner": {
            "name": "ctn",
            "batch_pass": "outer",
            "soft_labels": {"statistics": "batch"},
            "memory": {"replay": "all"},
        },
        "precision": "bf16",
    },
    "ctn/second_task": {
        "learner": {
            "name": "ctn",
            "batch_pass": "outer",
            "soft_labels": {"statistics": "train"},
            "memory": {"replay_from": "second_task"},
        }
    },
    "dualnet/preset_authors": {"learner": {"name": "dualnet", "preset": "authors"}},
    "dualnet/preset_paper": {"learner": {"name": "dualnet", "preset": "paper"}},
    "er/random_crop": {"learner": {"name": "er", "augment": "random_crop"}},
    "er/crop": {"learner": {"name": "er", "augment": "crop"}},
    "er/bf16": {"learner": {"name": "er"}, "precision": "bf16"},
    "dualnet/bf16": {"learner": {"name": "dualnet"}, "precision": "bf16"},
}


def experiments() -> dict[str, dict[str, Any]]:
    """Options by name; those that a learner lacks are left out later."""
    cases = {
        f"{name}/{protocol}": {"learner": {"name": name}, "protocol": protocol}
        for name in LEARNERS
        for protocol in PROTOCOLS
        if name != "ctn" or protocol == "task_aware"
    }
    return {**cases, **VARIANTS}


def digests(folder: Path, names: list[str] | None = None) -> dict[str, str]:
    chosen = {name: options for name, options in experiments().items() if names is None or name in names}
    return {name: digest_of_run(name, options, folder / name.replace("/", "-")) for name, options in chosen.items()}


def digest_of_run(name: str, options: dict[str, Any], folder: Path) -> str:
    import torch

    from dualnet.experiments import runner, saved_learner
    from dualnet.experiments.experiment import parse
    from dualnet.learners import learner_class
    from dualnet.memory import Memory
    from dualnet.models.model import load
    from dualnet.options import merge

    known = learner_class(options["learner"]["name"]).Config.__dataclass_fields__
    small = {key: value for key, value in SMALL.items() if key in known}
    if options.get("protocol") == "task_free" and options["learner"]["name"] == "dualnet":
        small["soft_labels"] = {"when": "insertion"}
    base = {
        "name": "digest",
        "benchmark": {
            "name": "procedural",
            "num_tasks": 2,
            "classes_per_task": 2,
            "train_per_class": 8,
            "test_per_class": 3,
            "image_size": 28,
        },
        "learner": small,
        "batch_size": 5,
        "log_every": 3,
    }
    torch.set_num_threads(1)
    runner.run({folder: parse(merge(base, options))}, torch.device("cpu"))
    result = json.loads((folder / "result.json").read_text())
    learner = load(folder).learner
    state = {key: value for key, value in saved_learner.state_of(learner).items() if key != "device"}
    for name, memory in learner.named_modules():  # with all slots: a state has only those that are filled
        if isinstance(memory, Memory):
            state["learner"] |= memory.named_buffers(prefix=name)
    hashed = hashlib.blake2b(digest_size=12)
    kept = {key: result[key] for key in ("accuracy", "metrics", "steps", "cost")}
    kept["metrics"] = {name: kept["metrics"][name] for name in METRICS}
    hashed.update(json.dumps([result["steps"], kept], sort_keys=True).encode())
    add(hashed, state)
    return hashed.hexdigest()


def add(hashed: Any, node: Any) -> None:
    from torch import Tensor

    if isinstance(node, dict):
        for key in sorted(node, key=str):
            hashed.update(f"<{key}>".encode())
            add(hashed, node[key])
    elif isinstance(node, (list, tuple)):
        for value in node:
            add(hashed, value)
    elif isinstance(node, Tensor):
        hashed.update(
            f"{node.dtype}{list(node.shape)}".encode() + node.detach().contiguous().view(-1).numpy().tobytes()
        )
    else:
        hashed.update(repr(node).encode())


def machine() -> str:
    import torch

    from dualnet.machine import cpu_name

    return f"{cpu_name()}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def compute(root: Path) -> dict[str, str]:
    """In a process of its own, with the package of a checkout."""
    code = "import sys, json; sys.path.insert(0, sys.argv[1]); import compute; print(json.dumps(compute.here()))"
    env = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    return json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)


def at_commit(revision: str) -> dict[str, str]:
    """Those of another commit, by the script and the package that it has."""
    with tempfile.TemporaryDirectory() as folder:
        archive = git("archive", revision, "src", "tests/digests")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        script, env = Path(folder, "tests/digests/compute.py"), os.environ | {"PYTHONPATH": f"{folder}/src"}
        done = subprocess.run([sys.executable, script], env=env, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)


def base_revision() -> str | None:
    """Where this branch left the main one; on the main branch its parent. None without a git history."""
    for *command, other in (
        ["merge-base", "HEAD", "origin/main"],
        ["merge-base", "HEAD", "main"],
        ["rev-parse", "HEAD~1"],
    ):
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            if (revision := git(*command, other).strip()) != git("rev-parse", "HEAD").strip():
                return revision.decode()
    return None


def git(*words: str) -> bytes:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


def compare(ours: dict[str, str], theirs: dict[str, str]) -> int:
    """Prints what differs; 1 if anything does."""
    different = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    print(f"{len(ours.keys() & theirs.keys()) - len(different)} equal, {len(different)} different {different}")
    return 1 if different else 0


def here() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        return digests(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--against", metavar="REV")
    arguments = parser.parse_args()
    digests = compute(ROOT)
    if arguments.against:
        sys.exit(compare(digests, at_commit(arguments.against)))
    if arguments.write:
        RECORD.write_text(json.dumps({"machine": machine(), "digests": digests}, indent=1) + "\n")
    print(json.dumps(digests, indent=1))


if __name__ == "__main__":
    main()
